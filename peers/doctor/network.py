"""Checks of this machine on its network: which interfaces are used, multicast on them, the port."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from mdl.config import MeshSection
from mdl.errors import ConfigError
from peers.doctor.finding import Finding, fail, note, ok
from transport.discovery.interfaces import LOOPBACK, is_outer, name_of, of_ipv4, usable_interfaces
from transport.discovery.multicast import Heard, Multicast, try_multicast
from transport.discovery.scopes import Interface, with_link

_MULTICAST_S = 1.5
_JOIN = "on one device: mdl peer --port 5750; on the others: mdl peer --join ITS-ADDRESS:5750"


def check_interfaces(section: MeshSection) -> tuple[Finding, list[Interface]]:
    """And the own addresses that a mesh uses."""
    if section.loopback:
        return ok("interfaces", "this machine alone (--loopback)"), [LOOPBACK]
    try:
        usable = usable_interfaces(section.interfaces or None)
    except ConfigError as error:
        return fail("interfaces", str(error), "give --interface one of these"), []
    if not usable:
        inner = _inner()
        told = "this machine is on no network" + (f" (but {', '.join(inner)}, of containers)" if inner else "")
        return fail("interfaces", told, "connect the Wi-Fi or a cable: ip address", "--interface NAME takes one"), []
    told = ", ".join(f"{name_of(str(each.ip)) or '?'} {each}" for each in usable)
    if inner := _inner():
        told += f"; left out as inner networks: {', '.join(inner)}"
    if len({name_of(str(each.ip)) for each in usable}) > 1:
        return note(
            "interfaces", f"several are used, the default route first: {told}", "--interface NAME takes one"
        ), usable
    return ok("interfaces", told), usable


def check_multicast(own: Sequence[Interface]) -> Iterator[Finding]:
    """By IPv6 only where there is nothing else."""
    for each in of_ipv4(own) or own:
        name = name_of(str(each.ip)) or str(each.ip)
        yield _tell_multicast(name, try_multicast(with_link(each), _MULTICAST_S), each.ip.is_loopback)


def check_port(section: MeshSection) -> Finding:
    """Whether a peer can listen where the settings say."""
    host, port = section.listen or "0.0.0.0", section.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            reason = f"cannot listen at {host} port {port}: {error.strerror or error}"
            return fail("port", f"{reason}{_taken_by(port)}", "choose another --port, or 0 for any free one")
    return ok("port", f"port {port} is free" if port else "7300, or any free port (--port gives a fixed one)")


def check_wifi(own: Sequence[Interface], system: Path = Path("/")) -> Iterator[Finding]:
    """Power save of Wi-Fi cards: they sleep through multicast, and answer late."""
    for name in {name_of(str(each.ip)) for each in own} - {None}:
        if not (system / "sys/class/net" / str(name) / "wireless").exists():
            continue
        command = shutil.which("iw")
        if command is None:
            yield note("wifi", f"{name}: whether it saves power is not known (iw is not installed)")
            continue
        asked = subprocess.run(
            [command, "dev", str(name), "get", "power_save"], capture_output=True, text=True, timeout=5, check=False
        )
        if "on" in asked.stdout.partition(":")[2]:
            yield note(
                "wifi", f"{name} saves power: found late, answers late", f"sudo iw dev {name} set power_save off"
            )
        else:
            yield ok("wifi", f"{name} does not save power")


def _tell_multicast(name: str, tried: Multicast, is_loopback: bool) -> Finding:
    match tried.heard:
        case Heard.TAKEN:
            do = "avahi and systemd-resolved share it; end what does not: sudo ss -ulpn 'sport = 5353'"
            return fail("multicast", f"{name}: another program has UDP port 5353 to itself", do, _JOIN)
        case Heard.NO_WAY:
            do = f"ip link set {name} multicast on; ip route add 224.0.0.0/4 dev {name}; look at the firewall (output)"
            return fail("multicast", f"{name}: multicast does not get out ({tried.problem})", do, _JOIN)
        case Heard.NOTHING:
            do = "allow UDP port 5353 in and out in the firewall: sudo ufw allow 5353/udp"
            return fail("multicast", f"{name}: multicast goes out, but nothing comes in", do, _JOIN)
        case Heard.ITSELF if not is_loopback:
            told = f"{name}: multicast works on this machine; nobody else was heard on it"
            return note("multicast", told, "if devices do not meet: mdl doctor on the other one", _JOIN)
    others = f"; heard {', '.join(tried.others[:4])}" if tried.others else ""
    return ok("multicast", f"{name}: multicast goes out and comes in{others}")


def _inner() -> list[str]:
    found = psutil.net_if_addrs()
    ipv4 = {name: [each for each in of_it if each.family == socket.AF_INET] for name, of_it in found.items()}
    return sorted(name for name, of_it in ipv4.items() if of_it and not is_outer(name, ()))


def _taken_by(port: int) -> str:
    try:
        users = [
            each.pid for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == port and each.pid
        ]
        names = sorted({f"{psutil.Process(number).name()} ({number})" for number in users})
    except psutil.Error:
        return ""
    return f": {', '.join(names)} has it" if names else ""
