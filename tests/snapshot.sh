#!/usr/bin/env bash
# Snapshots and clones of volumes on an XFS and a btrfs of their own, in files that are mounted where nobody else sees
# them. Needs root, loop devices, and file systems that the kernel knows; what it does not know is said and left out.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
if [ -z "${SNAPSHOT_INSIDE:-}" ]; then
  "$ROOT/tests/setup.sh" build reflink
  SNAPSHOT_INSIDE=1 exec unshare --mount --propagation private "$0"
fi
cd "$ROOT"
DIR=$OUT/snapshot
gone "$DIR"
mkdir -p "$DIR"
tried=0
for kind in xfs btrfs; do
  if ! grep -qw "$kind" /proc/filesystems && ! modprobe "$kind" 2>/dev/null; then
    say "$kind: this kernel does not know it; left out"
    continue
  fi
  truncate -s 512M "$DIR/$kind.img"
  "mkfs.$kind" -q "$DIR/$kind.img"
  mkdir -p "$DIR/$kind"
  mount -o loop "$DIR/$kind.img" "$DIR/$kind"
  BLOCKWIRE_REFLINK=1 TMPDIR=$DIR/$kind quietly "snapshot-$kind" cargo test --locked -p blockwire --test served snapshot::
  umount "$DIR/$kind"
  rm -f "$DIR/$kind.img"
  tried=$((tried + 1))
  say "$kind: snapshots are of one moment, and clones are volumes of their own"
done
[ "$tried" -gt 0 ] || fail "no file system that can share blocks"
