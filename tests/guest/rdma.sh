#!/usr/bin/env bash
# An RDMA transport beside TCP, and the kernel's own targets beside ours, like with like: in one machine, Debian's kernel
# serves by nvmet over RDMA and over TCP, and by LIO, and Blockwire serves over NVMe/TCP and iSCSI; the same kernel's
# initiators and ours use them, one 4 KiB I/O at a time. RDMA is RoCE v2 by the software device rxe: Debian's kernel is
# built without siw, that of iWARP. The machine's processor is emulated: the rows compare with one another, and with
# nothing else.
#   rdma.sh [-c CPUS] [-s SECONDS]     SECONDS of each load
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
# shellcheck disable=SC2034
GUEST_CPUS=2 GUEST_MEMORY=1024
RUN=5
while getopts c:s: opt; do
  case $opt in
  c) GUEST_CPUS=$OPTARG ;;
  s) RUN=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" guest fio
DIR=$OUT/guest-rdma IMAGE=$OUT/guest-image-rdma
gone "$DIR"
mkdir -p "$DIR"
BINARY=$BUILD/release/blockwire
[ -x "$BINARY" ] || fail "$BINARY is missing: run make build"
# Names of functions and lines would fill the guest's memory.
strip -o "$DIR/blockwire" "$BINARY"
IMAGE_FLAVOUR=full IMAGE_MODULES="rdma_rxe crc32_generic nvme_rdma nvmet_rdma nvme_tcp brd" \
  "$ROOT/tests/guest/image.sh" "$IMAGE" "" fio rdma "$DIR/blockwire"
guest_run "$DIR" "$IMAGE" rdma $((600 + 30 * RUN)) "RUN=$RUN"

rows=$(sed -n 's/^@@row //p' "$DIR/guest.log" | tr -d '\r')
[ "$(wc -l <<<"$rows")" = 16 ] || fail "not all of 16 results came; see $DIR/guest.log"
say "$(cat "$IMAGE/package"), $GUEST_CPUS emulated processors, $RUN s of each; 4 KiB, one at a time, mean in microseconds"
awk -F'|' '
  BEGIN { printf "%-11s %-10s %-11s %10s %10s\n", "target", "initiator", "transport", "read", "write" }
  $4 == "randread" { read_us = $6; next }
  { printf "%-11s %-10s %-11s %10.1f %10.1f\n", $1, $2, $3, read_us, $6 }' <<<"$rows"
