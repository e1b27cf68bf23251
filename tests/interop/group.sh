#!/usr/bin/env bash
# A group of gateways: daemons with [group] on one cluster of our own (tests/ceph.sh) serve the same images.
#   group.sh
# BLOCKWIRE names the binary; that of the release build unless given. GATEWAYS=3, VOLUMES=3, KILLS=3.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
GATEWAYS=${GATEWAYS:-3} VOLUMES=${VOLUMES:-3} KILLS=${KILLS:-3}
"$ROOT/tests/setup.sh" ceph clients
DIR=$OUT/group
CLUSTER=$DIR/ceph
[ ! -e "$CLUSTER" ] || "$ROOT/tests/ceph.sh" stop "$CLUSTER"
gone "$DIR"
mkdir -p "$DIR"
declare -A PID=() ISCSI=() NVME=() LINK=()
at_end() {
  local pid
  for pid in "${PID[@]}"; do kill -CONT "$pid" 2>/dev/null || true; kill -9 "$pid" 2>/dev/null || true; done
  end_all
  "$ROOT/tests/ceph.sh" stop "$CLUSTER"
}
trap at_end EXIT
"$ROOT/tests/ceph.sh" start "$CLUSTER"
export CEPH_CONF=$CLUSTER/ceph.conf

say() { printf 'group: %s\n' "$*"; }
bw() { timeout 60 "$BLOCKWIRE" "$@"; }
on() { local at=$1; shift; bw "$@" --control "$DIR/$at/control.sock"; }

# configure N: the file of gateway N; volumes are configured alike at all
configure() {
  local at=$1 volume
  mkdir -p "$DIR/$at"
  : "${ISCSI[$at]:=$(free_port)}"; : "${NVME[$at]:=$(free_port)}"; : "${LINK[$at]:=$(free_port)}"
  {
    for volume in $(seq "$VOLUMES"); do
      printf '[[volume]]\nname = "v%s"\nsource = "rbd:rbd/v%s"\n' "$volume" "$volume"
    done
    printf '[[portal]]\nprotocol = "iscsi"\naddress = "127.0.0.1:%s"\ntag = %s\n' "${ISCSI[$at]}" "$at"
    printf '[[portal]]\nprotocol = "nvme"\naddress = "127.0.0.1:%s"\n' "${NVME[$at]}"
    printf '[group]\nname = "g"\npool = "rbd"\nconf = "%s"\n' "$CEPH_CONF"
    printf 'gateway = "gw%s"\nlisten = "127.0.0.1:%s"\n' "$at" "${LINK[$at]}"
  } >"$DIR/$at/blockwire.toml"
}

launch() {
  local at=$1
  "$BLOCKWIRE" serve --config "$DIR/$at/blockwire.toml" --state "$DIR/$at/state" \
    --control "$DIR/$at/control.sock" >"$DIR/$at/stdout" 2>>"$DIR/$at/stderr" &
  PID[$at]=$!
  ready() { grep -qs '^ready' "$DIR/$at/stdout"; }
  wait_until 40 ready || { tail -n 20 "$DIR/$at/stderr" >&2; fail "gateway $at does not start"; }
}

# owner VOLUME AT: which gateway owns it, as gateway AT knows
owner() {
  on "$2" gateway list --json | python3 -c 'import json,sys
print(next((v["owner"] or "-") for v in json.load(sys.stdin)["volumes"] if v["volume"] == sys.argv[1]))' "$1"
}
paths_known() {
  local at volume
  for at in "${!PID[@]}"; do
    for volume in $(seq "$VOLUMES"); do
      case $(on "$at" gateway list --json | python3 -c 'import json,sys
print(next(str(v["path"]) for v in json.load(sys.stdin)["volumes"] if v["volume"] == sys.argv[1]))' "v$volume") in
      optimized | non-optimized) ;;
      *) return 1 ;;
      esac
    done
  done
}
settled() { paths_known 2>/dev/null; }

url_iscsi() { printf 'iscsi://127.0.0.1:%s/iqn.2026-11.io.blockwire:%s/0' "${ISCSI[$2]}" "$1"; }
url_nvme() { printf 'nvme+tcp://127.0.0.1:%s/nqn.2026-11.io.blockwire:%s/1' "${NVME[$2]}" "$1"; }

for volume in $(seq "$VOLUMES"); do timeout 60 rbd -c "$CEPH_CONF" create --size 64M "rbd/v$volume"; done
for at in $(seq "$GATEWAYS"); do configure "$at"; done
for at in $(seq "$GATEWAYS"); do launch "$at"; done
wait_until 30 settled || { on 1 gateway list >&2; fail "not all volumes have an owner that all know"; }
say "$GATEWAYS gateways serve $VOLUMES volumes"
on 1 gateway list

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
  say "registered over iSCSI at gateway 1, preempted over NVMe/TCP at gateway 2; all show: $seen"
}
reservations

# lost HOW: the owner of v2 is lost under verified load by paths of all gateways; the longest latency is the gap
lost() {
  local how=$1 at owner url pid rc=0 begun
  wait_until 30 settled || { on 1 gateway list >&2; fail "not all volumes have an owner that all know"; }
  owner=$(owner v2 1) at=${owner#gw}
  url=$(for n in $(seq "$GATEWAYS"); do url_nvme v2 "$n"; [ "$n" = "$GATEWAYS" ] || printf ,; done)
  bw bench --force --json "$url" -- --rw=randwrite --bs=4k --iodepth=16 --size=16m --runtime=15 --time_based \
    --verify=crc32c >"$DIR/bench-$how.json" 2>"$DIR/bench-$how.err" &
  pid=$!
  sleep 4
  begun=$(now)
  case $how in
  kill) kill -9 "${PID[$at]}"; wait "${PID[$at]}" 2>/dev/null || true ;;
  stop) kill -STOP "${PID[$at]}" ;;
  esac
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { cat "$DIR/bench-$how.err" >&2; fail "$how: the load failed: exit $rc"; }
  python3 - "$how" "$DIR/bench-$how.json" <<'END'
import json, sys
def longest(value):
    if isinstance(value, dict):
        return max([value["max"] if k == "max" and isinstance(value["max"], (int, float)) else longest(v) for k, v in value.items()] or [0])
    if isinstance(value, list):
        return max([longest(v) for v in value] or [0])
    return 0
print(f"group: {sys.argv[1]}: longest write {longest(json.load(open(sys.argv[2]))) / 1e6:.2f} s, no wrong block")
END
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
say passed
