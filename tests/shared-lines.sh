#!/usr/bin/env bash
# Cache lines that two shards write for the same work: each of two shards of one target serves a client of its own on
# one volume, in turns, and a trace of all stores (valgrind's lackey) shows to which lines both store in every turn.
# On two processors each such line would go to and fro for every command, and a second core would serve less than the
# first. There must be none.
#   shared-lines.sh            all operations
#   shared-lines.sh OPERATION  one: read, write, nvme-read or nvme-write
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
DEPTH=16 ROUNDS=8

tests/setup.sh capi
quietly build-shared-lines cargo build --locked --release -p blockwire-shard --example shared_lines

# lines OPERATION: stores of each shard within its turns, and for each line that both store to in at least half of
# their rounds how often they do
lines() {
  valgrind --tool=lackey --trace-mem=yes --basic-counts=no --log-fd=9 \
    "$BUILD/release/examples/shared_lines" "$1" "$DEPTH" "$ROUNDS" 2>/dev/null 9>&1 </dev/null |
    grep -a -E '^(markers | [SM] |[0-9]+ of )' |
    awk -v rounds="$ROUNDS" '
      # A line has 64 bytes: all digits of an address but the last two, and which quarter of 256 bytes.
      function line_of(address) {
        return substr(address, 1, length(address) - 2) sprintf("%d", index("0123456789abcdef", substr(address, length(address) - 1, 1)) / 4 - 0.25)
      }
      $1 == "markers" { for (i = 2; i <= 4; i++) { a = $i; while (length(a) < 8) a = "0" a; marker[a] = i - 1 }; next }
      / of / { done = 1; next }
      {
        split($2, part, ","); address = part[1]
        if (address in marker) { shard = marker[address]; if (shard == 3) shard = 0; else turns[shard]++; next }
        if (!shard) next
        stores[shard]++
        count[shard, line_of(address)]++
      }
      END {
        if (!done) { print "failed: the shards did not finish"; exit 1 }
        printf "stores %d %d turns %d %d\n", stores[1], stores[2], turns[1], turns[2]
        for (key in count) {
          split(key, part, SUBSEP)
          if (part[1] == 1 && count[2, part[2]] >= rounds / 2 && count[key] >= rounds / 2)
            printf "line %s %d %d\n", part[2], count[key], count[2, part[2]]
        }
      }'
}

wrong=0
for operation in ${1:-read write nvme-read nvme-write}; do
  said=$(lines "$operation") || fail "$operation: $said"
  # Of nothing that was traced nothing would be shared.
  read -r _ first second _ turns_first turns_second <<<"$(grep '^stores ' <<<"$said")"
  least=$((ROUNDS * DEPTH * 20))
  if [ "$first" -lt "$least" ] || [ "$second" -lt "$least" ] || [ "$turns_first" -lt "$ROUNDS" ] ||
    [ "$turns_second" -lt "$ROUNDS" ]; then
    fail "$operation: the trace is not whole: $said"
  fi
  shared=$(grep -c '^line ' <<<"$said" || true)
  say "$operation: $first and $second stores by two shards in $ROUNDS rounds of $DEPTH commands; lines that both write in every round: $shared"
  if [ "$shared" -gt 0 ]; then
    grep '^line ' <<<"$said" | head -20
    wrong=$((wrong + shared))
  fi
done
[ "$wrong" -eq 0 ] || fail "two shards write $wrong cache lines for every command or so"
