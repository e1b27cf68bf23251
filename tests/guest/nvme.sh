#!/usr/bin/env bash
# A stock Linux kernel as the NVMe/TCP host: discovery, many queues, both digests, ext4 written and
# verified over resets, new connections and a restart of the target; path states and size changed
# under load; then the same volume over iSCSI too: the same bytes, one identity, one reservation, by
# nvme-cli and sg_persist, and by the kernel's own calls.
#   nvme.sh [-c CPUS] [-q QUEUES] [-m MIB] [-k SUITE]     -k: the kernel of another Debian suite
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/interop/capture.sh
. "$ROOT/tests/interop/capture.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
GUEST_CPUS=2 QUEUES=4 MIB=8 SUITE=
while getopts c:q:m:k: opt; do
  case $opt in
  c) GUEST_CPUS=$OPTARG ;;
  q) QUEUES=$OPTARG ;;
  m) MIB=$OPTARG ;;
  k) SUITE=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" guest capture
use_target blockwire
DIR=$OUT/guest-nvme IMAGE=$OUT/guest-image${SUITE:+-backports}
SECONDS_AT_MOST=240
UUID=6a2f41a3-c54c-4a6b-8d3a-5b1f7e0c9d21
gone "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE" "$SUITE"

verb() { "$BLOCKWIRE" "$@" --control "$DIR/control.sock"; }
# What the guest asks for.
guest_asks() {
  case $1 in
  kill)
    capture_end
    # shellcheck disable=SC2034
    GUEST_THEN=restart
    ;;
  path) verb path set disk --group 1 --state "$2" >/dev/null ;;
  resize) verb volume resize disk "$2" >/dev/null ;;
  holder) verb reservation show disk | tee -a "$DIR/guest.log" | grep -q "write-exclusive by $2" ||
    fail "reservation show does not name $2: $(verb reservation show disk)" ;;
  *) fail "the guest asks for: $*" ;;
  esac
}
restart() {
  sleep 1 # amid the writing
  kill -9 "$TARGET_PID"
  wait "$TARGET_PID" 2>/dev/null || true
  target_start "$DIR"
}

# shellcheck disable=SC2034
DISK_KEYS=,uuid=$UUID
target_start "$DIR"
capture_start "$DIR/nvme.pcapng" "$NVME_PORT"
guest_run "$DIR" "$IMAGE" nvme "$SECONDS_AT_MOST" "PORT=$NVME_PORT" "NQN=$(nqn disk)" \
  "DISCOVERY=$DISCOVERY_PORT" "ISCSI_PORT=$PORT" "IQN=$(iqn disk)" "LUN=$(lun)" "UUID=$UUID" \
  "QUEUES=$QUEUES" "MIB=$MIB"
capture_check "$DIR/nvme.pcapng" "$NVME_PORT" nvme
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
verb connection list >>"$DIR/guest.log"
target_stop
say "guest: $(cat "$IMAGE/package") used one volume over NVMe/TCP and iSCSI, over a restart of the target"
