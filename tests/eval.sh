#!/usr/bin/env bash
# Runs the experiments of `blockwire eval`.
#   eval.sh smallest       each for seconds: whether it works (part of `make test`)
#   eval.sh auto [NAME...] what fits this machine, with every target and initiator that is installed; reports
#                          go to docs/eval (`make eval`). TIME: seconds for each, all included, 120 unless said.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
tests/setup.sh build eval
quietly build-release release_build
BLOCKWIRE=$BUILD/release/blockwire
DIR=$OUT/eval
gone "$DIR"
mkdir -p "$DIR"

# points RECORD: how many points it has, each with a run; an I/O that failed is an error
points() {
  python3 - "$1" <<'PY'
import json, sys
record = json.load(open(sys.argv[1]))
for point in record["points"]:
    for run in point["runs"]:
        assert run["ios"] > 0 and run["errors"] == 0, point
print(len(record["points"]))
PY
}

# loads RECORD: its loads in their order, with rounds and seeds
loads() {
  python3 - "$1" <<'PY'
import json, sys
for point in json.load(open(sys.argv[1]))["points"]:
    names = [point[name] for name in ("target", "initiator", "protocol", "rw", "bytes", "depth", "connections")]
    print(*names, [(run["round"], run["seed"]) for run in point["runs"]])
PY
}

smallest() {
  local preset begin kinds="quick t6-100g-sweep demartek-vdbench connections unified-wire windows-100g"
  kinds+=" nvme-tcp-iops nvme-tcp-latency nvme-tcp-jitter protocol-efficiency latency-load core-scaling"
  for preset in $kinds; do
    begin=$(now)
    quietly "eval-$preset" "$BLOCKWIRE" eval run "$preset" --scale smallest --out "$DIR/$preset"
    say "$preset: $(points "$DIR/$preset/record.json") points in $(since "$begin") s"
  done
  # Again by its plan: the same loads in the same order, with the same seeds.
  begin=$(now)
  quietly eval-again "$BLOCKWIRE" eval run quick --plan "$DIR/quick/plan.json" --out "$DIR/again"
  cmp "$DIR/quick/plan.json" "$DIR/again/plan.json" || fail "a plan was not repeated"
  loads "$DIR/quick/record.json" >"$DIR/quick/loads"
  loads "$DIR/again/record.json" | cmp - "$DIR/quick/loads" || fail "the loads of a plan were not repeated"
  say "quick again: $(points "$DIR/again/record.json") points in $(since "$begin") s"
  # Systems that we did not write, beside ours; what is not installed is named, not hidden.
  begin=$(now)
  quietly eval-systems "$BLOCKWIRE" eval run quick --scale smallest --out "$DIR/systems" \
    --target blockwire,tgt,istgt --initiator blockwire,libiscsi,fio
  for system in tgt istgt libiscsi fio; do
    grep -q "\"$system\"" "$DIR/systems/record.json" || fail "$system was not measured: $(cat "$OUT/eval-systems.log")"
  done
  say "systems: $(points "$DIR/systems/record.json") points in $(since "$begin") s"
}

# auto NAME ARGUMENTS...: one experiment into docs/eval
auto() {
  local preset=$1
  shift
  say "$preset:"
  "$BLOCKWIRE" eval run "$preset" --scale auto --time "${TIME:-120}" --out "$DIR/$preset" "$@" >"$DIR/$preset.md"
  mkdir -p "docs/eval/$preset"
  # Commands as anybody would type them: without this machine's directories.
  local name
  for name in report.md record.json; do
    sed -e "s#$BUILD/release/##g" -e "s#${SPDK_DIR:-/nowhere}#SPDK#g" -e "s#$DIR/#eval/#g" \
      -e "s#$OUT/guest-kernel/root/#guest-kernel/#g" -e "s#$ROOT/##g" \
      "$DIR/$preset/$name" >"docs/eval/$preset/$name"
  done
}

all() {
  local chosen=("$@") name
  wanted() { [ ${#chosen[@]} = 0 ] || printf '%s\n' "${chosen[@]}" | grep -qx "$1"; }
  local software=blockwire,tgt,istgt,spdk-iscsi both=blockwire,spdk-nvmf
  for name in quick t6-100g-sweep demartek-vdbench demartek-oltp connections unified-wire t5-vm windows-100g \
    nvme-tcp-iops nvme-tcp-latency nvme-tcp-jitter protocol-efficiency latency-load core-scaling mixes; do
    wanted "$name" || continue
    case $name in
    quick) auto quick --target "$software,spdk-nvmf" --initiator blockwire,libiscsi,spdk ;;
    t6-100g-sweep) auto "$name" --target blockwire,tgt ;;
    demartek-vdbench) auto "$name" --target blockwire,tgt --initiator blockwire,libiscsi ;;
    demartek-oltp)
      tests/setup.sh attach database experiments
      auto "$name" --target blockwire,tgt
      ;;
    t5-vm)
      tests/setup.sh guest experiments
      tests/guest/image.sh "$OUT/guest-image"
      BLOCKWIRE_KERNEL=$OUT/guest-kernel/root auto "$name" --target blockwire,tgt
      ;;
    windows-100g) auto "$name" --target blockwire,tgt ;;
    nvme-tcp-latency) auto "$name" --target "$both" --initiator blockwire,blockwire-polling ;;
    nvme-tcp-*) auto "$name" --target "$both" ;;
    protocol-efficiency | latency-load) auto "$name" --target "$software,spdk-nvmf" ;;
    *) auto "$name" ;;
    esac
  done
}

case ${1:-} in
smallest) smallest ;;
auto) shift; all "$@" ;;
*) say "usage: eval.sh smallest | auto [NAME...]"; exit 2 ;;
esac
