#!/usr/bin/env bash
# A stock Linux kernel proves itself by DH-HMAC-CHAP, and is refused with a wrong secret or none. It has the
# target prove itself too, and refuses it with a wrong secret. The
# kernel is that of Debian's backports: the one of Debian 12 is built without it.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
"$ROOT/tests/setup.sh" guest
use_target blockwire
DIR=$OUT/guest-auth IMAGE=$OUT/guest-image-backports
SECONDS_AT_MOST=240
gone "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/image.sh" "$IMAGE" bookworm-backports

guest_asks() { fail "the guest asks for: $*"; }
# secret HEX HMAC: a secret of these bytes, as its text
secret() { nvme gen-dhchap-key --secret="$1" --hmac="$2"; }
KEY=$(secret "$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" 0)
WRONG=$(secret "$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" 0)
CONTROLLER=$(secret "$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" 1)
(
  umask 077
  printf '%s\n' "$KEY" >"$DIR/key"
  printf '%s\n' "$CONTROLLER" >"$DIR/controller"
  printf '[auth]\ndhchap_key_file = "key"\ndhchap_controller_key_file = "controller"\n' >"$DIR/blockwire.toml"
)

target_start "$DIR"
guest_run "$DIR" "$IMAGE" auth "$SECONDS_AT_MOST" "PORT=$NVME_PORT" "NQN=$(nqn disk)" "KEY=$KEY" "WRONG=$WRONG" \
  "CONTROLLER=$CONTROLLER"
grep -q 'host failed to authenticate.*nqn.2014-08.org.nvmexpress:uuid:7e1a40c2' "$DIR/stderr" ||
  fail "the log does not say who was refused; see $DIR/stderr"
grep -q 'the host refused the controller.*nqn.2014-08.org.nvmexpress:uuid:7e1a40c2' "$DIR/stderr" ||
  fail "the log does not say which host refused the controller; see $DIR/stderr"
for secret in "$KEY" "$CONTROLLER"; do
  if grep -qF "${secret:12:20}" "$DIR/stderr" "$DIR/stdout"; then fail "the log shows a secret"; fi
done
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
say "guest: $(cat "$IMAGE/package") authenticated, was refused with a wrong secret and with none, authenticated \
the target, and refused it with a wrong one"
