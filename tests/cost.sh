#!/usr/bin/env bash
# Instructions of our own code per 4 KiB command, both protocols, both roles, counted by callgrind in a world
# without sockets: what no other load on the machine changes.
#   cost.sh            compares with tests/cost.txt; fails if a count is more than 3 % above what stands there
#   cost.sh --record   writes tests/cost.txt: for a change that is meant to cost more, or that costs less
#
# Counts hold for one compiler, one C library (it copies the payload) and one valgrind. Where these differ from those
# of the record, the counts are printed and not judged.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
RECORD=$ROOT/tests/cost.txt
DEPTH=16 ROUNDS=48 LIMIT=3

tests/setup.sh capi
quietly build-cost cargo build --locked --release -p blockwire-shard --example shard_cost \
  -p blockwire-multipath --example path_cost

# toolchain: what a count depends on beside the code
toolchain() {
  printf '%s, glibc %s, %s' "$(rustc --version)" "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" "$(valgrind --version)"
}

# count EXAMPLE FUNCTION OPERATION: instructions per command
count() {
  local log=$OUT/cost.log counted
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect="*$2*" \
    "$BUILD/release/examples/$1" "$3" "$DEPTH" "$ROUNDS" >"$log" 2>&1 </dev/null || { cat "$log" >&2; return 1; }
  counted=$(sed -n 's/.*Collected : //p' "$log")
  # Without the function that is counted, for instance because it was inlined, nothing is collected.
  [ "${counted:-0}" -gt 0 ] || { cat "$log" >&2; fail "$1 $3: nothing was counted"; }
  echo $((counted / (DEPTH * ROUNDS)))
}

# counts: a line for each operation
counts() {
  local operation
  for operation in read write nvme-read nvme-write; do
    printf 'target %s %s\n' "$operation" "$(count shard_cost measured_turn "$operation")"
    printf 'initiator %s %s\n' "$operation" "$(count path_cost measured_path_call "$operation")"
  done
}

COUNTS=$(counts)
if [ "${1:-}" = --record ]; then
  {
    echo "# Instructions per 4 KiB command at queue depth $DEPTH; made by tests/cost.sh --record."
    echo "# $(toolchain)"
    echo "$COUNTS"
  } >"$RECORD"
  cat "$RECORD"
  exit
fi

[ -e "$RECORD" ] || fail "$RECORD is missing: make it by tests/cost.sh --record"
recorded=$(sed -n '2s/^# //p' "$RECORD")
judged=yes
[ "$recorded" = "$(toolchain)" ] || judged=no
above=0
while read -r role operation now; do
  was=$(awk -v role="$role" -v operation="$operation" '$1 == role && $2 == operation { print $3 }' "$RECORD")
  [ -n "$was" ] || fail "$RECORD has no line for: $role $operation"
  say "$(awk -v name="$role $operation" -v now="$now" -v was="$was" \
    'BEGIN { printf "%-22s %6d instructions per command, %+.1f %%", name, now, (now - was) * 100 / was }')"
  # No difference is lost to rounding: now / was > 1 + LIMIT / 100
  if [ $((now * 100)) -gt $((was * (100 + LIMIT))) ]; then above=$((above + 1)); fi
done <<<"$COUNTS"
if [ "$judged" = no ]; then
  say "recorded by $recorded, counted by $(toolchain): not judged"
elif [ "$above" -gt 0 ]; then
  fail "$above of the counts are more than $LIMIT % above tests/cost.txt; if that is meant: tests/cost.sh --record"
fi
