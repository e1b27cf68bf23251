#!/usr/bin/env bash
# A database on a remote volume: MariaDB's data directory on ext4 on `attach --via fuse`, sysbench's
# OLTP load, the target killed (-9) and started again in the middle. No error may reach the database or
# the file system; all tables and the file system are checked afterwards, and once more after the
# database itself was killed amid its work.
#   database.sh [-p iscsi|nvme] [-s SECONDS]
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
PROTOCOL=iscsi
TIME=30
while getopts p:s: opt; do
  case $opt in
  p) PROTOCOL=$OPTARG ;;
  s) TIME=$OPTARG ;;
  *) exit 2 ;;
  esac
done
"$ROOT/tests/setup.sh" attach database
[ "$(id -u)" = 0 ] || fail "mounting needs root"
IO=${IO:-auto}
use_target blockwire
DIR=$OUT/database-$PROTOCOL
# shellcheck source=tests/interop/attached.sh
. "$ROOT/tests/interop/attached.sh"
gone "$DIR"
mkdir -p "$DIR"
# shellcheck disable=SC2034 # the target's adapter reads it
DISK_SIZE=1G
# The path of a socket has room for a hundred bytes.
RUN=$(mktemp -d)
SOCKET=$RUN/database
trap 'end "${DATABASE_PID:-}"; unmount; end_all; rm -rf "$RUN"' EXIT

# A server of its own: no network, no configuration of the machine's, and a memory that is smaller than
# its tables, so that it reads, too. Every commit is flushed.
database_start() {
  mariadbd --no-defaults --user=root --datadir="$MOUNT/data" --socket="$SOCKET" --pid-file="$RUN/pid" \
    --skip-networking --log-error="$DIR/database.log" --innodb-buffer-pool-size=16M --innodb-log-file-size=24M \
    --innodb-flush-log-at-trx-commit=1 --performance-schema=off >"$DIR/database.out" 2>&1 </dev/null &
  DATABASE_PID=$!
  ended_at_exit "$DATABASE_PID"
  wait_until 60 sql "select 1" || { tail -n 20 "$DIR/database.log" >&2; fail "MariaDB does not come up"; }
}
sql() { mariadb --no-defaults --socket="$SOCKET" --user=root --batch --skip-column-names -e "$1"; }

bench() {
  sysbench oltp_read_write --db-driver=mysql --mysql-socket="$SOCKET" --mysql-user=root --mysql-db=bench \
    --tables=4 --table-size=20000 --threads=4 --rand-seed=7 "$@"
}

# whole: every table is what it must be
whole() {
  local table said
  for table in 1 2 3 4; do
    said=$(sql "check table bench.sbtest$table extended")
    [ "$(cut -f 3,4 <<<"$said")" = $'status\tOK' ] || fail "CHECK TABLE: $said"
    [ "$(sql "select count(*) from bench.sbtest$table")" = 20000 ] || fail "rows of sbtest$table are lost"
  done
  ! grep -E '\[ERROR\]|Operating system error|read-only' "$DIR/database.log" >&2 || fail "the database saw an error"
}

target_start "$DIR"
attach
mounted || fail "no loop device can be mounted here: $(tr '\n' ' ' <"$DIR/mount.err" 2>/dev/null)"
quietly install-db mariadb-install-db --no-defaults --user=root --datadir="$MOUNT/data" \
  --auth-root-authentication-method=socket --skip-test-db
database_start
sql "create database bench"
quietly sysbench-prepare bench prepare
under_outage sysbench bench --time="$TIME" --report-interval=1 run
kill -0 "$DATABASE_PID" || fail "the database died; see $DIR/database.log"
transactions=$(sed -n 's/^ *transactions: *\([0-9]*\).*/\1/p' "$DIR/sysbench.log")
[ "${transactions:-0}" -gt 0 ] || fail "no transaction was made; see $DIR/sysbench.log"
grep -Eq '^ *reconnects: *0 ' "$DIR/sysbench.log" || fail "connections were lost; see $DIR/sysbench.log"
longest=$(sed -n 's/^ *max: *//p' "$DIR/sysbench.log")
whole
say "MariaDB: $transactions transactions in $TIME s, the target killed and back after $AWAY s in the middle:" \
  "no error, longest transaction $longest ms, all tables whole"

# Killed in its turn, it recovers from what it had flushed.
bench --time=60 run >"$DIR/sysbench-killed.log" 2>&1 </dev/null &
load=$!
sleep 3
kill -9 "$DATABASE_PID"
wait "$DATABASE_PID" "$load" 2>/dev/null || true
database_start
whole
end "$DATABASE_PID"
unharmed
say "MariaDB killed amid its work: it recovers, all tables whole, e2fsck finds nothing"
detach
