#!/usr/bin/env bash
# `blockwire eval run` on several machines over ssh: two network namespaces stand for an initiator machine
# and a target machine, each with an ssh server of its own; this program is copied there and removed again.
# The link between them has an MTU of 1500 and of 9000 bytes, each with segmentation offload and without.
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
DIR=$OUT/eval-ssh
gone "$DIR"
mkdir -p "$DIR" /run/sshd
chmod 700 "$DIR"
TAG=bwssh$$
clean_up() {
  ip netns del "$TAG-h" 2>/dev/null || true
  ip netns del "$TAG-t" 2>/dev/null || true
  ip netns del "$TAG-i" 2>/dev/null || true
}
trap 'end_all; clean_up' EXIT
# One namespace runs the harness, two are the machines; the first is where the cables meet.
for end in h t i; do
  ip netns add "$TAG-$end"
  ip -n "$TAG-$end" link set lo up
done
ip -n "$TAG-h" link add br0 type bridge
ip -n "$TAG-h" addr add 10.78.0.1/24 dev br0
ip -n "$TAG-h" link set br0 up
number=1
for end in t i; do
  number=$((number + 1))
  ip link add "to-$end" netns "$TAG-h" type veth peer name eth0 netns "$TAG-$end"
  ip -n "$TAG-h" link set "to-$end" master br0 up
  ip -n "$TAG-$end" addr add "10.78.0.$number/24" dev eth0
  ip -n "$TAG-$end" link set eth0 up
done
ssh-keygen -q -t ed25519 -N '' -f "$DIR/host"
ssh-keygen -q -t ed25519 -N '' -f "$DIR/user"
cat >"$DIR/sshd.conf" <<CONF
HostKey $DIR/host
AuthorizedKeysFile $DIR/user.pub
PidFile none
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
CONF
cat >"$DIR/ssh.conf" <<CONF
Host target
  HostName 10.78.0.2
Host load
  HostName 10.78.0.3
Host *
  User root
  IdentityFile $DIR/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile $DIR/known
CONF
for end in t i; do
  ip netns exec "$TAG-$end" /usr/sbin/sshd -D -e -f "$DIR/sshd.conf" 2>"$DIR/sshd-$end.log" &
  ended_at_exit $!
done
there() { ip netns exec "$TAG-h" ssh -F "$DIR/ssh.conf" "$@"; }
wait_until 10 there target true
wait_until 10 there load true

# link MTU on|off: the link of both machines, with or without segmentation and receive offload. A segment that is not
# cut by the sender's card needs no offload at the receiver, so both ends are set alike.
link() {
  local end
  for end in t i; do
    ip -n "$TAG-h" link set "to-$end" mtu "$1"
    ip -n "$TAG-$end" link set eth0 mtu "$1"
    ip netns exec "$TAG-$end" ethtool -K eth0 tso "$2" gso "$2" gro "$2"
    ip netns exec "$TAG-h" ethtool -K "to-$end" tso "$2" gso "$2" gro "$2"
  done
  ip -n "$TAG-h" link set br0 mtu "$1"
}

# machines NAME ARGUMENT...: an experiment on both machines; its record goes to $DIR/NAME
machines() {
  local name=$1
  shift
  ip netns exec "$TAG-h" "$BLOCKWIRE" eval run quick --scale 1 --out "$DIR/$name" "$@" \
    --target-host target --target-address 10.78.0.2 --initiator-host load --ssh "ssh -F $DIR/ssh.conf" >>"$DIR/said"
}

for mtu in 1500 9000; do
  for offload in on off; do
    link "$mtu" "$offload"
    machines "run-$mtu-$offload"
    python3 - "$DIR/run-$mtu-$offload/record.json" "$mtu" "$offload" <<'PY'
import json, sys
record, mtu, offload = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
roles = [machine["role"] for machine in record["environment"]]
assert roles == ["target", "initiator"], roles
for machine in record["environment"]:
    facts = dict(machine["facts"])
    assert facts["virtual interface eth0"] == f"MTU {mtu}", (machine["role"], facts)
    for kind in ("tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive-offload"):
        assert f"{kind}: {offload}" in facts["offloads of eth0"], (machine["role"], facts["offloads of eth0"])
assert len(record["points"]) == 4, [point["protocol"] for point in record["points"]]
for point in record["points"]:
    for run in point["runs"]:
        assert run["ios"] > 100 and run["errors"] == 0, run["ios"]
        # On a machine that is busy with other things ssh may take longer than a load: then the record says so.
        late = [side for side in ("target", "initiator") if "late" in run[side]]
        for side in ("target", "initiator"):
            assert side in late or sum(run[side]["process"]) > 0, (point["protocol"], side)
        assert run["target"]["resident"] > 1 << 20
        # Without offload each packet holds no more than one MTU; `quick` moves 4 KiB with each I/O.
        fewest = run["ios"] * 4096 / int(mtu) if offload == "off" else run["ios"] / 64
        assert "target" in late or run["packets"] > fewest, (run["packets"], fewest)
PY
    say "eval over ssh: MTU $mtu, offload $offload: both ends are looked at"
  done
done
# What serves there already, and nobody of ours started: the cores of its machine are looked at.
ip netns exec "$TAG-t" "$BLOCKWIRE" serve --nvme 10.78.0.2:4420 --volume there=ram:64M --allow-anonymous \
  --state "$DIR/there" --control "$DIR/there.sock" >"$DIR/there.out" 2>"$DIR/there.log" </dev/null &
ended_at_exit $!
wait_until 20 grep -qx ready "$DIR/there.out" || { cat "$DIR/there.log" >&2; fail "it does not come up"; }
machines url --url nvme+tcp://10.78.0.2/nqn.2026-11.io.blockwire:there/1
python3 - "$DIR/url/record.json" <<'PY'
import json, sys
points = json.load(open(sys.argv[1]))["points"]
assert len(points) == 2 and all(point["target"] == "url" for point in points), points
for run in (run for point in points for run in point["runs"]):
    assert run["ios"] > 100, run["ios"]
    assert "late" in run["target"] or sum(run["target"]["process"]) > 0, run["target"]
PY
for name in target load; do
  left=$(there "$name" "ls -d /tmp/blockwire-eval-* 2>/dev/null || true")
  [ -z "$left" ] || fail "$name: left behind: $left"
done
say "eval over ssh: two machines, both protocols, both ends looked at, also of what serves already; nothing left behind"
