#!/usr/bin/env bash
# Builds the documentation as a book, with the interfaces of the crates beside it: target/docs/book.
# `make docs` runs this. It needs mdBook; what is missing is said.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
command -v mdbook >/dev/null || fail "mdbook is missing: cargo install --locked mdbook (compiles for minutes)"
BOOK=$BUILD/docs
rm -rf --one-file-system "$BOOK"
mkdir -p "$BOOK/src"

# The pages keep their places, so that their links lead somewhere.
git ls-files -z --cached --others --exclude-standard '*.md' | xargs -0 cp --parents -t "$BOOK/src"
# So do the pictures and files that pages lead to.
git ls-files -z --cached --others --exclude-standard '*.md' | while IFS= read -r -d '' page; do
  { grep -o '](\([^)#:]*\)' "$page" || true; } | while IFS= read -r link; do
    at=$(realpath -m --relative-to=. "$(dirname "$page")/${link#*](}")
    [ ! -f "$at" ] || printf '%s\0' "$at"
  done
done | grep -zv '\.md$' | sort -zu | xargs -0 cp --parents -t "$BOOK/src"

# links FOLDER: the links to Markdown pages in the text of a page of that folder, a line each, with paths
# from the root
links() {
  local link page
  grep -o '\[[^]]*\]([^)#]*\.md)' | while IFS= read -r link; do
    page=${link##*](}
    printf '%s](%s)\n' "${link%%](*}" "$(realpath -m --relative-to=. "$1/${page%)}")"
  done
}

# The table of contents is that of docs/README.md; a folder's index has its pages below it.
{
  printf '# Summary\n\n[Blockwire](README.md)\n'
  while IFS= read -r line; do
    case $line in
    '**'*) printf '\n# %s\n\n' "${line//\*/}" ;;
    '- '*)
      links docs <<<"$line" | while IFS= read -r link; do
        at=${link##*](}
        at=${at%)}
        [ "$at" != README.md ] || continue
        printf -- '- %s\n' "$link"
        case $at in docs/*/README.md) links "${at%/*}" <"$at" | grep -F "](${at%/*}/" | sed 's/^/  - /' ;; esac
      done
      ;;
    esac
  done <docs/README.md
} >"$BOOK/src/SUMMARY.md"
cat >"$BOOK/book.toml" <<'END'
[book]
title = "Blockwire"
language = "en"
src = "src"

[build]
build-dir = "book"
create-missing = false
END
quietly mdbook mdbook build "$BOOK"
quietly rustdoc cargo doc --locked --workspace --no-deps --target-dir "$BUILD"
cp -r "$BUILD/doc" "$BOOK/book/api"
say "the book: $BOOK/book/index.html; the crates: $BOOK/book/api/blockwire/index.html"
