#!/usr/bin/env bash
# What sessions that do nothing cost the daemon: the memory of each of 2,000 (NVMe/TCP: 1,000
# controllers with an I/O queue each), and the processor time of 100 over a while. Both have a limit.
#   sessions.sh [SECONDS]      IO=uring|epoll chooses the world
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
declare -A MEMORY_SESSIONS=([iscsi]=2000 [nvme]=1000)
MEMORY_LIMIT=$((32 * 1024)) # bytes of resident memory per session
IDLE_SESSIONS=100
IDLE_SECONDS=${1:-60}
IDLE_LIMIT=0.001 # of one processor
# Several tries: whatever else the machine does may only add to what is measured.
TRIES=3

use_target blockwire
[ -x "$BLOCKWIRE" ] || fail "missing: $BLOCKWIRE (tests/test.sh build)"
LOAD=$BUILD/debug/raw-load
quietly build-load cargo build --locked --workspace --bin raw-load

# rest NAME PROTOCOL SESSIONS SECONDS: prints what sessions cost a fresh daemon, as `key value` lines
rest() {
  local dir=$OUT/sessions-$IO-$1-$2 port=PORT
  gone "$dir"
  # shellcheck disable=SC2034
  PORT=0
  target_start "$dir"
  [ "$2" = iscsi ] || port=NVME_PORT
  "$LOAD" "127.0.0.1:${!port}" --protocol "$2" --target "$(iqn thin)" --subsystem "$(nqn thin)" \
    --server-pid "$TARGET_PID" --idle "$3" --seconds "$4" >"$dir/result" </dev/null
  target_stop
  RESULT=$dir/result
}
figure() { awk -v key="$1" '$1 == key { print $2 }' "$RESULT"; }
below() { awk -v value="$1" -v limit="$2" 'BEGIN { exit !(value != "" && value + 0 < limit) }'; }

# measure PROTOCOL
measure() {
  local bytes share try count=${MEMORY_SESSIONS[$1]}
  rest memory "$1" "$count" 1
  bytes=$(figure bytes_per_session)
  say "$IO, $1: $count sessions logged in within $(printf '%.1f' "$(figure login_seconds)") s," \
    "$bytes bytes of resident memory each (limit $MEMORY_LIMIT)"
  below "$bytes" "$MEMORY_LIMIT" || fail "a session that does nothing takes too much memory"
  [ "$bytes" -gt 0 ] || fail "sessions without memory: the measurement is broken"

  for ((try = 1; ; try++)); do
    rest idle "$1" "$IDLE_SESSIONS" "$IDLE_SECONDS"
    share=$(figure server_cpu_share)
    say "$IO, $1: $IDLE_SESSIONS sessions at rest for $IDLE_SECONDS s:" \
      "$(awk -v share="$share" 'BEGIN { printf "%.4f", share * 100 }') % of one processor" \
      "(limit $(awk -v limit="$IDLE_LIMIT" 'BEGIN { print limit * 100 }') %)"
    ! below "$share" "$IDLE_LIMIT" || break
    [ "$try" -lt "$TRIES" ] || fail "sessions at rest take too much processor time, $TRIES times in a row"
  done
}

measure iscsi
measure nvme
