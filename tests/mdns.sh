#!/usr/bin/env bash
# NVMe discovery by mDNS (TP8009) between two network namespaces: what is announced beside a target in one of them,
# `discover --mdns` finds in the other. Needs root.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || fail "root is needed for network namespaces"
cd "$ROOT"
cargo build -q -p blockwire --bin blockwire --example announce_discovery
BW=$BUILD/debug/blockwire
ANNOUNCE=$BUILD/debug/examples/announce_discovery
DIR=$OUT/mdns
gone "$DIR"
mkdir -p "$DIR"

TAG=bwm$$
cleanup() {
  end_all
  ip netns del "$TAG-t" 2>/dev/null || true
  ip netns del "$TAG-i" 2>/dev/null || true
}
trap cleanup EXIT
ip netns add "$TAG-t"
ip netns add "$TAG-i"
ip -n "$TAG-t" link add eth0 type veth peer name eth0 netns "$TAG-i"
number=1
for end in t i; do
  ip -n "$TAG-$end" link set lo up
  ip -n "$TAG-$end" addr add "10.79.0.$number/24" dev eth0
  ip -n "$TAG-$end" link set eth0 up
  number=$((number + 1))
done

in_initiator() { ip netns exec "$TAG-i" "$@"; }

# Nobody announces anything: it says so, and is not found.
status=0
in_initiator "$BW" discover --mdns >"$DIR/none" 2>&1 || status=$?
[ "$status" = 21 ] || fail "without announcements the exit code is $status: $(cat "$DIR/none")"

ip netns exec "$TAG-t" "$BW" serve --volume disk=ram:16M --allow-anonymous --nvme 10.79.0.1 --nvme-discovery 10.79.0.1 --state "$DIR/state" \
  --control "$DIR/control.sock" >"$DIR/serve.log" 2>"$DIR/serve.err" </dev/null &
ended_at_exit $!
wait_until 20 grep -qx ready "$DIR/serve.log" || fail "the target does not start: $DIR/serve.err"
ip netns exec "$TAG-t" "$ANNOUNCE" storage 10.79.0.1 8009 >"$DIR/announce.log" 2>&1 </dev/null &
ended_at_exit $!
# A service that is announced and not there is a note beside what is.
ip netns exec "$TAG-t" "$ANNOUNCE" ghost 10.79.0.1 8010 >"$DIR/ghost.log" 2>&1 </dev/null &
ended_at_exit $!
sleep 2

in_initiator "$BW" discover --mdns >"$DIR/found" || fail "nothing was found: $(cat "$DIR/found")"
grep -qx 'nvme+tcp://10.79.0.1:4420/nqn.2026-11.io.blockwire:disk/1' "$DIR/found" ||
  fail "the subsystem is not among what was found: $(cat "$DIR/found")"
grep -q '^note: ghost: ' "$DIR/found" || fail "the service that is not there is not told of: $(cat "$DIR/found")"
in_initiator "$BW" discover --mdns --json >"$DIR/found.json"
python3 -c 'import json, sys; found = json.load(open(sys.argv[1]))["found"]; assert [one["protocol"] for one in found] == ["nvme"], found' \
  "$DIR/found.json"
# The daemon announces what its configuration says, in its sandbox, and withdraws that with the configuration.
cat >"$DIR/own.toml" <<EOF
[[volume]]
name = "own"
source = "ram:16M"
[[portal]]
protocol = "nvme"
address = "10.79.0.1:4421"
[[portal]]
protocol = "nvme-discovery"
address = "0.0.0.0:8011"
announce = true
[sandbox]
EOF
ip netns exec "$TAG-t" "$BW" serve --config "$DIR/own.toml" --allow-anonymous --state "$DIR/own-state" --control "$DIR/own.sock" \
  >"$DIR/own.log" 2>"$DIR/own.err" </dev/null &
own=$!
ended_at_exit "$own"
wait_until 20 grep -qx ready "$DIR/own.log" || fail "the target that announces itself does not start: $DIR/own.err"
own_url='nvme+tcp://10.79.0.1:4421/nqn.2026-11.io.blockwire:own/1'
# Each try takes three seconds.
shows_own() { in_initiator "$BW" discover --mdns >"$DIR/own.found" 2>&1 && grep -qx "$own_url" "$DIR/own.found"; }
lacks_own() { ! shows_own && ! grep -q 'port 8011' "$DIR/own.found"; }
wait_until 1 shows_own || fail "what the daemon announces is not found: $(cat "$DIR/own.found")"
sed -i 's/^announce = true$/announce = false/' "$DIR/own.toml"
"$BW" apply --control "$DIR/own.sock" >"$DIR/apply.log" 2>&1 || fail "apply: $(cat "$DIR/apply.log")"
wait_until 1 lacks_own || fail "what is announced no more is found: $(cat "$DIR/own.found")"
sed -i 's/^announce = false$/announce = true/' "$DIR/own.toml"
"$BW" apply --control "$DIR/own.sock" >"$DIR/apply.log" 2>&1 || fail "apply: $(cat "$DIR/apply.log")"
wait_until 1 shows_own || fail "what is announced again is not found: $(cat "$DIR/own.found")"

say "mdns: found $(head -1 "$DIR/found")"
