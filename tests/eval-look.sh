#!/usr/bin/env bash
# Looks at a report as people do: in a browser, light and dark, as wide as a phone, and printed.
#   eval-look.sh [RECORD]  a record.json, or the directory of a run; without it a small one is made.
# Pictures go to OUT/look; it fails if a chart that says that it has points draws none, a picture is empty, text is cut
# off, the first screen does not begin with its sentence and its chart, the page is long before anything is unfolded,
# or the printed one leaves out what is folded.
set -euo pipefail
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
tests/setup.sh build browser
LOOK=$OUT/look
gone "$LOOK"
mkdir -p "$LOOK"
if [ -z "${BLOCKWIRE:-}" ]; then
  quietly build-release release_build
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
    "file://$LOOK/${PAGE:-report.html}" 2>/dev/null
}
browser --window-size=1200,3000 --screenshot="$LOOK/light.png" >/dev/null
browser --blink-settings=preferredColorScheme=0 --window-size=1200,3000 --screenshot="$LOOK/dark.png" >/dev/null
browser --window-size=500,3000 --screenshot="$LOOK/phone.png" >/dev/null
browser --no-pdf-header-footer --print-to-pdf="$LOOK/report.pdf" >/dev/null
browser --dump-dom >"$LOOK/dom.html"

# What only a browser can tell is measured in a copy with a script, all that is folded opened: text that a picture cuts
# off, captions and words that their box cuts off, a page wider than the screen.
python3 - "$LOOK" <<'PY'
import sys

look = sys.argv[1]
probe = """<script>
const found = [];
const tall = document.documentElement.scrollHeight;
document.querySelectorAll('details').forEach(one => one.open = true);
for (const svg of document.querySelectorAll('svg.chart')) {
  const room = svg.viewBox.baseVal;
  for (const text of svg.querySelectorAll('text')) {
    const box = text.getBBox();
    if (box.x < -1 || box.y < -1 || box.x + box.width > room.width + 1 || box.y + box.height > room.height + 3)
      found.push('cut off in "' + svg.getAttribute('aria-label') + '": ' + text.textContent);
  }
}
for (const box of document.querySelectorAll('figcaption, .lead, .warn, dt, dd, .tile, h1, h2, h3, summary'))
  if (box.clientWidth > 0 && box.scrollWidth > box.clientWidth + 1)
    found.push('cut off: ' + box.textContent.slice(0, 80));
if (document.documentElement.scrollWidth > window.innerWidth) found.push('the page is wider than the screen');
const said = document.createElement('pre');
said.id = 'probe';
said.textContent = JSON.stringify({tall, found});
document.body.append(said);
</script></body>"""
page = open(f"{look}/report.html", encoding="utf-8").read()
open(f"{look}/probe.html", "w", encoding="utf-8").write(page.replace("</body>", probe))
PY
PAGE=probe.html browser --window-size=1200,3000 --dump-dom >"$LOOK/wide.html"
PAGE=probe.html browser --window-size=500,3000 --dump-dom >"$LOOK/narrow.html"

# What the browser made of the page: every chart draws as many marks as it says, and the pictures show many
# colours (scanlines of an empty page are all alike and compress to nearly nothing).
python3 - "$LOOK" <<'PY'
import html, json, os, re, struct, sys, zlib

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
printed = open(f"{look}/report.pdf", "rb").read()
assert len(printed) > 10_000, "the printed report is empty"
pages = len(re.findall(rb"/Type\s*/Page\b", printed))

# The first screen: a sentence, a chart, ten answers, and no table before them.
first = page.split("<table", 1)[0]
assert '<p class="lead">' in first and first.index('<p class="lead">') < first.index("<svg"), "no sentence comes first"
answers = first.split("</dl>", 1)[0]
assert answers.count("<svg") == 1 and answers.count("<dt>") == 10, "one chart and ten answers come first"

# Folded, a page is a few screens long; unfolded, nothing is cut off, on a screen or on a phone.
for name in ("wide", "narrow"):
    said = re.search(r'<pre id="probe">(.*?)</pre>', open(f"{look}/{name}.html", encoding="utf-8").read(), re.S)
    said = json.loads(html.unescape(said.group(1)))
    assert not said["found"], f"{name}: " + "; ".join(said["found"][:5])
    assert name == "narrow" or said["tall"] <= 5_500, f"the page is {said['tall']} pixels long"
    print(f"{name}: {said['tall']} pixels long")
# What is folded on the screen is printed: two charts stand beside each other, at most five pairs on a page.
folded = len(re.findall(r"<svg", page)) - len(re.findall(r"<svg", re.sub(r"<details>.*?</details>", "", page, flags=re.S)))
assert pages >= folded / 10, f"{pages} printed pages do not hold {folded} charts that are folded on the screen"
print(f"{len(charts)} charts, each with its points")
PY
say "pictures: $LOOK"
