#!/usr/bin/env bash
# A file system on a remote volume that is attached by FUSE: ext4, fio with verification, the target
# killed and started again in the middle, a check at the end. No error may reach the file system.
#   filesystem.sh [-p iscsi|nvme] [-s SECONDS]
# Without a loop device that may be mounted, fio runs on the FUSE file itself, and this is said.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
PROTOCOL=iscsi
SECONDS_EACH=8
while getopts p:s: opt; do
  case $opt in
  p) PROTOCOL=$OPTARG ;;
  s) SECONDS_EACH=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" attach
IO=${IO:-auto}
use_target blockwire
DIR=$OUT/filesystem-$PROTOCOL
AT=$DIR/attached
MOUNT=$DIR/mount
rm -rf "$DIR"
mkdir -p "$DIR" "$MOUNT"
DISK_SIZE=256M

unmount() { ! mountpoint -q "$MOUNT" || umount "$MOUNT" || umount -l "$MOUNT"; }
trap 'unmount; end_all' EXIT

attach() {
  local unit
  unit=$(url disk)
  [ "$PROTOCOL" = iscsi ] || unit=nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn disk)/1
  "$BLOCKWIRE" attach --via fuse --at "$AT" "$unit" >"$DIR/attach.out" 2>"$DIR/attach.err" </dev/null &
  ATTACH_PID=$!
  ended_at_exit "$ATTACH_PID"
  wait_until 20 grep -qx ready "$DIR/attach.out" || { cat "$DIR"/attach.* >&2; fail "attach does not come up"; }
  DEVICE=$(sed -n 's/^device //p' "$DIR/attach.out" | head -n 1)
  FILE=$(sed -n 's/^file //p' "$DIR/attach.out" | head -n 1)
}

# outage: the target is killed and comes back a second later
outage() {
  sleep 2
  kill -9 "$TARGET_PID"
  wait "$TARGET_PID" 2>/dev/null || true
  sleep 1
  target_start "$DIR"
}

# under_outage NAME COMMAND...: the command runs while the target dies and comes back, and must not fail
under_outage() {
  local name=$1 pid rc=0; shift
  "$@" >"$DIR/$name.log" 2>&1 </dev/null &
  pid=$!
  outage
  kill -0 "$pid" 2>/dev/null || { cat "$DIR/$name.log" >&2; fail "$name ended before the target was back"; }
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { tail -n 30 "$DIR/$name.log" "$DIR/attach.err" >&2; fail "$name: exit $rc"; }
}

load() {
  fio --name=verified --ioengine=psync --rw=randwrite --bsrange=4k-64k --numjobs=2 --size=48M --fsync=32 \
    --rate=,6m --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 "$@"
}

target_start "$DIR"
attach
say "attached over $PROTOCOL: ${DEVICE:-no loop device}, ${FILE:-no file}"
MOUNTED=no
if [ -n "$DEVICE" ]; then
  quietly mkfs mkfs.ext4 -q -F "$DEVICE"
  ! mount -t ext4 -o errors=remount-ro "$DEVICE" "$MOUNT" 2>"$DIR/mount.err" || MOUNTED=yes
fi
if [ "$MOUNTED" = yes ]; then
  under_outage fio load --directory="$MOUNT"
  grep -q " $MOUNT ext4 rw" /proc/mounts || fail "the file system saw an error: it is read-only"
  head -c 8M /dev/urandom >"$MOUNT/kept"
  sum=$(sha256sum <"$MOUNT/kept")
  umount "$MOUNT"
  quietly fsck e2fsck -f -n "$DEVICE"
  mount -t ext4 -o ro "$DEVICE" "$MOUNT"
  [ "$(sha256sum <"$MOUNT/kept")" = "$sum" ] || fail "a file has changed"
  umount "$MOUNT"
  say "ext4 on $DEVICE: fio verified, the target killed and back in the middle, e2fsck finds nothing"
else
  [ -n "$FILE" ] || fail "attach names no file"
  say "no loop device can be mounted here ($(tr '\n' ' ' <"$DIR/mount.err" 2>/dev/null)): fio on the FUSE file"
  under_outage fio fio --name=verified --ioengine=psync --filename="$FILE" --rw=randwrite --bs=4k --size=48M \
    --fsync=32 --rate=,6m --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0
  say "$FILE: fio verified, the target killed and back in the middle"
fi
kill "$ATTACH_PID"
wait_until 10 bash -c "! kill -0 $ATTACH_PID 2>/dev/null" || fail "attach does not end"
target_stop
rm -f "$DIR"/*.img
