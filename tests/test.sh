#!/usr/bin/env bash
# Everything that must hold before a change is good; `make test` and `.ci/run` run this.
#   test.sh [STEP]...      without arguments all steps, in this order:
#     build lint unit cost libiscsi consumers ceph initiator filesystem packaging capi papers sessions evaluations guest
#   and, by their names only: guests initiators workloads experiments machines fio page snapshots
#
# Where the kernel forbids io_uring the steps that need it fail, unless BLOCKWIRE_NO_URING=1 says
# that this is known; then they run on epoll only.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

# worlds: where the target runs
worlds() { [ "${BLOCKWIRE_NO_URING:-0}" = 1 ] && echo epoll || echo uring epoll; }

build() {
  quietly build-release release_build
  quietly build-tests cargo test --locked --workspace --no-run
}

lint() {
  tests/setup.sh lint
  cargo fmt --all --check
  quietly clippy cargo clippy --locked --workspace --all-targets -- -D warnings
  RUSTDOCFLAGS="-D warnings" quietly doc cargo doc --locked --workspace --no-deps
  xtask layers
  xtask licences
  xtask style
  xtask attacks
  xtask links
  xtask guide
}

unit() {
  local rc=0 limit=1440
  tests/setup.sh attach capi crash eval
  timeout --kill-after=30 "$limit" tests/test.sh --one all_unit_tests >"$OUT/unit.log" 2>&1 </dev/null || rc=$?
  grep -E '^test result|^test .*FAILED|panicked at' "$OUT/unit.log" || true
  if [ "$rc" = 124 ] || [ "$rc" = 137 ]; then
    printf 'the tests did not end within %s s; these were slow, the last of them may hang:\n' "$limit" >&2
    grep 'has been running for over' "$OUT/unit.log" >&2 || true
  fi
  [ "$rc" = 0 ] || tail -n 60 "$OUT/unit.log" >&2
  return "$rc"
}

# Tests of the daemon, the verbs and evaluations mostly wait for processes, so more of them run at once.
all_unit_tests() {
  local rc=0
  cargo test --locked --workspace --no-fail-fast --test 'se*' --test evaluation -- --test-threads 4 || rc=$?
  cargo test --locked --workspace --no-fail-fast --lib --bins --examples --test '[!es]*' --test 'e[!v]*' --test 's[!e]*' || rc=$?
  cargo test --locked --workspace --no-fail-fast --doc || rc=$?
  return "$rc"
}

# Instructions of our own code per command, against those on record.
cost() { tests/cost.sh; }

libiscsi() {
  local world
  for world in $(worlds); do
    say "on $world:"
    IO=$world tests/interop/libiscsi-suite.sh
  done
}

packaging() {
  tests/install.sh
  tests/watching.sh
  tests/setup.sh container
  tests/container.py "$BUILD/release/blockwire"
  tests/platforms.py "$BUILD/release/blockwire"
}

# The live page in a browser; snapshots and clones on file systems of their own: `make interop` only. Their packages
# are not installed here, `make page` and `make snapshot` do that.
page() {
  command -v chromium >/dev/null || { say "skipped: chromium is not installed (make page installs it)"; return; }
  tests/page.sh
}

snapshots() {
  local needed
  for needed in mkfs.xfs mkfs.btrfs; do
    command -v "$needed" >/dev/null || { say "skipped: $needed is not installed (make snapshot installs it)"; return; }
  done
  [ "$(id -u)" = 0 ] || { say "skipped: file systems are mounted as root only"; return; }
  tests/snapshot.sh
}

capi() {
  local world
  for world in $(worlds); do
    say "on $world:"
    IO=$world tests/capi.sh
  done
}

consumers() {
  local world
  for world in $(worlds); do
    say "on $world:"
    IO=$world tests/interop/consumers.sh
  done
}

# Volumes on images of Ceph, and the store of a gateway group. Its packages (220 MB) are not installed here, `make ceph` does that.
ceph() {
  local needed
  for needed in ceph-mon ceph-mgr ceph-osd rbd; do
    command -v "$needed" >/dev/null || { say "skipped: $needed is not installed (make ceph installs it)"; return; }
  done
  tests/interop/rbd.sh -s
  tests/interop/ceph-group.sh -s
}

# Our initiator against targets that others wrote, and against ours.
initiator() {
  tests/interop/initiator.sh -t tgt
  PARTS="discovery load restarts secrets" tests/interop/initiator.sh -t istgt
  local protocol world
  world=$(worlds)
  for protocol in iscsi nvme; do
    IO=${world%% *} PARTS="matrix reservations" tests/interop/initiator.sh -s -t blockwire -p "$protocol"
  done
}

# A file system on a volume that our initiator attaches, a database and a benchmark on it, while its target is
# killed and started again; and load over the death of the process that holds the attachment.
filesystem() {
  local protocol
  for protocol in iscsi nvme; do
    tests/interop/filesystem.sh -p "$protocol"
    tests/interop/recovery.sh -p "$protocol"
  done
  tests/interop/database.sh -s 6
  tests/interop/workloads.sh -s 6 dbench
}

