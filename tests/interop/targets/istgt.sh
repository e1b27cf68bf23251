# shellcheck shell=bash
# Debian's istgt in Blockwire's place.

TARGET_PID=
PORT=0
CONTROL_PORT=0
ISTGT_AUTH=()
# shellcheck disable=SC2034
LINKS=2

# target_start DIR: as Blockwire's; a second start comes back on the same port with the same files
target_start() {
  local dir=$1 number=0 kind method=None
  mkdir -p "$dir"
  [ "$PORT" != 0 ] || { PORT=$(free_port) CONTROL_PORT=$(free_port); }
  case ${#ISTGT_AUTH[@]} in
  2) method=CHAP ;;
  4) method='CHAP Mutual' ;;
  esac
  (umask 077; printf '[AuthGroup1]\n  Auth %s\n' "${ISTGT_AUTH[*]@Q}" | tr "'" '"' >"$dir/auth.conf")
  {
    cat <<CONF
[Global]
  NodeBase "iqn.2026-11.io.blockwire"
  PidFile $dir/istgt.pid
  AuthFile $dir/auth.conf
  MediaDirectory $dir
  LogFacility "local7"
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod Auto
  MaxSessions 16
  MaxConnections 4
  MaxR2T 32
  FirstBurstLength 65536
  MaxBurstLength 262144
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0
[UnitControl]
  AuthMethod None
  Portal UC1 127.0.0.1:$CONTROL_PORT
  Netmask 127.0.0.1
[PortalGroup1]
  Portal DA1 127.0.0.1:$PORT
[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask ALL
CONF
    for kind in thin flat disk; do
      number=$((number + 1))
      [ -e "$dir/$kind.img" ] || truncate -s 64M "$dir/$kind.img"
      cat <<CONF
[LogicalUnit$number]
  TargetName $kind
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod $method
  AuthGroup AuthGroup1
  UseDigest Auto
  UnitType Disk
  LUN0 Storage $dir/$kind.img Auto
CONF
    done
  } >"$dir/istgt.conf"
  chmod 600 "$dir/istgt.conf"
  istgt -D -c "$dir/istgt.conf" >"$dir/stderr" 2>&1 </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  wait_until 10 bash -c ": <>/dev/tcp/127.0.0.1/$PORT" || { cat "$dir/stderr" >&2; fail "istgt does not come up"; }
}

target_stop() {
  kill -9 "$TARGET_PID" 2>/dev/null || true
  wait "$TARGET_PID" 2>/dev/null || true
}

# target_chap DIR USER SECRET [TARGET-USER TARGET-SECRET]
target_chap() { ISTGT_AUTH=("${@:2}"); }

lun() { echo 0; }
iqn() { echo "iqn.2026-11.io.blockwire:$1"; }
url() { echo "iscsi://127.0.0.1:$PORT/$(iqn "$1")/$(lun)"; }
