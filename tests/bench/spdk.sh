#!/usr/bin/env bash
# Fetches SPDK and builds its targets, its NVMe/TCP client and its plug-in for fio in $SPDK_DIR, beside
# this project, against Debian's DPDK: to be compared with, by bench-nvme.sh, and to be worked with, by
# tests/interop/spdk.sh. Nothing of it becomes part of the project.
#   SPDK_DIR=DIR tests/bench/spdk.sh
# SPDK_SOURCE: a git repository, SPDK's own unless given. SPDK_COMMIT: what of it.
# The plug-in needs a fio that was configured as its headers were: Debian's source, in $SPDK_DIR/.fio.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mkdir -p "${SPDK_DIR:?say where SPDK is to be built}"
SPDK_DIR=$(cd "$SPDK_DIR" && pwd)
SPDK_SOURCE=${SPDK_SOURCE:-https://github.com/spdk/spdk.git}
SPDK_COMMIT=${SPDK_COMMIT:-3230130e6a4114a97991d7e27cecd5ab64b696c3} # 26.09-pre

"$ROOT/tests/setup.sh" build spdk
if [ -x "$SPDK_DIR/build/bin/nvmf_tgt" ] && [ -x "$SPDK_DIR/build/bin/iscsi_tgt" ] &&
  [ -e "$SPDK_DIR/build/fio/spdk_bdev" ]; then
  say "SPDK is there: $SPDK_DIR"
  exit 0
fi
cd "$SPDK_DIR"
# Debian's Python carries what the generators of headers need; another one before it might not.
PATH=/usr/bin:$PATH

# fio_source DIR: the source of the fio that Debian has, by a list of sources of its own
fio_source() {
  local lists=$1/.apt
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
    "$(debian_mirror)" "$(. /etc/os-release && echo "$VERSION_CODENAME")" >"$lists/sources.list"
  local options=(-o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache")
  quietly fio-update apt-get "${options[@]}" update -q
  (cd "$1" && quietly fio-source apt-get "${options[@]}" source -q --download-only fio)
  tar -xf "$1"/fio_*.orig.tar.?z -C "$1" --strip-components=1
}
if [ ! -x .fio/fio ]; then
  rm -rf .fio
  mkdir .fio
  fio_source "$SPDK_DIR/.fio"
  (cd .fio && quietly fio-configure ./configure --disable-rbd --disable-rados --disable-gfapi --disable-http \
    --disable-rdma --disable-libzbc --disable-libnfs --disable-pmem --disable-dfs --disable-native)
  quietly fio-build nice -n 19 make -C .fio -j"${SPDK_JOBS:-1}" fio
fi

[ -d .git ] || git init -q .
quietly spdk-fetch git fetch -q --depth 1 "$SPDK_SOURCE" "$SPDK_COMMIT"
git -c advice.detachedHead=false checkout -q -f FETCH_HEAD

quietly spdk-configure ./configure --target-arch=native --with-dpdk --with-isal=/usr --without-isal-crypto \
  --with-uring --without-vhost --without-virtio --without-vfio-user --without-idxd --without-nvme-cuse \
  --without-ublk --without-fsdev --disable-tests --disable-unit-tests --with-fio="$SPDK_DIR/.fio"
# What Debian's DPDK and ISA-L lack, and this comparison does not use: libraries of newer versions,
# CRC-64, IPsec. A later point release of DPDK's 22.11 changed nothing that matters without PCI.
sed -i 's/^CONFIG_\(ISAL\|ISAL_INSTALLED\|IPSEC_MB\)?=y/CONFIG_\1?=n/' mk/config.mk
sed -i 's/^\(DPDK_LIB_LIST = rte_eal rte_kvargs\) rte_log rte_telemetry rte_argparse/\1 rte_telemetry/' \
  lib/env_dpdk/env.mk
sed -i 's/if (minor > 4) {/if (minor > 99) {/' lib/env_dpdk/pci_dpdk.c
quietly spdk-build nice -n 19 make -j"${SPDK_JOBS:-1}"
for made in bin/nvmf_tgt bin/iscsi_tgt bin/spdk_nvme_perf fio/spdk_bdev; do
  [ -e "build/$made" ] || fail "$made was not built; see $OUT/spdk-build.log"
done
say "SPDK is there: $SPDK_DIR"