# The same for longer, with a longer outage, over both protocols, and many cuts and changes of paths: `make
# interop` only.
workloads() {
  local protocol
  for protocol in iscsi nvme; do
    AWAY=5 tests/interop/database.sh -p "$protocol" -s 60
    AWAY=5 tests/interop/workloads.sh -p "$protocol" -s 30
  done
  FAILOVER_CUTS=100 quietly failover cargo test --locked -p blockwire --test served failover -- --nocapture
  grep 'percentile' "$OUT/failover.log"
}

# The papers' experiments with databases and a virtual machine, at their smallest scale: `make interop` only.
experiments() {
  tests/interop/experiments.sh
}

# fio by our engine, built against its source, and by its own NBD engine: `make interop` only.
fio() {
  tests/interop/fio.sh
}

# The same with every combination of what is negotiated: `make interop` only.
initiators() {
  tests/interop/initiator.sh -a -t tgt
  tests/interop/initiator.sh -a -t istgt
  local world
  world=$(worlds)
  IO=${world%% *} tests/interop/initiator.sh -a -t blockwire -p iscsi
  IO=${world%% *} tests/interop/initiator.sh -a -t blockwire -p nvme
  tests/interop/initiator.sh -a -s -t lio
  tests/interop/initiator.sh -a -s -t nvmet
  tests/interop/spdk.sh
  GUEST_SUITE=bookworm-backports tests/interop/initiator.sh -s -t lio
  GUEST_SUITE=bookworm-backports PARTS="discovery by_pipe matrix load reservations secrets" \
    tests/interop/initiator.sh -a -s -t nvmet
}

# What papers print, run as they print it; but for seconds instead of a minute.
papers() {
  tests/papers.sh 3
}

sessions() {
  local world
  for world in $(worlds); do
    IO=$world tests/sessions.sh 20
  done
}

# Every experiment of `blockwire eval`, at its smallest.
evaluations() { tests/eval.sh smallest; }

# Experiments over ssh, paths over two cables: `make interop` only.
machines() {
  tests/interop/eval-ssh.sh
  tests/interop/source.sh
}

guest() {
  local world
  # One world is enough for a kernel that knows nothing of it.
  world=$(worlds)
  IO=${world%% *} tests/guest/guest.sh
  IO=${world%% *} tests/guest/nvme.sh
  tests/guest/vhost.sh
  # The kernel's own targets, and our initiator.
  local target
  for target in lio nvmet; do
    PARTS="discovery matrix load reservations" tests/interop/initiator.sh -s -t "$target"
  done
}

# The whole matrix of the guest, on both worlds and two kernels: `make interop` only.
guests() {
  local world
  for world in $(worlds); do
    say "on $world:"
    IO=$world tests/guest/guest.sh
    IO=$world tests/guest/guest.sh -k bookworm-backports
    IO=$world tests/guest/away.sh
    IO=$world tests/guest/nvme.sh -c 4 -q 4 -m 32
    IO=$world tests/guest/nvme.sh -c 1 -q 1 -m 8
    IO=$world tests/guest/nvme.sh -k bookworm-backports
    IO=$world tests/guest/auth.sh
    IO=$world tests/guest/tls.sh
    IO=$world tests/guest/fio.sh -c 4 -q 4
    IO=$world tests/guest/fio.sh -c 8 -q 8 -k bookworm-backports
    IO=$world tests/guest/disks.sh
  done
  tests/guest/vhost.sh 2
  tests/guest/ublk.sh
  tests/guest/uml.sh
}

# limit STEP: seconds after which a step is ended and has failed, so that one that hangs is named. Those of
# `make test` take a third of this on two cores; together they stay below what a hosted machine grants.
limit() {
  case $1 in
  build | unit) echo 1500 ;;
  lint | guest | evaluations) echo 900 ;;
  guests | initiators | workloads | experiments | machines | fio) echo 14400 ;;
  *) echo 600 ;;
  esac
}

if [ "${1:-}" = --one ]; then
  "$2"
  exit
fi

steps=("$@")
[ $# -gt 0 ] || steps=(build lint unit cost libiscsi consumers ceph initiator filesystem packaging capi papers sessions evaluations guest)
tests/setup.sh build
failed=()
start=$(now)
for step in "${steps[@]}"; do
  say "=== $step"
  begin=$(now)
  # A process of its own, because `set -e` is off inside of what `||` follows; in the background, because a
  # signal that asks this script to end is heard only between commands. `timeout` ends all that the step started.
  rc=0
  timeout --kill-after=60 "$(limit "$step")" tests/test.sh --one "$step" &
  running=$!
  ended_at_exit "$running"
  wait "$running" || rc=$?
  if [ "$rc" = 124 ] || [ "$rc" = 137 ]; then
    say "=== $step: did not end within $(limit "$step") s; its logs are in $OUT"
  fi
  say "=== $step: $([ "$rc" = 0 ] && echo ok || echo FAILED), $(since "$begin") s"
  [ "$rc" = 0 ] || failed+=("$step")
  if [ "$rc" != 0 ] && [ "$step" = build ]; then break; fi
done
say "=== all: $(since "$start") s"
[ ${#failed[@]} = 0 ] || { printf 'FAILED: %s\n' "${failed[*]}" >&2; exit 1; }
