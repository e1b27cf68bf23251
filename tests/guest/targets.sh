# shellcheck shell=bash
# A stock kernel's own targets, LIO and nvmet, in Blockwire's place; sourced by their adapters.
# The guest's disks are files here, so what was written outlives the machine.
# GUEST_SUITE chooses the kernel, as image.sh's SUITE does.

# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
TARGET_PID=
PORT=0
NVME_PORT=0
GUEST_SUITE=${GUEST_SUITE:-}
TARGETS_IMAGE=$OUT/guest-image${GUEST_SUITE:+-backports}
TARGETS_AUTH=()
# A processor in software moves a few megabytes in a second.
VOLUME_MIB=16
"$ROOT/tests/setup.sh" guest
"$ROOT/tests/guest/image.sh" "$TARGETS_IMAGE" "$GUEST_SUITE"

# target_start DIR: as Blockwire's; a second start comes back on the same ports with the same disks
target_start() {
  local dir=$1 kind
  mkdir -p "$dir"
  [ "$PORT" != 0 ] || { PORT=$(free_port) NVME_PORT=$(free_port); }
  GUEST_NET=",hostfwd=tcp:127.0.0.1:$PORT-10.0.2.15:3260,hostfwd=tcp:127.0.0.1:$NVME_PORT-10.0.2.15:4420"
  GUEST_QEMU=()
  for kind in disk flat; do
    [ -e "$dir/$kind.img" ] || truncate -s ${VOLUME_MIB}M "$dir/$kind.img"
    GUEST_QEMU+=(-drive "if=none,id=$kind,file=$dir/$kind.img,format=raw,cache=writeback,discard=unmap"
      -device "virtio-blk-pci,drive=$kind,serial=$kind")
  done
  guest_machine "$TARGETS_IMAGE" targets "IQN=iqn.2026-11.io.blockwire" "NQN=nqn.2026-11.io.blockwire" \
    ${TARGETS_AUTH[@]+"${TARGETS_AUTH[@]}"}
  : >"$dir/guest.log" # what the last one said must not be taken for this one's
  "${GUEST_MACHINE[@]}" >>"$dir/guest.log" 2>&1 </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  wait_until 60 grep -qE '^@@(serving|exit)' "$dir/guest.log" || true
  grep -q '^@@serving' "$dir/guest.log" || { tail -n 40 "$dir/guest.log" >&2; fail "the guest's targets do not come up"; }
}

target_stop() {
  kill -9 "$TARGET_PID" 2>/dev/null || true
  wait "$TARGET_PID" 2>/dev/null || true
}

iqn() { echo "iqn.2026-11.io.blockwire:$1"; }
nqn() { echo "nqn.2026-11.io.blockwire:$1"; }
