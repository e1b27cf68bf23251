#!/usr/bin/env bash
# Images of Ceph as volumes: a cluster of our own (tests/ceph.sh), served over both protocols.
#   rbd.sh [-s]
#     -s  a short form, without libiscsi's suite and what takes half a minute of waiting
# BLOCKWIRE names the binary; that of the release build unless given.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
SHORT=0
while getopts s opt; do
  case $opt in
  s) SHORT=1 ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" ceph clients
DIR=$OUT/rbd
CLUSTER=$DIR/ceph
[ ! -e "$CLUSTER" ] || "$ROOT/tests/ceph.sh" stop "$CLUSTER"
gone "$DIR"
mkdir -p "$DIR"
export CEPH_CONF=$CLUSTER/ceph.conf RBD_KEYS=,queue_timeout=3s
at_end() {
  end_all
  "$ROOT/tests/ceph.sh" stop "$CLUSTER"
}
trap at_end EXIT
use_target rbd
BINARY=$BLOCKWIRE
[ "$SHORT" = 0 ] || export CEPH_OSDS=1
"$ROOT/tests/ceph.sh" start "$CLUSTER"

on() { printf 'on %s: %s\n' "$IO" "$*"; }
bw() { timeout 60 "$BLOCKWIRE" "$@"; }
ceph_rbd() { timeout 60 rbd -c "$CEPH_CONF" "$@"; }
# both COMMAND...: the command over each protocol
both() { OVER=iscsi "$@"; OVER=nvme "$@"; }
# used IMAGE: bytes that it has in the cluster
used() { ceph_rbd du --format json "rbd/$1" | sed -n 's/.*"used_size":\([0-9]*\).*/\1/p'; }
bytes() { bw info --json "$(url disk)" | sed -n 's/.*"size_bytes": *\([0-9]*\).*/\1/p' | head -n 1; }
logged() { grep -q -- "$1" "$DIR/stderr"; }

ceph_rbd create --size 64M rbd/thin
ceph_rbd create --size 64M rbd/disk
target_start "$DIR"
logged "image of Ceph open" || fail "the log does not name the image"

same_over_both() {
  head -c 16M /dev/urandom >"$DIR/image"
  OVER=iscsi bw write "$(OVER=iscsi url disk)" <"$DIR/image"
  cmp "$DIR/image" <(bw read --length 16M "$(OVER=nvme url disk)") || fail "other bytes over NVMe/TCP"
  ceph_rbd export rbd/disk "$DIR/exported" 2>/dev/null
  cmp -n $((16 << 20)) "$DIR/exported" "$DIR/image" || fail "other bytes in the image"
  rm "$DIR/exported"
  on "what is written over iSCSI is read over NVMe/TCP, and is in the image"
}

load() {
  bw bench --force "$(url disk)" -- --rw=randrw --bs=4k --iodepth=32 --runtime="$1" --time_based --verify=crc32c \
    >"$DIR/bench-${OVER}" 2>&1 || { cat "$DIR/bench-$OVER" >&2; fail "load over $OVER"; }
}

no_cache() {
  local said
  said=$(bw info "$(url disk)")
  case $OVER in iscsi) grep -q '^write cache *no$' <<<"$said" || fail "a write cache over iSCSI" ;; esac
  grep -q '^deallocated reads zero *yes$' <<<"$said" || fail "not thin over $OVER"
}

resize() {
  local begun; begun=$(now)
  ceph_rbd resize --no-progress --size "$1" rbd/disk
  grown() { [ "$(OVER=iscsi bytes)" = $(($1 << 20)) ] && [ "$(OVER=nvme bytes)" = $(($1 << 20)) ]; }
  wait_until 5 grown "${1%M}" || fail "the new size is not seen within 5 s"
  on "rbd resize seen over both protocols in $(since "$begun") s"
}

unmap() {
  local before after
  before=$(used disk)
  bw bench --force "$(url disk)" -- --rw=trim --bs=4M --size=16M >"$DIR/trim" 2>&1 ||
    { cat "$DIR/trim" >&2; fail "unmap over $OVER"; }
  after=$(used disk)
  [ "$after" -le $((before - (16 << 20))) ] || fail "unmap over $OVER: $before bytes before, $after after"
  on "unmap over $OVER: rbd du from $before to $after bytes"
  bw read --length 16M "$(url disk)" | cmp -n $((16 << 20)) - /dev/zero || fail "unmapped blocks do not read as zeroes"
  bw write "$(url disk)" <"$DIR/image"
}

