#!/usr/bin/env bash
# Our initiator against a target, by the command line.
#   initiator.sh [-a] [-s] [-t TARGET] [-p PROTOCOL]
# -a: all of what is negotiated against each other: every combination of digests, InitialR2T, ImmediateData and
# bursts (of digests, queues and commands), and every two values of all options that there are; of our own target
# also of its settings. -s: few of them, with less data, for slow targets.
# TARGET is tgt, istgt (both from Debian), lio, nvmet (the kernel's, in a guest), spdk-iscsi, spdk-nvme
# (where SPDK was built: SPDK_DIR) or blockwire. PROTOCOL is iscsi or nvme, for who serves both (blockwire).
# PARTS names the parts, unless all are to be run.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
TARGET=tgt
ALL=0
SHORT=0
while getopts asp:t: opt; do
  case $opt in
  a) ALL=1 ;;
  s) SHORT=1 ;;
  t) TARGET=$OPTARG ;;
  p) OVER=$OPTARG ;;
  *) exit 2 ;;
  esac
done
case $TARGET in
tgt | istgt) "$ROOT/tests/setup.sh" "$TARGET" ;;
esac
BLOCKWIRE=${BLOCKWIRE:-$BUILD/release/blockwire}
use_target "$TARGET"
DIR=$OUT/initiator-$TARGET${OVER:+-$OVER}
gone "$DIR"
mkdir -p "$DIR"
# What is written of a volume, and the volume.
MIB=16
VOLUME_MIB=${VOLUME_MIB:-64}
[ "$SHORT" = 0 ] || MIB=2
case $(url disk) in
nvme*) PROTOCOL=nvme NO_SUCH=${NO_SUCH:-there is no subsystem} ;;
*) PROTOCOL=iscsi ;;
esac
# Every wait of a test ends, whatever the initiator does.
bw() { timeout 120 "$BLOCKWIRE" "$@"; }
bw_long() { timeout 240 "$BLOCKWIRE" "$@"; }

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
  local portal
  portal=$(url disk)
  portal=${portal%/*/*}
  # A target in a guest announces the address that it has there.
  expect "^${portal%%[+:]*}.*://${ANNOUNCED:-127\.0\.0\.1:[0-9]*}/$(name disk)/" bw discover "$portal"
  expect '"size_bytes": '$((VOLUME_MIB << 20)) bw info --json "$(url disk)"
  expect '^healthy: ' bw doctor "$(url disk)"
  refused "${NO_SUCH_EXIT:-21}" "${NO_SUCH:-check the target.s name}" bw info "$(url no-such)"
}
# name KIND: of its target or subsystem
name() {
  if [ "$PROTOCOL" = nvme ]; then nqn "$1"; else iqn "$1"; fi
}

# A volume whose ends and middle are ragged, by a pipe: offsets and lengths that are no multiples of ours.
by_pipe() {
  local sum
  image 5
  bw write --offset 512 "$(url disk)" <"$DIR/image"
  sum=$(bw read --offset 512 --length 5M "$(url disk)" | sha256sum)
  [ "$sum" = "$(sha256sum <"$DIR/image")" ] || fail "what was read by a pipe is not what was written"
  bw write --offset $((VOLUME_MIB - 2))M --length 2M "$(url disk)" <"$DIR/image"
  sum=$(bw read --offset $((VOLUME_MIB - 2))M "$(url disk)" | sha256sum)
  [ "$sum" = "$(head -c 2M "$DIR/image" | sha256sum)" ] || fail "the end of the volume differs"
  refused 2 'beyond its end' bw read --offset $((VOLUME_MIB - 1))M --length 2M "$(url disk)"
}

# able OPTIONS: without digests that the target does not bear (MOST_DIGESTS)
able() {
  [ -z "${MOST_DIGESTS:-}" ] || set -- "$(sed "s/digest=both/digest=$MOST_DIGESTS/; s/digest=data/digest=none/" <<<"$1")"
  printf '%s' "$1"
}

# round_trip OPTIONS: an image there and back with these terms; what the target keeps is compared too
round_trip() {
  local unit
  unit="$(url disk)?$(able "$1")"
  image "$MIB"
  truncate -s "${VOLUME_MIB}M" "$DIR/image"
  bw copy -q "$DIR/image" "$unit" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "copy to $unit"; }
  bw verify "$DIR/image" "$unit" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "verify of $unit"; }
  [ ! -e "$DIR/disk.img" ] || cmp "$DIR/image" "$DIR/disk.img" || fail "$unit: the target keeps something else"
  rm -f "$DIR/back"
  bw copy -q "$unit" "$DIR/back" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "copy from $unit"; }
  cmp "$DIR/image" "$DIR/back" || fail "$unit: what came back is not what was written"
}

# small_io OPTIONS: writes and reads that are shorter than a burst or capsule, with these terms
small_io() {
  local unit bs
  unit="$(url disk)?$(able "$1")"
  for bs in 512 12k; do
    expect '^bench' bw bench "$unit" --rw=randwrite --bs=$bs --iodepth=8 --size=192k --verify=crc32c
    ! grep -q failed "$DIR/said" || { cat "$DIR/said" >&2; fail "bench --bs=$bs on $unit"; }
  done
}

# every_iscsi, every_nvme: every combination, into TERMS
every_iscsi() {
  local digest r2t immediate bursts
  for digest in none header data both; do
    for r2t in yes no; do
      for immediate in yes no; do
        for bursts in "first_burst=512&max_burst=512" "first_burst=4K&max_burst=64K&max_recv=512" \
          "first_burst=64K&max_burst=256K" "first_burst=256K&max_burst=1M&max_recv=1M&connections=$LINKS"; do
          TERMS+=("digest=$digest&initial_r2t=$r2t&immediate=$immediate&$bursts")
        done
      done
    done
  done
}
every_nvme() {
  local digest queues commands
  for digest in none header data both; do
    for queues in 1 4; do
      for commands in 1 8 128; do TERMS+=("digest=$digest&queues=$queues&commands=$commands"); done
    done
  done
}

# pairs: sets of the values on its input, every two values of two lines together in at least one
pairs() { awk -f "$ROOT/tests/interop/pairs.awk"; }
# pairs_iscsi, pairs_nvme: every option that takes part in a login or a connect
pairs_iscsi() {
  pairs <<TERMS
digest=none digest=header digest=data digest=both
initial_r2t=yes initial_r2t=no
immediate=yes immediate=no
first_burst=512&max_burst=512 first_burst=4K&max_burst=64K first_burst=64K&max_burst=256K first_burst=256K&max_burst=16M
max_recv=512 max_recv=4K max_recv=64K max_recv=16M
max_outstanding_r2t=1 max_outstanding_r2t=2 max_outstanding_r2t=65535
$(seq -f 'connections=%g' -s ' ' "$LINKS")
commands=1 commands=8 commands=4096
time2wait=0 time2wait=2 time2wait=1h
time2retain=0 time2retain=20 time2retain=1h
protocol_level=0 protocol_level=1 protocol_level=2
keep_alive=1s keep_alive=off
TERMS
}
# HPDAS: data alignments that the target takes
pairs_nvme() {
  pairs <<TERMS
digest=none digest=header digest=data digest=both
queues=1 queues=2 queues=8
commands=1 commands=2 commands=32 commands=1023
max_r2t=1 max_r2t=2 max_r2t=16
${HPDAS:-hpda=0 hpda=1 hpda=31}
flow_control=yes flow_control=no
keep_alive=1s keep_alive=5s keep_alive=off
TERMS
}

# LINKS: connections of a session, where the target takes more than one into it
LINKS=${LINKS:-1}
matrix() {
  local TERMS=() terms
  if [ "$ALL" = 1 ]; then
    "every_$PROTOCOL"
  elif [ "$PROTOCOL" = nvme ]; then
    TERMS=("digest=none&queues=2&max_r2t=4" "digest=both&flow_control=yes")
    [ "$SHORT" = 1 ] || TERMS+=("digest=header&queues=4&commands=4" "digest=data&commands=1")
  else
    TERMS=("initial_r2t=yes&immediate=yes&first_burst=64K&max_burst=64K&max_outstanding_r2t=1&protocol_level=0"
      "connections=$LINKS&digest=both&commands=8&time2wait=0&time2retain=20")
    [ "$SHORT" = 1 ] || TERMS+=("digest=none&protocol_level=1&time2wait=1h" "digest=both"
      "digest=header&initial_r2t=yes&immediate=no&max_outstanding_r2t=2&max_burst=16K&first_burst=4K"
      "digest=data&initial_r2t=no&immediate=no&first_burst=4K&max_burst=16K&max_outstanding_r2t=65535"
      "initial_r2t=yes&immediate=yes&first_burst=64K&max_burst=64K&max_recv=4K"
      "digest=both&initial_r2t=no&immediate=yes&first_burst=512&max_burst=512")
  fi
  for terms in "${TERMS[@]}"; do round_trip "$terms"; done
  say "$TARGET: ${#TERMS[@]} sets of terms, $MIB MiB there and back with each"
  [ "$ALL" = 1 ] || return 0
  mapfile -t TERMS < <("pairs_$PROTOCOL")
  for terms in "${TERMS[@]}"; do
    round_trip "$terms"
    small_io "$terms"
  done
  say "$TARGET: ${#TERMS[@]} more sets with every two values of all options"
  ! declare -F target_terms >/dev/null || settings
}

# The same from the other side: a target of ours with other settings, every two values of them.
settings() {
  local TERMS=() terms
  target_stop
  mapfile -t TERMS < <(pairs < <("target_settings_$PROTOCOL"))
  for terms in "${TERMS[@]}"; do
    target_terms "$DIR" "$PROTOCOL" "$terms"
    target_start "$DIR"
    if [ "$PROTOCOL" = nvme ]; then set -- "queues=4&commands=64" "queues=1&digest=both&max_r2t=4&flow_control=yes"
    else set -- "connections=2&max_outstanding_r2t=16" "immediate=no&initial_r2t=no&max_burst=16M&first_burst=512K"; fi
    for asked; do
      round_trip "$asked"
      small_io "$asked"
    done
    target_stop
  done
  rm -f "$DIR/blockwire.toml"
  target_start "$DIR"
  say "$TARGET: ${#TERMS[@]} sets of the target's own settings, two sets of terms with each"
}

load() {
  local bs size=8m
  [ "$SHORT" = 0 ] || size=1m
  for bs in ${SIZES:-512 4k 64k 1m}; do
    expect '^bench' bw bench "$(url disk)?$(able digest=both)" --rw=randwrite --bs=$bs --iodepth=16 --size=$size --verify=crc32c
    ! grep -q failed "$DIR/said" || { cat "$DIR/said" >&2; fail "bench --bs=$bs"; }
  done
  expect '^bench' bw bench "$(url disk)" --rw=randrw --bs=4k --iodepth=64 --runtime=1 --time_based
}

# Hosts by their names; RESERVES is what the target can: all; register (it takes the same initiator in
# another session for another registrant); nothing.
ONE="" OTHER=""
reservations() {
  local flat other
  if [ "$PROTOCOL" = nvme ]; then
    ONE="host_nqn=nqn.2014-08.org.nvmexpress:uuid:$(uuid 1)&host_id=$(uuid 1)"
    OTHER="host_nqn=nqn.2014-08.org.nvmexpress:uuid:$(uuid 2)&host_id=$(uuid 2)"
  else
    ONE=initiator=iqn.2026-11.io.blockwire.test:one
    OTHER=initiator=iqn.2026-11.io.blockwire.test:other
  fi
  flat="$(url flat)?$ONE" other="$(url flat)?$OTHER"
  case ${RESERVES:-all} in
  nothing)
    refused 1 'the target cannot do it' bw reserve "$flat" register --key 0xabc1
    return
    ;;
  register)
    expect '0xabc1|0*abc1' bw reserve "$flat" register --key 0xabc1
    expect '^reservation none' bw reserve "$flat" report
    return
    ;;
  esac
  expect '^reservation none' bw reserve "$flat" register --key 0xabc1
  expect '^reservation write-exclusive .*' bw reserve "$flat" reserve --key 0xabc1 --type write-exclusive
  expect 'abc1 .*holds it' bw reserve "$flat" report
  # Another host may read and not write.
  image 1
  refused 2 'holds a reservation' bw write "$other" --input "$DIR/image"
  refused 1 'reserv' bw write "$other" --force --input "$DIR/image"
  bw read --length 1M "$other" >"$DIR/back"
  expect '^reservation none' bw reserve "$flat" release --key 0xabc1 --type write-exclusive
  expect '^reservation none' bw reserve "$flat" unregister --key 0xabc1
  bw write "$other" --input "$DIR/image"
}
uuid() { printf '%08d-3c1b-4b8e-9d0e-2d8f6a1b7c55' "$1"; }

# Others' targets are always killed: some ignore being asked.
KILL=target_stop
! declare -F target_killed >/dev/null || KILL=target_killed

# outage SECONDS: the target is killed without warning and comes back
outage() {
  sleep 1
  "$KILL"
  sleep "$1"
  target_start "$DIR"
}

# RESTART: seconds that the target may need to come back
restarts() {
  local rc=0 pid size=64m wait=${RESTART:-30}s
  [ "$SHORT" = 0 ] || size=8m
  bw_long bench "$(url disk)?$(able digest=both)&open_timeout=$wait" --rw=randwrite --bs=4k --iodepth=16 --size=$size \
    --rate_iops=3000 --verify=crc32c --json >"$DIR/bench.json" 2>"$DIR/said" &
  pid=$!
  outage 1
  outage 0
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { cat "$DIR/said" "$DIR/bench.json" >&2; fail "bench over two restarts: exit $rc"; }
  say "$TARGET: killed and started again twice under writes that are verified: no error"
  image $((MIB * 4))
  truncate -s "${VOLUME_MIB}M" "$DIR/image"
  bw_long copy -q "$DIR/image" "$(url disk)?commands=2&$SLOWLY&open_timeout=$wait" >"$DIR/said" 2>&1 &
  pid=$!
  sleep 0.2
  "$KILL"
  target_start "$DIR"
  wait "$pid" || rc=$?
  [ "$rc" = 0 ] || { cat "$DIR/said" >&2; fail "copy over a restart: exit $rc"; }
  bw verify "$DIR/image" "$(url disk)" >"$DIR/said" 2>&1 || { cat "$DIR/said" >&2; fail "copy over a restart differs"; }
}
SLOWLY="max_burst=4K&first_burst=4K"
[ "$PROTOCOL" = iscsi ] || SLOWLY=queues=1

# Words must say whose secret it is, and never show one.
whose() {
  refused 24 "$1" bw info "$2"
  ! grep -Eq 'ourworldly|theirworldl|wrongwrong|DHHC-1' "$DIR/said" || fail "a secret is shown: $2"
}

secrets() { "secrets_$PROTOCOL"; }

# HASHES: what the target needs said about its hashes
secrets_iscsi() {
  local unit at name
  at=127.0.0.1:$PORT/$(iqn disk)/$(lun)
  for name in our:ourworldly12 their:theirworldl1 wrong:wrongwrong12; do
    (umask 077; printf '%s' "${name#*:}" >"$DIR/${name%%:*}.secret")
  done
  target_stop
  target_chap "$DIR" alice ourworldly12
  target_start "$DIR"
  expect '"size_bytes": '$((VOLUME_MIB << 20)) bw info --json "iscsi://alice@$at?secret_file=$DIR/our.secret${HASHES:-}"
  # Some say that they want CHAP, some just close.
  refused "${UNPROVED:-24}" "${UNPROVED_SAYS:-CHAP}" bw info "iscsi://$at"
  whose "CHAP user name and secret that this side sends" "iscsi://alice@$at?secret_file=$DIR/wrong.secret${HASHES:-}"
  target_stop
  target_chap "$DIR" alice ourworldly12 target theirworldl1
  target_start "$DIR"
  unit="iscsi://alice@$at?secret_file=$DIR/our.secret${HASHES:-}&mutual_user=target&mutual_secret_file=$DIR"
  expect '"size_bytes": '$((VOLUME_MIB << 20)) bw info --json "$unit/their.secret"
  whose "same secret for the target" "$unit/wrong.secret"
  whose "CHAP user name and secret that this side sends" "${unit/our.secret/wrong.secret}/their.secret"
  [ "$ALL" = 0 ] || each_hash "$unit/their.secret"
}

# each_hash URL: mutual CHAP with each algorithm that the target has
each_hash() {
  local hash
  for hash in ${EACH_HASH:-}; do
    expect "CHAP_A *= *${hash%%:*}\$" bw doctor "$1&chap=${hash#*:}"
  done
}

secrets_nvme() {
  local host hash name
  command -v nvme >/dev/null || "$ROOT/tests/setup.sh" guest
  host=nqn.2014-08.org.nvmexpress:uuid:$(uuid 3)
  target_dhchap x y 2>/dev/null || { say "$TARGET: no DH-HMAC-CHAP here: ${NO_DHCHAP:-not tried}"; return 0; }
  for hash in 1 2 3; do
    [ "$hash" = 1 ] || [ "$ALL" = 1 ] || continue
    for name in our their wrong; do
      (umask 077; dhchap_key "$hash" >"$DIR/$name.secret")
    done
    target_stop
    target_dhchap "$host" "$(cat "$DIR/our.secret")"
    target_start "$DIR"
    unit="$(url disk)?host_nqn=$host&host_id=$(uuid 3)"
    expect '"size_bytes": '$((VOLUME_MIB << 20)) bw info --json "$unit&secret_file=$DIR/our.secret"
    whose "wants this host to authenticate" "$unit"
    # nvmet closes at times before its refusal is out, amid authentication.
    whose "secret" "$unit&secret_file=$DIR/wrong.secret"
  done
}
# dhchap_key HASH: a fresh secret, as its text, transformed with the hash (1: SHA-256, 2: SHA-384, 3: SHA-512)
dhchap_key() {
  local len=32
  [ "$1" = 1 ] || len=$((16 + 16 * $1))
  nvme gen-dhchap-key --secret="$(head -c $len /dev/urandom | od -An -tx1 | tr -d ' \n')" --hmac="$1" |
    tr -d '\n'
}

[ "$TARGET" = blockwire ] || IO=${IO:-auto}
target_start "$DIR"
say "$TARGET at $(url disk)"
for part in ${PARTS:-discovery by_pipe matrix load reservations restarts secrets}; do
  begin=$(now)
  "$part"
  say "$TARGET: $part: ok, $(since "$begin") s"
done
kill -0 "$TARGET_PID" || fail "the target died; see $DIR"
target_stop
rm -f "$DIR"/*.img "$DIR/image" "$DIR/back"
