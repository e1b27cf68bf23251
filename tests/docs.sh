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
for reports in docs/eval/*/; do
  find "$reports" -maxdepth 1 -name '*.svg' -exec cp --parents -t "$BOOK/src" {} +
done

# The table of contents is that of docs/README.md.
awk '
  BEGIN { print "# Summary\n\n[Blockwire](README.md)" }
  /^\*\*/ { gsub(/\*/, ""); print "\n# " $0 "\n" }
  /^- / {
    rest = $0
    while (match(rest, /\[[^]]*\]\([^)]*\)/)) {
      link = substr(rest, RSTART, RLENGTH)
      rest = substr(rest, RSTART + RLENGTH)
      sub(/\]\(/, "](docs/", link)
      sub(/\(docs\/\.\.\//, "(", link)
      if (link !~ /\(README\.md\)/) print "- " link
    }
  }
' docs/README.md >"$BOOK/src/SUMMARY.md"
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
