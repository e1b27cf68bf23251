#!/usr/bin/env bash
# libblockwire as a program in C has it: installed, found by pkg-config, linked both ways, on volumes of the
# daemon over both protocols; once under valgrind where it is installed.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
use_target blockwire
ROOM=$(mktemp -d "$OUT/capi-XXXXXX")
trap 'end_all; rm -rf "$ROOM"' EXIT
tests/setup.sh capi

quietly capi-install make -s install DESTDIR= PREFIX="$ROOM/usr"
export PKG_CONFIG_PATH=$ROOM/usr/lib/pkgconfig
read -ra FLAGS < <(pkg-config --cflags blockwire)
read -ra SHARED < <(pkg-config --libs blockwire)
read -ra STATIC < <(pkg-config --libs --static blockwire)
STRICT=(-std=c99 -Wall -Wextra -Werror -pedantic -O1 -g)
cc "${STRICT[@]}" "${FLAGS[@]}" crates/initiator/capi/tests/check.c -o "$ROOM/check" "${SHARED[@]}" -lpthread
cc "${STRICT[@]}" "${FLAGS[@]}" crates/initiator/capi/tests/check.c -o "$ROOM/check-static" \
  "${STATIC[@]/#-lblockwire/-l:libblockwire.a}"
cc "${STRICT[@]}" -D_POSIX_C_SOURCE=200112L "${FLAGS[@]}" crates/initiator/capi/examples/copy.c -o "$ROOM/copy" "${SHARED[@]}"
export LD_LIBRARY_PATH=$ROOM/usr/lib
# No pipe: what ends as soon as it has found something would end ldd too.
[[ $(ldd "$ROOM/check") == *libblockwire.so.1* ]] || fail "the program is not bound to the library's version"
[[ $(ldd "$ROOM/check-static") != *libblockwire* ]] || fail "the static library was not taken"

mkdir "$ROOM/target"
target_start "$ROOM/target"
nvme_url() { echo "nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn "$1")/1"; }
BAD=("-2=iscsi://" "-2=ftp://127.0.0.1/x" "-3=iscsi://127.0.0.1:$(free_port)/$(iqn disk)/0?open_timeout=0"
  "-3=iscsi://user%hushhushhush@127.0.0.1:$(free_port)/$(iqn disk)/0?open_timeout=0"
  "-2=iscsi://user%hushhushhush@127.0.0.1/nonsense"
  # What is not there: a target, a logical unit, a subsystem, a namespace.
  "-5=$(url nowhere)?open_timeout=0" "-5=iscsi://127.0.0.1:$PORT/$(iqn disk)/77?open_timeout=0"
  "-5=$(nvme_url nowhere)?open_timeout=0" "-5=nvme+tcp://127.0.0.1:$NVME_PORT/$(nqn disk)/77?open_timeout=0")
for way in url nvme_url; do
  begin=$(now)
  "$ROOM/check" "$($way disk)" "${BAD[@]}" >"$ROOM/said"
  ! grep -q hush "$ROOM/said" || fail "a message holds a secret"
  "$ROOM/check-static" "$($way thin)"
  IO=epoll "$ROOM/check" "$($way thin)"
  say "$way: shared, static, on epoll: $(since "$begin") s"
done
if command -v valgrind >/dev/null; then
  for way in url nvme_url; do
    begin=$(now)
    # io_uring's memory is the kernel's, which valgrind does not see.
    IO=epoll quietly capi-valgrind valgrind --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
      --suppressions=crates/initiator/capi/tests/valgrind.supp \
      "$ROOM/check" "$($way thin)"
    say "$way under valgrind: $(since "$begin") s"
  done
fi
# The example, from one protocol to the other: what is copied is the same, byte for byte.
bytes() { "$BLOCKWIRE" read "$1" | sha256sum; }
"$ROOM/check" "$(url thin)"
[ "$(bytes "$(url thin)")" != "$(bytes "$(url flat)")" ] || fail "the volumes are alike before they are copied"
"$ROOM/copy" "$(url thin)" "$(nvme_url flat)" | grep -qx '67108864 bytes copied' || fail "the example copied something else"
[ "$(bytes "$(nvme_url thin)")" = "$(bytes "$(url flat)")" ] || fail "the copy differs"
if "$ROOM/copy" "$(url thin)" "$(nvme_url readonly)" 2>"$ROOM/said"; then fail "a read-only volume was written"; fi
grep -q 'read-only' "$ROOM/said" || fail "nobody said that the volume is read-only: $(cat "$ROOM/said")"
# CHAP: who has the secret gets all, and who has not is told so, by its own code and without the secret.
target_stop
rm "$ROOM/target/blockwire.toml" # others may read it
target_chap "$ROOM/target" alice ourworldly12
target_start "$ROOM/target"
(umask 077; printf ourworldly12 >"$ROOM/secret")
proven() { echo "iscsi://$1@127.0.0.1:$PORT/$(iqn thin)/0"; }
"$ROOM/check" "$(proven alice%ourworldly12)" "-4=$(proven alice%hushhushhush)" "-4=$(proven mallory%hushhushhush)" \
  >"$ROOM/said"
grep -q 'CHAP' "$ROOM/said" || fail "nobody said what was not proved: $(cat "$ROOM/said")"
"$ROOM/check" "$(proven alice)?secret_file=$ROOM/secret"
say "CHAP: the right secret, wrong ones, a secret in a file"
target_stop
say "libblockwire: built, linked and proved over both protocols"
