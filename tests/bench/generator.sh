#!/usr/bin/env bash
# Holds our load generator against fio on the same attached device, and what it says of its processor
# time against pidstat: generator.sh [-r ROUNDS] [-s SECONDS]
# Both drive a loop device over a volume in memory, in turn, round by round; medians are printed. Loads on
#   open   the device as it is: what a generator takes for an I/O is part of what is measured. fio asks the
#          kernel once for each I/O; ours hands over together what has ended together
#   batch  the same, and fio hands over together, too (iodepth_batch_submit, iodepth_batch_complete_min and _max)
#   slow   the device behind a link of 200 Mb/s, slower than either generator: they measure the same thing
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

ROUNDS=5 SECONDS_EACH=5
while getopts r:s: option; do
  case $option in
  r) ROUNDS=$OPTARG ;;
  s) SECONDS_EACH=$OPTARG ;;
  *) fail "usage: generator.sh [-r ROUNDS] [-s SECONDS, at least 3]" ;;
  esac
done
[ "$SECONDS_EACH" -ge 3 ] || fail "-s: at least 3 seconds, since pidstat looks at all but one of them"
[ "$(nproc)" -ge 2 ] || fail "two cores are needed: one for the device, one for the generators"
[ "$(id -u)" = 0 ] || fail "loop devices and network namespaces take root"
"$ROOT/tests/setup.sh" build attach generator
cd "$ROOT"
if [ -z "${BLOCKWIRE:-}" ]; then
  quietly generator-build release_build
  BLOCKWIRE=$BUILD/release/blockwire
fi
export LC_ALL=C
WORK=$OUT/generator
gone "$WORK"
mkdir -p "$WORK"

# started NAME LINE COMMAND...: starts it on the device's core and waits for the line that says it is ready
started() {
  local name=$1 line=$2; shift 2
  taskset -c 0 "$@" >"$WORK/$name" 2>"$WORK/$name.err" </dev/null &
  ended_at_exit $!
  wait_until 30 grep -qx "$line" "$WORK/$name" || { cat "$WORK/$name.err" >&2; fail "$name does not come up"; }
}

# device NAME HOST ENVIRONMENT...: a loop device over a volume in memory; the target runs in that environment
device() {
  local name=$1 host=$2 port; shift 2
  started "serve-$name" ready "$@" "$BLOCKWIRE" serve --volume disk=ram:256M --iscsi "$host:0" --allow-anonymous \
    --state "$WORK/state-$name" --control "$WORK/$name.sock"
  port=$(sed -n 's/^listening iscsi .*://p' "$WORK/serve-$name")
  started "attach-$name" ready "$BLOCKWIRE" attach "iscsi://$host:$port/iqn.2026-11.io.blockwire:disk/0" \
    --via fuse --at "$WORK/mount-$name"
  sed -n 's/^device //p' "$WORK/attach-$name" >"$WORK/device-$name"
  [ -s "$WORK/device-$name" ] || fail "no loop device was made: $(cat "$WORK/attach-$name.err")"
  "$BLOCKWIRE" bench "$(cat "$WORK/device-$name")" --rw=write --bs=128k --iodepth=8 --size=100% >/dev/null
}

# A link whose queues hold more than is ever in flight, so that nothing is dropped and sent again.
SPACE=bwgen$$
trap 'end_all; ip netns del $SPACE 2>/dev/null || true' EXIT
ip netns add "$SPACE"
ip link add "$SPACE-a" type veth peer name eth0 netns "$SPACE"
ip addr add 10.79.0.1/30 dev "$SPACE-a"
ip link set "$SPACE-a" up
ip -n "$SPACE" addr add 10.79.0.2/30 dev eth0
ip -n "$SPACE" link set eth0 up
device open 127.0.0.1 env
device slow 10.79.0.2 ip netns exec "$SPACE"
tc qdisc add dev "$SPACE-a" root tbf rate 200mbit burst 128kb limit 16mb
tc -n "$SPACE" qdisc add dev eth0 root tbf rate 200mbit burst 128kb limit 16mb

