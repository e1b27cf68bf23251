#!/usr/bin/env bash
# The paper on virtual machines, with its files as printed: chiscsi.conf, the policy for cop, `iscsictl -S
# target=ALL` and fio's job, in a network that has its address and a /dev that has its disk (a sparse file).
#   papers.sh [SECONDS]      how long fio's job may run; without it as printed, 60 s
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
FILES=$ROOT/crates/daemon/chiscsi-config/tests/papers
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
DIR=$OUT/papers
TARGET=iqn.2004-05.com.chelsio.target0
URL=iscsi://102.11.11.32/$TARGET/0

# The part inside: own network, own mounts.
inside() {
  local node job=$FILES/t5-random-read.fio
  ip link set lo up
  ip addr add 102.11.11.32/32 dev lo
  mkdir -p "$DIR/dev"
  mount -t tmpfs -o size=1m none "$DIR/dev"
  for node in null zero full urandom random; do
    : >"$DIR/dev/$node"
    mount --bind "/dev/$node" "$DIR/dev/$node"
  done
  # As the paper's disk: it holds what the job reads, 1 GiB.
  truncate -s 1G "$DIR/disk"
  : >"$DIR/dev/ssdb1"
  mount --bind "$DIR/disk" "$DIR/dev/ssdb1"
  mount --rbind "$DIR/dev" /dev
  # The file asks for no authentication, and the address is not of loopback.
  "$BLOCKWIRE" serve --chiscsi "$FILES/t5-chiscsi.conf" --policy "$FILES/t5-cop.conf" --allow-anonymous \
    --state "$DIR/state" --control "$DIR/control" >"$DIR/stdout" 2>"$DIR/log" </dev/null &
  ended_at_exit $!
  wait_until 20 grep -qx ready "$DIR/stdout" || { cat "$DIR/log" >&2; fail "it does not come up"; }
  grep -qx "listening iscsi 102.11.11.32:3260" "$DIR/stdout" || fail "it listens elsewhere"
  [ "$("$BLOCKWIRE" iscsictl -S target=ALL --control "$DIR/control")" = "$TARGET: running" ] || fail "iscsictl -S"
  "$BLOCKWIRE" info "$URL" --json >"$DIR/info.json"
  local pair
  for pair in '"MaxRecvDataSegmentLength (target)": "8192"' '"InitialR2T": "Yes"' '"MaxOutstandingR2T": "1"' \
    '"TargetPortalGroupTag": "1"' '"ImmediateData": "Yes"'; do
    grep -qF "$pair" "$DIR/info.json" || fail "not negotiated: $pair"
  done
  if [ -n "${1:-}" ]; then
    sed "s/^runtime=60$/runtime=$1/" "$job" >"$DIR/job.fio"
    job=$DIR/job.fio
  fi
  "$BLOCKWIRE" bench --job "$job" --map "/dev/sdb=$URL" --json </dev/null >"$DIR/bench.json"
  local ios
  ios=$(sed -n 's/.*"ios": \([0-9]*\).*/\1/p' "$DIR/bench.json" | head -n 1)
  [ "${ios:-0}" -gt 0 ] || { cat "$DIR/bench.json" >&2; fail "nothing was read"; }
  [ "$("$BLOCKWIRE" iscsictl -s target=ALL --control "$DIR/control")" = "$TARGET: stopped" ] || fail "iscsictl -s"
  say "served and read as printed: $ios reads of 4 KiB"
}

if [ "${1:-}" = --inside ]; then
  shift
  inside "$@"
  exit
fi
tests/setup.sh papers
[ -x "$BLOCKWIRE" ] || fail "missing: $BLOCKWIRE (tests/test.sh build)"
gone "$DIR"
mkdir -p "$DIR"
unshare --net --mount --map-root-user --user "$0" --inside "$@"
