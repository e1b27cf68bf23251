#!/usr/bin/env bash
# Coverage-guided fuzzing: each target for FUZZ_SECONDS (60), from the stored seeds on.
#   fuzz.sh [TARGET]...
#   fuzz.sh --totals      what all runs of this machine come to
# Each run is a line of FUZZ_RUNS (fuzz/runs.tsv): day, commit, target, seconds, inputs, coverage, result.
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS=${FUZZ_RUNS:-fuzz/runs.tsv}

totals() {
  [ -s "$RUNS" ] || {
    echo "no run is on record in $RUNS"
    return
  }
  awk -F'\t' '
    { seconds[$3] += $4; inputs[$3] += $5; if ($6 > cover[$3]) cover[$3] = $6; runs[$3]++; if ($7 != "ok") found[$3]++; last[$3] = $1 }
    END {
      printf "%-16s %6s %9s %12s %9s %9s  %s\n", "target", "runs", "seconds", "inputs", "coverage", "findings", "last"
      for (t in runs) printf "%-16s %6d %9d %12d %9d %9d  %s\n", t, runs[t], seconds[t], inputs[t], cover[t], found[t], last[t] | "sort"
    }' "$RUNS"
}
if [ "${1:-}" = --totals ]; then
  totals
  exit
fi

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
  log=$(mktemp)
  began=$SECONDS result=ok
  cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="${FUZZ_SECONDS:-60}" -max_len=8192 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    2>&1 | tee "$log" || {
    result=found
    failed+=("$target")
  }
  # What was compiled counts as time of the run, if it was: the inputs say how much was tried.
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
  cover=$(grep -o ' cov: [0-9]*' "$log" | tail -1 | tr -dc 0-9 || true)
  printf '%s\t%s\t%s\t%d\t%d\t%d\t%s\n' "$(date +%F)" "$(git rev-parse --short HEAD)" "$target" \
    $((SECONDS - began)) "${inputs:-0}" "${cover:-0}" "$result" >>"$RUNS"
  rm -f "$log"
done
[ ${#failed[@]} = 0 ] || {
  echo "make fuzz: found something in: ${failed[*]}; the inputs are in fuzz/artifacts" >&2
  exit 1
}
