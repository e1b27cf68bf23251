#!/usr/bin/env bash
# Builds Blockwire, serves a volume in memory and one in a file, proves them with real clients and
# measures a short load of 4 KiB requests. `make run` runs this.
#   run.sh [-t TARGET]
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
TARGET=blockwire
while getopts t: opt; do
  case $opt in
  t) TARGET=$OPTARG ;;
  *) exit 2 ;;
  esac
done
SECONDS_EACH=3
MIB=32
tests/setup.sh clients
if [ "$TARGET" = blockwire ]; then
  tests/setup.sh build
  begin=$(now)
  quietly build-release release_build
  say "built in $(since "$begin") s"
fi
IO=${IO:-auto}
use_target "$TARGET"
DIR=$OUT/run-$TARGET
gone "$DIR"
mkdir -p "$DIR"

# prove KIND: random bytes go there and come back the same, by sha256
prove() {
  local unit sum
  unit=$(url "$1")
  head -c "${MIB}M" /dev/urandom >"$DIR/out"
  sum=$(sha256sum <"$DIR/out")
  qemu-img convert -n -f raw -O raw "$DIR/out" "$unit"
  qemu-img dd -f raw -O raw bs=1M count="$MIB" "if=$unit" "of=$DIR/in" >/dev/null
  [ "$(sha256sum <"$DIR/in")" = "$sum" ] || fail "$1: what was read is not what was written"
  say "$1: $MIB MiB written, read back, sha256 ${sum:0:16}... agrees"
  rm -f "$DIR/out" "$DIR/in"
}

# row NAME DEPTH OPERATIONS MICROSECONDS CPU-TICKS
row() {
  awk -v name="$1" -v depth="$2" -v ops="$3" -v us="$4" -v ticks="$5" -v hz="$(getconf CLK_TCK)" 'BEGIN {
    iops = ops * 1e6 / us
    printf "| %-26s | %5d | %8.0f | %7.1f | %10.1f | %9.1f | %9.2f |\n", name, depth, iops,
      iops * 4096 / 1e6, depth * 1e6 / iops, ticks / hz * 1e8 / us, ticks / hz * 1e6 / ops }'
}

# read_load NAME KIND DEPTH: random reads for a while
read_load() {
  local ticks begin time said
  ticks=$(server_cpu "$TARGET_PID")
  begin=$(now)
  said=$(iscsi-perf -m "$3" -b 8 -t "$SECONDS_EACH" -r "$(url "$2")" 2>&1 </dev/null | tr '\r' '\n' |
    sed -n 's/^iops average \([0-9]*\).*/\1/p' | tail -n 1)
  time=$(($(now) - begin))
  [ "${said:-0}" -gt 0 ] || fail "iscsi-perf got nowhere"
  row "$1" "$3" $((said * time / 1000000)) "$time" $(($(server_cpu "$TARGET_PID") - ticks))
}

# write_load NAME KIND DEPTH COUNT: sequential writes
write_load() {
  local ticks time
  ticks=$(server_cpu "$TARGET_PID")
  time=$(qemu-img bench -w -f raw -t none -c "$4" -d "$3" -s 4096 "$(url "$2")" 2>&1 </dev/null |
    sed -n 's/^Run completed in \([0-9.]*\) seconds.*/\1/p' | awk '{ printf "%d", $1 * 1e6 }')
  [ "${time:-0}" -gt 0 ] || fail "qemu-img bench got nowhere"
  row "$1" "$3" "$4" "$time" $(($(server_cpu "$TARGET_PID") - ticks))
}

target_start "$DIR"
say "serving on 127.0.0.1:$PORT, process $TARGET_PID"
quietly iscsi-ls iscsi-ls --show-luns "iscsi://127.0.0.1:$PORT/"
prove thin
prove disk
say "
4 KiB requests over loopback; iscsi-perf reads at random, qemu-img bench writes in sequence.

| load                       | depth |     IOPS |    MB/s | latency µs | server CPU % | CPU µs/IO |
|----------------------------|-------|----------|---------|------------|-----------|-----------|"
read_load "memory, random read" thin 1
read_load "memory, random read" thin 32
write_load "memory, sequential write" thin 1 10000
write_load "memory, sequential write" thin 32 100000
read_load "file, random read" disk 32
write_load "file, sequential write" disk 32 50000
say "
No figure here was taken on a network card."
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
rm -f "$DIR"/*.img
if [ "$TARGET" = blockwire ]; then
  say "
A first report: both protocols, our target and our initiator (about a minute)."
  "$BUILD/release/blockwire" eval run quick --out "$DIR/quick" | sed -n '/^Report: /p'
  say "More experiments: blockwire eval list"
fi
