#!/usr/bin/env bash
# What `make install` puts where, that it works there, and that `make uninstall` takes all of it away.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
ROOM=$(mktemp -d "$OUT/install-XXXXXX")
trap 'rm -rf "$ROOM"' EXIT
cd "$ROOT"

for prefix in /usr /opt/block; do
  umask 077 # a strict umask of the installing user must not show in the files' modes
  make -s install DESTDIR="$ROOM" PREFIX=$prefix >"$OUT/install.log" 2>&1 || { cat "$OUT/install.log" >&2; exit 1; }
  at=$ROOM$prefix
  "$at/bin/blockwire" --version >/dev/null || fail "the binary does not run"
  for file in share/man/man1/blockwire.1 share/man/man1/blockwire-serve.1 \
    share/man/man5/blockwire.toml.5 \
    share/bash-completion/completions/blockwire share/zsh/site-functions/_blockwire \
    share/fish/vendor_completions.d/blockwire.fish lib/systemd/system/blockwire.service \
    lib/systemd/system/blockwire-connect-all.service \
    lib/sysusers.d/blockwire.conf include/blockwire.h lib/libblockwire.so.1 lib/libblockwire.a \
    lib/pkgconfig/blockwire.pc; do
    [ -s "$at/$file" ] || fail "$prefix/$file is missing or empty"
    [ "$(stat -c %a "$at/$file")" = 644 ] || fail "$prefix/$file cannot be read by everybody"
  done
  # Every verb has its page, and the pages are pages.
  for page in "$at"/share/man/man1/*.1 "$at"/share/man/man5/*.5; do
    grep -q '^\.TH ' "$page" || fail "$page is no man page"
  done
  bash -n "$at/share/bash-completion/completions/blockwire" || fail "the completion script is wrong"
  unit=$at/lib/systemd/system/blockwire.service
  grep -q "^ExecStart=$prefix/bin/blockwire serve " "$unit" || fail "the unit starts another binary"
  grep -q "^ExecStart=$prefix/bin/blockwire connect-all$" "${unit%.service}-connect-all.service" ||
    fail "the unit of nodes starts another binary"
  ! grep -q '/usr/bin/blockwire' "$unit" || [ "$prefix" = /usr ] || fail "the unit names another place"
  grep -qx "prefix=$prefix" "$at/lib/pkgconfig/blockwire.pc" || fail "pkg-config would look elsewhere"
  [ "$(readlink "$at/lib/libblockwire.so")" = libblockwire.so.1 ] || fail "programs would be linked to nothing"
  make -s uninstall DESTDIR="$ROOM" PREFIX=$prefix
  left=$(find "$ROOM" ! -type d)
  [ -z "$left" ] || fail "left behind: $left"
done
say "installed, tried and taken away under two prefixes"
