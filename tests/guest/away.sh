#!/usr/bin/env bash
# A stock Linux kernel logs in while one of a target's two volumes is away. When the volume comes, its disk is
# there with size and name, and nothing is scanned again. The kernel asks for 100 s whether the volume is there:
# LATE=110 tries a volume that comes later, of which a rescan tells.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/machine.sh
. "$ROOT/tests/guest/machine.sh"
"$ROOT/tests/setup.sh" guest
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
DIR=$OUT/guest-away IMAGE=$OUT/guest-image
IQN=iqn.2026-11.io.blockwire:both
gone "$DIR"
mkdir -p "$DIR/state"
"$ROOT/tests/guest/image.sh" "$IMAGE" ""
PORT=$(free_port)
(umask 077; cat >"$DIR/blockwire.toml") <<END
[[volume]]
name = "here"
source = "ram:64M"

[[volume]]
name = "later"
source = "file:$DIR/later.img"
size = "64M"

[[target]]
name = "$IQN"
luns = [{ lun = 0, volume = "here" }, { lun = 1, volume = "later" }]
END
blockwire() { "$BLOCKWIRE" "$@" --control "$DIR/control.sock"; }
start() {
  "$BLOCKWIRE" serve --config "$DIR/blockwire.toml" --iscsi "127.0.0.1:$PORT" --io "${IO:-uring}" --state "$DIR/state" \
    --control "$DIR/control.sock" >"$DIR/stdout" 2>"$DIR/stderr" </dev/null &
  TARGET_PID=$!
  ended_at_exit "$TARGET_PID"
  wait_until 20 grep -qx ready "$DIR/stdout" || fail "the target does not come up; see $DIR"
}
# A file that was there before and is missing is not made again: its volume is away.
start
end "$TARGET_PID"
mv "$DIR/later.img" "$DIR/moved.img"
start
# shellcheck disable=SC2317
guest_asks() {
  [ "$1" = arrive ] || fail "the guest asks for: $*"
  mv "$DIR/moved.img" "$DIR/later.img"
  blockwire volume retry later >>"$DIR/retry" 2>&1 || fail "volume retry: $(cat "$DIR/retry")"
}
guest_run "$DIR" "$IMAGE" away 400 "PORT=$PORT" "IQN=$IQN" "LATE=${LATE:-}"
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
end "$TARGET_PID"
say "guest: $(cat "$IMAGE/package") has a disk of a volume that came after its login"
