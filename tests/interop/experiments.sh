#!/usr/bin/env bash
# The papers' experiments that take a database or a virtual machine, at their smallest scale, from
# installing what they need to the record: every way and every system gives figures.
#   experiments.sh [oltp|machine]...
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
[ $# -gt 0 ] || set -- oltp machine
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
DIR=$OUT/experiments
gone "$DIR"
mkdir -p "$DIR"
[ "$(id -u)" = 0 ] || fail "mounting and namespaces need root"

# experiment PRESET SCALE TARGETS: runs it, and leaves its record
experiment() {
  "$BLOCKWIRE" eval run "$1" --scale "$2" --target "$3" --out "$DIR/$1" >"$DIR/$1.md" 2>"$DIR/$1.log" </dev/null ||
    { tail -n 30 "$DIR/$1.log" >&2; fail "eval run $1"; }
  ! grep -E 'left out: .*(:|ended)|ended early' "$DIR/$1.log" >&2 || fail "$1: a part of it failed"
}

# points PRESET FILTER: how many points of its record the filter of jq keeps
points() { jq "[.points[] | select($2)] | length" "$DIR/$1/record.json"; }

oltp() {
  local target database
  "$ROOT/tests/setup.sh" attach database experiments tgt
  experiment demartek-oltp 0.00002 blockwire,tgt
  for target in blockwire tgt; do
    for database in mariadb postgresql; do
      [ "$(points demartek-oltp ".target == \"$target\" and .work > 0 and .runs[0].ios > 0 and .runs[0].errors == 0 and
        (.labels | any(.[0] == \"database\" and .[1] == \"$database\"))")" = 1 ] ||
        { cat "$DIR/demartek-oltp.log" >&2; fail "$database on $target: no figures"; }
    done
  done
  ! grep -q blockwire- /proc/mounts || fail "a file system is still mounted: $(grep blockwire- /proc/mounts)"
  sed -n '/^## Time to finish/,/^## [^T]/p' "$DIR/demartek-oltp.md" | grep '^| [a-z]' || true
}

machine() {
  local way
  "$ROOT/tests/setup.sh" build guest experiments
  "$ROOT/tests/guest/image.sh" "$OUT/guest-image"
  BLOCKWIRE_KERNEL=$OUT/guest-kernel/root experiment t5-vm 0.01 blockwire
  for way in tcp vhost-user; do
    # Three directions of five sizes.
    [ "$(points t5-vm ".runs[0].ios > 0 and .runs[0].errors == 0 and
      (.labels | any(.[0] == \"path\" and .[1] == \"$way\"))")" = 15 ] ||
      { cat "$DIR/t5-vm.log" >&2; fail "$way: not all loads have figures"; }
  done
  say "t5-vm: 15 loads over TCP and 15 by shared memory"
}

for part; do
  begin=$(now)
  "$part"
  say "$part: ok, $(since "$begin") s"
done
