# shellcheck shell=bash
# Debian's tgt in Blockwire's place: what the scripts are calibrated against.

TARGET_PID=
PORT=0
TGT_ACCOUNT=()
# It takes the same initiator in another session for another registrant.
# shellcheck disable=SC2034
RESERVES=register
# It accepts SHA-256 and then has no room for its response ("buf[20] !sufficient").
# shellcheck disable=SC2034
HASHES="&chap=sha1+md5"

tgt() { tgtadm -C "$((PORT % 32000))" --lld iscsi "$@"; }

target_start() {
  local dir=$1 tid=0 kind
  mkdir -p "$dir" /var/run/tgtd
  [ "$PORT" != 0 ] || PORT=$((20000 + $$ % 10000))
  tgtd -f -C "$((PORT % 32000))" --iscsi "portal=127.0.0.1:$PORT" >"$dir/stderr" 2>&1 </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  wait_until 10 tgt --op show --mode sys || { cat "$dir/stderr" >&2; fail "tgtd does not come up"; }
  [ ${#TGT_ACCOUNT[@]} = 0 ] ||
    tgt --op new --mode account --user "${TGT_ACCOUNT[0]}" --password "${TGT_ACCOUNT[1]}"
  [ ${#TGT_ACCOUNT[@]} -lt 4 ] ||
    tgt --op new --mode account --user "${TGT_ACCOUNT[2]}" --password "${TGT_ACCOUNT[3]}"
  for kind in thin flat removable readonly disk; do
    tid=$((tid + 1))
    [ -e "$dir/$kind.img" ] || truncate -s 64M "$dir/$kind.img"
    tgt --op new --mode target --tid $tid -T "$(iqn $kind)"
    # Its default refuses digests.
    tgt --op update --mode target --tid $tid --name HeaderDigest --value CRC32C,None
    tgt --op update --mode target --tid $tid --name DataDigest --value CRC32C,None
    tgt --op new --mode logicalunit --tid $tid --lun 1 -b "$dir/$kind.img"
    case $kind in
    removable) tgt --op update --mode logicalunit --tid $tid --lun 1 --params removable=1 ;;
    readonly) tgt --op update --mode logicalunit --tid $tid --lun 1 --params readonly=1 ;;
    esac
    [ ${#TGT_ACCOUNT[@]} = 0 ] || tgt --op bind --mode account --tid $tid --user "${TGT_ACCOUNT[0]}"
    [ ${#TGT_ACCOUNT[@]} -lt 4 ] ||
      tgt --op bind --mode account --tid $tid --user "${TGT_ACCOUNT[2]}" --outgoing
    tgt --op bind --mode target --tid $tid -I ALL
  done
}

target_stop() {
  # tgtd ignores a plain SIGTERM while it has targets.
  kill -9 "$TARGET_PID" 2>/dev/null || true
  wait "$TARGET_PID" 2>/dev/null || true
}

# target_chap DIR USER SECRET [TARGET-USER TARGET-SECRET]
target_chap() { TGT_ACCOUNT=("${@:2}"); }

lun() { echo 1; }
iqn() { echo "iqn.2026-11.io.blockwire:$1"; }
url() { echo "iscsi://127.0.0.1:$PORT/$(iqn "$1")/$(lun)"; }

target_kinds() { echo thin flat removable readonly; }
