#!/usr/bin/env bash
# A stock Linux kernel as the initiator: Debian's cloud kernel in an emulated machine, with
# open-iscsi, CHAP and both digests; ext4 written, verified after a new login, and again after the
# target was killed and started anew.
#   guest.sh [-t TARGET] [-k SUITE]     -k: the kernel of another Debian suite
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/interop/capture.sh
. "$ROOT/tests/interop/capture.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
TARGET=blockwire SUITE=
while getopts t:k: opt; do
  case $opt in
  t) TARGET=$OPTARG ;;
  k) SUITE=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" guest capture
use_target "$TARGET"
DIR=$OUT/guest-$TARGET IMAGE=$OUT/guest-image${SUITE:+-backports}
SECONDS_AT_MOST=240
USER_NAME=guest SECRET=not-a-secret-42
gone "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE" "$SUITE"

# What the guest asks for: the target's end, amid the writing that follows.
guest_asks() {
  [ "$1" = kill ] || fail "the guest asks for: $*"
  # tshark learns from the first data of a connection whether there are data digests. That it is
  # small cannot be had from a session that recovers, so the capture ends here, at rest.
  capture_end
  # shellcheck disable=SC2034
  GUEST_THEN=restart
}
restart() {
  sleep 1
  kill -9 "$TARGET_PID"
  wait "$TARGET_PID" 2>/dev/null || true
  target_start "$DIR"
}

target_chap "$DIR" "$USER_NAME" "$SECRET"
target_start "$DIR"
capture_start "$DIR/guest.pcapng" "$PORT"
guest_run "$DIR" "$IMAGE" iscsi "$SECONDS_AT_MOST" "PORT=$PORT" "IQN=$(iqn disk)" "LUN=$(lun)" \
  "CHAP_USER=$USER_NAME" "CHAP_SECRET=$SECRET"
capture_check "$DIR/guest.pcapng" "$PORT"
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
say "guest: $(cat "$IMAGE/package") wrote and verified ext4 over a restart of the target"
