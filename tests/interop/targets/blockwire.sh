# shellcheck shell=bash
# Blockwire as the target under test. Kinds of logical units and what they are for:
#   thin flat removable readonly slow   the conformance suite
#   disk                                a file, kept over restarts
# IO chooses the world: uring or epoll; OVER the protocol of what `url` gives: iscsi or nvme.

IO=${IO:-uring}
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
TARGET_PID=
PORT=0
NVME_PORT=0
DISCOVERY_PORT=0
# shellcheck disable=SC2034
LINKS=2

# target_start DIR: serves all kinds over both protocols, sets TARGET_PID, PORT (iSCSI), NVME_PORT and
# DISCOVERY_PORT. DISK_KEYS are more keys of the disk's SPEC. A second start with the same DIR
# comes back on the same ports with the same file and state.
target_start() {
  local dir=$1
  mkdir -p "$dir/state"
  [ "$PORT" != 0 ] || { PORT=$(free_port) NVME_PORT=$(free_port) DISCOVERY_PORT=$(free_port); }
  set -- serve --iscsi "127.0.0.1:$PORT" --nvme "127.0.0.1:$NVME_PORT" \
    --nvme-discovery "127.0.0.1:$DISCOVERY_PORT" --io "$IO" --state "$dir/state" --control "$dir/control.sock" \
    --config "$dir/blockwire.toml" \
    --volume thin=ram:64M,thin,physical=4096 \
    --volume flat=ram:64M,thin,physical=512 \
    --volume removable=ram:64M,thin,physical=4096,removable \
    --volume readonly=ram:64M,thin,physical=4096,ro \
    --volume "slow=null:${SLOW_SIZE:-64M},sanitize_rate=4M" \
    --volume "disk=file:$dir/disk.img,size=${DISK_SIZE:-64M}${DISK_KEYS:-}"
  # One of the suite's tests sleeps for a minute and answers no ping.
  [ -e "$dir/blockwire.toml" ] || printf '[limits]\nnop_timeout = 120\n' >"$dir/blockwire.toml"
  : >"$dir/stdout" # what the last one said must not be taken for this one's
  "$BLOCKWIRE" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  if ! wait_until 20 grep -qx ready "$dir/stdout"; then
    tail -n 20 "$dir/stdout" "$dir/stderr" >&2
    fail "blockwire --io $IO does not come up"
  fi
  PORT=$(listening iscsi) NVME_PORT=$(listening nvme) DISCOVERY_PORT=$(listening nvme-discovery)
}

# listening PROTOCOL: the port that $dir/stdout names
listening() { sed -n "s/^listening $1 .*:\([0-9]*\)\$/\1/p" "$dir/stdout" | head -n 1; }

target_stop() { end "$TARGET_PID"; }
# target_killed: without warning
target_killed() {
  kill -9 "$TARGET_PID"
  wait "$TARGET_PID" 2>/dev/null || true
}

# target_chap DIR USER SECRET [TARGET-USER TARGET-SECRET]: from its next start the target asks for CHAP
target_chap() {
  local back=
  [ $# -lt 5 ] || back=", mutual_user = \"$4\", mutual_secret = \"$5\""
  rm -f "$1/blockwire.toml" # with its mode
  (umask 077; printf '[auth]\nchap = { user = "%s", secret = "%s"%s }\n' "$2" "$3" "$back" >"$1/blockwire.toml")
}

# target_dhchap HOST-NQN KEY: from its next start the target in $DIR asks for DH-HMAC-CHAP
target_dhchap() {
  rm -f "$DIR/blockwire.toml" "$DIR/dhchap.key"
  (umask 077; printf '%s\n' "$2" >"$DIR/dhchap.key"; printf '[auth]\ndhchap_key_file = "dhchap.key"\n' >"$DIR/blockwire.toml")
}

# target_settings_iscsi, target_settings_nvme: what our target or subsystem may be told, a line for each
target_settings_iscsi() {
  cat <<'SETTINGS'
header_digest="off" header_digest="allow" header_digest="require"
data_digest="off" data_digest="allow" data_digest="require"
max_connections=1 max_connections=4
initial_r2t=true initial_r2t=false
immediate_data=true immediate_data=false
first_burst="512"&max_burst="512" first_burst="4K"&max_burst="64K" first_burst="256K"&max_burst="1M"
max_receive="512" max_receive="4K" max_receive="256K" max_receive="16777215"
max_outstanding_r2t=1 max_outstanding_r2t=4 max_outstanding_r2t=65535
commands=1 commands=8 commands=4096
SETTINGS
}
target_settings_nvme() {
  cat <<'SETTINGS'
in_capsule="0" in_capsule="4K" in_capsule="8K" in_capsule="16K"
queues=1 queues=2 queues=128
queue_depth=2 queue_depth=16 queue_depth=1024
max_transfer="8K" max_transfer="128K" max_transfer="1M"
SETTINGS
}

# target_terms DIR PROTOCOL SETTINGS: from its next start the disk is served with these
target_terms() {
  {
    case $2 in
    nvme) printf '[[subsystem]]\nnqn = "%s"\nnamespaces = [{ volume = "disk", nsid = 1 }]\n' "$(nqn disk)" ;;
    *) printf '[[target]]\nname = "%s"\nluns = [{ lun = 0, volume = "disk" }]\n' "$(iqn disk)" ;;
    esac
    printf '%s\n' "${3//&/$'\n'}"
  } >"$1/blockwire.toml"
}

lun() { echo 0; }
nqn() { echo "nqn.2026-11.io.blockwire:$1"; }
iqn() { echo "iqn.2026-11.io.blockwire:$1"; }
url() {
  case ${OVER:-iscsi} in
  nvme) echo "nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn "$1")/1" ;;
  *) echo "iscsi://127.0.0.1:$PORT/$(iqn "$1")/$(lun)" ;;
  esac
}

# target_kinds: the kinds of logical units for the conformance suite
target_kinds() { echo thin flat removable readonly slow; }
