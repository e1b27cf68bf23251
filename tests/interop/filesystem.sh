#!/usr/bin/env bash
# A file system on a remote volume that is attached by FUSE: ext4, fio with verification, the target
# killed and started again in the middle, a check at the end. No error may reach the file system.
#   filesystem.sh [-p iscsi|nvme]
# Without a loop device that may be mounted, fio runs on the FUSE file itself, and this is said.
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
DIR=$OUT/filesystem-$PROTOCOL
# shellcheck source=tests/interop/attached.sh
. "$ROOT/tests/interop/attached.sh"
gone "$DIR"
mkdir -p "$DIR"
# shellcheck disable=SC2034 # the target's adapter reads it
DISK_SIZE=256M
trap 'unmount; end_all' EXIT

load() {
  fio --name=verified --ioengine=psync --rw=randwrite --bsrange=4k-64k --numjobs=2 --size=48M --fsync=32 \
    --rate=,6m --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 "$@"
}

target_start "$DIR"
attach
if mounted; then
  under_outage fio load --directory="$MOUNT"
  head -c 8M /dev/urandom >"$MOUNT/kept"
  sum=$(sha256sum <"$MOUNT/kept")
  unharmed
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
detach
