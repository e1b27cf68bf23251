#!/usr/bin/env bash
# SPDK beside Blockwire, where tests/bench/spdk.sh built it (SPDK_DIR): our initiator against its targets, and
# its plug-in for fio against our NVMe/TCP target, with verification.
#   spdk.sh [fio]     fio: no more than that
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
[ -n "${SPDK_DIR:-}" ] || { say "SPDK_DIR is not set: SPDK is left out (tests/bench/spdk.sh builds it)"; exit 0; }
SPDK_DIR=$(cd "$SPDK_DIR" && pwd)
export SPDK_DIR

[ "${1:-}" = fio ] ||
  for target in spdk-iscsi spdk-nvme; do "$ROOT/tests/interop/initiator.sh" -t "$target"; done

# Of its two plug-ins the one for block devices can do without huge pages.
PLUGIN=$SPDK_DIR/build/fio/spdk_bdev
[ -e "$PLUGIN" ] || fail "no plug-in for fio in $SPDK_DIR: tests/bench/spdk.sh builds it"
use_target blockwire
DIR=$OUT/spdk-fio-$IO
rm -rf "$DIR"
mkdir -p "$DIR"
target_start "$DIR"

# fio_on NQN DIGESTS ARGS...: fio with SPDK's driver on a namespace of ours
fio_on() {
  local nqn=$1 digests=$2; shift 2
  cat >"$DIR/spdk.json" <<CONF
{"subsystems": [{"subsystem": "bdev", "config": [{"method": "bdev_nvme_attach_controller", "params": {
  "name": "theirs", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "$NVME_PORT",
  "subnqn": "$nqn", "hdgst": $digests, "ddgst": $digests}}]}]}
CONF
  timeout 120 env "LD_LIBRARY_PATH=$SPDK_DIR/build/lib" "LD_PRELOAD=$PLUGIN" "$SPDK_DIR/.fio/fio" --name=spdk --thread=1 \
    --ioengine=spdk_bdev --spdk_json_conf="$DIR/spdk.json" --spdk_mem=512 \
    --env_context="--no-huge --legacy-mem --no-pci --iova-mode=va" --filename=theirsn1 "$@" >"$DIR/fio.log" 2>&1 </dev/null ||
    { tail -n 40 "$DIR/fio.log" >&2; fail "fio: $*"; }
  grep -q 'err= 0' "$DIR/fio.log" || { tail -n 40 "$DIR/fio.log" >&2; fail "fio: $*"; }
}
for digests in false true; do
  for volume in flat disk; do
    for bs in 512 4k 64k 1m; do
      fio_on "$(nqn $volume)" $digests --rw=randwrite --bs=$bs --iodepth=16 --size=4m --verify=crc32c \
        --verify_fatal=1 --do_verify=1 --verify_state_save=0
    done
  done
  fio_on "$(nqn flat)" $digests --rw=randrw --bs=4k --iodepth=64 --time_based --runtime=2 --size=32m
done
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
say "SPDK's plug-in for fio, $("$SPDK_DIR/.fio/fio" --version): 512 bytes to 1 MiB verified on $IO, without digests and with both"
