#!/usr/bin/env bash
# `blockwire eval run` on several machines over ssh: two network namespaces stand for an initiator machine
# and a target machine, each with an ssh server of its own; this program is copied there and removed again.
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
ip netns exec "$TAG-h" "$BLOCKWIRE" eval run quick --scale 1 --out "$DIR/run" \
  --target-host target --target-address 10.78.0.2 --initiator-host load --ssh "ssh -F $DIR/ssh.conf" >"$DIR/said"
python3 - "$DIR/run/record.json" <<'PY'
import json, sys
record = json.load(open(sys.argv[1]))
roles = [machine["role"] for machine in record["environment"]]
assert roles == ["target", "initiator"], roles
assert len(record["points"]) == 4, [point["protocol"] for point in record["points"]]
for point in record["points"]:
    for run in point["runs"]:
        assert run["ios"] > 100 and run["errors"] == 0, run["ios"]
        # On a machine that is busy with other things ssh may take longer than a load: then the record says so.
        late = [side for side in ("target", "initiator") if "late" in run[side]]
        for side in ("target", "initiator"):
            assert side in late or sum(run[side]["process"]) > 0, (point["protocol"], side)
        assert run["target"]["resident"] > 1 << 20
        assert "target" in late or run["packets"] > run["ios"] / 64, run["packets"]
PY
# What serves there already, and nobody of ours started: the cores of its machine are looked at.
ip netns exec "$TAG-t" "$BLOCKWIRE" serve --nvme 10.78.0.2:4420 --volume there=ram:64M --allow-anonymous \
  --state "$DIR/there" --control "$DIR/there.sock" >"$DIR/there.out" 2>"$DIR/there.log" </dev/null &
ended_at_exit $!
wait_until 20 grep -qx ready "$DIR/there.out" || { cat "$DIR/there.log" >&2; fail "it does not come up"; }
ip netns exec "$TAG-h" "$BLOCKWIRE" eval run quick --scale 1 --out "$DIR/url" \
  --url nvme+tcp://10.78.0.2/nqn.2026-11.io.blockwire:there/1 \
  --target-host target --target-address 10.78.0.2 --initiator-host load --ssh "ssh -F $DIR/ssh.conf" >>"$DIR/said"
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
