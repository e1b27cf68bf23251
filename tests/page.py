#!/usr/bin/env python3
"""Opens the live page of a daemon in a headless Chromium, looks at it and clicks, as a person would.

page.py URL DIRECTORY [VOLUMES]: pictures go to DIRECTORY; VOLUMES: how many volumes the daemon serves at least.
Chromium is driven by its debugging protocol over a pipe; what it says goes to DIRECTORY/chromium.log.
"""

import base64
import json
import os
import subprocess
import sys
import time

URL, DIRECTORY = sys.argv[1], sys.argv[2]
EVIL = "<img src=x onerror=alert(1)>"


class Browser:
    """A browser with one page."""

    def __init__(self, directory):
        reads, self.to = os.pipe()
        self.out, writes = os.pipe()
        for end in (reads, writes):
            os.set_inheritable(end, True)

        def descriptors():
            # 3: what it reads, 4: where it writes. Both may stand in each other's place.
            copies = os.dup(reads), os.dup(writes)
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        log = open(os.path.join(directory, "chromium.log"), "wb")
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             f"--user-data-dir={directory}/profile", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False, preexec_fn=descriptors)
        os.close(reads)
        os.close(writes)
        self.number, self.rest, self.session, self.said = 0, b"", None, []
        page = next(one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.note(answer)

    def message(self):
        while b"\0" not in self.rest:
            piece = os.read(self.out, 1 << 20)
            assert piece, "the browser has ended"
            self.rest += piece
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def note(self, event):
        """Errors of the page, of its policy, and requests that it makes."""
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.said.append("exception: " + json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.said.append("error: " + params["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent" and not params["request"]["url"].startswith(URL):
            self.said.append("a request elsewhere: " + params["request"]["url"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.said.append("a dialog: " + params["message"])

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, what, expression, seconds=20):
        until = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < until, f"not in {seconds} s: {what}\n{self.value('document.body.innerText')}"
            time.sleep(0.1)

    def click(self, selector):
        """A real click in the middle of an element."""
        place = self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({ block: 'center' }); const box = one.getBoundingClientRect();"
            " return [box.x + Math.min(box.width, 300) / 2, box.y + box.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def screen(self, width, dark, name):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        time.sleep(0.3)
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        with open(os.path.join(DIRECTORY, name), "wb") as file:
            file.write(base64.b64decode(picture["data"]))
        wide = self.value("document.documentElement.scrollWidth")
        assert wide <= width, f"{name}: the page is {wide} pixels wide on a screen of {width}"
        return self.value("getComputedStyle(document.body).backgroundColor")

    def end(self):
        try:
            self.ask("Browser.close")
            self.process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def cells(name, column):
    """What stands in a column of a table."""
    rows = f"[...document.querySelectorAll('#{name} tbody tr:not(.more)')]"
    return f"{rows}.map(row => row.cells[{column}].textContent)"


def look(page):
    page.ask("Page.navigate", url=URL)
    page.wait("volumes are shown", "document.querySelectorAll('#volumes tbody tr').length > 0")
    page.wait("rates are there", "/^[1-9]/.test(document.querySelector('#tiles b').textContent)")
    assert page.value("document.getElementById('health').textContent") == "all is well"
    assert page.value("document.getElementById('problems').hidden") is True
    for table in ("volumes", "hosts", "connections", "shards"):
        assert page.value(f"document.querySelectorAll('#{table} tbody tr').length") > 0, f"{table}: empty"
    assert {"iscsi", "nvme"} <= set(page.value(cells("connections", 1))), "connections of both protocols"
    assert page.value("[...document.querySelectorAll('#tiles .tile')].length") == 6
    assert "–" != page.value("document.querySelectorAll('#tiles b')[3].textContent"), "IOPS per % of a core"
    # What a host calls itself is text, and nothing else.
    page.wait("the host with the evil name is refused or shown as text",
              f"document.body.textContent.includes({json.dumps(EVIL)})")
    assert page.value("document.querySelectorAll('main img').length") == 0, "a name has become an element"

    # Sorted by a click, the other way round by a second one.
    first = "#volumes th button"
    page.click(first)
    page.wait("sorted by name", "document.querySelector('#volumes th').ariaSort === 'ascending'")
    names = page.value(cells("volumes", 0))
    assert names == sorted(names, key=str.lower), names
    page.click(first)
    page.wait("sorted backwards", "document.querySelector('#volumes th').ariaSort === 'descending'")
    assert page.value(cells("volumes", 0)) == names[::-1]
    # Found by what is typed.
    page.click("#volumes input")
    page.ask("Input.insertText", text="DAT")
    page.wait("only data is found", f"JSON.stringify({cells('volumes', 0)}) === '[\"data\"]'")
    # A row opens, and stays open when new numbers come.
    page.click("#volumes tbody tr")
    page.wait("a row opens", "document.querySelector('#volumes tr.more') !== null")
    assert "mean time of a command by stage" in page.value("document.querySelector('#volumes tr.more').textContent")
    shown = page.value("document.querySelector('#volumes tr.more').textContent")
    page.wait("new numbers come", f"document.querySelector('#volumes tr.more').textContent !== {json.dumps(shown)}")
    page.click("#volumes tbody tr")
    page.wait("it closes", "document.querySelector('#volumes tr.more') === null")
    # By the keyboard, too.
    page.value("document.querySelector('#volumes tr.opens').focus()")
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
    page.wait("Enter opens it", "document.querySelector('#volumes tr.more') !== null")

    light = page.screen(1200, False, "light.png")
    dark = page.screen(1200, True, "dark.png")
    assert light != dark, f"light and dark are alike: {light}"
    page.screen(390, False, "phone.png")
    page.screen(390, True, "phone-dark.png")


def main():
    page = Browser(DIRECTORY)
    try:
        look(page)
        print("clicked", flush=True)
        # The caller makes a path inaccessible, then ends the daemon.
        page.wait("a problem is told with what to do",
                  "document.getElementById('problems').innerText.includes('what to do:')", 30)
        assert page.value("document.getElementById('health').textContent").endswith(("problem", "problems"))
        page.screen(1200, False, "problem.png")
        assert not page.said, "\n".join(page.said)
        print("problem", flush=True)
        page.wait("silence is told", "!document.getElementById('silent').hidden", 30)
        assert "What is shown is old" in page.value("document.getElementById('silent').innerText")
    finally:
        page.end()


main()
