#!/usr/bin/env bash
# The store of a gateway group on a cluster of our own (tests/ceph.sh): each request, the state machine of the group on
# it, and what they do when the cluster is silent, an instance is barred or another was faster.
#   ceph-group.sh [-s]
#     -s  a short form, on one OSD and without what waits for a silent cluster or a lost member
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
FILTER=() OSDS=3
while getopts s opt; do
  case $opt in
  s) FILTER=(store --skip silent) OSDS=1 ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" ceph
CLUSTER=$OUT/ceph-group
[ ! -e "$CLUSTER" ] || "$ROOT/tests/ceph.sh" stop "$CLUSTER"
at_end() {
  end_all
  "$ROOT/tests/ceph.sh" stop "$CLUSTER"
}
trap at_end EXIT
CEPH_OSDS=$OSDS "$ROOT/tests/ceph.sh" start "$CLUSTER"
CEPH_DIR=$CLUSTER cargo test --locked --workspace --test cluster -- --nocapture "${FILTER[@]}"
say "ceph-group: ok"
