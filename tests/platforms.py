#!/usr/bin/python3
"""The files of contrib/kubernetes, contrib/libvirt and contrib/proxmox without a cluster or hypervisor: they keep to the
schemas of Kubernetes and libvirt, as far as their validators are installed; what they name in each other is there; and a
daemon with their configuration lets in who logs in with their names and secret, and nobody else.
Usage: platforms.py BLOCKWIRE"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import yaml

CONTRIB = os.path.realpath(os.path.join(os.path.dirname(__file__), "../contrib"))
SECRET = "0123456789abcdef"
wrong = []


def check(holds, what):
    if not holds:
        wrong.append(what)


def skipped(what):
    print(f"skipped: {what}")


def read(*names):
    with open(os.path.join(CONTRIB, *names), encoding="utf-8") as file:
        return file.read()


def kubernetes():
    """Checks the manifests; gives the configuration, and how nodes log in."""
    objects = [one for name in ("target.yaml", "volume.yaml") for one in yaml.safe_load_all(read("kubernetes", name))]
    try:
        import kubernetes_validate
    except ImportError:
        skipped("kubernetes-validate is not installed (pip install kubernetes-validate)")
    else:
        for one in objects:
            try:
                kubernetes_validate.validate(one, "1.31", strict=True)
            except Exception as why:  # pylint: disable=broad-except
                check(False, f"{one['kind']}: {why}")
    kinds = {one["kind"]: one for one in objects}
    check(len(kinds) == len(objects), "kubernetes: two objects of a kind")
    space = kinds["Namespace"]["metadata"]["name"]
    for kind in ("ConfigMap", "StatefulSet", "Service"):
        check(kinds[kind]["metadata"]["namespace"] == space, f"{kind}: another namespace")
    state, pod = kinds["StatefulSet"]["spec"], kinds["StatefulSet"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    check(state["selector"]["matchLabels"] == labels, "StatefulSet: it selects other pods")
    check(kinds["Service"]["spec"]["selector"] == labels, "Service: it selects other pods")
    check(state["serviceName"] == kinds["Service"]["metadata"]["name"], "StatefulSet: another service")
    check(state["replicas"] == 1 and "fsGroup" not in str(pod["spec"].get("securityContext")), "StatefulSet: shared")
    volumes = {one["name"]: one for one in pod["spec"]["volumes"] + [c["metadata"] for c in state["volumeClaimTemplates"]]}
    daemon, init = pod["spec"]["containers"][0], pod["spec"]["initContainers"][0]
    mounts = {one["mountPath"]: one for one in daemon["volumeMounts"]}
    for one in daemon["volumeMounts"] + init["volumeMounts"]:
        check(one["name"] in volumes, f"{one['name']}: mounted, and no volume")
    check(volumes["config"]["configMap"]["name"] == kinds["ConfigMap"]["metadata"]["name"], "another ConfigMap")
    text = kinds["ConfigMap"]["data"]["blockwire.toml"]
    check(daemon["args"][-1] == "/etc/blockwire/blockwire.toml" and "/etc/blockwire" in mounts, "no configuration")
    script = init["command"][-1]
    for place in re.findall(r'(?:file:|secret_file = ")(/[^"]*)', text):
        check(os.path.dirname(place) in mounts, f"{place}: nothing is mounted there")
    user = str(daemon["securityContext"]["runAsUser"])
    for place in ("/var/lib/blockwire", "/srv/blockwire", "/run/blockwire"):
        check(place in mounts and place in script and user in script, f"{place}: not private to the user {user}")
    ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
    for probe in ("startupProbe", "livenessProbe"):
        check(ports.get(daemon[probe]["tcpSocket"]["port"]) == 3260, f"{probe}: another port")
    check(daemon["readinessProbe"]["exec"]["command"][1:] == ["status"], "readinessProbe: another verb")

    volume, claim = kinds["PersistentVolume"], kinds["PersistentVolumeClaim"]
    disk = volume["spec"]["iscsi"]
    check(claim["spec"]["volumeName"] == volume["metadata"]["name"], "the claim names another volume")
    check(volume["spec"]["claimRef"] == {key: claim["metadata"][key] for key in ("namespace", "name")}, "another claim")
    check(volume["spec"]["capacity"] == claim["spec"]["resources"]["requests"], "the claim wants another size")
    check(disk["chapAuthSession"] and disk["chapAuthDiscovery"], "the volume proves nothing")
    page = open(os.path.join(CONTRIB, "../docs/kubernetes.md"), encoding="utf-8").read()
    secrets = {disk["secretRef"]["name"]: "--type=kubernetes.io/iscsi-chap", volumes["secret"]["secret"]["secretName"]: "chap="}
    for name, rest in secrets.items():
        check(re.search(rf"create secret generic {name} .*{re.escape(rest)}", page), f"docs: secret {name} is not made")
    names = set(re.findall(r"auth\.username=(\S+)", page))
    check(len(names) == 1, "docs: several user names")
    return text, [(disk["iqn"], disk["lun"], disk["initiatorName"], names.pop(), disk["targetPortal"])]


def libvirt():
    """Checks the XML files; gives the configuration, and how the machine logs in."""
    for name in ("secret.xml", "pool.xml", "domain.xml"):
        if shutil.which("virt-xml-validate") is None:
            skipped("virt-xml-validate is not installed (libvirt-clients)")
            break
        path = os.path.join(CONTRIB, "libvirt", name)
        done = subprocess.run(["virt-xml-validate", path], capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 0, f"{name}: {done.stdout}{done.stderr}")
    tree = {name: xml.etree.ElementTree.fromstring(read("libvirt", f"{name}.xml")) for name in ("secret", "pool", "domain")}
    usage = tree["secret"].find("usage/target").text
    disk, pool = tree["domain"].find("devices/disk/source"), tree["pool"].find("source")
    check(disk.find("auth/secret").get("usage") == usage == pool.find("auth/secret").get("usage"), "another secret")
    host = disk.find("host")
    at = f"{host.get('name')}:{host.get('port')}"
    target, lun = disk.get("name").rsplit("/", 1)
    logins = [
        (target, int(lun), disk.find("initiator/iqn").get("name"), disk.find("auth").get("username"), at),
        (pool.find("device").get("path"), 0, pool.find("initiator/iqn").get("name"), pool.find("auth").get("username"), at),
    ]
    return read("libvirt", "blockwire.toml"), logins


def proxmox():
    """Checks the form of storage.cfg: sections with indented keys, one storage on the other."""
    sections = re.findall(r"^(\w+): (\S+)\n((?:\t\S+ .*\n)+)", read("proxmox", "storage.cfg"), re.M)
    check([kind for kind, _, _ in sections] == ["iscsi", "lvm"], "storage.cfg: other sections")
    base = re.search(r"\tbase (\S+?):", sections[1][2])
    check(base and base.group(1) == sections[0][1], "storage.cfg: the volume group is on another storage")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def log_in(blockwire, what, config, logins):
    """Serves the configuration on loopback, and logs in as its files say."""
    with tempfile.TemporaryDirectory() as place:
        secret, other = os.path.join(place, "chap"), os.path.join(place, "other")
        for path, text in ((secret, SECRET), (other, SECRET[::-1])):
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
                out.write(text + "\n")
        config = re.sub(r'secret_file = "[^"]*"', f'secret_file = "{secret}"', config)
        config = config.replace("file:/srv/blockwire/", f"file:{place}/")
        file = os.path.join(place, "blockwire.toml")

        def write(text):
            with open(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
                out.write(text)

        def run(*words):
            return subprocess.run([blockwire, *words], capture_output=True, text=True, timeout=60, check=False)

        write(config)
        done = run("serve", "--check", file)
        check(done.returncode == 0 and "no errors" in done.stdout, f"{what}: serve --check: {done.stderr}")
        port = free_port()
        write(config.replace('address = "0.0.0.0"', f'address = "127.0.0.1:{port}"'))
        words = ["--config", file, "--state", os.path.join(place, "state"), "--control", os.path.join(place, "control", "s")]
        with subprocess.Popen([blockwire, "serve", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as daemon:
            try:
                until = time.monotonic() + 60
                while time.monotonic() < until and daemon.poll() is None:
                    if socket.socket().connect_ex(("127.0.0.1", port)) == 0:
                        break
                    time.sleep(0.1)
                for target, lun, initiator, user, at in logins:
                    check(at.endswith(":3260"), f"{what}: another port: {at}")
                    url = f"iscsi://{user}@127.0.0.1:{port}"
                    options = f"?initiator={initiator}&secret_file="
                    done = run("discover", f"{url}{options}{secret}")
                    check(target in done.stdout, f"{what}: {target} is not discovered: {done.stdout}{done.stderr}")
                    done = run("info", f"{url}/{target}/{lun}{options}{secret}")
                    check(done.returncode == 0, f"{what}: {target}: {done.stderr}")
                    for bad in (f"{options}{other}", f"?initiator={initiator}x&secret_file={secret}"):
                        check(run("info", f"{url}/{target}/{lun}{bad}").returncode != 0, f"{what}: {bad} is let in")
            finally:
                daemon.terminate()
                _, errors = daemon.communicate(timeout=60)
                check(daemon.returncode == 0, f"{what}: the daemon: {errors}")


def main(blockwire):
    for what, read_files in (("kubernetes", kubernetes), ("libvirt", libvirt)):
        config, logins = read_files()
        log_in(blockwire, what, config, logins)
    proxmox()
    for what in wrong:
        print(what, file=sys.stderr)
    sys.exit(1 if wrong else 0)


main(os.path.abspath(sys.argv[1]))
