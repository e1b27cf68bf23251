#!/usr/bin/env bash
# A block device of Linux's ublk driver, served by our program inside of a guest whose stock kernel
# (bookworm-backports) has the driver: ext4 written and verified, also over the death of the server.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
"$ROOT/tests/setup.sh" build guest
DIR=$OUT/guest-ublk IMAGE=$OUT/guest-image-ublk
SECONDS_AT_MOST=240
rm -rf "$DIR"
mkdir -p "$DIR"
quietly build-local cargo build --locked -p blockwire-attach --example local
"$ROOT/tests/guest/image.sh" "$IMAGE" bookworm-backports "$BUILD/debug/examples/local"

guest_asks() { fail "the guest asks for: $*"; }
guest_run "$DIR" "$IMAGE" ublk "$SECONDS_AT_MOST"
say "guest: $(cat "$IMAGE/package") wrote and verified ext4 over ublk, and over the server's death"
