#!/usr/bin/env bash
# Programs that people use, against a target: libiscsi's tools and QEMU's block layer, with a
# capture of all of it for tshark to judge.
#   consumers.sh [-t TARGET]
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/interop/capture.sh
. "$(dirname "$0")/capture.sh"
TARGET=blockwire
while getopts t: opt; do
  case $opt in
  t) TARGET=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" clients capture
use_target "$TARGET"
DIR=$OUT/consumers-$TARGET-${IO:-x}
gone "$DIR"
mkdir -p "$DIR"

# expect PATTERN COMMAND...: the command succeeds and a line of its output matches
expect() {
  local pattern=$1; shift
  "$@" >"$DIR/said" 2>&1 </dev/null || { cat "$DIR/said" >&2; fail "failed: $*"; }
  grep -Eq -- "$pattern" "$DIR/said" || { cat "$DIR/said" >&2; fail "no /$pattern/ from: $*"; }
}

discovery() {
  expect "^Target:$(iqn thin) Portal:127\.0\.0\.1:$PORT," iscsi-ls "iscsi://127.0.0.1:$PORT/"
  expect "^Lun:$(lun) +Type:DIRECT_ACCESS" iscsi-ls --show-luns "iscsi://127.0.0.1:$PORT/"
}

identity() {
  local page
  expect '^Peripheral Device Type:DIRECT_ACCESS' iscsi-inq "$(url thin)"
  expect '^Removable:1' iscsi-inq "$(url removable)"
  expect '^Page:0x83' iscsi-inq --evpd=1 --pagecode=0 "$(url thin)"
  for page in 0x80 0x83 0xb0 0xb1; do
    expect . iscsi-inq --evpd=1 --pagecode=$((page)) "$(url thin)"
  done
  expect '^Designator Type:\(3\) NAA' iscsi-inq --evpd=1 --pagecode=$((0x83)) "$(url thin)"
  expect '^Total size:67108864$' iscsi-readcapacity16 "$(url thin)"
}

# An image with data, holes and a ragged edge, to the logical unit and back.
round_trip() {
  local image=$DIR/image back=$DIR/back unit=$1
  truncate -s 64M "$image"
  head -c 10M /dev/urandom | dd of="$image" conv=notrunc status=none
  head -c 3145983 /dev/urandom | dd of="$image" bs=1M seek=30 conv=notrunc status=none
  head -c 1M /dev/urandom | dd of="$image" bs=1M seek=63 conv=notrunc status=none
  qemu-img convert -n -f raw -O raw "$image" "$unit"
  qemu-img convert -f raw -O raw "$unit" "$back"
  cmp "$image" "$back" || fail "what came back from $unit is not what was written"
  rm -f "$image" "$back"
}

# Patterns at the edges of blocks, physical blocks, bursts and the unit; zeroes, discards, flushes.
patterns() {
  qemu-io -f raw "$1" >"$DIR/said" 2>&1 <<'COMMANDS' || { cat "$DIR/said" >&2; fail "qemu-io"; }
write -P 0xa5 0 1M
write -P 0x5a 512 512
write -P 0x11 4095k 2k
write -P 0x22 63M 1M
aio_write -P 0x31 8M 64k
aio_write -P 0x32 8256k 64k
aio_write -P 0x33 8320k 1M
aio_flush
flush
read -P 0xa5 0 512
read -P 0x5a 512 512
read -P 0xa5 1k 1023k
read -P 0x11 4095k 2k
read -P 0x22 63M 1M
read -P 0x31 8M 64k
read -P 0x32 8256k 64k
read -P 0x33 8320k 1M
write -z 64k 64k
read -P 0 64k 64k
read -P 0xa5 128k 64k
write -f -P 0x44 16M 4k
read -P 0x44 16M 4k
discard 63M 1M
read 63M 1M
COMMANDS
  ! grep -Eq 'verification failed|error|failed' "$DIR/said" || { cat "$DIR/said" >&2; fail "qemu-io"; }
  [ "$(grep -Ec 'read ([0-9]+)/\1 bytes' "$DIR/said")" = 12 ] || { cat "$DIR/said" >&2; fail "qemu-io did not read all"; }
}

# Commands that only a conformance suite sends; whether they succeed is judged there.
rare_commands() {
  local tests="Inquiry.*,ModeSense6.*,ReportSupportedOpcodes.*,ReadCapacity16.*,Pr*,Unmap.VPD,iSCSIResiduals.*,iSCSITMF.Abort*"
  timeout 60 iscsi-test-cu --dataloss --test="ALL.${tests//,/,ALL.}" "$(url thin)" >"$DIR/rare.log" 2>&1 </dev/null || true
  grep -q '^Run Summary' "$DIR/rare.log" || fail "iscsi-test-cu did not run; see $DIR/rare.log"
}

load() {
  local said
  said=$(iscsi-perf -m 32 -b 8 -t 2 -r "$1" 2>&1 </dev/null | tr '\r' '\n' | grep '^iops average' | tail -n 1)
  if ! [[ $said =~ ^iops\ average\ ([0-9]+) ]] || [ "${BASH_REMATCH[1]}" -le 100 ]; then fail "iscsi-perf: $said"; fi
}

target_start "$DIR"
capture_start "$DIR/clients.pcapng" "$PORT"
discovery
identity
round_trip "$(url thin)"
round_trip "$(url disk)"
patterns "$(url thin)"
patterns "$(url disk)"
rare_commands
capture_end
capture_check "$DIR/clients.pcapng" "$PORT"
load "$(url thin)"
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
say "consumers: libiscsi tools, qemu-img and qemu-io agree with what they wrote"
