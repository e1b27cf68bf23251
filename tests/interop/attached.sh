# shellcheck shell=bash
# A file system on a volume that `blockwire attach --via fuse` makes a local disk, while its target is
# killed and comes back; sourced after lib.sh, starts nothing.
#
# The script sets PROTOCOL (iscsi or nvme) and DIR, and calls `use_target blockwire` before.

AT=$DIR/attached
MOUNT=$DIR/mount
# How long the target is away, in seconds.
AWAY=${AWAY:-1}

# unmount: only what is mounted there from our own device
unmount() {
  [ -n "${DEVICE:-}" ] && [ "$(findmnt -n -o SOURCE --mountpoint "$MOUNT" 2>/dev/null)" = "$DEVICE" ] || return 0
  umount "$MOUNT" || umount -l "$MOUNT"
}

# attach: sets ATTACH_PID, and DEVICE and FILE if there are such
attach() {
  local unit
  mkdir -p "$MOUNT"
  unit=$(url disk)
  [ "$PROTOCOL" = iscsi ] || unit=nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn disk)/1
  "$BLOCKWIRE" attach --via fuse --at "$AT" "$unit" >"$DIR/attach.out" 2>"$DIR/attach.err" </dev/null &
  ATTACH_PID=$!
  ended_at_exit "$ATTACH_PID"
  wait_until 20 grep -qx ready "$DIR/attach.out" || { cat "$DIR"/attach.* >&2; fail "attach does not come up"; }
  DEVICE=$(sed -n 's/^device //p' "$DIR/attach.out" | head -n 1)
  FILE=$(sed -n 's/^file //p' "$DIR/attach.out" | head -n 1)
  say "attached over $PROTOCOL: ${DEVICE:-no loop device}, ${FILE:-no file}"
}

# detach: the attachment ends, and the target with it
detach() {
  kill "$ATTACH_PID"
  wait_until 10 bash -c "! kill -0 $ATTACH_PID 2>/dev/null" || fail "attach does not end"
  target_stop
  rm -f "$DIR"/*.img
}

# mounted: a fresh ext4 on the device at $MOUNT, read-only from its first error on; fails where no
# loop device can be mounted, and leaves why in mount.err
mounted() {
  [ -n "$DEVICE" ] || return 1
  quietly mkfs mkfs.ext4 -q -F "$DEVICE"
  mount -t ext4 -o errors=remount-ro "$DEVICE" "$MOUNT" 2>"$DIR/mount.err"
}

# unharmed: the file system saw no error, and its check finds none; it is unmounted afterwards
unharmed() {
  grep -q " $MOUNT ext4 rw" /proc/mounts || fail "the file system saw an error: it is read-only"
  umount "$MOUNT"
  quietly fsck e2fsck -f -n "$DEVICE"
  ! dumpe2fs -h "$DEVICE" 2>/dev/null | grep -i "error count" >&2 || fail "the file system has counted errors"
}

# outage [BEFORE]: after BEFORE seconds (2) the target is killed, and comes back after $AWAY
outage() {
  sleep "${1:-2}"
  kill -9 "$TARGET_PID"
  wait "$TARGET_PID" 2>/dev/null || true
  sleep "$AWAY"
  target_start "$DIR"
}

# under_outage NAME COMMAND...: the command runs while the target dies and comes back, and must not fail
under_outage() {
  local name=$1 pid rc=0; shift
  "$@" >"$DIR/$name.log" 2>&1 </dev/null &
  pid=$!
  outage "${BEFORE:-2}"
  kill -0 "$pid" 2>/dev/null || { cat "$DIR/$name.log" >&2; fail "$name ended before the target was back"; }
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { tail -n 30 "$DIR/$name.log" "$DIR/attach.err" >&2; fail "$name: exit $rc"; }
}
