#!/usr/bin/env bash
# Builds what a guest boots: Debian's stock cloud kernel, taken out of its package without being
# installed, and an initramfs with busybox and the machine's own open-iscsi, nvme-cli and sg3-utils.
#   image.sh DIRECTORY [SUITE [PROGRAM]]   makes DIRECTORY/vmlinux and DIRECTORY/initramfs
# PROGRAM is one of ours that jobs in the guest run.
# SUITE names another Debian suite to take the kernel from, for example bookworm-backports; the
# machine's own package sources stay as they are.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
IMAGE=$1
SUITE=${2:-} OURS=${3:-}
HERE=$(cd "$(dirname "$0")" && pwd)
MODULES="virtio_pci virtio_net virtio_blk iscsi_tcp nvme_tcp sd_mod ext4 crc32c_generic crc32c_intel"
PROGRAMS="iscsid iscsiadm nvme sg_persist sg_vpd sg_rtpg mkfs.ext4 e2fsck"
# Only kernels with NVMe in-band authentication need them; with the machine's own suite it has none.
[ -z "$SUITE" ] || MODULES+=" sha256_generic sha512_generic hmac ublk_drv"
mkdir -p "$IMAGE"

# in_suite PROGRAM ARGS...: apt's programs, with the sources of $SUITE if one is named
in_suite() {
  local program=$1 lists=$IMAGE-apt; shift
  if [ -z "$SUITE" ]; then
    "$program" "$@"
    return
  fi
  local options=(-o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache")
  if [ ! -e "$lists/sources.list" ]; then
    mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
      "$(debian_mirror)" "$SUITE" >"$lists/sources.new"
    quietly apt-suite apt-get "${options[@]/sources.list/sources.new}" update -q
    mv "$lists/sources.new" "$lists/sources.list"
  fi
  "$program" "${options[@]}" "$@"
}

# The package that linux-image-cloud-ARCH stands for at present.
kernel_package() {
  local meta
  meta=linux-image-cloud-$(dpkg --print-architecture)
  in_suite apt-cache depends "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1
}

# unpack_kernel VMLINUZ VMLINUX: the plain ELF file in a bzImage (it has an entry for virtual
# machines); the guest's slow processor would need seconds to decompress it.
unpack_kernel() {
  local offset
  while read -r offset; do
    tail -c +$((offset + 1)) "$1" | xz -dc --single-stream >"$2" 2>/dev/null || true
    [ "$(head -c 4 "$2" | tail -c 3)" = ELF ] && return
  done < <(LC_ALL=C grep -abo $'\xfd7zXZ' "$1" | cut -d: -f1)
  cp "$1" "$2" # some other compression: QEMU boots the bzImage as well
}

# take PROGRAM: a program and its shared objects, into the tree $TREE
take() {
  local file real library
  file=$(command -v "$1") || fail "no $1"
  real=$(readlink -f "$file")
  mkdir -p "$TREE/sbin"
  cp "$real" "$TREE/sbin/${1##*/}"
  ldd "$real" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$TREE$(dirname "$library")"
    cp -L "$library" "$TREE$library"
  done
}

package=$(kernel_package)
[ -n "$package" ] || { quietly apt-update apt-get update -q || true; package=$(kernel_package); }
[ -n "$package" ] || fail "no cloud kernel package known to apt"
if [ "$(cat "$IMAGE/package" 2>/dev/null || true)" != "$package" ]; then
  rm -rf "$IMAGE"
  mkdir -p "$IMAGE/deb"
  chmod 777 "$IMAGE/deb"
  (cd "$IMAGE/deb" && in_suite apt-get download -q "$package" >"$OUT/apt-download.log" 2>&1) || fail "apt-get download $package"
  dpkg-deb -x "$IMAGE"/deb/*.deb "$IMAGE/root"
  rm -rf "$IMAGE/deb"
  unpack_kernel "$IMAGE"/root/boot/vmlinuz-* "$IMAGE/vmlinux"
  echo "$package" >"$IMAGE/package"
fi
version=$(basename "$IMAGE"/root/lib/modules/*)

TREE=$IMAGE/tree
rm -rf "$TREE"
mkdir -p "$TREE"/{bin,dev,etc/iscsi,etc/nvme,job,lib/modules/"$version",mnt,proc,root,run,sys,tmp,var/lib/iscsi}
cp "$(command -v busybox)" "$TREE/bin/busybox"
for applet in $("$TREE/bin/busybox" --list); do
  [ "$applet" = busybox ] || ln -s busybox "$TREE/bin/$applet"
done
for program in $PROGRAMS $OURS; do take "$program"; done
# Loaded at run time by iscsid when a thread ends.
cp -L "/lib/$(uname -m)-linux-gnu/libgcc_s.so.1" "$TREE/lib/$(uname -m)-linux-gnu/"
cp /etc/iscsi/iscsid.conf "$TREE/etc/iscsi/"
cp /etc/mke2fs.conf "$TREE/etc/"
echo 'root:x:0:0:root:/root:/bin/sh' >"$TREE/etc/passwd"
echo 'root:x:0:' >"$TREE/etc/group"

[ -e "$IMAGE/root/lib/modules/$version/modules.dep" ] || depmod -b "$IMAGE/root" "$version"
for module in $MODULES; do
  modprobe -d "$IMAGE/root" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p' | cut -d' ' -f1
done | sort -u | while read -r object; do
  mkdir -p "$TREE$(dirname "${object#"$IMAGE/root"}")"
  cp "$object" "$TREE${object#"$IMAGE/root"}"
done
cp "$IMAGE/root/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$TREE/lib/modules/$version/"
depmod -b "$TREE" "$version"

install -m 755 "$HERE/init" "$TREE/init"
install -m 644 "$HERE/job-lib" "$TREE/job/lib"
for job in iscsi nvme auth vhost ublk; do install -m 755 "$HERE/job-$job" "$TREE/job/$job"; done
(cd "$TREE" && find . | cpio --quiet -o -H newc -R 0:0) >"$IMAGE/initramfs"
rm -rf "$TREE"
