"""A host on a LAN with something the matter, and `mdl doctor` on it: what doctor_faults.py and its like are made of."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.lan import COMMAND_S, ip, run

MEMBER_PORT, TAKEN_PORT = 5750, 5760
MEMBER_NAME = "kitchen"
# Holds UDP port 5353 for itself, or listens on a TCP port and says nothing of mdl.
HOLDER = """
import socket, sys
kind, port = sys.argv[1], int(sys.argv[2])
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
taken.bind((sys.argv[3], port))
kind == "tcp" and taken.listen()
print("ready", flush=True)
sys.stdin.read()
"""
# A tunnel that takes all packets and gives none: a VPN's.
TUNNEL = """
import fcntl, struct, sys
tunnel = open("/dev/net/tun", "r+b", buffering=0)
fcntl.ioctl(tunnel, 0x400454CA, struct.pack("16sH22x", b"tun0", 0x1001))
print("ready", flush=True)
sys.stdin.read()
"""
# Root without its privileges: what is not its own it can neither write nor read, and no raw sockets.
UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
# The machine is called so, for what follows.
RENAMED = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"


def why_not():
    """None if all of it can be had here, else the reason to skip."""
    missing = [name for name in ("nft", "prlimit", "bridge", "setpriv", "unshare") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


@dataclass
class Member:
    """The mesh: `mdl agent` on host 0. former: its code before; revoked: the key of a device that is locked out."""

    home: object
    folder: Path
    code: str
    former: str
    revoked: bytes
    agent: object = None

    def signal(self, number):
        os.killpg(self.agent.process.pid, number)

    def close(self):
        self.signal(signal.SIGCONT)
        self.home.close()


@dataclass
class Case:
    """One host with its fault. words: for `mdl doctor`; before: of its command; variables: of its environment.

    rights: a command that lessens them. after: commands that undo what outlives the network; homes: with processes.
    """

    net: object
    host: int
    folder: Path
    member: Member
    code: str
    hostname: str
    words: list = field(default_factory=list)
    before: list = field(default_factory=list)
    rights: tuple = ()
    variables: dict = field(default_factory=dict)
    after: list = field(default_factory=list)
    homes: list = field(default_factory=list)

    @property
    def name(self):
        return self.net.names[self.host]

    @property
    def address(self):
        return self.net.hosts[self.host]

    @property
    def member_address(self):
        return f"{self.net.hosts[0]}:{MEMBER_PORT}"

    @property
    def settings(self):
        """Where `mdl doctor` looks for its device key."""
        folder = self.folder / "config" / "mdl"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

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

    def without_ipv6(self):
        """Else devices of one link meet by that, whatever their IPv4 addresses are."""
        self.net.sysctl(self.host, "net.ipv6.conf.all.disable_ipv6=1")

    def open_tunnel(self):
        process = self.net.start(self.host, "-c", TUNNEL)
        assert process.stdout.readline() == "ready\n"
        ip(f"-n {self.name} addr add 10.8.0.2/24 dev tun0")
        ip(f"-n {self.name} link set tun0 up")

    def hold(self, kind, port, host="0.0.0.0"):
        process = self.net.start(self.host, "-c", HOLDER, kind, port, host)
        assert process.stdout.readline() == "ready\n"


def on_tmpfs(case, options):
    """The state directory is a file system of its own."""
    state = case.folder / "small"
    state.mkdir(parents=True)
    run(f"mount -t tmpfs -o {options} tmpfs {state}")
    case.variables["XDG_STATE_HOME"] = str(state)
    case.after.append(f"umount {state}")
    return state


def found_mesh(folder):
    """A member's settings: it has founded the mesh, locked a device out, and changed the code since."""
    import msgspec

    from mdl.transport.trust.keys import DeviceKey, MeshKeys, code_hash, founder_mark, new_join_code
    from mdl.transport.trust.membership import Membership

    secret, revoked = os.urandom(32), os.urandom(32)
    mark = founder_mark(DeviceKey.of(secret).public)
    former, code = (new_join_code("home", mark=mark) for _ in range(2))
    membership = Membership(MeshKeys.from_code(former), DeviceKey.of(secret))
    membership.join(MEMBER_NAME)
    membership.roster.add(membership.found())
    for statement in membership.revoke(DeviceKey.of(revoked).public, 0, "it was sold"):
        membership.roster.add(statement)
    membership.roster.add(membership.change_code(code_hash(code)))
    meshes = folder / "config" / "mdl" / "meshes"
    meshes.mkdir(parents=True)
    (meshes.parent / "device.key").write_text(secret.hex())
    (meshes / "home.code").write_text(code)
    (meshes / "home.roster").write_bytes(msgspec.msgpack.encode(membership.roster.statements()))
    return Member(None, folder, code, former, revoked)


def start_member(net, folder):
    """`mdl agent` on host 0, there when it has announced itself."""
    from tests.integration import product

    member = found_mesh(folder / "member")
    member.home = product.Home(member.folder, folder / "cache", ("ip", "netns", "exec", net.names[0]))
    member.agent = member.home.start(
        "agent", "--mesh", "home", "--port", MEMBER_PORT, "--out", folder / "run", "--name", MEMBER_NAME
    )
    assert product.until(lambda: "is the agent now" in member.agent.told), member.agent.told
    return member


def command_of(case):
    """`mdl doctor` on the case's host, and its environment."""
    limit = case.variables.pop("DOCTOR_NOFILE", None)
    named = ("unshare", "--uts", sys.executable, "-c", RENAMED, case.hostname)
    limited = ("prlimit", f"--nofile={limit}:{limit}") if limit else ()
    python = (sys.executable, *(case.before or ("-m", "mdl")))
    words = ("doctor", *(("--code", case.code) if case.code else ()), *map(str, case.words), "--json")
    homes = {"HOME": case.folder, "XDG_CONFIG_HOME": case.folder / "config", "XDG_STATE_HOME": case.folder / "state"}
    environment = {**os.environ, **{name: str(path) for name, path in homes.items()}, **case.variables}
    environment["PYTHONPATH"] = os.pathsep.join([case.variables.get("PYTHONPATH", ""), *sys.path]).strip(os.pathsep)
    environment.pop("MDL_CODE", None)
    return ["ip", "netns", "exec", case.name, *named, *limited, *case.rights, *python, *words], environment


def examine(net, host, fault, folder, member):
    """Run the doctor with this fault; exit code, its object, stderr, and the seconds it took."""
    folder.mkdir(parents=True)
    case = Case(net, host, folder, member, member.code, f"host-{host}")
    try:
        fault(case)
        words, environment = command_of(case)
        began = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=False)
        took_s = time.monotonic() - began
    finally:
        for command in case.after:
            subprocess.run(command.split(), check=False, timeout=COMMAND_S)
        for home in case.homes:
            home.close()
    told = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return done.returncode, told, done.stderr, took_s


def names(told):
    """(check, verdict) of all that is not in order."""
    return {(each["check"], each["verdict"]) for each in told.get("findings", ()) if each["verdict"] != "ok"}
