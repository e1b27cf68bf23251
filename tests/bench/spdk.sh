#!/usr/bin/env bash
# Fetches SPDK and builds its NVMe/TCP target and client in $SPDK_DIR, beside this project, against
# Debian's DPDK: to be compared with, by bench-nvme.sh. Nothing of it becomes part of the project.
#   SPDK_DIR=DIR tests/bench/spdk.sh
# SPDK_SOURCE: a git repository, SPDK's own unless given. SPDK_COMMIT: what of it.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

mkdir -p "${SPDK_DIR:?say where SPDK is to be built}"
SPDK_DIR=$(cd "$SPDK_DIR" && pwd)
SPDK_SOURCE=${SPDK_SOURCE:-https://github.com/spdk/spdk.git}
SPDK_COMMIT=${SPDK_COMMIT:-3230130e6a4114a97991d7e27cecd5ab64b696c3} # 26.09-pre

"$ROOT/tests/setup.sh" build spdk
[ ! -x "$SPDK_DIR/build/bin/spdk_nvme_perf" ] || { say "SPDK is there: $SPDK_DIR"; exit 0; }
cd "$SPDK_DIR"
[ -d .git ] || git init -q .
quietly spdk-fetch git fetch -q --depth 1 "$SPDK_SOURCE" "$SPDK_COMMIT"
git -c advice.detachedHead=false checkout -q -f FETCH_HEAD

# Its generator of headers is a Python program with needs of its own.
[ -d .venv ] || python3 -m venv .venv
PATH=$SPDK_DIR/.venv/bin:$PATH
quietly spdk-python pip install -q jinja2 pyyaml tabulate

quietly spdk-configure ./configure --target-arch=native --with-dpdk --with-isal=/usr --without-isal-crypto \
  --with-uring --without-vhost --without-virtio --without-vfio-user --without-idxd --without-nvme-cuse \
  --without-ublk --without-fsdev --disable-tests --disable-unit-tests --disable-examples
# What Debian's DPDK and ISA-L lack, and this comparison does not use: libraries of newer versions,
# CRC-64, IPsec. A later point release of DPDK's 22.11 changed nothing that matters without PCI.
sed -i 's/^CONFIG_\(ISAL\|ISAL_INSTALLED\|IPSEC_MB\)?=y/CONFIG_\1?=n/' mk/config.mk
sed -i 's/^\(DPDK_LIB_LIST = rte_eal rte_kvargs\) rte_log rte_telemetry rte_argparse/\1 rte_telemetry/' \
  lib/env_dpdk/env.mk
sed -i 's/if (minor > 4) {/if (minor > 99) {/' lib/env_dpdk/pci_dpdk.c
quietly spdk-build nice -n 19 make -j"${SPDK_JOBS:-1}"
[ -x build/bin/nvmf_tgt ] || fail "nvmf_tgt was not built; see $OUT/spdk-build.log"
say "SPDK is there: $SPDK_DIR"
