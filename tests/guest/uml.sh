#!/usr/bin/env bash
# User-Mode Linux: a current kernel as a process. Builds it once from Debian's unmodified source
# package, which takes eleven minutes of a processor, and runs the job of ublk.sh in it.
#   uml.sh [build]     build: no more than that
# UML_DIR says where source and kernel are kept, UML_SOURCE and UML_SUITE which package is built.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/suite.sh
. "$ROOT/tests/guest/suite.sh"
UML_DIR=${UML_DIR:-$OUT/uml}
UML_SOURCE=${UML_SOURCE:-linux-source-7.2}
UML_SUITE=${UML_SUITE:-trixie-backports}
KERNEL=$UML_DIR/linux

build() {
  local tree=$UML_DIR/src made=$UML_DIR/made
  # One that was built by another configuration lacks something.
  if [ -x "$KERNEL" ] && cmp -s "$ROOT/tests/guest/uml.config" "$UML_DIR/config"; then return 0; fi
  "$ROOT/tests/setup.sh" uml
  if [ ! -e "$tree/Makefile" ]; then
    rm -rf "$UML_DIR/deb"
    download_dir "$UML_DIR/deb"
    (cd "$UML_DIR/deb" && in_suite "$UML_SUITE" apt-get download -q "$UML_SOURCE" >"$OUT/apt-download.log" 2>&1) ||
      fail "apt-get download $UML_SOURCE; see $OUT/apt-download.log"
    mkdir -p "$tree"
    dpkg-deb --fsys-tarfile "$UML_DIR/deb/$UML_SOURCE"_*.deb | tar -xO --wildcards "*$UML_SOURCE.tar.xz" |
      xz -dc | tar -x --strip-components=1 -C "$tree"
    rm -rf "$UML_DIR/deb"
  fi
  quietly uml-defaults make -C "$tree" ARCH=um O="$made" defconfig
  (cd "$made" && quietly uml-merge "$tree/scripts/kconfig/merge_config.sh" -m .config "$ROOT/tests/guest/uml.config")
  quietly uml-config make -C "$made" ARCH=um olddefconfig
  quietly uml-build nice -n 19 make -C "$made" -j"${UML_JOBS:-$(nproc)}" ARCH=um KCFLAGS=-w linux
  strip -o "$KERNEL.new" "$made/linux"
  mv "$KERNEL.new" "$KERNEL"
  cp "$ROOT/tests/guest/uml.config" "$UML_DIR/config"
  rm -rf "$made" "$tree"
}

build
if [ "${1:-}" = build ]; then exit; fi
"$ROOT/tests/setup.sh" build guest
DIR=$OUT/guest-uml IMAGE=$OUT/guest-image-ublk
gone "$DIR"
mkdir -p "$DIR"
quietly build-local cargo build --locked -p blockwire-block-device --example local
quietly build-blockwire cargo build --locked -p blockwire
# The guest's memory holds all of it.
strip -o "$DIR/blockwire" "$BUILD/debug/blockwire"
"$ROOT/tests/guest/image.sh" "$IMAGE" bookworm-backports "$BUILD/debug/examples/local" "$DIR/blockwire" nbd-client

# Its exit status says nothing of the job's; what it prints does.
TMPDIR=$DIR timeout -k 5 240 "$KERNEL" mem=768M seccomp=on initrd="$IMAGE/initramfs" root=/dev/ram0 \
  con=null con0=fd:0,fd:1 quiet panic=-1 bw.JOB=ublk </dev/null >"$DIR/guest.log" 2>&1 || true
grep -q '^@@exit 0' "$DIR/guest.log" || { tail -n 60 "$DIR/guest.log" >&2; fail "the guest failed; see $DIR"; }
say "guest: User-Mode Linux from $UML_SOURCE wrote and verified ext4 over ublk, and over the server's death; attach recovered, failed in time, and served the kernel's NBD client"