# ours KIND RW BS DEPTH: IOPS, mean latency in us, our own figure of processor time and pidstat's, in % of a core
ours() {
  local pid on
  on=$(on "$1")
  taskset -c 1 "$BLOCKWIRE" bench "$on" "--rw=$2" "--bs=$3" "--iodepth=$4" --norandommap --time_based \
    --ramp_time=1 "--runtime=$SECONDS_EACH" --events >"$WORK/ours" 2>"$WORK/events" &
  pid=$!
  wait_until 20 grep -q begin "$WORK/events" || { cat "$WORK/events" >&2; fail "bench does not begin"; }
  # The first second and the last are not pidstat's: it is to see nothing of the begin and the end.
  pidstat -u -p "$pid" $((SECONDS_EACH - 1)) 1 >"$WORK/pidstat"
  wait "$pid" || { cat "$WORK/events" >&2; fail "bench has failed"; }
  awk -v seen="$(awk '$1 == "Average:" && $3 ~ /^[0-9]+$/ { print $8 }' "$WORK/pidstat")" \
    '$1 == "bench" { print $3, $5, $NF * $3 / 1e4, seen }' "$WORK/ours"
}

# fios KIND RW BS DEPTH: IOPS, mean latency in us, and what fio says of its processor time, in % of a core
fios() {
  local on batch=()
  on=$(on "$1")
  [ "$1" != batch ] || batch=("--iodepth_batch_submit=$4" --iodepth_batch_complete_min=1 "--iodepth_batch_complete_max=$4")
  taskset -c 1 fio --name=fio "--filename=$on" --ioengine=io_uring --direct=1 --thread "--rw=$2" "--bs=$3" \
    "--iodepth=$4" ${batch[@]+"${batch[@]}"} --norandommap --time_based --ramp_time=1 "--runtime=$SECONDS_EACH" --output-format=terse \
    --terse-version=3 >"$WORK/fio" 2>"$WORK/fio.err" || { cat "$WORK/fio.err" >&2; fail "fio has failed"; }
  # Fields of version 3: IOPS and mean of the total latency, of reads and of writes; processor time.
  awk -F';' '$1 == 3 { print ($8 > 0 ? $8 " " $40 : $49 " " $81), $88 + $89 }' "$WORK/fio"
}

# on KIND: the device of a kind of load
on() { case $1 in slow) cat "$WORK/device-slow" ;; *) cat "$WORK/device-open" ;; esac; }

# median FILE COLUMN
median() {
  awk -v column="$2" '{ print $column }' "$1" | sort -g |
    awk '{ all[NR] = $1 } END { half = int((NR + 1) / 2); print (NR % 2 ? all[half] : (all[half] + all[half + 1]) / 2) }'
}

# agreement OURS THEIRS: how far apart, in %
agreement() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%+.1f %%", (a / b - 1) * 100 }'; }

loads=("open randread 4k 1" "open randread 4k 16" "open randwrite 4k 16" "open read 64k 8"
  "batch randread 4k 16" "batch randwrite 4k 16"
  "slow randread 4k 1" "slow randread 4k 16" "slow randwrite 4k 16" "slow read 64k 8")
for ((round = 1; round <= ROUNDS; round++)); do
  for load in "${loads[@]}"; do
    # shellcheck disable=SC2086
    set -- $load
    # Each goes first in every other round.
    if [ $((round % 2)) = 1 ]; then order=(ours fios); else order=(fios ours); fi
    for tool in "${order[@]}"; do "$tool" "$@" >>"$WORK/$tool-${load// /-}"; done
  done
done

printf '%-24s %10s %10s %9s %10s %10s %9s %8s %9s %9s %8s\n' load "ours IOPS" "fio IOPS" "" "ours us" "fio us" "" \
  "ours CPU" "pidstat" "" "fio CPU"
for load in "${loads[@]}"; do
  a=$WORK/ours-${load// /-} b=$WORK/fios-${load// /-}
  printf '%-24s %10.0f %10.0f %9s %10.1f %10.1f %9s %8.1f %9.1f %9s %8.1f\n' "$load" \
    "$(median "$a" 1)" "$(median "$b" 1)" "$(agreement "$(median "$a" 1)" "$(median "$b" 1)")" \
    "$(median "$a" 2)" "$(median "$b" 2)" "$(agreement "$(median "$a" 2)" "$(median "$b" 2)")" \
    "$(median "$a" 3)" "$(median "$a" 4)" "$(agreement "$(median "$a" 3)" "$(median "$a" 4)")" "$(median "$b" 3)"
done
