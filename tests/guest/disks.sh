#!/usr/bin/env bash
# A virtual machine with a stock Linux kernel that has one volume of our target three times: as a disk of
# `blockwire attach --via vhost-user`, as a disk of QEMU's iSCSI driver, and by its own iSCSI over the network.
# The data must be the same. Each is timed; with a processor in software that says nothing of its speed elsewhere.
# Then the holder of the first is killed for good: its I/O must fail after the time-out, and go on when somebody
# recovers it even later.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
"$ROOT/tests/setup.sh" guest clients
use_target blockwire
DIR=$OUT/guest-disks IMAGE=$OUT/guest-image
SECONDS_AT_MOST=300
gone "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE"

# How long I/O waits for somebody who recovers it.
TIMEOUT=6
export RUNTIME_DIRECTORY=$DIR/run
mkdir "$RUNTIME_DIRECTORY"
trap '"$BLOCKWIRE" detach "$DIR/disk.sock" --now >/dev/null 2>&1 || true; end_all' EXIT

attach() {
  "$BLOCKWIRE" attach "$(url disk)" --at "$DIR/disk.sock" "$@" >"$DIR/attach.out" 2>"$DIR/attach.err" </dev/null &
  ATTACH_PID=$!
  ended_at_exit "$ATTACH_PID"
  wait_until 20 grep -qx ready "$DIR/attach.out" || { cat "$DIR"/attach.* >&2; fail "attach does not come up"; }
}

guest_asks() {
  case $1 in
  lose)
    kill -9 "$ATTACH_PID"
    wait "$ATTACH_PID" 2>/dev/null || true
    ;;
  recover) attach --recover ;;
  *) fail "the guest asks for: $*" ;;
  esac
}
target_start "$DIR"
attach --via vhost-user --timeout "${TIMEOUT}s"

# shellcheck disable=SC2034
GUEST_QEMU=(-object "memory-backend-memfd,id=mem,size=512M,share=on" -machine memory-backend=mem
  -chardev "socket,id=disk,path=$DIR/disk.sock,reconnect=1"
  -device "vhost-user-blk-pci,chardev=disk,num-queues=1,disable-legacy=on"
  -blockdev "driver=iscsi,node-name=iscsi,transport=tcp,portal=127.0.0.1:$PORT,target=$(iqn disk),lun=$(lun),cache.direct=on"
  -device "virtio-blk-pci,drive=iscsi,share-rw=on")
guest_run "$DIR" "$IMAGE" disks "$SECONDS_AT_MOST" "PORT=$PORT" "IQN=$(iqn disk)" "LUN=$(lun)" "TIMEOUT=$TIMEOUT"
for pid in "$TARGET_PID" "$ATTACH_PID"; do kill -0 "$pid" || fail "a server died; see $DIR"; done
end "$ATTACH_PID"
target_stop
sed -n 's/^@@time /guest: /p' "$DIR/guest.log"
say "guest: $(cat "$IMAGE/package") read and wrote one volume by vhost-user, by QEMU's iSCSI and by its own; a dead holder's I/O failed in time"
rm -f "$DIR/disk.img"
