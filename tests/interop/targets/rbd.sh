# shellcheck shell=bash
# Blockwire on a cluster of Ceph as the target under test: images of the pool rbd, which the caller starts
# (tests/ceph.sh) and names by CEPH_CONF.
#   thin    the conformance suite
#   disk    for load
# RBD_KEYS are more keys of both SPECs, as ",queue_timeout=3s".
# shellcheck source=tests/interop/targets/blockwire.sh
. "$ROOT/tests/interop/targets/blockwire.sh"

# target_start DIR: as blockwire's
target_start() {
  local dir=$1
  mkdir -p "$dir/state"
  [ "$PORT" != 0 ] || { PORT=$(free_port) NVME_PORT=$(free_port); }
  printf '[limits]\nnop_timeout = 120\n' >"$dir/blockwire.toml"
  : >"$dir/stdout"
  "$BLOCKWIRE" serve --iscsi "127.0.0.1:$PORT" --nvme "127.0.0.1:$NVME_PORT" --io "$IO" \
    --state "$dir/state" --control "$dir/control.sock" --config "$dir/blockwire.toml" \
    --volume "thin=rbd:rbd/thin,conf=$CEPH_CONF${RBD_KEYS:-}" \
    --volume "disk=rbd:rbd/disk,conf=$CEPH_CONF${RBD_KEYS:-}" >"$dir/stdout" 2>>"$dir/stderr" </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  if ! wait_until "${START_SECONDS:-30}" grep -qx ready "$dir/stdout"; then
    tail -n 20 "$dir/stdout" "$dir/stderr" >&2
    fail "blockwire on rbd does not come up"
  fi
}
target_kinds() { echo thin; }
