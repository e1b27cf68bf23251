#!/usr/bin/env bash
# A block device of Linux's ublk driver, served by our program inside of a guest whose stock kernel
# (bookworm-backports) has the driver: ext4 written and verified, also over the death of the server; and
# `blockwire attach` there: its holder killed and recovered, and killed for good; the kernel's own NBD client; and a
# new size, where the kernel lets a device have one.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
"$ROOT/tests/setup.sh" build guest
DIR=$OUT/guest-ublk IMAGE=$OUT/guest-image-ublk
SECONDS_AT_MOST=240
gone "$DIR"
mkdir -p "$DIR"
quietly build-local cargo build --locked -p blockwire-block-device --example local
quietly build-blockwire cargo build --locked -p blockwire
# The guest's memory holds all of it.
strip -o "$DIR/blockwire" "$BUILD/debug/blockwire"
"$ROOT/tests/guest/image.sh" "$IMAGE" bookworm-backports "$BUILD/debug/examples/local" "$DIR/blockwire" nbd-client

guest_asks() { fail "the guest asks for: $*"; }
guest_run "$DIR" "$IMAGE" ublk "$SECONDS_AT_MOST"
say "guest: $(cat "$IMAGE/package") wrote and verified ext4 over ublk, and over the server's death; attach recovered, failed in time, and served the kernel's NBD client"
