#!/usr/bin/env bash
# Installs what a step of the tests needs: setup.sh GROUP...
# Root gets it installed from Debian; everybody else is told what is missing and the command.
# Groups: build clients ceph attach crash database dbench experiments capi capture papers eval files generator guest fio uml tgt istgt spdk ssh lint
# browser reflink metrics deb deb-test
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
export DEBIAN_FRONTEND=noninteractive
RUST_MINOR=89 # rust-version in Cargo.toml

packages=() # name of a Debian package that is missing
needs() { # needs COMMAND|FILE PACKAGE
  case $1 in
  /*) [ -e "$1" ] || packages+=("$2") ;;
  *) command -v "$1" >/dev/null || packages+=("$2") ;;
  esac
}

rust_is_new_enough() {
  local minor
  minor=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p')
  [ "${minor:-0}" -ge "$RUST_MINOR" ]
}

for group in "$@"; do
  case $group in
  build)
    # Debian 12 carries a recent toolchain under these names; their binaries are cargo and rustc.
    command -v cargo >/dev/null || packages+=(cargo-web rustc-web)
    needs cc gcc
    needs git git
    needs make make
    needs pkg-config pkg-config
    needs openssl openssl
    needs /usr/include/openssl/ssl.h libssl-dev
    needs /etc/ssl/certs/ca-certificates.crt ca-certificates
    ;;
  clients)
    needs iscsi-ls libiscsi-bin
    needs iscsi-test-cu libiscsi-bin
    needs qemu-img qemu-utils
    needs "/usr/lib/$(uname -m)-linux-gnu/qemu/block-iscsi.so" qemu-block-extra
    ;;
  ceph)
    needs ceph-mon ceph-mon
    needs ceph-mgr ceph-mgr
    needs ceph-osd ceph-osd
    needs rbd ceph-common
    ;;
  attach)
    needs qemu-img qemu-utils
    needs nbdinfo libnbd-bin
    needs nbdkit nbdkit
    needs fio fio
    needs mkfs.ext4 e2fsprogs
    needs losetup mount
    needs fusermount3 fuse3
    needs fincore util-linux-extra
    ;;
  crash) needs strace strace ;;
  container)
    needs /usr/bin/python3 python3
    needs /usr/lib/python3/dist-packages/yaml python3-yaml
    ;;
  database)
    needs mariadbd mariadb-server-core
    needs mariadb-install-db mariadb-server-core
    needs mariadb mariadb-client-core
    needs sysbench sysbench
    ;;
  dbench) needs dbench dbench ;;
  ssh)
    needs /usr/sbin/sshd openssh-server
    needs ssh openssh-client
    needs ethtool ethtool
    needs ip iproute2
    ;;
  experiments)
    needs jq jq
    needs fio fio
    needs ip iproute2
    needs "/usr/lib/$(uname -m)-linux-gnu/qemu/block-iscsi.so" qemu-block-extra
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || packages+=(postgresql)
    ;;
  capi)
    needs c++ g++
    needs pkg-config pkg-config
    needs valgrind valgrind
    ;;
  capture) needs tshark tshark ;;
  files)
    needs fio fio
    needs python3 python3
    ;;
  generator)
    needs fio fio
    needs pidstat sysstat
    needs ip iproute2
    ;;
  # Other people's targets and initiators, beside ours, in evaluations.
  eval)
    needs tgtd tgt
    needs istgt istgt
    needs iscsi-perf libiscsi-bin
    needs fio fio
    needs ip iproute2
    ;;
  papers)
    needs ip iproute2
    needs unshare util-linux
    ;;
  tgt) needs tgtd tgt ;;
  istgt) needs istgt istgt ;;
  spdk)
    needs "/usr/lib/$(uname -m)-linux-gnu/librte_eal.so" libdpdk-dev
    needs /usr/include/isa-l.h libisal-dev
    needs /usr/include/libaio.h libaio-dev
    needs /usr/include/numa.h libnuma-dev
    needs /usr/include/liburing.h liburing-dev
    needs /usr/include/uuid/uuid.h uuid-dev
    needs /usr/include/openssl/ssl.h libssl-dev
    needs /usr/include/ncurses.h libncurses-dev
    needs /usr/bin/python3 python3
    needs /usr/lib/python3/dist-packages/jinja2 python3-jinja2
    needs /usr/lib/python3/dist-packages/tabulate.py python3-tabulate
    needs /usr/lib/python3/dist-packages/yaml python3-yaml
    needs patchelf patchelf
    needs dpkg-source dpkg-dev
    ;;
  deb)
    needs dpkg-deb dpkg
    needs dpkg-shlibdeps dpkg-dev
    needs strip binutils
    needs xz xz-utils
    ;;
  deb-test)
    needs lintian lintian
    needs mmdebstrap mmdebstrap
    needs man man-db
    ;;
  browser) needs chromium chromium ;;
  reflink)
    needs mkfs.xfs xfsprogs
    needs mkfs.btrfs btrfs-progs
    ;;
  metrics) needs promtool prometheus ;;
  lint)
    needs shellcheck shellcheck
    if ! cargo clippy --version >/dev/null 2>&1 || ! cargo fmt --version >/dev/null 2>&1; then
      ! command -v rustup >/dev/null || fail "missing: rustup component add clippy rustfmt"
      packages+=(rust-web-clippy rustfmt-web)
    fi
    ;;
  guest)
    needs qemu-system-x86_64 qemu-system-x86
    needs busybox busybox-static
    needs iscsiadm open-iscsi
    needs nvme nvme-cli
    needs sg_persist sg3-utils
    needs mkfs.ext4 e2fsprogs
    needs kmod kmod
    needs cpio cpio
    needs nbd-client nbd-client
    needs xz xz-utils
    ;;
  fio)
    needs fio fio
    needs mkfs.xfs xfsprogs
    ;;
  uml)
    needs gcc gcc
    needs make make
    needs flex flex
    needs bison bison
    needs bc bc
    needs xz xz-utils
    needs /usr/include/libelf.h libelf-dev
    needs /usr/include/openssl/ssl.h libssl-dev
    ;;
  *) fail "unknown group $group" ;;
  esac
done

mapfile -t packages < <(printf '%s\n' ${packages[@]+"${packages[@]}"} | sort -u | sed '/^$/d')
if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ]; then
    printf 'Missing: %s\nAs root: apt-get update && apt-get install --no-install-recommends %s\n' \
      "${packages[*]}" "${packages[*]}" >&2
    exit 1
  fi
  command -v apt-get >/dev/null || fail "missing, and this is no Debian: ${packages[*]}"
  say "installing ${packages[*]}"
  # Nothing that a package brings shall start as a service.
  quietly apt-update apt-get update -q
  quietly apt-install env RUNLEVEL=1 apt-get install -q -y --no-install-recommends \
    -o DPkg::Lock::Timeout=120 "${packages[@]}"
fi
case " $* " in *" build "*)
  rust_is_new_enough || fail "cargo 1.$RUST_MINOR or newer is needed, found: $(cargo --version 2>&1 || true)
Debian 12 has it: apt-get install cargo-web rustc-web" ;;
esac
