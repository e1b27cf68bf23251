#!/usr/bin/env bash
# Our initiator against a target, by the command line.
#   initiator.sh [-a] [-t TARGET]     -a: every combination of what is negotiated
# TARGET is tgt, istgt (both from Debian) or blockwire.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
TARGET=tgt
ALL=0
while getopts at: opt; do
  case $opt in
  a) ALL=1 ;;
  t) TARGET=$OPTARG ;;
  *) exit 2 ;;
  esac
done
[ "$TARGET" = blockwire ] || "$ROOT/tests/setup.sh" "$TARGET"
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
use_target "$TARGET"
DIR=$OUT/initiator-$TARGET
rm -rf "$DIR"
mkdir -p "$DIR"
MIB=16
# Every wait of a test ends, whatever the initiator does.
bw() { timeout 60 "$BLOCKWIRE" "$@"; }

# expect PATTERN COMMAND...: the command succeeds and a line of its output matches
expect() {
  local pattern=$1; shift
  "$@" >"$DIR/said" 2>&1 </dev/null || { cat "$DIR/said" >&2; fail "failed: $*"; }
  grep -Eq -- "$pattern" "$DIR/said" || { cat "$DIR/said" >&2; fail "no /$pattern/ from: $*"; }
}
# refused CODE PATTERN COMMAND...: it ends with the exit code and a line of its output matches
refused() {
  local code=$1 pattern=$2 rc=0; shift 2
  "$@" >"$DIR/said" 2>&1 </dev/null || rc=$?
  [ "$rc" = "$code" ] || { cat "$DIR/said" >&2; fail "exit $rc, not $code: $*"; }
  grep -Eiq -- "$pattern" "$DIR/said" || { cat "$DIR/said" >&2; fail "no /$pattern/ from: $*"; }
}
image() { head -c "${1}M" /dev/urandom >"$DIR/image"; }

discovery() {
  expect "iscsi://127\.0\.0\.1:$PORT/$(iqn disk)/" bw discover "iscsi://127.0.0.1:$PORT"
  expect '"bytes": 67108864' bw info --json "$(url disk)"
  expect '^healthy: ' bw doctor "$(url disk)"
  refused 1 'check the target name' bw info "iscsi://127.0.0.1:$PORT/$(iqn no-such)/$(lun)"
}

# A volume whose ends and middle are ragged, by a pipe: offsets and lengths that are no multiples of ours.
by_pipe() {
  local sum
  image 5
  bw write --offset 512 "$(url disk)" <"$DIR/image"
  sum=$(bw read --offset 512 --length 5M "$(url disk)" | sha256sum)
  [ "$sum" = "$(sha256sum <"$DIR/image")" ] || fail "what was read by a pipe is not what was written"
  bw write --offset 62M --length 2M "$(url disk)" <"$DIR/image"
  sum=$(bw read --offset 62M "$(url disk)" | sha256sum)
  [ "$sum" = "$(head -c 2M "$DIR/image" | sha256sum)" ] || fail "the end of the volume differs"
  refused 2 'beyond its end' bw read --offset 63M --length 2M "$(url disk)"
}

# round_trip OPTIONS: an image there and back with these terms; what the target keeps is compared too
round_trip() {
  local unit
  unit="$(url disk)?$1"
  image "$MIB"
  truncate -s 64M "$DIR/image"
  bw copy -q "$DIR/image" "$unit" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "copy to $unit"; }
  bw verify "$DIR/image" "$unit" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "verify of $unit"; }
  [ ! -e "$DIR/disk.img" ] || cmp "$DIR/image" "$DIR/disk.img" || fail "$unit: the target keeps something else"
  rm -f "$DIR/back"
  bw copy -q "$unit" "$DIR/back" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "copy from $unit"; }
  cmp "$DIR/image" "$DIR/back" || fail "$unit: what came back is not what was written"
}

matrix() {
  local digest r2t immediate bursts count=0 links=1
  # Only istgt and Blockwire take more than one connection into a session.
  [ "$TARGET" = tgt ] || links=2
  if [ "$ALL" = 0 ]; then
    set -- "digest=none" "digest=both" "digest=header&initial_r2t=yes&immediate=no" \
      "digest=data&initial_r2t=no&immediate=no&first_burst=4K&max_burst=16K" \
      "initial_r2t=yes&immediate=yes&first_burst=64K&max_burst=64K&max_recv=4K" \
      "digest=both&initial_r2t=no&immediate=yes&first_burst=512&max_burst=512" \
      "connections=$links&digest=both&commands=8"
  else
    set --
    for digest in none header data both; do
      for r2t in yes no; do
        for immediate in yes no; do
          for bursts in "first_burst=512&max_burst=512" "first_burst=4K&max_burst=64K&max_recv=512" \
            "first_burst=64K&max_burst=256K" "first_burst=256K&max_burst=1M&max_recv=1M&connections=$links"; do
            set -- "$@" "digest=$digest&initial_r2t=$r2t&immediate=$immediate&$bursts"
          done
        done
      done
    done
  fi
  for terms in "$@"; do round_trip "$terms"; count=$((count + 1)); done
  say "$TARGET: $count sets of terms, $MIB MiB there and back with each"
}

