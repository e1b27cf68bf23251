#!/usr/bin/env bash
# A group of gateways: daemons with [group] on one cluster of our own (tests/ceph.sh) serve the same images.
#   group.sh
# BLOCKWIRE names the binary; that of the release build unless given. GATEWAYS=3, VOLUMES=3, KILLS=3, PREEMPTS=5,
# INCREMENTS=500 of each of two hosts by compare and write (INCREMENTS=50000 takes some minutes).
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
NAME=group GATEWAYS=${GATEWAYS:-3} VOLUMES=${VOLUMES:-3} KILLS=${KILLS:-3} PREEMPTS=${PREEMPTS:-5}
INCREMENTS=${INCREMENTS:-500}
"$ROOT/tests/setup.sh" ceph clients
# shellcheck source=tests/interop/group-gateways.sh
. "$(dirname "$0")/group-gateways.sh"
trap end_gateways EXIT
begin_cluster env
serve_group

write_and_read_through_all() {
  local volume at
  for volume in $(seq "$VOLUMES"); do
    head -c 4M /dev/urandom >"$DIR/image"
    at=$((volume % GATEWAYS + 1))
    bw write "$(url_iscsi "v$volume" "$at")" <"$DIR/image"
    for at in $(seq "$GATEWAYS"); do
      cmp "$DIR/image" <(bw read --length 4M "$(url_nvme "v$volume" "$at")") || fail "other bytes through gateway $at"
    done
  done
  say "what is written over iSCSI at one gateway is read over NVMe/TCP at each"
}
write_and_read_through_all

drained() {
  local begun took to
  begun=$(now)
  on 1 gateway drain >/dev/null || { on 1 gateway list >&2; fail "gateway 1 is not drained"; }
  took=$(since "$begun")
  for volume in $(seq "$VOLUMES"); do
    to=$(owner "v$volume" 2)
    [ "$to" != gw1 ] || fail "v$volume is still owned by the gateway that was drained"
  done
  write_and_read_through_all
  on 1 gateway drain --off >/dev/null
  say "a gateway is drained after $took s"
}
drained

all_listed() {
  local at
  for at in $(seq "$GATEWAYS"); do
    bw discover --json "iscsi://127.0.0.1:${ISCSI[1]}" | grep -q "127.0.0.1:${ISCSI[$at]}" || return 1
    bw discover --json "nvme+tcp://127.0.0.1:${NVME[1]}" | grep -q "\"${NVME[$at]}\"\|:${NVME[$at]}" || return 1
  done
}
wait_until 10 all_listed || fail "discovery at gateway 1 does not name the portals of all"
say "SendTargets and the discovery log of one gateway name the portals of all"

# keys VOLUME AT: the registrants of a volume as gateway AT shows them
keys() { on "$2" reservation show "$1" --json | grep -o '"key": *"[^"]*"' | sort; }

reservations() {
  local a b at seen=
  a=$(url_iscsi v1 1) b=$(url_nvme v1 2)
  bw reserve "$a" register --key 0xa1 >/dev/null
  bw reserve "$b" register --key 0xb2 >/dev/null
  bw reserve "$a" reserve --key 0xa1 --type write-exclusive-registrants >/dev/null
  bw reserve "$b" preempt --key 0xb2 --victim 0xa1 --type write-exclusive-registrants >/dev/null
  for at in $(seq "$GATEWAYS"); do
    [ -z "$seen" ] || [ "$(keys v1 "$at")" = "$seen" ] || fail "gateway $at shows other registrants than gateway 1"
    seen=$(keys v1 "$at")
  done
  [ -n "$seen" ] || fail "no registrant is left after the preemption"
  bw reserve "$b" clear --key 0xb2 >/dev/null
  say "registered over iSCSI at gateway 1, preempted over NVMe/TCP at gateway 2; all show: $seen"
}
reservations

# Two NVMe hosts that are not this machine.
ONE='host_nqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555501&host_id=11111111-2222-4333-8444-555555555501'
OTHER='host_nqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555502&host_id=11111111-2222-4333-8444-555555555502'

