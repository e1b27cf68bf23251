# shellcheck shell=bash
# SPDK's targets in Blockwire's place, where tests/bench/spdk.sh built them (SPDK_DIR); sourced by their
# adapters, which say spdk_configuration. The volumes are files, so a killed target comes back with them.

: "${SPDK_DIR:?where tests/bench/spdk.sh built SPDK}"
TARGET_PID=
# shellcheck disable=SC2034
PORT=0
# shellcheck disable=SC2034
NVME_PORT=0

# spdk_call METHOD PARAMS: one step of a configuration, as JSON
spdk_call() { printf '{"method":"%s","params":%s}' "$1" "$2"; }
# spdk_joined STEP...: with commas between them
spdk_joined() { local IFS=,; printf '%s' "$*"; }
# spdk_disk DIR KIND UUID
spdk_disk() {
  spdk_call bdev_aio_create "{\"name\":\"$2\",\"filename\":\"$1/$2.img\",\"block_size\":512,\"uuid\":\"$3\"}"
}

# spdk_start DIR PROGRAM PORT: as target_start
spdk_start() {
  local dir=$1 program=$2 port=$3 kind
  mkdir -p "$dir"
  for kind in disk flat; do [ -e "$dir/$kind.img" ] || truncate -s 64M "$dir/$kind.img"; done
  (umask 077; printf '{"subsystems":[{"subsystem":"bdev","config":[%s]},%s]}\n' "$(spdk_joined \
    "$(spdk_disk "$dir" disk 6a2f41a3-c54c-4a6b-8d3a-5b1f7e0c9d21)" \
    "$(spdk_disk "$dir" flat 6a2f41a3-c54c-4a6b-8d3a-5b1f7e0c9d22)")" "$(spdk_configuration "$dir")" >"$dir/spdk.json")
  LD_LIBRARY_PATH=$SPDK_DIR/build/lib "$SPDK_DIR/build/bin/$program" --no-huge -s 1024 --no-pci --iova-mode va -m 0x1 \
    -r "$dir/spdk.sock" -c "$dir/spdk.json" >"$dir/stderr" 2>&1 </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  wait_until 30 bash -c ": <>/dev/tcp/127.0.0.1/$port" || { tail -n 20 "$dir/stderr" >&2; fail "SPDK's $program does not come up"; }
  sleep 0.5 # several listeners share the port
}

target_stop() {
  kill -9 "$TARGET_PID" 2>/dev/null || true
  wait "$TARGET_PID" 2>/dev/null || true
}

iqn() { echo "iqn.2026-11.io.blockwire:$1"; }
nqn() { echo "nqn.2026-11.io.blockwire:$1"; }
