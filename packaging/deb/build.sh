#!/usr/bin/env bash
# Builds Debian packages from what `make install` installs: blockwire, libblockwire1 and libblockwire-dev.
#   build.sh [OUTPUT]      OUTPUT: the directory for the packages (target/deb)
# BINARIES: where blockwire, libblockwire.so and libblockwire.a were built; without it they are built for release.
# MAINTAINER: who answers for the packages, as `NAME <ADDRESS>`; the project itself publishes no address.
# DEB_COMPRESSION: what dpkg-deb compresses with, such as gzip (xz).
# DEB_VERSION: the packages' version; without it that of the program, and for a build that is no release the commit.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../../tests/lib.sh"
HERE=$ROOT/packaging/deb
"$ROOT/tests/setup.sh" deb
OUTPUT=$(realpath -m "${1:-$BUILD/deb}")
cd "$ROOT"
if [ -z "${BINARIES:-}" ]; then
  release_build
  BINARIES=$BUILD/release
fi
BINARIES=$(realpath "$BINARIES")
PROGRAM=$BINARIES/blockwire
ARCH=$(dpkg --print-architecture)
TRIPLET=$(dpkg-architecture -q DEB_HOST_MULTIARCH)
# No version has been released: ~git sorts before the release itself.
STAMP=$(git log -1 --format=%cd --date=format:%Y%m%d%H%M%S 2>/dev/null || date +%Y%m%d%H%M%S)
VERSION=${DEB_VERSION:-$("$PROGRAM" --version | cut -d' ' -f2)~git$STAMP}
# The same source gives the same packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
MAINTAINER=${MAINTAINER:-The Blockwire developers <blockwire@localhost.localdomain>}
ROOM=$(mktemp -d "$OUT/deb-XXXXXX")
trap 'rm -rf "$ROOM"' EXIT
umask 022

# Everything, as `make install` puts it.
make -s install-files DESTDIR="$ROOM/all" PREFIX=/usr RELEASE="$PROGRAM" >"$ROOM/install.log" 2>&1 || {
  cat "$ROOM/install.log" >&2
  fail "make install-files"
}

# take PACKAGE PATH...: moves paths out of the whole into a package
take() {
  local package=$1 path; shift
  for path in "$@"; do
    mkdir -p "$ROOM/$package/$(dirname "$path")"
    mv "$ROOM/all/$path" "$ROOM/$package/$path"
  done
}

take libblockwire1 usr/lib/libblockwire.so.1
take libblockwire-dev usr/lib/libblockwire.so usr/lib/libblockwire.a usr/lib/pkgconfig usr/include
take blockwire usr/bin usr/share usr/lib/systemd usr/lib/sysusers.d
left=$(find "$ROOM/all" ! -type d)
[ -z "$left" ] || fail "in no package: $left"

# Units belong to /lib in this Debian; libraries have a directory for each architecture.
mkdir -p "$ROOM/blockwire/lib"
mv "$ROOM/blockwire/usr/lib/systemd" "$ROOM/blockwire/lib/"
for package in libblockwire1 libblockwire-dev; do
  mv "$ROOM/$package/usr/lib" "$ROOM/$package/usr/lib.all"
  mkdir "$ROOM/$package/usr/lib"
  mv "$ROOM/$package/usr/lib.all" "$ROOM/$package/usr/lib/$TRIPLET"
done
sed -i "s|^libdir=.*|libdir=\${prefix}/lib/$TRIPLET|" "$ROOM/libblockwire-dev/usr/lib/$TRIPLET/pkgconfig/blockwire.pc"

strip --strip-unneeded --remove-section=.comment --remove-section=.note "$ROOM/blockwire/usr/bin/blockwire" \
  "$ROOM/libblockwire1/usr/lib/$TRIPLET/libblockwire.so.1"
strip --strip-debug --enable-deterministic-archives "$ROOM/libblockwire-dev/usr/lib/$TRIPLET/libblockwire.a"

