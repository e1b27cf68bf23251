# shellcheck shell=bash
# Blockwire as the target under test. Kinds of logical units and what they are for:
#   thin flat removable readonly slow   the conformance suite
#   disk                                a file, kept over restarts
# IO chooses the world: uring or epoll.

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

# target_chap DIR USER SECRET: from its next start the target asks for CHAP
target_chap() {
  (umask 077; printf '[auth]\nchap = { user = "%s", secret = "%s" }\n' "$2" "$3" >"$1/blockwire.toml")
}

lun() { echo 0; }
nqn() { echo "nqn.2026-11.io.blockwire:$1"; }
iqn() { echo "iqn.2026-11.io.blockwire:$1"; }
url() { echo "iscsi://127.0.0.1:$PORT/$(iqn "$1")/$(lun)"; }

# target_kinds: the kinds of logical units for the conformance suite
target_kinds() { echo thin flat removable readonly slow; }
