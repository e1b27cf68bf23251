#!/usr/bin/env bash
# The Debian packages: lintian has nothing to say, and in a Debian of their own they are installed, upgraded from the
# version before, removed and purged. BINARIES as for packaging/deb/build.sh.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || fail "only root can make a Debian root: run it as root"
"$ROOT/tests/setup.sh" deb deb-test
BASE=$OUT/deb-root.tar
ROOM=$(mktemp -d "$OUT/deb-test-XXXXXX")
DEBIAN=$ROOM/debian
DAEMON=
finish() {
  [ -z "$DAEMON" ] || end "$DAEMON"
  rm -rf --one-file-system "$ROOM"
}
trap finish EXIT

if [ -z "${BINARIES:-}" ]; then
  release_build
  BINARIES=$BUILD/release
fi
export BINARIES
DEB_VERSION=0.0.1 DEB_COMPRESSION=gzip "$ROOT/packaging/deb/build.sh" "$ROOM/old" >/dev/null
"$ROOT/packaging/deb/build.sh" "$ROOM/new" >/dev/null

said=$(lintian --fail-on error,warning "$ROOM"/new/*.deb 2>&1) || fail "lintian: $said"
[ -z "$said" ] || say "$said"
for page in blockwire.1 blockwire-serve.1; do
  dpkg-deb --fsys-tarfile "$ROOM"/new/blockwire_*.deb | tar xO "./usr/share/man/man1/$page.gz" | gunzip >"$ROOM/$page"
done
dpkg-deb --fsys-tarfile "$ROOM"/new/blockwire_*.deb | tar xO ./usr/share/man/man5/blockwire.toml.5.gz |
  gunzip >"$ROOM/blockwire.toml.5"
for page in "$ROOM"/blockwire*.[15]; do
  # groff's own warnings: a page without any is shown as it was meant.
  warned=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
  [ -z "$warned" ] || fail "${page##*/}: $warned"
done

# An upgrade replaces a daemon that runs, and starts one again that cannot be replaced.
FAKES=$ROOM/fakes
mkdir -p "$FAKES/bin" "$FAKES/system" "$FAKES/etc/conf.d"
touch "$FAKES/etc/blockwire.toml"
sed "s,/run/systemd/system,$FAKES/system,; s,/etc/blockwire,$FAKES/etc,g" "$ROOT/packaging/deb/postinst" >"$FAKES/postinst"
for name in getent chgrp chmod dpkg-statoverride deb-systemd-helper deb-systemd-invoke systemctl blockwire; do
  printf '#!/bin/sh\necho "%s $*" >>"%s/log"\n! [ -e "%s/fails-%s" ]\n' "$name" "$FAKES" "$FAKES" "$name" >"$FAKES/bin/$name"
  chmod 755 "$FAKES/bin/$name"
done
# configured VERSION: what the script asks of the service when the package was of this version before
configured() {
  : >"$FAKES/log"
  PATH=$FAKES/bin:$PATH sh "$FAKES/postinst" configure "$@" || fail "postinst configure $*: $(cat "$FAKES/log")"
  sed -n 's/^deb-systemd-invoke \([a-z-]*\).*/\1/p; s/^blockwire \(upgrade\).*/\1/p' "$FAKES/log" | tr '\n' ' '
}
[ "$(configured 0.0.1)" = "upgrade " ] || fail "a daemon that runs is not replaced: $(cat "$FAKES/log")"
[ -z "$(configured)" ] || fail "the first installation touches a service: $(cat "$FAKES/log")"
touch "$FAKES/fails-blockwire"
[ "$(configured 0.0.1)" = "upgrade try-restart " ] || fail "a daemon that stays is not started again: $(cat "$FAKES/log")"
touch "$FAKES/fails-systemctl"
[ -z "$(configured 0.0.1)" ] || fail "a service that does not run is touched: $(cat "$FAKES/log")"

