# Each line names the values of one thing, between blanks. Prints sets with one value of each line, joined by
# "&", so that every two values of two lines stand together in at least one set: a fault that takes two
# settings is met without trying every combination.
{
  count[NR] = NF
  for (i = 1; i <= NF; i++) value[NR, i] = $i
}

# key A I B J: a pair by one name, whichever of the two lines comes first
function key(a, i, b, j) { return a < b ? a "," i "," b "," j : b "," j "," a "," i }

# best F: the value of line F that makes the most open pairs with what is chosen; of several the least used
function best(f,   i, g, gain, most, pick) {
  most = -1
  for (i = 1; i <= count[f]; i++) {
    gain = 0
    for (g = 1; g <= NR; g++) if (chosen[g] && (key(f, i, g, chosen[g]) in open)) gain++
    if (gain > most || gain == most && used[f, i] < used[f, pick]) { most = gain; pick = i }
  }
  return pick
}

END {
  for (a = 1; a < NR; a++)
    for (b = a + 1; b <= NR; b++)
      for (i = 1; i <= count[a]; i++)
        for (j = 1; j <= count[b]; j++) { open[key(a, i, b, j)] = 1; order[++total] = a " " i " " b " " j }
  for (at = 1; at <= total; at++) {
    split(order[at], pair, " ")
    if (!(key(pair[1], pair[2], pair[3], pair[4]) in open)) continue
    for (f = 1; f <= NR; f++) chosen[f] = 0
    chosen[pair[1]] = pair[2]
    chosen[pair[3]] = pair[4]
    for (f = 1; f <= NR; f++) if (!chosen[f]) chosen[f] = best(f)
    set = ""
    for (f = 1; f <= NR; f++) {
      set = set (f > 1 ? "&" : "") value[f, chosen[f]]
      used[f, chosen[f]]++
      for (g = 1; g < f; g++) delete open[key(f, chosen[f], g, chosen[g])]
    }
    print set
  }
}
