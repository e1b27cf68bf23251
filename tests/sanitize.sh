#!/usr/bin/env bash
# Rust's tests under the interpreter Miri, AddressSanitizer or ThreadSanitizer: sanitize.sh miri|asan|tsan [FILTER]
# By a nightly toolchain; what is missing is said. Each has a build of its own.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
HOW=${1:?which: miri, asan or tsan}
FILTER=(${2:+"$2"})
HOST=$(rustc -vV | sed -n 's/^host: //p')
components() { rustup component list --toolchain nightly --installed 2>/dev/null || true; }
has() { components | grep -q "^$1" || fail "a nightly toolchain with $1 is missing: rustup component add $1 --toolchain nightly"; }
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}/$HOW

case $HOW in
miri)
  has miri
  has rust-src
  # A file of its own is read by one test; clocks are simulated anyway.
  MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}" cargo +nightly miri test --locked \
    -p blockwire-buf -p blockwire-stream -p blockwire-volume --lib -- "${FILTER[@]}"
  ;;
asan)
  # Pools and mappings live as long as the process; only what is used wrongly is looked for.
  ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS="-Zsanitizer=address" cargo +nightly test --locked --target "$HOST" \
    -p blockwire-buf -p blockwire-stream -p blockwire-volume -p blockwire-reactor -p blockwire-backends \
    -p blockwire-client -- "${FILTER[@]}"
  ;;
tsan)
  has rust-src
  # The standard library is built with it: else what its locks order is not known.
  RUSTFLAGS="-Zsanitizer=thread" cargo +nightly test --locked -Zbuild-std --target "$HOST" \
    -p blockwire-buf -p blockwire-volume -p blockwire-reactor --lib --tests -- "${FILTER[@]}"
  ;;
*) fail "miri, asan or tsan, not $HOW" ;;
esac
