#!/usr/bin/env bash
# Looks at a report as people do: in a browser, light and dark, as wide as a phone, and printed.
#   eval-look.sh [RECORD]  a record.json, or the directory of a run; without it a small one is made.
# Pictures go to OUT/look; it fails if a chart that says that it has points draws none, or a picture is empty.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
tests/setup.sh build browser
LOOK=$OUT/look
gone "$LOOK"
mkdir -p "$LOOK"
if [ -z "${BLOCKWIRE:-}" ]; then
  quietly build-release cargo build --locked --release -p blockwire
  BLOCKWIRE=$BUILD/release/blockwire
fi
run=${1:-}
if [ -z "$run" ]; then
  run=$LOOK/run
  "$BLOCKWIRE" eval run quick --scale 0.1 --out "$run" >/dev/null
fi
"$BLOCKWIRE" eval report "$run" --out "$LOOK/report.html" >/dev/null

browser() {
  timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$LOOK/profile" "$@" \
    "file://$LOOK/report.html" 2>/dev/null
}
browser --window-size=1200,3000 --screenshot="$LOOK/light.png" >/dev/null
browser --blink-settings=preferredColorScheme=0 --window-size=1200,3000 --screenshot="$LOOK/dark.png" >/dev/null
browser --window-size=500,3000 --screenshot="$LOOK/phone.png" >/dev/null
browser --no-pdf-header-footer --print-to-pdf="$LOOK/report.pdf" >/dev/null
browser --dump-dom >"$LOOK/dom.html"

# What the browser made of the page: every chart draws as many marks as it says, and the pictures show many
# colours (scanlines of an empty page are all alike and compress to nearly nothing).
python3 - "$LOOK" <<'PY'
import os, re, struct, sys, zlib

look = sys.argv[1]
page = open(f"{look}/dom.html", encoding="utf-8").read()
charts = re.findall(r'<svg class="chart".*?</svg>', page, re.S)
assert charts, "the page has no chart"
for chart in charts:
    title = re.search(r'aria-label="([^"]*)"', chart).group(1)
    points = int(re.search(r'data-points="(\d+)"', chart).group(1))
    assert points > 0, f"{title}: a chart without points"
    marks = len(re.findall(r"<circle |<rect ", chart))
    shapes = [len(re.findall("[ML]", path)) for path in re.findall(r' d="([^"]*)"', chart)]
    assert marks >= points or sum(shapes) > points, f"{title}: {points} points, {marks} marks, paths of {shapes}"
    assert "NaN" not in chart and "inf" not in chart, f"{title}: a figure that is none"


def rows(name):
    """The scanlines of a PNG as Chromium writes it, without interlacing; filters left in."""
    data = open(f"{look}/{name}", "rb").read()
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[at + 8:at + 16])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(packed)
    step = len(raw) // height
    return [raw[start:start + step] for start in range(0, len(raw), step)]


for name in ("light.png", "dark.png", "phone.png"):
    lines = rows(name)
    drawn = sum(len(set(line)) > 8 for line in lines)
    assert drawn > len(lines) / 4, f"{name}: {drawn} of {len(lines)} lines show something"
assert rows("light.png") != rows("dark.png"), "light and dark are alike"
assert os.path.getsize(f"{look}/report.pdf") > 10_000, "the printed report is empty"
print(f"{len(charts)} charts, each with its points")
PY
say "pictures: $LOOK"
