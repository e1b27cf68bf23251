# shellcheck shell=bash
# SPDK's nvmf_tgt, over NVMe/TCP.

# shellcheck source=tests/interop/spdk-target.sh
. "$ROOT/tests/interop/spdk-target.sh"
# Its commands carry no more (MDTS).
# shellcheck disable=SC2034
SIZES="512 4k 64k 128k"
SPDK_HOST='' SPDK_KEY=''

spdk_configuration() {
  local dir=$1 steps=() listeners=() keys=() kind nqn anybody=true listener
  if [ -n "$SPDK_KEY" ]; then
    anybody=false
    (umask 077; printf '%s' "$SPDK_KEY" >"$dir/host.key")
    keys=("$(spdk_call keyring_file_add_key "{\"name\":\"host\",\"path\":\"$dir/host.key\"}")")
  fi
  listener="{\"trtype\":\"TCP\",\"adrfam\":\"IPv4\",\"traddr\":\"127.0.0.1\",\"trsvcid\":\"$NVME_PORT\"}"
  steps+=("$(spdk_call nvmf_create_transport '{"trtype":"TCP","in_capsule_data_size":8192}')")
  # Who finds the port open must find all behind it.
  for nqn in "$(nqn flat)" nqn.2014-08.org.nvmexpress.discovery "$(nqn disk)"; do
    listeners+=("$(spdk_call nvmf_subsystem_add_listener "{\"nqn\":\"$nqn\",\"listen_address\":$listener}")")
  done
  for kind in disk flat; do
    nqn=$(nqn $kind)
    steps+=("$(spdk_call nvmf_create_subsystem "{\"nqn\":\"$nqn\",\"allow_any_host\":$anybody,\"serial_number\":\"$kind\"}")"
      "$(spdk_call nvmf_subsystem_add_ns "{\"nqn\":\"$nqn\",\"namespace\":{\"nsid\":1,\"bdev_name\":\"$kind\"}}")")
    [ "$anybody" = true ] ||
      steps+=("$(spdk_call nvmf_subsystem_add_host "{\"nqn\":\"$nqn\",\"host\":\"$SPDK_HOST\",\"dhchap_key\":\"host\"}")")
  done
  printf '{"subsystem":"keyring","config":[%s]},{"subsystem":"nvmf","config":[%s]}' \
    "$(spdk_joined ${keys[@]+"${keys[@]}"})" "$(spdk_joined "${steps[@]}" "${listeners[@]}")"
}

target_start() {
  [ "$NVME_PORT" != 0 ] || NVME_PORT=$(free_port)
  spdk_start "$1" nvmf_tgt "$NVME_PORT"
}

# target_dhchap HOST-NQN KEY: from its next start the target asks for DH-HMAC-CHAP
target_dhchap() { SPDK_HOST=$1 SPDK_KEY=$2; }

url() { echo "nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn "$1")/1"; }
