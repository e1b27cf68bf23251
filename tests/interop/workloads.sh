#!/usr/bin/env bash
# File system benchmarks on a remote volume that is attached by FUSE, the target killed (-9) and started
# again in the middle of each: dbench, and iozone that compares every byte it reads. No error may reach
# them or the file system.
#   workloads.sh [-p iscsi|nvme] [-s SECONDS] [dbench|iozone]...
# iozone is in Debian's non-free part. It is taken out of its package without being installed, and the
# machine's own package sources stay as they are; IOZONE=FILE names another one.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
PROTOCOL=iscsi
TIME=20
while getopts p:s: opt; do
  case $opt in
  p) PROTOCOL=$OPTARG ;;
  s) TIME=$OPTARG ;;
  *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- dbench iozone
"$ROOT/tests/setup.sh" attach dbench
[ "$(id -u)" = 0 ] || fail "mounting needs root"
IO=${IO:-auto}
use_target blockwire
DIR=$OUT/workloads-$PROTOCOL
# shellcheck source=tests/interop/attached.sh
. "$ROOT/tests/interop/attached.sh"
gone "$DIR"
mkdir -p "$DIR"
# shellcheck disable=SC2034 # the target's adapter reads it
DISK_SIZE=1G
trap 'unmount; end_all' EXIT

# iozone_fetch: sets IOZONE
iozone_fetch() {
  local at=$OUT/iozone codename
  IOZONE=${IOZONE:-$(type -P iozone || true)}
  [ -z "$IOZONE" ] || return 0
  IOZONE=$at/root/usr/bin/iozone
  [ ! -x "$IOZONE" ] || return 0
  rm -rf "$at"
  mkdir -p "$at"/{lists/partial,cache/archives/partial}
  download_dir "$at/deb"
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s non-free\n' \
    "$(debian_mirror)" "$codename" >"$at/sources.list"
  local options=(-o "Dir::Etc::sourcelist=$at/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$at/lists" -o "Dir::Cache=$at/cache")
  quietly apt-non-free apt-get "${options[@]}" update -q
  (cd "$at/deb" && quietly apt-iozone apt-get "${options[@]}" download -q iozone3)
  dpkg-deb -x "$at"/deb/*.deb "$at/root"
  rm -rf "$at/deb" "$at/lists" "$at/cache"
}

run_dbench() {
  under_outage dbench dbench -c /usr/share/dbench/client.txt -D "$MOUNT/dbench" -t "$TIME" 4
  say "dbench: $(grep '^Throughput' "$DIR/dbench.log")"
}

# Written, written again, read, read again, at random, without the page cache. It compares what it reads,
# so the times that it tells are of no use.
run_iozone() {
  under_outage iozone "$IOZONE" -+d -I -c -e -i 0 -i 1 -i 2 -r 64k -s 128m -t 2 \
    -F "$MOUNT/iozone/one" "$MOUNT/iozone/two"
  ! grep -i 'error' "$DIR/iozone.log" >&2 || fail "iozone found an error; see $DIR/iozone.log"
  grep -q 'iozone test complete' "$DIR/iozone.log" || fail "iozone did not end; see $DIR/iozone.log"
  say "iozone: $(grep -c 'Children see throughput' "$DIR/iozone.log") patterns over 256 MiB, every byte compared"
}

case " $* " in *" iozone "*) iozone_fetch ;; esac
target_start "$DIR"
attach
mounted || fail "no loop device can be mounted here: $(tr '\n' ' ' <"$DIR/mount.err" 2>/dev/null)"
for workload; do
  mkdir "$MOUNT/$workload"
  "run_$workload"
done
unharmed
say "$* over $PROTOCOL, the target killed and back in the middle of each: no error, e2fsck finds nothing"
detach
