# shellcheck shell=bash
# SPDK's iscsi_tgt.

# shellcheck source=tests/interop/spdk-target.sh
. "$ROOT/tests/interop/spdk-target.sh"
# shellcheck disable=SC2034
LINKS=2
# It takes the same initiator in another session for another registrant.
# shellcheck disable=SC2034
RESERVES=register
# shellcheck disable=SC2034
UNPROVED=1 UNPROVED_SAYS="refused the login"
# It dies of the data digest of an answer whose length is odd, if it was built without ISA-L.
# shellcheck disable=SC2034
MOST_DIGESTS=header
SPDK_CHAP=() SPDK_DISABLE=true SPDK_REQUIRE=false SPDK_MUTUAL=false

spdk_configuration() {
  local steps=() kind
  steps+=("$(spdk_call iscsi_set_options '{"max_connections_per_session":2,"max_sessions":64,"pdu_pool_size":2048,"immediate_data_pool_size":512,"data_out_pool_size":512}')"
    "$(spdk_call iscsi_create_portal_group "{\"tag\":1,\"portals\":[{\"host\":\"127.0.0.1\",\"port\":\"$PORT\"}]}")"
    "$(spdk_call iscsi_create_initiator_group '{"tag":1,"initiators":["ANY"],"netmasks":["ANY"]}')")
  [ ${#SPDK_CHAP[@]} = 0 ] || steps+=("$(spdk_call iscsi_create_auth_group "{\"tag\":1,\"secrets\":[${SPDK_CHAP[*]}]}")")
  for kind in disk flat; do
    steps+=("$(spdk_call iscsi_create_target_node "{\"name\":\"$(iqn $kind)\",\"alias_name\":\"$kind\",
\"luns\":[{\"bdev_name\":\"$kind\",\"lun_id\":0}],\"pg_ig_maps\":[{\"pg_tag\":1,\"ig_tag\":1}],\"queue_depth\":64,
\"disable_chap\":$SPDK_DISABLE,\"require_chap\":$SPDK_REQUIRE,\"mutual_chap\":$SPDK_MUTUAL,\"chap_group\":${#SPDK_CHAP[@]},
\"header_digest\":false,\"data_digest\":false}")")
  done
  printf '{"subsystem":"iscsi","config":[%s]}' "$(spdk_joined "${steps[@]}")"
}

target_start() {
  [ "$PORT" != 0 ] || PORT=$(free_port)
  spdk_start "$1" iscsi_tgt "$PORT"
}

# target_chap DIR USER SECRET [TARGET-USER TARGET-SECRET]
target_chap() {
  local back=
  SPDK_DISABLE=false SPDK_REQUIRE=true
  if [ $# -ge 5 ]; then
    back=",\"muser\":\"$4\",\"msecret\":\"$5\""
    SPDK_MUTUAL=true
  fi
  SPDK_CHAP=("{\"user\":\"$2\",\"secret\":\"$3\"$back}")
}

lun() { echo 0; }
url() { echo "iscsi://127.0.0.1:$PORT/$(iqn "$1")/$(lun)"; }
