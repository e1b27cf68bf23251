# shellcheck shell=bash
# Gateways of a group on a cluster of our own, for the scripts that source it: sets DIR, CLUSTER, and ends all at exit.
# GATEWAYS, VOLUMES, BLOCKWIRE. ADDRESS[N] is where gateway N listens, WITHIN[N] the network namespace that it runs in.
# tests/interop/group.sh and group-cuts.sh.

DIR=$OUT/${NAME:?the name of the script}
CLUSTER=$DIR/ceph
declare -A PID=() ISCSI=() NVME=() LINK=() ADDRESS=() WITHIN=()
end_gateways() {
  local pid
  for pid in "${PID[@]}"; do kill -CONT "$pid" 2>/dev/null || true; kill -9 "$pid" 2>/dev/null || true; done
  end_all
  "$ROOT/tests/ceph.sh" stop "$CLUSTER"
}
# begin_cluster COMMAND...: starts it by this command, `env` for here; what an earlier run has left goes first
begin_cluster() {
  [ ! -e "$CLUSTER" ] || "$ROOT/tests/ceph.sh" stop "$CLUSTER"
  gone "$DIR"
  mkdir -p "$DIR"
  "$@" "$ROOT/tests/ceph.sh" start "$CLUSTER"
  export CEPH_CONF=$CLUSTER/ceph.conf
}

say() { printf '%s: %s\n' "$NAME" "$*"; }
bw() { timeout 60 "$BLOCKWIRE" "$@"; }
on() { local at=$1; shift; bw "$@" --control "$DIR/$at/control.sock"; }

# configure N: the file of gateway N; volumes are configured alike at all
configure() {
  local at=$1 volume address=${ADDRESS[$1]:-127.0.0.1}
  mkdir -p "$DIR/$at"
  : "${ISCSI[$at]:=$(free_port)}"; : "${NVME[$at]:=$(free_port)}"; : "${LINK[$at]:=$(free_port)}"
  {
    for volume in $(seq "$VOLUMES"); do
      printf '[[volume]]\nname = "v%s"\nsource = "rbd:rbd/v%s"\n' "$volume" "$volume"
    done
    printf '[[portal]]\nprotocol = "iscsi"\naddress = "%s:%s"\ntag = %s\n' "$address" "${ISCSI[$at]}" "$at"
    printf '[[portal]]\nprotocol = "nvme"\naddress = "%s:%s"\n' "$address" "${NVME[$at]}"
    printf '[group]\nname = "g"\npool = "rbd"\nconf = "%s"\n' "$CEPH_CONF"
    printf 'gateway = "gw%s"\nlisten = "%s:%s"\n' "$at" "$address" "${LINK[$at]}"
  } >"$DIR/$at/blockwire.toml"
}

launch() {
  local at=$1 within=()
  [ -z "${WITHIN[$at]:-}" ] || within=(ip netns exec "${WITHIN[$at]}")
  "${within[@]}" "$BLOCKWIRE" serve --allow-anonymous --config "$DIR/$at/blockwire.toml" --state "$DIR/$at/state" \
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

url_iscsi() { printf 'iscsi://%s:%s/iqn.2026-11.io.blockwire:%s/0' "${ADDRESS[$2]:-127.0.0.1}" "${ISCSI[$2]}" "$1"; }
url_nvme() { printf 'nvme+tcp://%s:%s/nqn.2026-11.io.blockwire:%s/1' "${ADDRESS[$2]:-127.0.0.1}" "${NVME[$2]}" "$1"; }

# serve_group: makes the images, starts the gateways, waits until every volume has an owner that all know
serve_group() {
  local at volume
  for volume in $(seq "$VOLUMES"); do timeout 60 rbd -c "$CEPH_CONF" create --size 64M "rbd/v$volume"; done
  for at in $(seq "$GATEWAYS"); do configure "$at"; done
  for at in $(seq "$GATEWAYS"); do launch "$at"; done
  wait_until 30 settled || { on 1 gateway list >&2; fail "not all volumes have an owner that all know"; }
  say "$GATEWAYS gateways serve $VOLUMES volumes"
  on 1 gateway list
}

# under_load NAME VOLUME COMMAND...: runs the command 4 s after verified writes by paths of all gateways have begun, and
# prints the longest write
under_load() {
  local name=$1 volume=$2 url pid rc=0; shift 2
  url=$(for n in $(seq "$GATEWAYS"); do url_nvme "$volume" "$n"; [ "$n" = "$GATEWAYS" ] || printf ,; done)
  bw bench --force --json "$url" -- --rw=randwrite --bs=4k --iodepth=16 --size=16m --runtime="${RUNTIME:-15}" \
    --time_based --verify=crc32c >"$DIR/bench-$name.json" 2>"$DIR/bench-$name.err" &
  pid=$!
  sleep 4
  "$@"
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { cat "$DIR/bench-$name.err" >&2; fail "$name: the load failed: exit $rc"; }
  python3 - "$NAME: $name" "$DIR/bench-$name.json" <<'END'
import json, sys
def longest(value):
    if isinstance(value, dict):
        return max([value["max"] if k == "max" and isinstance(value["max"], (int, float)) else longest(v) for k, v in value.items()] or [0])
    if isinstance(value, list):
        return max([longest(v) for v in value] or [0])
    return 0
print(f"{sys.argv[1]}: longest write {longest(json.load(open(sys.argv[2]))) / 1e6:.2f} s, no wrong block")
END
}
