#!/usr/bin/env bash
# What watching costs: metrics.sh [-v VOLUMES] [-r ROUNDS] [-s SECONDS]
# Serves so many RAM volumes (10,000), and prints how long a scrape takes, and the IOPS of 4 KiB reads at queue depth 32
# with a scrape each second and without, in turn, round by round.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/metrics.sh
. "$(dirname "$0")/../metrics.sh"
VOLUMES=10000 ROUNDS=5 SECONDS_EACH=5
while getopts v:r:s: option; do
  case $option in
  v) VOLUMES=$OPTARG ;;
  r) ROUNDS=$OPTARG ;;
  s) SECONDS_EACH=$OPTARG ;;
  *) fail "usage: metrics.sh [-v VOLUMES] [-r ROUNDS] [-s SECONDS]" ;;
  esac
done
"$ROOT/tests/setup.sh" build experiments
cd "$ROOT"
if [ -z "${BLOCKWIRE:-}" ]; then
  quietly metrics-build release_build
  BLOCKWIRE=$BUILD/release/blockwire
fi
export LC_ALL=C
WORK=$OUT/metrics
gone "$WORK"
mkdir -p "$WORK"
for ((n = 0; n < VOLUMES; n++)); do
  printf '[[volume]]\nname = "v%d"\nsource = "ram:1M"\n' "$n"
done >"$WORK/blockwire.toml"
begin=$(now)
SERVE_WITHIN=600 serve_metered "$WORK" --config "$WORK/blockwire.toml" --cores 0
say "$VOLUMES volumes are served after $(since "$begin") s"

# scrape: milliseconds
scrape() {
  local begin; begin=$(now)
  metrics /metrics >"$WORK/metrics.txt"
  echo $((($(now) - begin) / 1000))
}
# load: IOPS
load() {
  "$BLOCKWIRE" bench "nvme+tcp://127.0.0.1:$NVME_PORT/nqn.2026-11.io.blockwire:v0/1" --core 1 --rw=randread --bs=4k \
    --iodepth=32 --ramp_time=1 --runtime="$SECONDS_EACH" --time_based --json >"$WORK/load.json"
  jq '.jobs[0].read.iops | floor' "$WORK/load.json"
}
median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

for ((n = 0; n < 5; n++)); do scrape; sleep 0.6; done >"$WORK/scrapes"
say "a scrape takes $(median <"$WORK/scrapes") ms (of 5: $(paste -sd ' ' "$WORK/scrapes")), $(wc -c <"$WORK/metrics.txt") bytes"
: >"$WORK/without"; : >"$WORK/with"
for ((n = 0; n < ROUNDS; n++)); do
  load >>"$WORK/without"
  : >"$WORK/scraped"
  (while :; do metrics /metrics >/dev/null && echo >>"$WORK/scraped"; sleep 1; done) &
  scraper=$!
  ended_at_exit "$scraper"
  load >>"$WORK/with"
  kill -0 "$scraper" || fail "the daemon refused a scrape"
  end "$scraper"
  scraped=$(wc -l <"$WORK/scraped")
  [ "$scraped" -ge $((SECONDS_EACH / 2)) ] || fail "only $scraped scrapes ended during the load"
done
say "IOPS without scrapes $(median <"$WORK/without"), with one each second $(median <"$WORK/with")"
paste "$WORK/without" "$WORK/with" | awk '{ r[NR] = $2 / $1; s += r[NR] } END { printf "ratio of paired rounds: mean %.3f\n", s / NR }'
