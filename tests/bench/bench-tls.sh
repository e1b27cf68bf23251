#!/usr/bin/env bash
# What TLS costs: one target, the same loads of our initiator with TLS and without, in interleaved rounds:
#   bench-tls.sh [ROUNDS [SECONDS]]      5 rounds of 5 s of each load
# Target on core 0, initiator on core 1. Prints medians: MB/s, and processor time of either end per I/O.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
ROUNDS=${1:-5}
SECONDS_EACH=${2:-5}

[ "$(nproc)" -ge 2 ] || fail "two cores are needed: one for the target, one for the initiator"
"$ROOT/tests/setup.sh" build
cd "$ROOT"
quietly bench-build release_build
BW=$BUILD/release/blockwire
DIR=$OUT/bench-tls
gone "$DIR"
mkdir -p "$DIR"
PLAIN=$(free_port)
TLS=$(free_port)
HOST=nqn.2026-11.test:bench
"$BW" key generate --kind tls "$DIR/bench.psk" >/dev/null
cat >"$DIR/target.toml" <<TOML
[[volume]]
name = "v"
source = "ram:256M"

[[portal]]
protocol = "nvme"
address = "127.0.0.1:$PLAIN"

[[portal]]
protocol = "nvme"
address = "127.0.0.1:$TLS"
tag = 2
tls = "require"

[[host]]
name = "bench"
nqn = ["$HOST"]
tls_key_file = "bench.psk"
access = [{ subsystem = "*" }]
TOML
"$BW" serve --config "$DIR/target.toml" --state "$DIR/state" --control "$DIR/control.sock" \
  --cores 0 >"$DIR/log" 2>&1 </dev/null &
TARGET=$!
ended_at_exit "$TARGET"
wait_until 20 "$BW" status --control "$DIR/control.sock" || fail "the target does not start: $DIR/log"

SUBSYSTEM=nqn.2026-11.io.blockwire:v
declare -A URLS=(
  [plain]="nvme+tcp://127.0.0.1:$PLAIN/$SUBSYSTEM/1?host_nqn=$HOST"
  [tls]="nvme+tcp://127.0.0.1:$TLS/$SUBSYSTEM/1?host_nqn=$HOST&tls_key_file=$DIR/bench.psk"
)
TICKS=$(getconf CLK_TCK)
# run HOW RW BS DEPTH: a line of figures
run() {
  local before after
  before=$(server_cpu "$TARGET")
  "$BW" bench "${URLS[$1]}" --core 1 --json -- "--rw=$2" "--bs=$3" "--iodepth=$4" \
    "--runtime=$SECONDS_EACH" >"$DIR/result.json" 2>"$DIR/bench.log" </dev/null ||
    fail "the load ended badly: $DIR/bench.log"
  after=$(server_cpu "$TARGET")
  python3 - "$DIR/result.json" "$1 $2 $3 $4" "$(((after - before) * 1000000 / TICKS))" >>"$DIR/rounds" <<'PY'
import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
kinds = [job[kind] for kind in ("read", "write") if kind in job]
ios = sum(kind["ios"] for kind in kinds)
rate = sum(kind["bytes_per_second"] for kind in kinds)
print(sys.argv[2], rate / 1e6, int(sys.argv[3]) / ios, job["cpu_seconds_per_million"])
PY
}
# The memory of the volume is taken by its first writes: not by what is measured.
"$BW" bench "${URLS[plain]}" --core 1 -- --rw=write --bs=1M --iodepth=4 --size=256M >"$DIR/bench.log" 2>&1 </dev/null ||
  fail "the volume cannot be filled: $DIR/bench.log"
for ((round = 0; round < ROUNDS; round++)); do
  for load in "randread 4k 32" "randwrite 4k 32" "randread 128k 8" "randwrite 128k 8"; do
    for how in plain tls; do
      # shellcheck disable=SC2086
      run "$how" $load
    done
  done
done
python3 - "$DIR/rounds" "$ROUNDS" "$SECONDS_EACH" <<'PY'
import statistics, sys
rounds = {}
for line in open(sys.argv[1]):
    how, rw, bs, depth, *figures = line.split()
    rounds.setdefault((rw, bs, depth), {}).setdefault(how, []).append([float(figure) for figure in figures])
print(f"{sys.argv[2]} rounds of {sys.argv[3]} s; medians; processor time in microseconds per I/O")
print(f"{'load':<20} {'':<6} {'MB/s':>8} {'target us':>10} {'initiator us':>13}")
for (rw, bs, depth), ways in rounds.items():
    for how in ("plain", "tls"):
        rate, target, initiator = (statistics.median(column) for column in zip(*ways[how]))
        print(f"{rw + ' ' + bs + ' x' + depth:<20} {how:<6} {rate:>8.0f} {target:>10.1f} {initiator:>13.1f}")
PY
