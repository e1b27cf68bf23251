#!/usr/bin/env bash
# Coverage-guided fuzzing: each target for FUZZ_SECONDS (60), from the stored seeds on.
#   fuzz.sh [TARGET]...
set -euo pipefail
cd "$(dirname "$0")/.."

lack() {
  echo "make fuzz: $1 is missing; $2" >&2
  exit 1
}
command -v cargo >/dev/null || lack cargo "tests/setup.sh build installs it"
command -v rustup >/dev/null || lack rustup "a nightly toolchain is needed: https://rustup.rs"
rustup toolchain list | grep -q '^nightly' || lack "a nightly toolchain" "rustup toolchain install nightly --profile minimal"
cargo fuzz --version >/dev/null 2>&1 || lack cargo-fuzz "cargo install --locked cargo-fuzz (compiles for minutes)"

targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(cd fuzz/fuzz_targets && ls -- *.rs | sed 's/\.rs$//')
failed=()
for target in "${targets[@]}"; do
  echo "=== $target"
  mkdir -p "fuzz/corpus/$target"
  cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="${FUZZ_SECONDS:-60}" -max_len=8192 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 || failed+=("$target")
done
[ ${#failed[@]} = 0 ] || {
  echo "make fuzz: found something in: ${failed[*]}; the inputs are in fuzz/artifacts" >&2
  exit 1
}
