#!/usr/bin/env bash
# libiscsi's conformance suite (iscsi-test-cu) over several kinds of logical units.
#   libiscsi-suite.sh [-t TARGET] [-c CAPTURE-FILE] [-u]
#     -u  write the results into the file of expected results
#
# Every suite runs in one process of the tool with a time limit; what a hang cuts off is tried
# again test by test. The kinds run side by side, each on its own target. A second path is given
# to the multipath tests only: elsewhere it would make one long-lived session the "second
# initiator" of all tests, whose unit attentions and reservations leak from test to test.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
TARGET=blockwire UPDATE=()
while getopts t:u opt; do
  case $opt in
  t) TARGET=$OPTARG ;;
  u) UPDATE=(--update) ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" clients
use_target "$TARGET"
DIR=$OUT/libiscsi-$TARGET-${IO:-x}
gone "$DIR"
mkdir -p "$DIR"
EXPECTED=$ROOT/tests/interop/libiscsi-suite.expected LIMIT=5
# Of one kind only: what the others are for has no result.
[ "$TARGET" != rbd ] || EXPECTED=$ROOT/tests/interop/libiscsi-suite-rbd.expected LIMIT=24
[ "$TARGET" = blockwire ] || [ "$TARGET" = rbd ] || { EXPECTED=$DIR/expected LIMIT=230 UPDATE=(--update); }

SUITE_SECONDS=90 # none takes longer than 20 but Sanitize.Reset, which polls once a minute
TEST_SECONDS=20
SLOW_SECONDS=150

# tests_of KIND: the tests that make sense on a kind of logical unit
tests_of() {
  case $1 in
  # Left out: a descriptor that starts at the physical block when asked for a block inside of it
  # (flat has it), a sanitize that lasts (slow), a WRITE SAME that unmaps with a block of ones and wants
  # zeroes to be read (SBC-3 has the ones written; slow reads zeroes whatever is written), and a test
  # that cannot pass (see the expected results).
  thin)
    grep -v -e "\.MultipathIO\." -e "GetLBAStatus\.UnmapSingle" -e "Sanitize\.Reset\$" \
      -e "iSCSITMF\.LUNReset" -e "WriteSame10\.UnmapUntilEnd"
    ;;
  # The multipath tests come first: one wants a block that nobody has written.
  flat)
    grep -e '\.MultipathIO\.' "$DIR/tests"
    grep -e 'GetLBAStatus' -e '\.Unmap\.' "$DIR/tests"
    ;;
  removable) grep -e '\.NoMedia\.' -e '\.PreventAllow\.' -e '\.StartStopUnit\.' -e '\.TestUnitReady\.' ;;
  readonly) grep -e '\.ReadOnly\.' -e '\.Read[0-9]*\.' -e '\.Inquiry\.' ;;
  slow) grep -e 'Sanitize\.Reset$' -e 'WriteSame10\.UnmapUntilEnd' ;;
  esac <"$DIR/tests"
}

# tool SECONDS KIND TESTS: one process of the tool over a list of tests, joined by commas
tool() {
  local unit second=(); unit=$(url "$2")
  case $3 in *.MultipathIO.*) second=("$unit") ;; esac
  timeout -k 5 "$1" iscsi-test-cu --dataloss --allow-sanitize --Verbose-scsi --test="$3" \
    "$unit" ${second[@]+"${second[@]}"} </dev/null 2>&1 || true
}

# run_kind KIND: all its tests, into $DIR/KIND.log
run_kind() {
  local kind=$1 suite test tests log=$DIR/$1.log seconds=$SUITE_SECONDS
  [ "$kind" != slow ] || seconds=$SLOW_SECONDS
  tests_of "$kind" >"$DIR/$kind.tests"
  for suite in $(sed 's/\.[^.]*$//' "$DIR/$kind.tests" | uniq); do
    # The tool takes the list from its end.
    tests=$(grep -F "$suite." "$DIR/$kind.tests" | tac | paste -sd,)
    tool "$seconds" "$kind" "$tests" >"$DIR/$kind.part"
    cat "$DIR/$kind.part" >>"$log"
    grep -q '^Run Summary:' "$DIR/$kind.part" && continue
    for test in ${tests//,/ }; do
      tool "$TEST_SECONDS" "$kind" "$test" >>"$log"
    done
  done
}

iscsi-test-cu --list >"$DIR/list"
grep '^ALL\..*\.' "$DIR/list" >"$DIR/tests"
target_start "$DIR"
logs=() jobs=()
for kind in $(target_kinds); do
  run_kind "$kind" &
  jobs+=($!)
  logs+=("$kind=$DIR/$kind.log")
done
for job in "${jobs[@]}"; do wait "$job"; done
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
rm -f "$DIR"/*.part
xtask libiscsi --list "$DIR/list" --expected "$EXPECTED" --limit $LIMIT ${UPDATE[@]+"${UPDATE[@]}"} "${logs[@]}" ||
  fail "logs: $DIR"
