#!/usr/bin/env bash
# A virtual machine with a stock Linux kernel whose disk is served by vhost-user: ext4 written and
# verified, also over the death of the server, whose successor carries out what was in flight.
#   vhost.sh [QUEUES]
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
QUEUES=${1:-1}
"$ROOT/tests/setup.sh" build guest
DIR=$OUT/guest-vhost IMAGE=$OUT/guest-image
SECONDS_AT_MOST=180
gone "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE"
quietly build-local cargo build --locked -p blockwire-block-device --example local
truncate -s 256M "$DIR/disk.img"

serve() {
  "$BUILD/debug/examples/local" vhost "$DIR/disk.sock" "$DIR/disk.img" 2>>"$DIR/server.log" &
  SERVER=$!
  ended_at_exit "$SERVER"
}

# What the guest asks for: the server's end, amid the writing that follows.
guest_asks() {
  [ "$1" = kill ] || fail "the guest asks for: $*"
  # shellcheck disable=SC2034
  GUEST_THEN=restart
}
restart() {
  sleep 1
  kill -9 "$SERVER"
  wait "$SERVER" 2>/dev/null || true
  sleep 1
  serve
}

serve
wait_until 20 test -S "$DIR/disk.sock" || fail "the server does not come up; see $DIR/server.log"
GUEST_CPUS=$QUEUES
# shellcheck disable=SC2034
GUEST_QEMU=(-object "memory-backend-memfd,id=mem,size=512M,share=on" -machine memory-backend=mem
  -chardev "socket,id=disk,path=$DIR/disk.sock,reconnect=1"
  -device "vhost-user-blk-pci,chardev=disk,num-queues=$QUEUES,disable-legacy=on")
guest_run "$DIR" "$IMAGE" vhost "$SECONDS_AT_MOST"
kill -0 "$SERVER" || fail "the server died; see $DIR"
kill "$SERVER"
# The machine and the server agree with a third reader.
e2fsck -fn "$DIR/disk.img" >"$DIR/fsck.log" 2>&1 || fail "the file system; see $DIR/fsck.log"
say "guest: $(cat "$IMAGE/package") wrote and verified ext4 over vhost-user with $QUEUES queues, and over the server's death"
rm -f "$DIR/disk.img"
