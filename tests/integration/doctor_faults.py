"""What people's machines and networks do to a mesh, one fault each, for `mdl doctor` to name.

Each has a host of its own on one LAN (lan.py), on whose host 0 a member runs at port 5750; a fault concerns its own
host and the way to the member, so that all can be there at once.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.lan import COMMAND_S, ip, run

MEMBER_PORT, TAKEN_PORT = 5750, 5760
# A program of another version of mdl: everything of this one, but for the number.
OLD_PEER = """
import sys
import time
import mdl.protocol.messages as messages
messages.PROTOCOL_VERSION -= 1
from peers.__main__ import main
sys.argv = ["mdl", *sys.argv[1:]]
main()
"""
# Holds UDP port 5353 for itself, or listens on a TCP port and says nothing of mdl.
HOLDER = """
import socket, sys
kind, port = sys.argv[1], int(sys.argv[2])
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
taken.bind(("0.0.0.0", port))
kind == "tcp" and taken.listen()
print("ready", flush=True)
sys.stdin.read()
"""


def why_not():
    """None if all of it can be had here, else the reason to skip."""
    missing = [name for name in ("nft", "prlimit", "bridge") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


@dataclass
class Case:
    """One host with its fault. words: for `mdl doctor`; before: of its command; variables: of its environment."""

    net: object
    host: int
    folder: Path
    code: str
    words: list = field(default_factory=list)
    before: list = field(default_factory=list)
    variables: dict = field(default_factory=dict)

    @property
    def name(self):
        return self.net.names[self.host]

    @property
    def address(self):
        return self.net.hosts[self.host]

    @property
    def member(self):
        return f"{self.net.hosts[0]}:{MEMBER_PORT}"

    def nft(self, *rules, host=None):
        """Rules of this host's firewall, or another one's: HOOK RULE."""
        namespace = self.net.names[self.host if host is None else host]
        lines = []
        for rule in rules:
            hook, _, what = rule.partition(" ")
            chain = f"doctor_{self.host}_{hook}"
            lines += [
                "add table inet mdl",
                f"add chain inet mdl {chain} {{ type filter hook {hook} priority 0; policy accept; }}",
                f"add rule inet mdl {chain} {what}",
            ]
        done = subprocess.run(
            ["ip", "netns", "exec", namespace, "nft", "-f", "-"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def hold(self, kind, port):
        process = self.net.start(self.host, "-c", HOLDER, kind, port)
        assert process.stdout.readline() == "ready\n"


def healthy(case):
    pass


def no_network(case):
    ip(f"-n {case.name} link set eth0 down")


def only_containers(case):
    ip(f"-n {case.name} link set eth0 down")
    ip(f"-n {case.name} link set eth0 name docker0")
    ip(f"-n {case.name} addr flush dev docker0")
    ip(f"-n {case.name} addr add 172.17.0.1/16 dev docker0")
    ip(f"-n {case.name} link set docker0 up")


def unknown_interface(case):
    case.words += ["--interface", "wlan7"]


def multicast_out_blocked(case):
    case.nft("output ip daddr 224.0.0.251 drop")


def multicast_in_blocked(case):
    case.nft("input udp dport 5353 drop")


def mdns_port_taken(case):
    case.hold("udp", 5353)


def member_drops(case):
    case.nft(f"input ip saddr {case.address} tcp flags syn drop", host=0)


def member_rejects(case):
    case.nft(f"input ip saddr {case.address} tcp flags syn reject with tcp reset", host=0)


def answers_blocked(case):
    case.nft("input tcp flags & (syn | ack) == syn drop")


def out_blocked(case):
    case.nft(f"output tcp dport {MEMBER_PORT} reject")


def other_code(case):
    from transport.trust.keys import new_join_code

    case.code = new_join_code(case.code.partition(":")[0])


def mistyped_code(case):
    case.code = case.code[:-1] + ("2" if case.code[-1] != "2" else "3")


def no_code(case):
    case.code = ""


def other_version(case):
    """The one that is examined is the older one."""
    case.before += ["-c", OLD_PEER]


def port_taken(case):
    case.hold("tcp", TAKEN_PORT)
    case.words += ["--port", TAKEN_PORT]


def other_program(case):
    case.hold("tcp", TAKEN_PORT)
    case.words += ["--peer", f"{case.address}:{TAKEN_PORT}"]


def black_hole(case):
    ip(f"-n {case.net.switch} link set v{case.host} mtu 1300")


def few_descriptors(case):
    case.variables["DOCTOR_NOFILE"] = "60"


def full_disk(case):
    state = case.folder / "small"
    state.mkdir(parents=True)
    run(f"mount -t tmpfs -o size=1m tmpfs {state}")
    case.variables["XDG_STATE_HOME"] = str(state)
    case.variables["DOCTOR_MOUNT"] = str(state)


def broken_torch(case):
    """A wheel with instructions that this processor lacks."""
    fake = case.folder / "fake" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("import os\nos.kill(os.getpid(), 4)\n")
    case.variables["PYTHONPATH"] = str(fake.parent)


def other_subnet(case):
    ip(f"-n {case.name} addr flush dev eth0")
    ip(f"-n {case.name} addr add 10.99.{case.host}.5/24 dev eth0")
    ip(f"-n {case.name} route replace 224.0.0.0/4 dev eth0")


def guest_network(case):
    """Clients of the Wi-Fi cannot reach each other: not even ARP gets through."""
    run(f"bridge -n {case.net.switch} link set dev v0 isolated on")
    run(f"bridge -n {case.net.switch} link set dev v{case.host} isolated on")
    case.words += ["--peer", case.member]


def multicast_lost_in_switch(case):
    chain = f"{{ type filter hook ingress device v{case.host} priority 0; }}"
    run(f"ip netns exec {case.net.switch} nft add table netdev mdl{case.host}")
    run(f"ip netns exec {case.net.switch} nft add chain netdev mdl{case.host} in {chain}")
    run(f"ip netns exec {case.net.switch} nft add rule netdev mdl{case.host} in ip daddr 224.0.0.251 drop")
    run(f"bridge -n {case.net.switch} link set dev v{case.host} mcast_flood off")
    case.words += ["--join", case.member]


# The fault -> which check names it, how bad that is, and the exit code.
FAULTS = {
    no_network: ("interfaces", "fail", 4),
    only_containers: ("interfaces", "fail", 4),
    unknown_interface: ("interfaces", "fail", 4),
    multicast_out_blocked: ("multicast", "fail", 4),
    multicast_in_blocked: ("multicast", "fail", 4),
    mdns_port_taken: ("multicast", "fail", 4),
    member_drops: ("port", "fail", 4),
    member_rejects: ("port", "fail", 4),
    answers_blocked: ("port", "fail", 4),
    out_blocked: ("port", "fail", 4),
    other_code: ("code", "fail", 4),
    mistyped_code: ("code", "fail", 4),
    no_code: ("code", "fail", 4),
    other_version: ("version", "fail", 4),
    port_taken: ("port", "fail", 4),
    other_program: ("port", "fail", 4),
    black_hole: ("mtu", "fail", 4),
    few_descriptors: ("descriptors", "fail", 4),
    full_disk: ("disk", "fail", 4),
    broken_torch: ("torch", "fail", 4),
    other_subnet: ("way", "fail", 4),
    multicast_lost_in_switch: ("multicast", "note", 0),
}
# It takes the member's own way to all others, too: on a LAN of its own.
ALONE = {guest_network: ("way", "fail", 4)}


def prepare(case, fault):
    """Bring the fault about; what starts `mdl doctor` then: words before it, its words, its environment."""
    fault(case)
    limit = case.variables.pop("DOCTOR_NOFILE", None)
    before = ["ip", "netns", "exec", case.name]
    if limit:
        before += ["prlimit", f"--nofile={limit}:{limit}"]
    python = [sys.executable, *(case.before or ["-m", "peers"])]
    words = ["doctor", *(["--code", case.code] if case.code else []), *map(str, case.words), "--json"]
    return [*before, *python, *words]


def fill(case):
    """What a full disk is full of."""
    mount = case.variables.get("DOCTOR_MOUNT")
    if mount:
        with open(Path(mount) / "full", "wb") as file:
            file.write(os.urandom(1_000_000))


def clean(case):
    mount = case.variables.get("DOCTOR_MOUNT")
    if mount:
        subprocess.run(["umount", mount], check=False, timeout=COMMAND_S)


def start_member(net, folder, code):
    """`mdl agent` on host 0, there when it has announced itself."""
    from tests.integration import product

    home = product.Home(folder / "member", folder / "cache", ("ip", "netns", "exec", net.names[0]))
    agent = home.start("agent", "--code", code, "--port", MEMBER_PORT, "--out", folder / "run")
    assert product.until(lambda: "is the agent now" in agent.told), agent.told
    return home


def examine(net, host, fault, folder, code):
    """Run the doctor with this fault; exit code, its object, stderr, and the seconds it took."""
    folder.mkdir(parents=True)
    case = Case(net, host, folder, code)
    try:
        words = prepare(case, fault)
        fill(case)
        homes = {"HOME": folder, "XDG_CONFIG_HOME": folder / "config", "XDG_STATE_HOME": folder / "state"}
        environment = {**os.environ, **{name: str(path) for name, path in homes.items()}, **case.variables}
        environment["PYTHONPATH"] = os.pathsep.join([case.variables.get("PYTHONPATH", ""), *sys.path]).strip(os.pathsep)
        environment.pop("MDL_CODE", None)
        began = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=False)
        took_s = time.monotonic() - began
    finally:
        clean(case)
    told = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return done.returncode, told, done.stderr, took_s


def names(told):
    """(check, verdict) of all that is not in order."""
    return {(each["check"], each["verdict"]) for each in told.get("findings", ()) if each["verdict"] != "ok"}
