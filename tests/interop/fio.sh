#!/usr/bin/env bash
# fio on our volumes over both protocols: by our engine, built against the source of the fio that is
# installed, and by fio's own NBD engine. FIO_TREES="DIRECTORY..." names more source trees, configured and
# built, each of which is tried with its own fio.
#   fio.sh
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
"$ROOT/tests/setup.sh" build attach
IO=${IO:-auto}
use_target blockwire
DIR=$OUT/fio
gone "$DIR"
mkdir -p "$DIR/run"
export RUNTIME_DIRECTORY=$DIR/run
ENGINE=$BUILD/release/fio/blockwire.so

# fetch_source VERSION DIRECTORY: Debian's source of fio, by apt, without a change to the machine's own lists
fetch_source() {
  local version=$1 into=$2 lists=$OUT/fio-apt suite mirror options
  [ ! -e "$into/config-host.h" ] || return 0
  rm -rf "$into"
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial" "$into"
  suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    head -n 1 | tr -d ' ' || true) # a list that is not there is no failure
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
    "${mirror:-http://deb.debian.org/debian}" "$suite" >"$lists/sources.list"
  options=(-q -o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache")
  (
    cd "$lists"
    quietly fio-lists apt-get "${options[@]}" update
    quietly fio-source apt-get "${options[@]}" source --download-only fio
  ) || fail "the source of fio $version cannot be had here; unpack it somewhere, run ./configure and make there, and name the directory in FIO_TREES"
  [ -e "$lists/fio_$version.orig.tar.gz" ] ||
    fail "Debian $suite has the source of another fio than the one installed ($version)"
  tar xf "$lists/fio_$version.orig.tar.gz" -C "$into" --strip-components=1
  (cd "$into" && quietly fio-configure ./configure)
}

# by_engine FIO TREE: everything that the engine does
by_engine() {
  local fio=$1 tree=$2 way unit common begin
  quietly fio-engine make -s -C "$ROOT" fio-engine FIO="$tree"
  for way in url nvme_url; do
    begin=$(now)
    unit=$($way thin)
    common=(--name=job "--ioengine=external:$ENGINE" "--url=$unit" --size=48m --verify_state_save=0)
    quietly fio-verify "$fio" "${common[@]}" --rw=randwrite --bsrange=4k-256k --iodepth=32 --fsync=64 \
      --verify=crc32c --verify_fatal=1 --do_verify=1
    quietly fio-threads "$fio" "${common[@]}" --thread --numjobs=2 --rw=randrw --bs=4k --iodepth=64 \
      --iodepth_batch=16 --iodepth_batch_complete_min=4 --sync=dsync --runtime=2 --time_based
    quietly fio-deep "$fio" "${common[@]}" --rw=randread --bs=4k --iodepth=2048 --iodepth_batch=512 --size=16m
    quietly fio-trim "$fio" "${common[@]}" --rw=randtrim --bs=64k --iodepth=8 --size=16m
    quietly fio-epoll "$fio" "${common[@]}" --rw=write --bs=1m --iodepth=1 --bw_io=epoll --verify=md5 --verify_fatal=1
    # What fio wrote is on the volume, and what it trimmed is not: another reader agrees.
    "$BLOCKWIRE" write "$unit" --input /dev/urandom --length 64M
    quietly fio-all "$fio" "${common[@]}" --rw=trim --bs=1m --size=64m
    cmp -n $((64 << 20)) <("$BLOCKWIRE" read "$unit") /dev/zero || fail "trims did not reach the volume"
    ! "$fio" "${common[@]}" --rw=read --bs=100 >"$DIR/said" 2>&1 || fail "blocks of 100 bytes were read"
    grep -q 'change bs=' "$DIR/said" || fail "nobody said that the blocks are wrong: $(cat "$DIR/said")"
    ! "$fio" "${common[@]}" --rw=write --bs=4k "--url=$($way readonly)" >"$DIR/said" 2>&1 ||
      fail "a read-only volume was written"
    grep -q 'read-only' "$DIR/said" || fail "nobody said that the volume is read-only: $(cat "$DIR/said")"
    (cd "$DIR" && URL=$unit ENGINE=$ENGINE quietly fio-job "$fio" "$ROOT/contrib/fio/blockwire.fio")
    say "$("$fio" --version), $way: verified, threads, batches, trims, FUA, errors in $(since "$begin") s"
  done
}

nvme_url() { echo "nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn "$1")/1"; }
target_start "$DIR"
installed=$(fio --version)
fetch_source "${installed#fio-}" "$OUT/fio-source-${installed#fio-}"
by_engine fio "$OUT/fio-source-${installed#fio-}"
for tree in ${FIO_TREES:-}; do by_engine "$tree/fio" "$tree"; done
# fio's own engine, with nothing of ours in it.
for way in url nvme_url; do
  "$BLOCKWIRE" attach "$($way flat)" --via nbd --at "$DIR/sock" >"$DIR/attach.out" </dev/null &
  ATTACHED=$!
  ended_at_exit "$ATTACHED"
  wait_until 20 grep -qx ready "$DIR/attach.out" || fail "attach does not come up"
  (cd "$DIR" && URI="nbd+unix:///?socket=$DIR/sock" quietly fio-nbd fio "$ROOT/contrib/fio/nbd.fio")
  "$BLOCKWIRE" detach "$DIR/sock"
  say "fio's NBD engine, $way: verified"
done
target_stop
rm -f "$DIR"/*.img
