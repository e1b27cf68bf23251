#!/usr/bin/env bash
# A remote volume attached by FUSE whose holder is killed under load that fio verifies, and recovered: no
# error may reach fio. Then killed for good: I/O fails after the time-out, and not before.
#   recovery.sh [-p iscsi|nvme]
# Where the kernel cannot ask again what was in flight (before Linux 6.9), this is said and nothing is tried.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
PROTOCOL=iscsi
while getopts p: opt; do
  case $opt in
  p) PROTOCOL=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" attach
IO=${IO:-auto}
use_target blockwire
DIR=$OUT/recovery-$PROTOCOL
AT=$DIR/attached
TIMEOUT=4
gone "$DIR"
mkdir -p "$DIR/run"
export RUNTIME_DIRECTORY=$DIR/run
trap '"$BLOCKWIRE" detach "$AT" --now >/dev/null 2>&1 || true; end_all' EXIT

# attach OPTIONS...
attach() {
  local unit
  unit=$(url disk)
  [ "$PROTOCOL" = iscsi ] || unit="nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn disk)/1?keep_alive=1s"
  "$BLOCKWIRE" attach "$unit" "$@" >"$DIR/attach.out" 2>"$DIR/attach.err" </dev/null &
  HOLDER=$!
  ended_at_exit "$HOLDER"
  wait_until 30 grep -qx ready "$DIR/attach.out" || { cat "$DIR"/attach.* >&2; fail "attach does not come up"; }
}
kill_holder() {
  kill -9 "$HOLDER"
  wait "$HOLDER" 2>/dev/null || true
}

target_start "$DIR"
attach --via fuse --at "$AT"
if grep -q '^note .*Linux 6.9' "$DIR/attach.out"; then
  say "not tried: this kernel cannot ask again what was in flight (Linux 6.9 can)"
  exit 0
fi
DISK=$(sed -n 's/^device //p' "$DIR/attach.out")
[ -n "$DISK" ] || DISK=$AT/volume
fio --name=verified --ioengine=libaio --direct=1 --filename="$DISK" --rw=randwrite --bsrange=4k-64k \
  --size=48M --iodepth=16 --rate=,6m --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 \
  --output="$DIR/fio.log" </dev/null &
FIO=$!
ended_at_exit "$FIO"
for round in 1 2; do
  sleep 1.5
  kill_holder
  sleep 1
  kill -0 "$FIO" 2>/dev/null || fail "fio did not wait: $(tail -n 20 "$DIR/fio.log")"
  attach --recover --timeout "$((round == 2 ? TIMEOUT : 120))s"
done
wait "$FIO" || { tail -n 30 "$DIR/fio.log" >&2; fail "an error reached fio"; }
say "$DISK over $PROTOCOL: fio verified, the holder killed and recovered twice in the middle"

begin=$(now)
kill_holder
if dd if="$DISK" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; then fail "a dead attachment was read"; fi
took=$((($(now) - begin) / 1000))
[ "$took" -ge $((TIMEOUT * 1000)) ] || fail "I/O failed after $took ms, before the time-out"
[ "$took" -lt $((TIMEOUT * 1000 + 10000)) ] || fail "I/O failed after $took ms only"
wait_until 10 test ! -e "$AT" || fail "the dead mount is left"
say "killed for good: I/O failed after $took ms of $((TIMEOUT * 1000))"
target_stop
rm -f "$DIR"/*.img