suite=$(. /etc/os-release && say "$VERSION_CODENAME")
# What the packages depend on; part of the name, so that another list makes another root.
INCLUDE=adduser,init-system-helpers,libssl3
BASE=${BASE%.tar}-$suite-${INCLUDE//,/-}.tar
if [ ! -s "$BASE" ]; then
  mmdebstrap --mode=root --variant=apt --include="$INCLUDE" "$suite" "${BASE%.tar}.new.tar" >"$OUT/deb-root.log" 2>&1 || {
    tail -n 20 "$OUT/deb-root.log" >&2
    fail "mmdebstrap"
  }
  mv "${BASE%.tar}.new.tar" "$BASE"
fi
mkdir "$DEBIAN"
tar xf "$BASE" -C "$DEBIAN" --exclude=./dev
mkdir -p "$DEBIAN/dev" "$DEBIAN/packages"
cp -a /dev/null /dev/zero /dev/urandom /dev/random "$DEBIAN/dev/"
inside() { chroot "$DEBIAN" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
# installed DIRECTORY: its packages
installed() {
  rm -f "$DEBIAN"/packages/*
  cp "$1"/*.deb "$DEBIAN/packages/"
  inside sh -c 'dpkg -i /packages/*.deb' >"$ROOM/dpkg.log" 2>&1 || { cat "$ROOM/dpkg.log" >&2; fail "dpkg -i of $1"; }
}

# Installed: what it has, and whose it is.
installed "$ROOM/old"
inside getent passwd blockwire | grep -q ':/var/lib/blockwire:.*nologin$' || fail "no user of its own that cannot log in"
[ "$(inside stat -c '%a %U %G' /etc/blockwire/blockwire.toml)" = "640 root blockwire" ] ||
  fail "the configuration can be read by others, or not by the daemon"
said=$(inside blockwire serve --check /etc/blockwire/blockwire.toml 2>&1) || fail "the sample is refused: $said"
grep -q '0 volumes' <<<"$said" || fail "the sample serves something: $said"
[ ! -e "$DEBIAN/etc/systemd/system/multi-user.target.wants/blockwire.service" ] || fail "it is started by itself"
for file in /usr/share/man/man5/blockwire.toml.5.gz /usr/share/man/man1/blockwire-serve.1.gz \
  /usr/share/bash-completion/completions/blockwire /lib/systemd/system/blockwire.service \
  /lib/systemd/system/blockwire-connect-all.service; do
  [ -s "$DEBIAN$file" ] || fail "$file is missing"
done
grep -q '^ExecStart=/usr/bin/blockwire serve ' "$DEBIAN/lib/systemd/system/blockwire.service" || fail "another binary is started"
inside /sbin/ldconfig -p | grep -q 'libblockwire\.so\.1 ' || fail "the library is not found"
[ -L "$DEBIAN/usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)/libblockwire.so" ] || fail "no library to link with"

# A volume of the operator, served by the user of the service.
inside install -d -o blockwire -g blockwire -m 700 /srv/blockwire /var/lib/blockwire /run/blockwire
cat >>"$DEBIAN/etc/blockwire/blockwire.toml" <<'EOF'
[[volume]]
name = "disk1"
source = "file:/srv/blockwire/disk1.img"
size = "8M"
[[portal]]
protocol = "iscsi"
address = "127.0.0.1:0"
EOF
# start: the daemon as the service's user, until it says ready
start() {
  : >"$ROOM/serve.log"
  chroot --userspec=blockwire:blockwire "$DEBIAN" env -i PATH=/usr/bin STATE_DIRECTORY=/var/lib/blockwire \
    RUNTIME_DIRECTORY=/run/blockwire blockwire serve --config /etc/blockwire/blockwire.toml >"$ROOM/serve.log" 2>&1 &
  DAEMON=$!
  wait_until 20 grep -q '^ready' "$ROOM/serve.log" || { cat "$ROOM/serve.log" >&2; fail "it does not serve"; }
}
uuid() { inside blockwire volume show disk1 --json | tr ',' '\n' | sed -n 's/.*"uuid": *"\([^"]*\)".*/\1/p' | head -n 1; }
start
before=$(uuid)
[ -n "$before" ] || fail "no volume disk1"
end "$DAEMON"
DAEMON=

# Upgraded: the operator's configuration and the state stay.
installed "$ROOM/new"
grep -q disk1 "$DEBIAN/etc/blockwire/blockwire.toml" || fail "the upgrade has replaced the configuration"
[ "$(inside stat -c '%a %G' /etc/blockwire/blockwire.toml)" = "640 blockwire" ] || fail "the upgrade has changed its mode"
inside dpkg-query -s blockwire | grep -q '^Version: .*git' || fail "no upgrade"
start
[ "$(uuid)" = "$before" ] || fail "after the upgrade it is another disk"
end "$DAEMON"
DAEMON=

# Removed: what the operator wrote and the state stay. Purged: the volumes' files stay.
inside dpkg -r libblockwire-dev libblockwire1 blockwire >"$ROOM/dpkg.log" 2>&1 || { cat "$ROOM/dpkg.log" >&2; fail "dpkg -r"; }
[ ! -e "$DEBIAN/usr/bin/blockwire" ] || fail "the binary is still there"
for path in etc/blockwire/blockwire.toml var/lib/blockwire; do
  [ -e "$DEBIAN/$path" ] || fail "removal has taken /$path"
done
echo data >"$DEBIAN/var/lib/blockwire/disk2.img"
inside dpkg -P libblockwire-dev libblockwire1 blockwire >"$ROOM/dpkg.log" 2>&1 || { cat "$ROOM/dpkg.log" >&2; fail "dpkg -P"; }
left=$(cd "$DEBIAN" && find etc var/lib usr lib -name '*blockwire*' ! -path 'var/lib/dpkg/*' ! -path var/lib/blockwire 2>/dev/null)
[ -z "$left" ] || fail "purging leaves: $left"
[ -s "$DEBIAN/srv/blockwire/disk1.img" ] || fail "purging has taken a volume's file"
[ "$(ls "$DEBIAN/var/lib/blockwire")" = disk2.img ] || fail "purging: in /var/lib/blockwire are $(ls "$DEBIAN/var/lib/blockwire")"
say "packages: lintian, installed, served, upgraded, removed, purged"
