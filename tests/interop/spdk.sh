#!/usr/bin/env bash
# SPDK beside Blockwire, where tests/bench/spdk.sh built it (SPDK_DIR): our initiator against its targets, and
# its two plug-ins for fio against our NVMe/TCP target, with verification.
#   spdk.sh [fio]     fio: no more than that
# One of the plug-ins takes huge pages: as root some are reserved for it, and given back.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
[ -n "${SPDK_DIR:-}" ] || { say "SPDK_DIR is not set: SPDK is left out (tests/bench/spdk.sh builds it)"; exit 0; }
SPDK_DIR=$(cd "$SPDK_DIR" && pwd)
export SPDK_DIR

[ "${1:-}" = fio ] ||
  for target in spdk-iscsi spdk-nvme; do "$ROOT/tests/interop/initiator.sh" -t "$target"; done

for plugin in spdk_bdev spdk_nvme; do
  [ -e "$SPDK_DIR/build/fio/$plugin" ] || fail "no $plugin for fio in $SPDK_DIR: tests/bench/spdk.sh builds it"
done
use_target blockwire
DIR=$OUT/spdk-fio-$IO
gone "$DIR"
mkdir -p "$DIR"
target_start "$DIR"

# fio_by PLUGIN COMMAND...: the rest of a fio command line
fio_by() {
  local plugin=$1; shift
  timeout 120 "$@" >"$DIR/fio.log" 2>&1 </dev/null || { tail -n 40 "$DIR/fio.log" >&2; fail "$plugin: $*"; }
  # When it ends it uses the identifiers of its event requests anew, which are still in work here: our controller
  # refuses that (Command ID Conflict), and it leaves without a shutdown.
  if grep -v 'Failed to read the CC register' "$DIR/fio.log" | grep -q ERROR || ! grep -q 'err= 0' "$DIR/fio.log"; then
    tail -n 40 "$DIR/fio.log" >&2
    fail "$plugin: $*"
  fi
}

# bdev NQN DIGESTS ARGS...: fio with SPDK's block devices on a namespace of ours; they can do without huge pages
bdev() {
  local nqn=$1 digests=$2; shift 2
  cat >"$DIR/spdk.json" <<CONF
{"subsystems": [{"subsystem": "bdev", "config": [{"method": "bdev_nvme_attach_controller", "params": {
  "name": "theirs", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "$NVME_PORT",
  "subnqn": "$nqn", "hdgst": $digests, "ddgst": $digests}}]}]}
CONF
  fio_by spdk_bdev env "LD_LIBRARY_PATH=$SPDK_DIR/build/lib" "LD_PRELOAD=$SPDK_DIR/build/fio/spdk_bdev" \
    "$SPDK_DIR/.fio/fio" --name=spdk --thread=1 --ioengine=spdk_bdev --spdk_json_conf="$DIR/spdk.json" --spdk_mem=512 \
    --env_context="--no-huge --legacy-mem --no-pci --iova-mode=va" --filename=theirsn1 "$@"
}

# bare NQN DIGESTS ARGS...: fio with SPDK's NVMe driver alone, which takes no --no-huge: on huge pages of its
# own mount, and without sight of the machine's PCI devices, which it would look for
bare() {
  local nqn=$1 digests=NONE; [ "$2" = false ] || digests=BOTH; shift 2
  # shellcheck disable=SC2016
  fio_by spdk_nvme unshare -m sh -c 'mount -t hugetlbfs none "$1" && mount -t tmpfs none /sys/bus/pci && shift && exec "$@"' \
    sh "$DIR/huge" env "LD_LIBRARY_PATH=$SPDK_DIR/build/lib" "LD_PRELOAD=$SPDK_DIR/build/fio/spdk_nvme" \
    "$SPDK_DIR/.fio/fio" --name=spdk --thread=1 --ioengine=spdk --mem_size_mb=$HUGE_MIB --digest_enable=$digests \
    "--filename=trtype=TCP adrfam=IPv4 traddr=127.0.0.1 trsvcid=$NVME_PORT subnqn=${nqn//:/\\:} ns=1" "$@"
}

# huge_pages: HUGE_MIB of them are free; what was there before is there again at the end
HUGE_MIB=512
huge_pages() {
  local all=/proc/sys/vm/nr_hugepages size free
  mkdir -p "$DIR/huge"
  size=$(awk '/^Hugepagesize:/ { print $2 }' /proc/meminfo)
  free=$(awk '/^HugePages_Free:/ { print $2 }' /proc/meminfo)
  [ $((free * size)) -lt $((HUGE_MIB * 1024)) ] || return 0
  [ -w $all ] || return 1
  HUGE_BEFORE=$(cat $all)
  trap 'end_all; echo "$HUGE_BEFORE" >/proc/sys/vm/nr_hugepages' EXIT
  echo $((HUGE_BEFORE + HUGE_MIB * 1024 / size)) >$all
  [ $(($(awk '/^HugePages_Free:/ { print $2 }' /proc/meminfo) * size)) -ge $((HUGE_MIB * 1024)) ]
}

ways=(bdev)
if huge_pages; then ways+=(bare); else say "no $HUGE_MIB MiB of huge pages to be had: spdk_nvme is left out"; fi
for way in "${ways[@]}"; do
  for digests in false true; do
    for volume in flat disk; do
      for bs in 512 4k 64k 1m; do
        "$way" "$(nqn $volume)" $digests --rw=randwrite --bs=$bs --iodepth=16 --size=4m --verify=crc32c \
          --verify_fatal=1 --do_verify=1 --verify_state_save=0
      done
    done
    "$way" "$(nqn flat)" $digests --rw=randrw --bs=4k --iodepth=64 --time_based --runtime=2 --size=32m
  done
done
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
say "SPDK's plug-ins for fio (${ways[*]}), $("$SPDK_DIR/.fio/fio" --version): 512 bytes to 1 MiB verified on $IO, without digests and with both"
