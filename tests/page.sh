#!/usr/bin/env bash
# The live page of a daemon that serves hosts over both protocols, in a browser: opened, clicked, light and dark, as wide
# as a phone; a problem, a hostile name, the end of the daemon. Pictures go to OUT/page.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/metrics.sh
. "$(dirname "$0")/metrics.sh"
"$ROOT/tests/setup.sh" build browser
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
[ -x "$BLOCKWIRE" ] || fail "missing: $BLOCKWIRE (tests/test.sh build)"
DIR=$OUT/page
gone "$DIR"
mkdir -p "$DIR"
cd "$DIR"

serve_metered "$DIR" --volume data=ram:64M --volume disk=file:"$DIR/disk.img",size=64M --volume idle=ram:1M
# shellcheck disable=SC2153 # PORT is of serve_metered
for url in "iscsi://127.0.0.1:$PORT/iqn.2026-11.io.blockwire:disk/0" \
  "nvme+tcp://127.0.0.1:$NVME_PORT/nqn.2026-11.io.blockwire:data/1" \
  "nvme+tcp://127.0.0.1:$NVME_PORT/nqn.2026-11.io.blockwire:idle/1?host_nqn=nqn.2026-11.test:%3Cimg%20src=x%20onerror=alert(1)%3E"; do
  "$BLOCKWIRE" bench "$url" --rw=randrw --bs=4k --iodepth=8 --runtime=120 --time_based >"bench-$PORT-$RANDOM.log" 2>&1 &
  ended_at_exit $!
done
python3 "$ROOT/tests/page.py" "http://127.0.0.1:$HTTP_PORT/" "$DIR" >said.txt 2>error.txt &
PAGE=$!
ended_at_exit "$PAGE"
said() { grep -qx "$1" said.txt || { kill -0 "$PAGE" 2>/dev/null || { cat error.txt >&2; fail "the page is not as it should be"; }; false; }; }
# wait_for WORD: until the browser's side has said it
wait_for() {
  local n
  for ((n = 0; n < 1200; n++)); do said "$1" && return; sleep 0.1; done
  fail "nothing from the browser"
}
wait_for clicked
"$BLOCKWIRE" path set disk --state inaccessible --control control.sock >paths.txt
wait_for problem
end "$TARGET_PID"
wait "$PAGE" || { cat error.txt >&2; fail "the page is not as it should be"; }
say "the live page: as it should be (pictures: $DIR)"
