#!/usr/bin/env bash
# Compares Blockwire over NVMe/TCP with the bare responder, and with SPDK where it was built
# (spdk.sh; SPDK_DIR says where): bench-nvme.sh [OPTION]...
# Options are those of the program: --rounds, --seconds, --servers, --parts, --congestion, --json FILE.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

[ "$(nproc)" -ge 2 ] || fail "two cores are needed: one for the servers, one for the clients"
"$ROOT/tests/setup.sh" build
spdk=()
if [ -n "${SPDK_DIR:-}" ]; then
  SPDK_DIR=$(cd "$SPDK_DIR" && pwd)
  [ -x "$SPDK_DIR/build/bin/nvmf_tgt" ] || fail "no SPDK was built in SPDK_DIR=$SPDK_DIR: tests/bench/spdk.sh"
  spdk=(--spdk "$SPDK_DIR")
fi
cd "$ROOT"
quietly bench-build release_build -p blockwire-bench
exec "$BUILD/release/bench-nvme" --blockwire "$BUILD/release/blockwire" --json "$OUT/bench-nvme.json" \
  ${spdk[@]+"${spdk[@]}"} "$@"
