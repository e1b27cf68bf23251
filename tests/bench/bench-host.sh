#!/usr/bin/env bash
# Compares our initiator with libiscsi's client, with the bare requester, and with SPDK's client where
# that was built (spdk.sh; SPDK_DIR says where), on our own target: bench-host.sh [OPTION]...
# Options are those of the program: --rounds, --seconds, --clients, --poll-us, --congestion, --json FILE.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

[ "$(nproc)" -ge 2 ] || fail "two cores are needed: one for the servers, one for the clients"
"$ROOT/tests/setup.sh" build clients
spdk=()
if [ -n "${SPDK_DIR:-}" ]; then
  SPDK_DIR=$(cd "$SPDK_DIR" && pwd)
  [ -x "$SPDK_DIR/build/bin/spdk_nvme_perf" ] || fail "no SPDK was built in SPDK_DIR=$SPDK_DIR: tests/bench/spdk.sh"
  spdk=(--spdk "$SPDK_DIR")
fi
cd "$ROOT"
quietly bench-build release_build -p blockwire-bench
exec "$BUILD/release/bench-host" --blockwire "$BUILD/release/blockwire" --json "$OUT/bench-host.json" \
  ${spdk[@]+"${spdk[@]}"} "$@"
