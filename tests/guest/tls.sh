#!/usr/bin/env bash
# A stock Linux kernel uses NVMe/TCP over TLS: by a key of its own, and by one that its secret of
# DH-HMAC-CHAP generates (secure channel concatenation), also with proof of the controller.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
"$ROOT/tests/setup.sh" guest
use_target blockwire
DIR=$OUT/guest-tls IMAGE=$OUT/guest-image-tls
SECONDS_AT_MOST=240
gone "$DIR"
mkdir -p "$DIR"
"$ROOT/tests/guest/tls-image.sh" "$IMAGE"

guest_asks() { fail "the guest asks for: $*"; }
"$BLOCKWIRE" key generate --kind tls "$DIR/tls.key"
"$BLOCKWIRE" key generate "$DIR/host.key"
"$BLOCKWIRE" key generate "$DIR/controller.key"
HOST_NQN=nqn.2014-08.org.nvmexpress:uuid:7e1a40c2-9d52-4a7e-8f0b-63cf0f8f5d10
PORT=$(free_port)
(umask 077 && cat >"$DIR/tls.toml" <<EOF
[[volume]]
name = "a"
source = "ram:32M"
[[volume]]
name = "b"
source = "ram:32M"
[[portal]]
protocol = "nvme"
address = "127.0.0.1:$PORT"
tls = "allow"
[[subsystem]]
nqn = "$(nqn a)"
namespaces = [{ volume = "a" }]
tls = "require"
[[subsystem]]
nqn = "$(nqn b)"
namespaces = [{ volume = "b" }]
tls = "require"
[[host]]
name = "by-key"
nqn = ["$HOST_NQN"]
tls_key_file = "tls.key"
access = [{ subsystem = "$(nqn a)" }]
[[host]]
name = "by-secret"
nqn = ["$HOST_NQN"]
dhchap_key_file = "host.key"
dhchap_controller_key_file = "controller.key"
access = [{ subsystem = "$(nqn b)" }]
[auth]
tls_derivations = ["standard", "compat"] # libnvme before 1.16
EOF
)
"$BLOCKWIRE" serve --config "$DIR/tls.toml" --io "$IO" --state "$DIR/state" --control "$DIR/control.sock" \
  >"$DIR/stdout" 2>"$DIR/stderr" </dev/null &
TARGET_PID=$!
ended_at_exit "$TARGET_PID"
wait_until 20 grep -qx ready "$DIR/stdout" || fail "blockwire does not come up; see $DIR"

guest_run "$DIR" "$IMAGE" tls "$SECONDS_AT_MOST" "PORT=$PORT" "TLS_NQN=$(nqn a)" "NQN=$(nqn b)" \
  "TLSKEY=$(<"$DIR/tls.key")" "KEY=$(<"$DIR/host.key")" "CONTROLLER=$(<"$DIR/controller.key")"
for key in tls host controller; do
  secret=$(<"$DIR/$key.key")
  if grep -qF "${secret:20:20}" "$DIR/stderr" "$DIR/stdout"; then fail "the log shows a secret"; fi
done
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
say "guest: $(cat "$IMAGE/package") used TLS by a key of its own and by keys that its secret generated"
