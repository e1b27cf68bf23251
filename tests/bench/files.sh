#!/usr/bin/env bash
# Holds volumes on files against fio's own io_uring on the same file: I/Os for each second of processor time, 4 KiB at
# random, 32 in flight, past the page cache (O_DIRECT) and through it: files.sh [-r ROUNDS] [-s SECONDS] [-d DIRECTORY]
# Ours is the daemon's time on core 0, its network included, with the raw generator on core 1 over NVMe/TCP; fio's is
# that of fio on core 0. They take turns, round by round; medians are printed. The file lies in DIRECTORY.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

ROUNDS=5 SECONDS_EACH=5 DIRECTORY=
while getopts r:s:d: option; do
  case $option in
  r) ROUNDS=$OPTARG ;;
  s) SECONDS_EACH=$OPTARG ;;
  d) DIRECTORY=$OPTARG ;;
  *) fail "usage: files.sh [-r ROUNDS] [-s SECONDS] [-d DIRECTORY]" ;;
  esac
done
[ "$(nproc)" -ge 2 ] || fail "two cores are needed: one for the daemon and for fio, one for the generator"
"$ROOT/tests/setup.sh" build files
cd "$ROOT"
quietly files-build release_build -p blockwire-bench
export LC_ALL=C
WORK=$OUT/files
gone "$WORK"
mkdir -p "$WORK"
FILE=$(mktemp "${DIRECTORY:-$WORK}/blockwire-files.XXXXXX")
trap 'end_all; rm -f "$FILE"' EXIT
# Written, so that reads meet blocks of the file system, and not holes.
head -c $((1 << 30)) /dev/urandom >"$FILE"
sync "$FILE"

# ours KIND RW: IOPS, and I/Os for each second of processor time
ours() {
  local options='' dir=$WORK/serve-$1
  [ "$1" = cached ] || options=,direct
  gone "$dir"
  mkdir -p "$dir"
  taskset -c 0 "$BUILD/release/blockwire" serve --volume "bench=file:$FILE$options" --nvme 127.0.0.1:0 --cores 0 \
    --state "$dir/state" --control "$dir/sock" >"$dir/out" 2>"$dir/err" </dev/null &
  local pid=$!
  ended_at_exit "$pid"
  wait_until 30 grep -qx ready "$dir/out" || { cat "$dir/err" >&2; fail "the daemon does not come up"; }
  "$BUILD/release/raw-load" "$(sed -n 's/^listening nvme //p' "$dir/out")" --protocol nvme --op "${2#rand}" --bs 4096 \
    --depth 32 --seconds "$SECONDS_EACH" --warmup 1 --size-mib 1024 --server-pid "$pid" --core 1 --json >"$dir/load"
  end "$pid"
  python3 -c 'import json, sys
f = json.load(open(sys.argv[1]))
print(f["iops"], 1e6 / f["server_cpu_us"])' "$dir/load"
}

# fios KIND RW: the same of fio
fios() {
  local direct=1
  [ "$1" != cached ] || direct=0
  taskset -c 0 fio --name=fio "--filename=$FILE" --ioengine=io_uring "--direct=$direct" "--rw=$2" --bs=4k --iodepth=32 \
    --norandommap --time_based --ramp_time=1 "--runtime=$SECONDS_EACH" --invalidate=0 --output-format=json >"$WORK/fio" \
    2>"$WORK/fio.err" </dev/null || { cat "$WORK/fio.err" >&2; fail "fio has failed"; }
  python3 -c 'import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
iops = job["read"]["iops"] + job["write"]["iops"]
print(iops, iops * 100 / (job["usr_cpu"] + job["sys_cpu"]))' "$WORK/fio"
}

# median FILE COLUMN
median() {
  awk -v column="$2" '{ print $column }' "$1" | sort -g |
    awk '{ all[NR] = $1 } END { half = int((NR + 1) / 2); print (NR % 2 ? all[half] : (all[half] + all[half + 1]) / 2) }'
}

loads=("direct randread" "direct randwrite" "cached randread" "cached randwrite")
for ((round = 1; round <= ROUNDS; round++)); do
  for load in "${loads[@]}"; do
    if [ $((round % 2)) = 1 ]; then order=(ours fios); else order=(fios ours); fi
    for tool in "${order[@]}"; do
      # shellcheck disable=SC2086
      "$tool" $load >>"$WORK/$tool-${load// /-}"
    done
  done
done

printf '%-18s %10s %10s %16s %16s %8s\n' load "our IOPS" "fio IOPS" "ours, I/Os per s" "fio, I/Os per s" ratio
for load in "${loads[@]}"; do
  a=$WORK/ours-${load// /-} b=$WORK/fios-${load// /-}
  printf '%-18s %10.0f %10.0f %16.0f %16.0f %8.2f\n' "$load" "$(median "$a" 1)" "$(median "$b" 1)" "$(median "$a" 2)" \
    "$(median "$b" 2)" "$(awk -v a="$(median "$a" 2)" -v b="$(median "$b" 2)" 'BEGIN { print a / b }')"
done
say "goal: 0.85 of fio's I/Os for each second of processor time"