# A write into a silent cluster: exit code and time
away_write() {
  local begun took rc=0
  begun=$(now)
  bw write "$(url disk)?queue_timeout=1s" <"$DIR/image" >"$DIR/away-$OVER" 2>&1 || rc=$?
  took=$(($(now) - begun))
  [ "$rc" != 0 ] || fail "GOOD over $OVER while the cluster was away"
  ! grep -Eiq 'medium|unrecovered' "$DIR/away-$OVER" || { cat "$DIR/away-$OVER" >&2; fail "a medium error over $OVER"; }
  ((took >= 2900000 && took < 30000000)) || fail "over $OVER it took $took us, not from 3 s on"
  on "cluster away over $OVER: $(tail -n 1 "$DIR/away-$OVER") ($((took / 1000)) ms)"
}

away() {
  # Shorter than queue_timeout: the load waits and goes on.
  both load_in_background
  sleep 1
  "$ROOT/tests/ceph.sh" pause "$CLUSTER"
  sleep 1.5
  "$ROOT/tests/ceph.sh" resume "$CLUSTER"
  wait "$LOAD_ISCSI" || fail "load over iSCSI does not outlive a short silence"
  wait "$LOAD_NVME" || fail "load over NVMe/TCP does not outlive a short silence"
  on "load with verification goes on over 1.5 s of silence"
  bw write "$(OVER=iscsi url disk)" <"$DIR/image"
  "$ROOT/tests/ceph.sh" pause "$CLUSTER"
  both away_write
  "$ROOT/tests/ceph.sh" resume "$CLUSTER"
  same() { cmp "$DIR/image" <(bw read --length 16M "$(url disk)"); }
  both wait_until 20 same || fail "the volume does not come back"
  on "the cluster is back: what was written is there"
}
load_in_background() {
  # Each on its own half.
  local offset=0; [ "$OVER" = iscsi ] || offset=64M
  bw bench --force "$(url disk)" -- --rw=randrw --bs=4k --iodepth=8 --runtime=4 --time_based --verify=crc32c \
    --offset=$offset --size=32M >"$DIR/load-$OVER" 2>&1 &
  if [ "$OVER" = iscsi ]; then LOAD_ISCSI=$!; else LOAD_NVME=$!; fi
}

# refused PATTERN SECONDS SPEC [ENV...]: a daemon with this volume ends with 1 and says why
refused() {
  local pattern=$1 seconds=$2 spec=$3 rc=0 begun; shift 3
  begun=$(now)
  env "$@" timeout 60 "$BLOCKWIRE" serve --volume "x=$spec" --iscsi 127.0.0.1:0 --nvme 127.0.0.1:0 \
    --nvme-discovery 127.0.0.1:0 --state "$DIR/other" --control "$DIR/other.sock" >"$DIR/said" 2>&1 </dev/null || rc=$?
  [ "$rc" = 1 ] || { cat "$DIR/said" >&2; fail "exit $rc, not 1: $spec"; }
  grep -q -- "$pattern" "$DIR/said" || { cat "$DIR/said" >&2; fail "no /$pattern/: $spec"; }
  [ $(($(now) - begun)) -lt $((seconds * 1000000)) ] || fail "more than $seconds s: $spec"
}

wrong_input() {
  refused 'there is no pool "nowhere"' 10 "rbd:nowhere/disk,conf=$CEPH_CONF"
  refused 'there is no image "nothing" in "rbd"' 10 "rbd:rbd/nothing,conf=$CEPH_CONF"
  refused 'cannot read the configuration of Ceph, /nowhere' 10 "rbd:rbd/disk,conf=/nowhere/ceph.conf"
  refused 'refuses client.nobody\|has a key of client.nobody' 10 "rbd:rbd/disk,conf=$CEPH_CONF,user=nobody"
  sed "s|^keyring = .*|keyring = $DIR/keyring|" "$CEPH_CONF" >"$DIR/wrong.conf"
  quietly rbd-keyring ceph-authtool --create-keyring "$DIR/keyring" --gen-key -n client.admin
  refused 'refuses client.admin' 10 "rbd:rbd/disk,conf=$DIR/wrong.conf"
  rm "$DIR/keyring"
  refused 'no readable keyring has a key of client.admin' 10 "rbd:rbd/disk,conf=$DIR/wrong.conf"
  on "wrong pool, image, configuration, user and key are named; exit 1"
}