# Registered over iSCSI at gateway 1 and over NVMe at gateway 3, where it writes; preempted over NVMe at gateway 2. What the
# volume has when PREEMPT is answered, it has a second later.
preempted_while_it_writes() {
  local a b c pid rc kind=write-exclusive-registrants
  a=$(url_iscsi v3 1) b="$(url_nvme v3 2)?$OTHER" c="$(url_nvme v3 3)?$ONE"
  for _ in $(seq "$PREEMPTS"); do
    # The load writes the same each time.
    head -c 16M /dev/urandom | bw write "$b"
    bw reserve "$a" register --key 0xa1 >/dev/null
    bw reserve "$c" register --key 0xa1 >/dev/null
    bw reserve "$c" reserve --key 0xa1 --type $kind >/dev/null
    bw reserve "$b" register --key 0xb2 >/dev/null
    bw read --length 16M "$b" >"$DIR/before"
    bw bench --force "$c" -- --rw=randwrite --bs=4k --iodepth=32 --size=16m --runtime=5 --time_based \
      >"$DIR/preempted.out" 2>&1 &
    pid=$! rc=0
    sleep 2
    bw reserve "$b" preempt --key 0xb2 --victim 0xa1 --type $kind >/dev/null
    bw read --length 16M "$b" >"$DIR/after"
    sleep 1
    bw read --length 16M "$b" | cmp "$DIR/after" - || fail "a write of the preempted host came after GOOD"
    wait "$pid" || rc=$?
    [ "$rc" != 0 ] || fail "the preempted host wrote on"
    ! cmp -s "$DIR/before" "$DIR/after" || fail "nothing was written before the preemption"
    bw reserve "$b" clear --key 0xb2 >/dev/null
  done
  say "$PREEMPTS times registered over iSCSI at gateway 1, preempted over NVMe/TCP at gateway 2 while it writes at 3: nothing came after GOOD"
}
preempted_while_it_writes

counted_up() {
  local example
  example=$(dirname "$BLOCKWIRE")/examples/increments
  [ -x "$example" ] || fail "$example is not built: cargo build -p blockwire-client --example increments, as the binary was"
  timeout 480 "$example" "$INCREMENTS" 4096 "$(url_nvme v1 1)?$ONE" "$(url_nvme v1 2)?$OTHER" \
    || fail "compare and write from two hosts by two gateways"
  say "two hosts have counted up by compare and write through two gateways: none is lost"
}
counted_up

# lost HOW: the owner of v2 is lost under verified load by paths of all gateways; the longest write is the gap
lose() {
  case $1 in
  kill) kill -9 "${PID[$2]}"; wait "${PID[$2]}" 2>/dev/null || true ;;
  stop) kill -STOP "${PID[$2]}" ;;
  esac
}
lost() {
  local how=$1 owner at
  wait_until 30 settled || { on 1 gateway list >&2; fail "not all volumes have an owner that all know"; }
  owner=$(owner v2 1) at=${owner#gw}
  under_load "$how" v2 lose "$how" "$at"
  if [ "$how" = stop ]; then
    kill -CONT "${PID[$at]}"
    ended() { ! kill -0 "${PID[$at]}" 2>/dev/null; }
    wait_until 20 ended || fail "the gateway that was replaced does not end when it wakes"
    wait "${PID[$at]}" 2>/dev/null && fail "the gateway that was replaced ends with exit code 0"
  fi
  launch "$at"
}
for n in $(seq "$KILLS"); do lost kill; done
lost stop

# Its iSCSI portals would seem to be those of gateway 1.
tags_are_its_own() {
  local at=$((GATEWAYS + 1))
  configure "$at"
  sed -i "s/^tag = $at$/tag = 1/" "$DIR/$at/blockwire.toml"
  if timeout 60 "$BLOCKWIRE" serve --allow-anonymous --config "$DIR/$at/blockwire.toml" --state "$DIR/$at/state" \
    --control "$DIR/$at/control.sock" >"$DIR/$at/stdout" 2>"$DIR/$at/stderr"; then
    fail "a gateway with a portal group tag of another one serves"
  fi
  grep -q 'portal group tag 1' "$DIR/$at/stderr" || { cat "$DIR/$at/stderr" >&2; fail "the tag is not named"; }
  say "a gateway with a portal group tag of another one does not start"
}
tags_are_its_own
say passed
