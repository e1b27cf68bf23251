#!/usr/bin/env bash
# Builds what a guest boots: Debian's stock cloud kernel, taken out of its package without being
# installed, and an initramfs with busybox and the machine's own open-iscsi, nvme-cli and sg3-utils.
#   image.sh DIRECTORY [SUITE [PROGRAM...]]   makes DIRECTORY/vmlinux and DIRECTORY/initramfs
# PROGRAMs are more that jobs in the guest run: fio, or one of ours.
# IMAGE_FLAVOUR=full takes the kernel for all machines, which has drivers that the cloud kernel lacks; IMAGE_MODULES are
# more modules that jobs need.
# SUITE names another Debian suite to take the kernel from, for example bookworm-backports; the
# machine's own package sources stay as they are. Empty: the machine's own.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/guest/suite.sh
. "$ROOT/tests/guest/suite.sh"
IMAGE=$1
SUITE=${2:-}
shift $(($# < 2 ? $# : 2))
HERE=$(cd "$(dirname "$0")" && pwd)
FLAVOUR=cloud-
[ "${IMAGE_FLAVOUR:-cloud}" != full ] || FLAVOUR=
KERNEL=$OUT/guest-kernel${SUITE:+-$SUITE}
[ -n "$FLAVOUR" ] || KERNEL+=-full
MODULES="virtio_pci virtio_net virtio_blk iscsi_tcp nvme_tcp sd_mod ext4 xfs crc32c_generic crc32c_intel
  target_core_iblock iscsi_target_mod nvmet_tcp sha3_generic ${IMAGE_MODULES:-}"
PROGRAMS="iscsid iscsiadm nvme sg_persist sg_vpd sg_rtpg mkfs.ext4 e2fsck $*"
# Only kernels with NVMe in-band authentication need them; with the machine's own suite it has none.
[ -z "$SUITE" ] || MODULES+=" sha256_generic sha512_generic hmac ublk_drv nbd"
mkdir -p "$IMAGE"

# The package that linux-image-cloud-ARCH, or linux-image-ARCH, stands for at present.
kernel_package() {
  local meta
  meta=linux-image-$FLAVOUR$(dpkg --print-architecture)
  in_suite "$SUITE" apt-cache depends "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1
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
[ -n "$package" ] || fail "no kernel package known to apt: linux-image-$FLAVOUR$(dpkg --print-architecture)"
if [ "$(cat "$KERNEL/package" 2>/dev/null || true)" != "$package" ]; then
  rm -rf "$KERNEL"
  download_dir "$KERNEL/deb"
  (cd "$KERNEL/deb" && in_suite "$SUITE" apt-get download -q "$package" >"$OUT/apt-download.log" 2>&1) ||
    fail "apt-get download $package"
  dpkg-deb -x "$KERNEL"/deb/*.deb "$KERNEL/root"
  rm -rf "$KERNEL/deb"
  unpack_kernel "$KERNEL"/root/boot/vmlinuz-* "$KERNEL/vmlinux"
  depmod -b "$KERNEL/root" "$(basename "$KERNEL"/root/lib/modules/*)"
  echo "$package" >"$KERNEL/package"
fi
version=$(basename "$KERNEL"/root/lib/modules/*)
ln -sf "$KERNEL/vmlinux" "$KERNEL/package" "$IMAGE/"

TREE=$IMAGE/tree
rm -rf "$TREE"
mkdir -p "$TREE"/{bin,dev,etc/iscsi,etc/nvme,job,lib/modules/"$version",mnt,proc,root,run,sys,tmp,var/lib/iscsi}
cp "$(command -v busybox)" "$TREE/bin/busybox"
for applet in $("$TREE/bin/busybox" --list); do
  [ "$applet" = busybox ] || ln -s busybox "$TREE/bin/$applet"
done
for program in $PROGRAMS; do take "$program"; done
# The kernel's calls for reservations, which no program of Debian makes.
cc -static -O1 -Wall -o "$TREE/sbin/pr" "$HERE/reservations.c"
# Loaded at run time by iscsid when a thread ends.
cp -L "/lib/$(uname -m)-linux-gnu/libgcc_s.so.1" "$TREE/lib/$(uname -m)-linux-gnu/"
cp /etc/iscsi/iscsid.conf "$TREE/etc/iscsi/"
cp /etc/mke2fs.conf "$TREE/etc/"
echo 'root:x:0:0:root:/root:/bin/sh' >"$TREE/etc/passwd"
echo 'root:x:0:' >"$TREE/etc/group"

for module in $MODULES; do
  modprobe -d "$KERNEL/root" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p' | cut -d' ' -f1
done | sort -u | while read -r object; do
  mkdir -p "$TREE$(dirname "${object#"$KERNEL/root"}")"
  cp "$object" "$TREE${object#"$KERNEL/root"}"
done
cp "$KERNEL/root/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$TREE/lib/modules/$version/"
depmod -b "$TREE" "$version"

install -m 755 "$HERE/init" "$TREE/init"
install -m 644 "$HERE/job-lib" "$TREE/job/lib"
for job in "$HERE"/job-*; do
  [ "$job" = "$HERE/job-lib" ] || install -m 755 "$job" "$TREE/job/${job##*/job-}"
done
(cd "$TREE" && find . | cpio --quiet -o -H newc -R 0:0) >"$IMAGE/initramfs"
rm -rf "$TREE"
