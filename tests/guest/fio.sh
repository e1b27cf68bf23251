#!/usr/bin/env bash
# A stock Linux kernel with fio: xfs over NVMe/TCP with many queues and both digests, verified while the
# controller is reset, path states change and the target is killed; a disconnect amid writing; then iSCSI.
#   fio.sh [-c CPUS] [-q QUEUES] [-k SUITE]     -q: of each kind (default, write, poll), at most CPUS
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
GUEST_CPUS=4 QUEUES=4 SUITE=
while getopts c:q:k: opt; do
  case $opt in
  c) GUEST_CPUS=$OPTARG ;;
  q) QUEUES=$OPTARG ;;
  k) SUITE=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" guest fio
use_target blockwire
DIR=$OUT/guest-fio IMAGE=$OUT/guest-image-fio${SUITE:+-$SUITE}
SECONDS_AT_MOST=580
gone "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE" "$SUITE" fio mkfs.xfs xfs_repair

# What the guest asks for.
guest_asks() {
  case $1 in
  kill)
    # shellcheck disable=SC2034
    GUEST_THEN=restart
    ;;
  path) "$BLOCKWIRE" path set disk --group 1 --state "$2" --control "$DIR/control.sock" >/dev/null ;;
  *) fail "the guest asks for: $*" ;;
  esac
}
restart() {
  sleep 1
  kill -9 "$TARGET_PID"
  wait "$TARGET_PID" 2>/dev/null || true
  target_start "$DIR"
}

# xfs makes no smaller one. fio's libraries fill the guest's memory.
# shellcheck disable=SC2034
DISK_SIZE=320M GUEST_MEMORY=1024
target_start "$DIR"
guest_run "$DIR" "$IMAGE" fio "$SECONDS_AT_MOST" "PORT=$NVME_PORT" "NQN=$(nqn disk)" "ISCSI_PORT=$PORT" \
  "IQN=$(iqn disk)" "LUN=$(lun)" "QUEUES=$QUEUES"
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
rm -f "$DIR/disk.img"
say "guest: $(cat "$IMAGE/package"), $((3 * QUEUES)) I/O queues on $IO: fio verified xfs over resets, path changes and restarts"
