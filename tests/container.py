#!/usr/bin/python3
"""The files of contrib/container without a container engine: what they name is there, and `serve` takes the
configuration and the command line. Usage: container.py BLOCKWIRE"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
DIR = os.path.join(ROOT, "contrib/container")
WORDS = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
         "ENTRYPOINT", "CMD"}
wrong = []


def check(holds, what):
    if not holds:
        wrong.append(what)


def instructions(text):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def run(blockwire, words, place, **replaced):
    """Runs the program as the container would, but on files of `place`."""
    words = [replaced.get(word, word) for word in words]
    return subprocess.run([blockwire, *words], capture_output=True, text=True, timeout=60, cwd=place, check=False)


def main(blockwire):
    file = instructions(open(os.path.join(DIR, "Containerfile"), encoding="utf-8").read())
    for word, _ in file:
        check(word in WORDS, f"Containerfile: no instruction: {word}")
    last = max(at for at, (word, _) in enumerate(file) if word == "FROM")
    build, image = file[:last], dict(file[last:])
    made = " ".join(rest for word, rest in build if word == "RUN")
    check(image["USER"].split(":")[0] not in ("0", "root"), "Containerfile: it runs as root")
    environment = dict(pair.split("=", 1) for pair in image["ENV"].split())
    for place in [*environment.values(), *json.loads(image["VOLUME"])]:
        check(f"/image{place}" in made, f"Containerfile: {place} is not made for the user")
    program = json.loads(image["ENTRYPOINT"])[0]
    health = json.loads(image["HEALTHCHECK"].split(" CMD ", 1)[1])
    check(f"/image{program}" in made and health[0] == program, f"Containerfile: {program} is not copied")
    check("--package blockwire" in made, "Containerfile: another package is built")
    command = json.loads(image["CMD"])

    services = yaml.safe_load(open(os.path.join(DIR, "compose.yaml"), encoding="utf-8"))["services"]
    volumes = yaml.safe_load(open(os.path.join(DIR, "compose.yaml"), encoding="utf-8"))["volumes"]
    target, client = services["target"], services["client"]
    context = os.path.join(DIR, target["build"]["context"])
    check(os.path.samefile(context, ROOT), "compose: another context than the source tree")
    check(os.path.exists(os.path.join(context, target["build"]["dockerfile"])), "compose: no such dockerfile")
    mounts = {}
    for volume in target["volumes"] + client["volumes"]:
        source, inside = volume.split(":")[:2]
        mounts[inside] = source
        is_made = source == "./chap" or source in volumes or os.path.exists(os.path.join(DIR, source))
        check(is_made, f"compose: {source} is not there")
    for place in json.loads(image["VOLUME"]):
        check(place in mounts, f"compose: {place} is not kept")
    check(mounts.get(command[-1]) == "./blockwire.toml", "compose: the configuration is mounted elsewhere")
    check(client["depends_on"]["target"]["condition"] == "service_healthy", "compose: the client does not wait")
    ports = {port.split(":")[-1] for port in target["ports"]}
    check({f"{port}/tcp" for port in ports} <= set(image["EXPOSE"].split()), "compose: a port is not exposed")

    with tempfile.TemporaryDirectory() as place:
        text = open(os.path.join(DIR, "blockwire.toml"), encoding="utf-8").read()
        check("/run/secrets/chap" in text and "/run/secrets/chap" in mounts, "the secret is mounted elsewhere")
        secret = os.path.join(place, "chap")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
            out.write("0123456789abcdef\n")
        config = os.path.join(place, "blockwire.toml")
        with open(config, "w", encoding="utf-8") as out:
            out.write(text.replace("/run/secrets/chap", secret))
        # The command of the image, but that it only checks.
        done = run(blockwire, [*command[:1], "--check", config], place)
        check(done.returncode == 0 and "no errors: 1 volume" in done.stdout, f"serve --check: {done.stderr}")
        warnings = [line for line in done.stderr.splitlines() if "is the only [[host]]" not in line]
        check(not warnings, f"serve --check warns: {warnings}")
        without = text.replace("chap =", "#chap =")
        with open(config, "w", encoding="utf-8") as out:
            out.write(without)
        done = run(blockwire, ["serve", "--check", config], place)
        check(done.returncode == 2, "without a secret it would be served beyond loopback")
        # Nothing listens there: the command lines are understood.
        done = run(blockwire, [*health[1:], "--control", os.path.join(place, "none")], place)
        check(done.returncode == 1 and "no daemon answers" in done.stderr, f"health check: {done.stderr}")
        url = client["command"][-1].replace("/run/secrets/chap", secret).replace("@target/", "@127.0.0.1:1/")
        done = run(blockwire, [*client["command"][:-1], url], place)
        check(done.returncode not in (0, 2), f"client: {done.stderr}")
        check(re.search(r"refused|connect", done.stderr), f"client: {done.stderr}")
        name = re.search(r"initiator=([^&]*)", url).group(1)
        check(":box:disk1/0?" in url and 'node = "box"' in text, "client: another target than the configuration's")
        check(f'"{name}"' in text, "client: another initiator name than the configuration's")

    if shutil.which("docker"):
        shown = subprocess.run(["docker", "compose", "-f", os.path.join(DIR, "compose.yaml"), "config", "--quiet"],
                               capture_output=True, text=True, timeout=60, check=False)
        is_there = "is not a docker command" not in shown.stderr and "unknown" not in shown.stderr
        check(shown.returncode == 0 or not is_there, f"docker compose config: {shown.stderr}")
    for what in wrong:
        print(what, file=sys.stderr)
    sys.exit(1 if wrong else 0)


main(os.path.abspath(sys.argv[1]))