install -D -m 644 "$HERE/blockwire.toml" "$ROOM/blockwire/etc/blockwire/blockwire.toml"
install -d "$ROOM/blockwire/etc/blockwire/conf.d"
EXAMPLES=$ROOM/blockwire/usr/share/doc/blockwire/examples
install -D -m 644 -t "$EXAMPLES" "$HERE"/examples/*

# What each package has beside its files.
for package in blockwire libblockwire1 libblockwire-dev; do
  doc=$ROOM/$package/usr/share/doc/$package
  install -d "$doc" "$ROOM/$package/DEBIAN"
  install -m 644 "$HERE/copyright" "$doc/copyright"
  {
    printf 'blockwire (%s) unstable; urgency=medium\n\n  * What is new stands in /usr/share/doc/blockwire/NEWS.gz.\n\n' "$VERSION"
    printf ' -- %s  %s\n' "$MAINTAINER" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")"
  } | gzip -9n >"$doc/changelog.gz"
done
gzip -9nc CHANGELOG.md >"$ROOM/blockwire/usr/share/doc/blockwire/NEWS.gz"
find "$ROOM/blockwire/usr/share/man" -type f -exec gzip -9n {} +
for package in blockwire libblockwire1 libblockwire-dev; do
  if [ -d "$HERE/overrides" ] && [ -f "$HERE/overrides/$package" ]; then
    install -D -m 644 "$HERE/overrides/$package" "$ROOM/$package/usr/share/lintian/overrides/$package"
  fi
done

# needs FILE...: the packages with the shared objects that files need
needs() {
  mkdir -p "$ROOM/needs/debian"
  printf 'Source: blockwire\n\nPackage: blockwire\nArchitecture: any\n' >"$ROOM/needs/debian/control"
  (cd "$ROOM/needs" && dpkg-shlibdeps -O --ignore-missing-info "$@" 2>/dev/null) | sed 's/^shlibs:Depends=//'
}

# control PACKAGE SECTION SUMMARY DEPENDS: its control file, with the long description from standard input
control() {
  local root=$ROOM/$1
  {
    printf 'Package: %s\nSource: blockwire\nVersion: %s\nArchitecture: %s\n' "$1" "$VERSION" "$ARCH"
    printf 'Maintainer: %s\n' "$MAINTAINER"
    printf 'Installed-Size: %s\n' "$(du -k -s --apparent-size --exclude=DEBIAN "$root" | cut -f1)"
    printf 'Depends: %s\nSection: %s\nPriority: optional\n' "$4" "$2"
    # Loaded when the first image of Ceph is opened.
    [ "$1" != blockwire ] || printf 'Suggests: librbd1, librados2\n'
    [ "$1" = blockwire ] || printf 'Multi-Arch: same\n'
    printf 'Description: %s\n' "$3"
    cat
  } >"$root/DEBIAN/control"
  (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
  find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  chmod -R u+rwX,go+rX,go-w "$root"
  mkdir -p "$OUTPUT"
  dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$root" "$OUTPUT/${1}_${VERSION}_$ARCH.deb" >"$ROOM/$1.log" 2>&1 || {
    cat "$ROOM/$1.log" >&2
    fail "dpkg-deb $1"
  }
  say "$OUTPUT/${1}_${VERSION}_$ARCH.deb"
}

cp "$HERE"/{postinst,prerm,postrm} "$ROOM/blockwire/DEBIAN/"
chmod 755 "$ROOM/blockwire/DEBIAN"/{postinst,prerm,postrm}
(cd "$ROOM/blockwire" && find etc -type f -printf '/%p\n' | sort) >"$ROOM/blockwire/DEBIAN/conffiles"
printf 'activate-noawait ldconfig\n' >"$ROOM/libblockwire1/DEBIAN/triggers"
printf 'libblockwire 1 libblockwire1 (>= %s)\n' "$VERSION" >"$ROOM/libblockwire1/DEBIAN/shlibs"

# Not as an argument: there a failure would stop nothing.
program=$(needs "$ROOM/blockwire/usr/bin/blockwire")
library=$(needs "$ROOM/libblockwire1/usr/lib/$TRIPLET/libblockwire.so.1")
[ -n "$program" ] && [ -n "$library" ] || fail "dpkg-shlibdeps gave no dependencies"
control blockwire admin "block storage target for iSCSI and NVMe/TCP" \
  "$program, adduser, init-system-helpers (>= 1.54)" <<'EOF'
 Blockwire serves files, block devices and memory over iSCSI and NVMe/TCP
 at once, from user space. Each volume has one set of reservations and path
 states for both protocols.
 .
 The program is also an initiator for volumes of other machines, a load
 generator, and a harness that evaluates storage targets.
EOF
control libblockwire1 libs "remote volumes over iSCSI and NVMe/TCP - shared library" \
  "$library" <<'EOF'
 The initiator of Blockwire as a library for programs in C: volumes of other
 machines over iSCSI and NVMe/TCP, without a kernel module.
 .
 This package contains the shared library.
EOF
control libblockwire-dev libdevel "remote volumes over iSCSI and NVMe/TCP - development files" \
  "libblockwire1 (= $VERSION), libssl-dev" <<'EOF'
 The initiator of Blockwire as a library for programs in C: volumes of other
 machines over iSCSI and NVMe/TCP, without a kernel module.
 .
 This package contains the header, the static library and the description for
 pkg-config.
EOF
