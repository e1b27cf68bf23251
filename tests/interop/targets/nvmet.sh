# shellcheck shell=bash
# nvmet, the NVMe/TCP target of the Linux kernel, in a guest.

# shellcheck source=tests/guest/targets.sh
. "$ROOT/tests/guest/targets.sh"
# shellcheck disable=SC2034
ANNOUNCED=10.0.2.15:4420 HPDAS=hpda=0 NO_DHCHAP="only GUEST_SUITE=bookworm-backports has it"
# Linux has reservations since 6.13.
# shellcheck disable=SC2034
RESERVES=nothing

# target_dhchap HOST-NQN KEY [CONTROLLER-KEY]: from its next start the target asks for DH-HMAC-CHAP
target_dhchap() {
  [ -n "$GUEST_SUITE" ] || return 1
  TARGETS_AUTH=("HOST_NQN=$1" "KEY=$2")
  [ $# -lt 3 ] || TARGETS_AUTH+=("BACK_KEY=$3")
}

url() { echo "nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn "$1")/1"; }
