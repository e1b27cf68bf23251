#!/usr/bin/env bash
# Compares Blockwire with tgt and with the bare responder on this machine: bench-iscsi.sh [OPTION]...
# Options are those of the program: --rounds, --seconds, --servers, --parts, --congestion, --json FILE.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

[ "$(nproc)" -ge 2 ] || fail "two cores are needed: one for the servers, one for the clients"
"$ROOT/tests/setup.sh" build clients tgt
cd "$ROOT"
quietly bench-build release_build -p blockwire-bench
exec "$BUILD/release/bench-iscsi" --blockwire "$BUILD/release/blockwire" --json "$OUT/bench-iscsi.json" "$@"
