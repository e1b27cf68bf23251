#!/usr/bin/env bash
# Gateways of a group whose networks are cut under verified load: host from owner, owner from the cluster, owner from
# another gateway. Each gateway, and the cluster, has a network namespace; hosts are outside. As root.
#   group-cuts.sh
# BLOCKWIRE names the binary; that of the release build unless given.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
NAME=group-cuts GATEWAYS=3 VOLUMES=3 RUNTIME=25
[ "$(id -u)" = 0 ] || fail "network namespaces need root"
"$ROOT/tests/setup.sh" ceph clients
# shellcheck source=tests/interop/group-gateways.sh
. "$(dirname "$0")/group-gateways.sh"
NET=10.251.$(($$ % 250))
BRIDGE=bwg$$ HOST=$NET.254 CEPH=$NET.100
SPACES=()
at_end() {
  local space
  end_gateways
  for space in ${SPACES[@]+"${SPACES[@]}"}; do ip netns delete "$space" || true; done
  ip link delete "$BRIDGE" 2>/dev/null || true
}
trap at_end EXIT

# space NAME ADDRESS: a namespace on the bridge
space() {
  ip netns add "$1"
  SPACES+=("$1")
  ip link add "$BRIDGE-${2##*.}" type veth peer name eth0 netns "$1"
  ip link set "$BRIDGE-${2##*.}" master "$BRIDGE" up
  ip -n "$1" address add "$2/24" dev eth0
  ip -n "$1" link set eth0 up
  ip -n "$1" link set lo up
}
ip link add "$BRIDGE" type bridge
ip address add "$HOST/24" dev "$BRIDGE"
ip link set "$BRIDGE" up
space "$BRIDGE-ceph" "$CEPH"
for at in $(seq "$GATEWAYS"); do
  ADDRESS[$at]=$NET.$at WITHIN[$at]=$BRIDGE-gw$at
  space "${WITHIN[$at]}" "${ADDRESS[$at]}"
done
begin_cluster ip netns exec "$BRIDGE-ceph" env CEPH_ADDRESS="$CEPH"
serve_group

# drop_to ADDRESS VERB OTHER: whether packets from one address to the other are dropped; $HOST is outside
drop_to() {
  local within=()
  case $1 in
  "$HOST") ;;
  "$CEPH") within=(-n "$BRIDGE-ceph") ;;
  *) within=(-n "$BRIDGE-gw${1##*.}") ;;
  esac
  ip "${within[@]}" route "$2" blackhole "$3/32"
}
# cut_off SECONDS ONE OTHER: in both directions, without a word to either
cut_off() {
  local seconds=$1 one=$2 other=$3
  drop_to "$one" add "$other"; drop_to "$other" add "$one"
  sleep "$seconds"
  drop_to "$one" delete "$other"; drop_to "$other" delete "$one"
}
# started_again: a gateway that was replaced has ended, or ends now that it learns of it
started_again() {
  local at
  for at in $(seq "$GATEWAYS"); do
    kill -0 "${PID[$at]}" 2>/dev/null && continue
    wait "${PID[$at]}" 2>/dev/null && fail "gateway $at has ended with exit code 0"
    say "gateway $at was replaced, and has ended"
    launch "$at"
  done
  wait_until 30 settled || { on 1 gateway list >&2; fail "not all volumes have an owner that all know"; }
}
# the address of the owner of v2, and of a gateway that is not
owner_address() { local name; name=$(owner v2 1); printf '%s' "${ADDRESS[${name#gw}]}"; }
other_address() { local name; name=$(owner v2 1); printf '%s' "${ADDRESS[$((${name#gw} % GATEWAYS + 1))]}"; }

under_load "host from owner, 8 s" v2 cut_off 8 "$HOST" "$(owner_address)"
started_again
under_load "owner from the cluster, 12 s" v2 cut_off 12 "$(owner_address)" "$CEPH"
started_again
under_load "owner from another gateway, 6 s" v2 cut_off 6 "$(owner_address)" "$(other_address)"
started_again
say passed
