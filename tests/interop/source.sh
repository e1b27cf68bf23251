#!/usr/bin/env bash
# `host_traddr` and `host_iface` in URLs: two network namespaces with two cables between them. One portal of the target is
# reached by either cable, as a path's URL says and not as the routes do; the target says where connections come from.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
cd "$ROOT"
[ "$(id -u)" = 0 ] || { say "network namespaces take root: not run"; exit 0; }
tests/setup.sh build ssh
if [ -z "${BLOCKWIRE:-}" ]; then
  quietly build-release release_build
  BLOCKWIRE=$BUILD/release/blockwire
fi
DIR=$(mktemp -d "$OUT/source-XXXXXX")
TAG=bwsrc$$
clean_up() {
  ip netns del "$TAG-h" 2>/dev/null || true
  ip netns del "$TAG-t" 2>/dev/null || true
  rm -rf "$DIR"
}
trap 'end_all; clean_up' EXIT
for end in h t; do
  ip netns add "$TAG-$end"
  ip -n "$TAG-$end" link set lo up
  # Either cable may carry what the routes would send by the other.
  ip netns exec "$TAG-$end" sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
done
for cable in 0 1; do
  ip link add "h$cable" netns "$TAG-h" type veth peer name "t$cable" netns "$TAG-t"
  ip -n "$TAG-h" addr add "10.79.$cable.1/24" dev "h$cable"
  ip -n "$TAG-t" addr add "10.79.$cable.2/24" dev "t$cable"
  ip -n "$TAG-h" link set "h$cable" up
  ip -n "$TAG-t" link set "t$cable" up
done
ip -n "$TAG-h" addr add 10.79.0.9/24 dev h0
# The portal's address is on neither cable: the host's route goes by the first, and there is one by the second too.
ip -n "$TAG-t" addr add 10.79.9.9/32 dev lo
ip -n "$TAG-h" route add 10.79.9.9/32 via 10.79.0.2 dev h0
ip -n "$TAG-h" route add 10.79.9.9/32 via 10.79.1.2 dev h1 metric 100

there() { ip netns exec "$TAG-t" "$BLOCKWIRE" "$@"; }
here() { ip netns exec "$TAG-h" "$BLOCKWIRE" "$@"; }
CONTROL=$DIR/control.sock
ip netns exec "$TAG-t" "$BLOCKWIRE" serve --volume disk=ram:16M,uuid=6b5f6b1e-0000-4000-8000-00000000000a \
  --iscsi 10.79.9.9 --nvme 10.79.9.9 --allow-anonymous --node t --control "$CONTROL" --state "$DIR/state" \
  >"$DIR/serve.log" 2>&1 &
ended_at_exit $!
wait_until 20 grep -qx ready "$DIR/serve.log" || fail "the target does not serve: $(cat "$DIR/serve.log")"
ISCSI=iscsi://10.79.9.9/$(there target list --control "$CONTROL" --json | grep -o 'iqn\.[^"]*' | head -1)/0
NVME=nvme+tcp://10.79.9.9/$(there subsystem list --control "$CONTROL" --json | grep -o 'nqn\.2026[^"]*' | head -1)/1

# from URL: the addresses that connections of a load by this URL come from, as the target sees them
from() {
  local url=$1 load
  ip netns exec "$TAG-h" "$BLOCKWIRE" bench "$url" --rw=randread --bs=4k --rate_iops=100 --runtime=60 --time_based \
    >"$DIR/bench.log" 2>&1 &
  load=$!
  ended_at_exit "$load"
  wait_until 15 seen || fail "nobody came: $(cat "$DIR/bench.log")"
  there connection list --control "$CONTROL" --json | grep -o '10\.79\.[0-9]*\.[0-9]*' | grep -v '^10\.79\.9\.9$' |
    sort -u | tr '\n' ' '
  end "$load"
  wait_until 15 not_seen || fail "the connections stay"
}
seen() { there connection list --control "$CONTROL" --json | grep -q '10\.79\.[01]\.'; }
not_seen() { ! seen; }

for url in "$ISCSI" "$NVME"; do
  [ "$(from "$url")" = "10.79.0.1 " ] || fail "$url: the route is not taken: $(from "$url")"
  [ "$(from "$url?host_traddr=10.79.0.9")" = "10.79.0.9 " ] || fail "$url: host_traddr is not taken"
  [ "$(from "$url?host_iface=h1")" = "10.79.1.1 " ] || fail "$url: host_iface is not taken"
  # Two paths to one portal, by either cable; one is cut, and the other goes on.
  both="$url?host_iface=h0,$url?host_iface=h1"
  [ "$(from "$both")" = "10.79.0.1 10.79.1.1 " ] || fail "$url: two paths do not go by two cables"
  ip -n "$TAG-h" link set h0 down
  here read "$url?host_iface=h1" --length 4096 >/dev/null || fail "$url: the second cable does not do by itself"
  ip -n "$TAG-h" link set h0 up
  ip -n "$TAG-h" route replace 10.79.9.9/32 via 10.79.0.2 dev h0
  for wrong in "host_traddr=192.0.2.1=is none of this machine" "host_iface=none0=no network interface" \
    "host_traddr=::1=IPv6"; do
    if here info "$url?${wrong%=*}" >"$DIR/said" 2>&1; then fail "$wrong: it is taken"; fi
    grep -q "${wrong##*=}" "$DIR/said" || fail "$wrong: $(cat "$DIR/said")"
  done
done
for url in iscsi://10.79.9.9 nvme+tcp://10.79.9.9:4420; do
  here discover "$url?host_iface=h1" >/dev/null || fail "$url: discovery by the second cable"
done
say "paths go by the addresses and interfaces that their URLs name, over both protocols"
