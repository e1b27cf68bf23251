#!/usr/bin/env bash
# A virtual machine with a stock Linux kernel that has one volume of our target three times: as a disk of
# `blockwire attach --via vhost-user`, as a disk of QEMU's iSCSI driver, and by its own iSCSI over the network.
# The data must be the same. Each is timed; with a processor in software that says nothing of its speed elsewhere.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
"$ROOT/tests/setup.sh" guest clients
use_target blockwire
DIR=$OUT/guest-disks IMAGE=$OUT/guest-image
SECONDS_AT_MOST=300
rm -rf "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE"

guest_asks() { fail "the guest asks for: $*"; }
target_start "$DIR"
"$BLOCKWIRE" attach --via vhost-user --at "$DIR/disk.sock" "$(url disk)" >"$DIR/attach.out" 2>"$DIR/attach.err" </dev/null &
ATTACH_PID=$!
ended_at_exit "$ATTACH_PID"
wait_until 20 grep -qx ready "$DIR/attach.out" || { cat "$DIR"/attach.* >&2; fail "attach does not come up"; }

# shellcheck disable=SC2034
GUEST_QEMU=(-object "memory-backend-memfd,id=mem,size=512M,share=on" -machine memory-backend=mem
  -chardev "socket,id=disk,path=$DIR/disk.sock"
  -device "vhost-user-blk-pci,chardev=disk,num-queues=1,disable-legacy=on"
  -blockdev "driver=iscsi,node-name=iscsi,transport=tcp,portal=127.0.0.1:$PORT,target=$(iqn disk),lun=$(lun),cache.direct=on"
  -device "virtio-blk-pci,drive=iscsi,share-rw=on")
guest_run "$DIR" "$IMAGE" disks "$SECONDS_AT_MOST" "PORT=$PORT" "IQN=$(iqn disk)" "LUN=$(lun)"
for pid in "$TARGET_PID" "$ATTACH_PID"; do kill -0 "$pid" || fail "a server died; see $DIR"; done
end "$ATTACH_PID"
target_stop
sed -n 's/^@@time /guest: /p' "$DIR/guest.log"
say "guest: $(cat "$IMAGE/package") read and wrote one volume by vhost-user, by QEMU's iSCSI and by its own"
rm -f "$DIR/disk.img"