load() {
  local bs
  for bs in 512 4k 64k 1m; do
    expect '^bench' bw bench "$(url disk)?digest=both" --rw=randwrite --bs=$bs --iodepth=16 --size=8m --verify=crc32c
    ! grep -q failed "$DIR/said" || { cat "$DIR/said" >&2; fail "bench --bs=$bs"; }
  done
  expect '^bench' bw bench "$(url disk)" --rw=randrw --bs=4k --iodepth=64 --runtime=1 --time_based
}

reservations() {
  # tgt takes the same initiator in another session for another registrant.
  [ "$TARGET" != tgt ] || { tgt_reservations; return; }
  expect '^reservation none' bw reserve "$(url flat)" register --key 0xabc1
  expect '^reservation write-exclusive .*' bw reserve "$(url flat)" reserve --key 0xabc1 --type write-exclusive
  expect 'abc1 .*holds it' bw reserve "$(url flat)" report
  # Another initiator may read and not write.
  image 1
  refused 1 'reserv' bw write "$(url flat)?initiator=iqn.2026-11.io.blockwire.test:other" --input "$DIR/image"
  bw read --length 1M "$(url flat)?initiator=iqn.2026-11.io.blockwire.test:other" >"$DIR/back"
  expect '^reservation none' bw reserve "$(url flat)" release --key 0xabc1 --type write-exclusive
  expect '^reservation none' bw reserve "$(url flat)" unregister --key 0xabc1
  bw write "$(url flat)?initiator=iqn.2026-11.io.blockwire.test:other" --input "$DIR/image"
}

tgt_reservations() {
  expect '0xabc1|0*abc1' bw reserve "$(url flat)" register --key 0xabc1
  expect '^reservation none' bw reserve "$(url flat)" report
}

# outage SECONDS: the target is killed without warning and comes back
outage() {
  sleep 1
  target_stop
  sleep "$1"
  target_start "$DIR"
}

restarts() {
  local rc=0 pid
  bw bench "$(url disk)?digest=both&open_timeout=30s" --rw=randwrite --bs=4k --iodepth=16 --size=64m --rate_iops=3000 \
    --verify=crc32c --json >"$DIR/bench.json" 2>"$DIR/said" &
  pid=$!
  outage 1
  outage 0
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { cat "$DIR/said" "$DIR/bench.json" >&2; fail "bench over two restarts: exit $rc"; }
  say "$TARGET: killed and started again twice under writes that are verified: no error"
  image 64
  bw copy -q "$DIR/image" "$(url disk)?commands=2&max_burst=4K&first_burst=4K&open_timeout=30s" >"$DIR/said" 2>&1 &
  pid=$!
  sleep 0.2
  target_stop
  target_start "$DIR"
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { cat "$DIR/said" >&2; fail "copy over a restart: exit $rc"; }
  bw verify "$DIR/image" "$(url disk)" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "copy over a restart differs"; }
}

# Debian's tgt accepts SHA-256 and then has no room for its response ("buf[20] !sufficient").
HASHES=
[ "$TARGET" != tgt ] || HASHES="&chap=sha1+md5"
# Words must say whose secret it is, and never show one.
whose() {
  refused 24 "$1" bw info "$2"
  ! grep -Eq 'ourworldly|theirworldly|wrongwrong' "$DIR/said" || fail "a secret is shown: $2"
}

secrets() {
  local unit at name
  at=127.0.0.1:$PORT/$(iqn disk)/$(lun)
  for name in our:ourworldly12 their:theirworldl1 wrong:wrongwrong12; do
    (umask 077; printf '%s' "${name#*:}" >"$DIR/${name%%:*}.secret")
  done
  target_stop
  target_chap "$DIR" alice ourworldly12
  target_start "$DIR"
  expect '"bytes": 67108864' bw info --json "iscsi://alice@$at?secret_file=$DIR/our.secret$HASHES"
  whose "CHAP" "iscsi://$at"
  whose "CHAP user name and secret that this side sends" "iscsi://alice@$at?secret_file=$DIR/wrong.secret$HASHES"
  target_stop
  target_chap "$DIR" alice ourworldly12 target theirworldl1
  target_start "$DIR"
  unit="iscsi://alice@$at?secret_file=$DIR/our.secret$HASHES&mutual_user=target&mutual_secret_file=$DIR"
  expect '"bytes": 67108864' bw info --json "$unit/their.secret"
  whose "target.s own secret" "$unit/wrong.secret"
  whose "CHAP user name and secret that this side sends" "${unit/our.secret/wrong.secret}/their.secret"
}

[ "$TARGET" = blockwire ] || IO=${IO:-auto}
target_start "$DIR"
say "$TARGET at 127.0.0.1:$PORT"
for part in ${PARTS:-discovery by_pipe matrix load reservations restarts secrets}; do
  begin=$(now)
  "$part"
  say "$TARGET: $part: ok, $(since "$begin") s"
done
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
rm -f "$DIR"/*.img "$DIR/image" "$DIR/back"
