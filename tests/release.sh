#!/usr/bin/env bash
# Builds the binary and the C library for release; the binary records the commit that it was built from.
#   release.sh [CARGO_ARGUMENT]...
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
release_build "$@"
