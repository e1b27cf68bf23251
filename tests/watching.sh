#!/usr/bin/env bash
# The metrics of a daemon that serves hosts over both protocols, as Prometheus' own tool reads them; and the alerts of
# contrib/prometheus.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/metrics.sh
. "$(dirname "$0")/metrics.sh"
"$ROOT/tests/setup.sh" metrics
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
[ -x "$BLOCKWIRE" ] || fail "missing: $BLOCKWIRE (tests/test.sh build)"
DIR=$OUT/watching
gone "$DIR"
mkdir -p "$DIR"
cd "$DIR"

loads=()
serve_metered "$DIR" --volume data=ram:64M --volume disk=file:"$DIR/disk.img",size=64M
# Commands of both protocols, so that there is a sample of everything.
for url in "iscsi://127.0.0.1:$PORT/iqn.2026-11.io.blockwire:disk/0" \
  "nvme+tcp://127.0.0.1:$NVME_PORT/nqn.2026-11.io.blockwire:data/1"; do
  "$BLOCKWIRE" bench "$url" --rw=randrw --bs=4k --iodepth=8 --runtime=60 --time_based >"bench-${#loads[@]}.log" 2>&1 &
  ended_at_exit $!
  loads+=($!)
done
samples=('blockwire_session_reads_total{.*protocol="iscsi".*} [1-9]'
  'blockwire_session_reads_total{.*protocol="nvme".*} [1-9]'
  'blockwire_volume_latency_seconds_count{volume="disk",command="read",stage="backend"} [1-9]'
  'blockwire_problems{kind="volume-failed"} 0')
# missing: the first sample that is not there
missing() {
  local sample
  for sample in "${samples[@]}"; do
    grep -q "^$sample" metrics.txt || { printf '%s' "$sample"; return; }
  done
}
are_there() { metrics /metrics >metrics.txt && [ -z "$(missing)" ]; }
wait_until 30 are_there || { cat bench-*.log >&2; fail "no sample like: $(missing)"; }
metrics /metrics 'Accept: application/openmetrics-text; version=1.0.0' >openmetrics.txt
for load in "${loads[@]}"; do end "$load"; done

promtool check metrics <metrics.txt >promtool.txt 2>&1 || { cat promtool.txt >&2; fail "promtool: not clean"; }
[ ! -s promtool.txt ] || { cat promtool.txt >&2; fail "promtool has something to say"; }
[ "$(tail -n 1 openmetrics.txt)" = "# EOF" ] || fail "OpenMetrics has no end"
quietly watching-rules promtool check rules "$ROOT/contrib/prometheus/blockwire.rules.yml"

[ "$("$BLOCKWIRE" status --control control.sock | head -n 1)" = "all is well" ] || fail "status: it is not well"
"$BLOCKWIRE" path set data --state inaccessible --control control.sock >paths.txt
rc=0
"$BLOCKWIRE" status --control control.sock >status.txt || rc=$?
[ "$rc" = 1 ] || fail "status: exit code $rc though a path is inaccessible"
head -n 1 status.txt | grep -q '^not well: data: .* inaccessible' || { cat status.txt >&2; fail "status does not say it"; }
rc=0
"$BLOCKWIRE" top --once --interval 0.5 --control control.sock >top.txt || rc=$?
[ "$rc" = 1 ] || fail "top: exit code $rc though a path is inaccessible"
! grep -q $'\x1b' top.txt || fail "top writes colour into a file"
grep -q '^VOLUME ' top.txt || { cat top.txt >&2; fail "top shows no volumes"; }
say "metrics, alerts, status and top: as they should be ($(grep -vc '^#' metrics.txt) samples)"