# The lock of a served image is refused to a second daemon, and stays with a daemon that was killed.
locks() {
  local pid
  "$BLOCKWIRE" serve --volume "x=rbd:rbd/disk,conf=$CEPH_CONF" --iscsi 127.0.0.1:0 --nvme 127.0.0.1:0 \
    --nvme-discovery 127.0.0.1:0 --state "$DIR/other" --control "$DIR/other.sock" >"$DIR/second" 2>&1 </dev/null &
  pid=$!
  ended_at_exit "$pid"
  wait_until 20 grep -q 'in use by another client, .*, which is connected' "$DIR/second" ||
    { cat "$DIR/second" >&2; fail "a second daemon is not refused"; }
  end "$pid"
  on "a second daemon is refused the image"
  target_stop
  ceph_rbd lock ls rbd/disk | grep -q exclusive && fail "a daemon that was stopped has left its lock"
  target_start "$DIR"
  both same || fail "other bytes after a restart"
  on "a daemon that was stopped gives up its lock; the next one serves the same bytes"
}

killed() {
  local client
  target_killed
  RBD_KEYS=,queue_timeout=3s,break_lock=on START_SECONDS=70 target_start "$DIR"
  both same || fail "other bytes after a kill"
  on "a killed daemon's lock is taken with break_lock=on; blocklisted: $(ceph -c "$CEPH_CONF" osd blocklist ls 2>/dev/null | head -n 1)"
  # Another client takes the image over: ours is blocklisted.
  client=$(ceph_rbd lock ls rbd/disk --format json | sed -n 's/.*"address":"\([^"]*\)".*/\1/p')
  ceph -c "$CEPH_CONF" osd blocklist add "$client" >/dev/null 2>&1
  fenced() { ! bw write "$(url disk)?queue_timeout=1s" <"$DIR/image" >"$DIR/fenced-$OVER" 2>&1; }
  both wait_until 10 fenced || fail "a blocklisted daemon says GOOD"
  wait_until 5 logged "the image was taken over" || fail "nothing in the log"
  ! grep -Eiq 'medium|unrecovered' "$DIR"/fenced-* || fail "a medium error from a blocklisted client"
  on "blocklisted: $(tail -n 1 "$DIR/fenced-iscsi")"
  target_stop
}

# The daemon that was blocklisted before could not give its lock up: hence break_lock.
monitors_away() {
  "$ROOT/tests/ceph.sh" pause "$CLUSTER"
  "$BLOCKWIRE" serve --volume "x=rbd:rbd/disk,conf=$CEPH_CONF,break_lock=on" --iscsi 127.0.0.1:0 --nvme 127.0.0.1:0 \
    --nvme-discovery 127.0.0.1:0 --state "$DIR/other" --control "$DIR/other.sock" >"$DIR/said" 2>&1 </dev/null &
  local pid=$!
  wait_until 21 grep -q 'no monitor of .* answers' "$DIR/said" ||
    { cat "$DIR/said" >&2; fail "monitors that are away are not named"; }
  "$ROOT/tests/ceph.sh" resume "$CLUSTER"
  wait_until 60 grep -q 'image of Ceph open' "$DIR/said" ||
    { cat "$DIR/said" >&2; fail "the image is not opened when they are back"; }
  kill "$pid"
  wait "$pid" || fail "the daemon does not end well"
  on "monitors that are away at start are named within 20 s, and the image is served when they are back"
}

# In a mount namespace where it may be made: without librbd.
library_missing() {
  local library; library=$(ldconfig -p | sed -n 's/.*librbd\.so\.1.* => //p' | head -n 1)
  unshare -m true 2>/dev/null || { on "the missing library is left out: no mount namespace here"; return; }
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nmount --bind /dev/null "%s" && exec "%s" "$@"\n' "$library" "$BLOCKWIRE" >"$DIR/without"
  chmod +x "$DIR/without"
  # shellcheck disable=SC2209
  BLOCKWIRE=$DIR/in-namespace
  printf '#!/bin/sh\nexec unshare -m "%s" "$@"\n' "$DIR/without" >"$BLOCKWIRE"
  chmod +x "$BLOCKWIRE"
  refused 'install the package librbd1' 10 "rbd:rbd/disk,conf=$CEPH_CONF"
  on "without librbd its package is named; exit 1"
}

same_over_both
both no_cache
SECONDS_OF_LOAD=8; [ "$SHORT" = 0 ] || SECONDS_OF_LOAD=1
both load $SECONDS_OF_LOAD
on "load with verification over both protocols"
resize 128M
OVER=iscsi bw write "$(OVER=iscsi url disk)" <"$DIR/image"
both unmap
if [ "$SHORT" = 0 ]; then
  away
  wrong_input
  locks
  killed
  monitors_away
  library_missing
  BLOCKWIRE=$BINARY
  unset RBD_KEYS
  IO=$IO BLOCKWIRE=$BINARY "$ROOT/tests/interop/libiscsi-suite.sh" -t rbd
else
  target_stop
  ceph_rbd lock ls rbd/disk | grep -q exclusive && fail "a daemon that was stopped has left its lock"
fi
say "rbd: ok"
