#!/usr/bin/env bash
# Builds what a guest boots that uses NVMe/TCP over TLS: the stock cloud kernel of Debian's backports, and an
# initramfs with busybox, and with nvme-cli, tlshd and their libraries of another Debian release than this
# machine's, which has neither. Nothing of it is installed.
#   tls-image.sh DIRECTORY      makes DIRECTORY/vmlinux, DIRECTORY/initramfs and DIRECTORY/package
# TLS_SUITE names the release; its backports have the kernel.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/suite.sh
. "$ROOT/tests/guest/suite.sh"
IMAGE=$1
SUITE=${TLS_SUITE:-trixie}
HERE=$(cd "$(dirname "$0")" && pwd)
STORE=$OUT/guest-tls-$SUITE
MODULES="virtio_pci virtio_net nvme_tcp tls gcm sha256_generic sha512_generic hmac dh_generic crc32c_generic"
PROGRAMS="ktls-utils nvme-cli"
mkdir -p "$IMAGE"

# depends SUITE PACKAGE: what a package depends on of its own source
depends() { in_suite "$1" apt-cache depends "$2" 2>/dev/null | sed -n 's/^ *Depends: \(linux-[a-z]*-[0-9].*\)/\1/p'; }
# unpack SUITE TREE PACKAGE...
unpack() {
  local suite=$1 tree=$2 package; shift 2
  download_dir "$STORE/deb"
  (cd "$STORE/deb" && in_suite "$suite" apt-get download -q "$@" >"$OUT/apt-download.log" 2>&1) ||
    fail "apt-get download $*; see $OUT/apt-download.log"
  for package in "$STORE"/deb/*.deb; do dpkg-deb -x "$package" "$tree"; done
  rm -rf "$STORE/deb"
}

package=$(depends "$SUITE-backports" "linux-image-cloud-$(dpkg --print-architecture)" | head -n 1)
[ -n "$package" ] || fail "no cloud kernel package in $SUITE-backports"
if [ "$(cat "$STORE/package" 2>/dev/null || true)" != "$package" ]; then
  rm -rf "$STORE"
  mkdir -p "$STORE/root" "$STORE/kernel"
  # shellcheck disable=SC2046
  unpack "$SUITE-backports" "$STORE/kernel" "$package" $(depends "$SUITE-backports" "$package")
  # Shared objects and what has them; not the programs that maintain a system.
  # shellcheck disable=SC2046,SC2086
  unpack "$SUITE" "$STORE/root" $(in_suite "$SUITE" apt-cache depends --recurse --no-recommends --no-suggests \
    --no-conflicts --no-breaks --no-replaces --no-enhances --no-pre-depends $PROGRAMS |
    grep -E "^(lib|zlib|$(echo $PROGRAMS | tr ' ' '|'))" | grep -vE 'debian-installer|pam|semanage|perl' | sort -u)
  # busybox loads modules as they are.
  find "$STORE/kernel" -name '*.ko.xz' -exec xz -d {} +
  [ -e "$STORE/kernel/lib" ] || ln -s usr/lib "$STORE/kernel/lib"
  depmod -b "$STORE/kernel" "$(basename "$STORE"/kernel/usr/lib/modules/*)"
  echo "$package" >"$STORE/package"
fi
version=$(basename "$STORE"/kernel/usr/lib/modules/*)
ln -sf "$STORE/package" "$IMAGE/package"
ln -sf "$(find "$STORE/kernel/" -name 'vmlinuz*' | head -n 1)" "$IMAGE/vmlinux"

TREE=$IMAGE/tree
rm -rf "$TREE"
mkdir -p "$TREE"/{bin,sbin,lib64,dev,etc/nvme,job,lib/modules/"$version",proc,root,run,sys,tmp,usr/lib,var}
cp "$(command -v busybox)" "$TREE/bin/busybox"
for applet in $("$TREE/bin/busybox" --list); do
  [ "$applet" = busybox ] || ln -s busybox "$TREE/bin/$applet"
done
cp "$STORE"/root/usr/sbin/{nvme,tlshd} "$TREE/sbin/"
libraries=usr/lib/$(uname -m)-linux-gnu
mkdir -p "$TREE/$libraries"
find "$STORE/root/$libraries" -maxdepth 1 -name '*.so*' -exec cp -P {} "$TREE/$libraries/" \;
cp -L "$STORE/root/$libraries"/ld-linux*.so.* "$TREE/lib64/"
echo 'root:x:0:0:root:/root:/bin/sh' >"$TREE/etc/passwd"
echo 'root:x:0:' >"$TREE/etc/group"
for module in $MODULES; do
  # What is built in needs no file.
  { modprobe -d "$STORE/kernel" -S "$version" --show-depends "$module" 2>/dev/null || true; } |
    sed -n 's/^insmod //p' | cut -d' ' -f1
done | sort -u | while read -r object; do
  place=$TREE/lib/${object#*/lib/}
  mkdir -p "$(dirname "$place")"
  cp "$object" "$place"
done
cp "$STORE/kernel/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$TREE/lib/modules/$version/"
depmod -b "$TREE" "$version"
install -m 755 "$HERE/init" "$TREE/init"
install -m 644 "$HERE/job-lib" "$TREE/job/lib"
install -m 755 "$HERE/job-tls" "$TREE/job/tls"
(cd "$TREE" && find . | cpio --quiet -o -H newc -R 0:0) >"$IMAGE/initramfs"
rm -rf "$TREE"
