# shellcheck shell=bash
# Captures of loopback traffic, for tshark's second opinion; sourced after lib.sh.

CAPTURE_PID=

# capture_start FILE PORT
capture_start() {
  local log=$1.log
  rm -f "$1" "$log"
  dumpcap -q -i lo -B 64 -f "tcp port $2" -w "$1" >"$log" 2>&1 </dev/null &
  CAPTURE_PID=$!
  ended_at_exit "$CAPTURE_PID"
  if ! wait_until 10 grep -q '^File: ' "$log"; then
    cat "$log" >&2
    fail "cannot capture on loopback: that takes root or CAP_NET_RAW for dumpcap"
  fi
}

# capture_end: what has been sent so far is in the file
capture_end() {
  sleep 0.5 # the last segments are on their way through the kernel's buffer
  end "$CAPTURE_PID"
}

# capture_check FILE PORT [PROTOCOL]: every byte of an ended capture must be part of a PDU, and every
# digest right; PROTOCOL is iscsi (unless given) or nvme
capture_check() {
  xtask capture --pcap "$1" --port "$2" --protocol "${3:-iscsi}" || fail "capture: $1"
  rm -f "$1"
}
