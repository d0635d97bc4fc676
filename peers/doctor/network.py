"""Checks of this machine on its network: the interfaces in use, multicast on them, the port."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
import psutil

from mdl.config import MeshSection
from mdl.errors import ConfigError
from mdl.peers.doctor.finding import Finding, Severity, broken, fail, note, ok
from mdl.peers.doctor.way import tell_no_port
from mdl.transport.discovery.directory import Interface, with_link
from mdl.transport.discovery.interfaces import (
    DEFAULT_PORT,
    LOOPBACK,
    hear_namesake,
    interface_states,
    is_outer,
    name_of,
    of_ipv4,
    usable_interfaces,
    who_else_has,
)
from mdl.transport.links.probe import PORT as MDNS
from mdl.transport.links.probe import Heard, Multicast, count_answers, try_multicast

_MULTICAST_S, _ARP_S = 1.5, 0.6
_TOLD = 8
# All but two of a mesh's announcements come within it; so long we listen for others with our own hardware address.
_HARDWARE_S = 3.0
# Questions by multicast, and the share of them that may be lost: a busy host answers late.
_QUESTIONS, _QUESTION_PAUSE_S, _QUESTION_S, _MUCH_LOST = 20, 0.05, 1.0, 0.3
_JOIN = f"mdl peer --join ADDRESS:{DEFAULT_PORT}, that of a device of the mesh"


def check_interfaces(section: MeshSection) -> tuple[Finding, list[Interface]]:
    """Check the interfaces; return also the own addresses that a mesh uses."""
    if section.loopback:
        return ok("interfaces", "this machine alone (--loopback)"), [LOOPBACK]
    try:
        usable = usable_interfaces(section.interfaces or None)
    except ConfigError as error:
        return fail("interfaces", str(error), "give --interface one of these"), []
    left_out = _tell_left_out()
    if not usable:
        told = f"this machine is on no network{left_out}"
        return fail("interfaces", told, "connect the Wi-Fi or a cable: ip address", "--interface NAME takes one"), []
    told = ", ".join(f"{name_of(str(each.ip)) or '?'} {each}" for each in of_ipv4(usable) or usable) + left_out
    if any(each.ip.is_link_local for each in of_ipv4(usable)):
        do = "sudo dhclient, or restart the router: without it only other devices without an address can be reached"
        return note("interfaces", f"{told}; 169.254... means that DHCP gave no address", do), usable
    if len({name_of(str(each.ip)) for each in usable}) > 1:
        told = f"several are used, the default route's first: {told}"
        return note("interfaces", told, "--interface NAME takes one"), usable
    return ok("interfaces", told), usable


def check_addresses(own: Sequence[Interface]) -> Iterator[Finding]:
    """Report another machine with an address of ours (as root: others may not ask)."""
    for each in of_ipv4(own):
        name = name_of(str(each.ip))
        if name and not each.ip.is_loopback and (other := who_else_has(str(each.ip), name, _ARP_S)):
            told = f"{name}: {each.ip} is the address of another machine, too ({other})"
            yield fail("address", told, "give one of them another address, or let the router give both (DHCP)")


def check_hardware(own: Sequence[Interface]) -> list[Finding]:
    """Report another machine with the hardware address of a card of ours (as root: others may not listen)."""
    names = sorted({name for each in own if not each.ip.is_loopback and (name := name_of(str(each.ip)))})
    with ThreadPoolExecutor(len(names) or 1) as side_by_side:
        heard = list(side_by_side.map(lambda name: hear_namesake(name, _HARDWARE_S), names))
    return [_tell_namesake(name, other) for name, other in zip(names, heard, strict=True) if other]


def _tell_namesake(name: str, other: str) -> Finding:
    told = f"{name}: the machine at {other} has the same hardware address: the switch takes one for the other"
    do = f"a copied system or virtual machine: sudo ip link set {name} address 02:..., in one of the two"
    return fail("address", told, do)


def check_multicast_loss(own: Sequence[Interface], hosts: Collection[str]) -> Iterator[Finding]:
    """Compare answers to multicast questions with those to questions sent to each heard host alone."""
    for each in of_ipv4(own):
        near = [host for host in sorted(hosts) if ":" not in host and IPv4Address(host) in each.network]
        if each.ip.is_loopback or not near:
            continue
        answers = count_answers(str(each.ip), near[:_TOLD], _QUESTIONS, _QUESTION_PAUSE_S, _QUESTION_S)
        for host, (by_group, alone) in answers.items():
            if alone - by_group > _MUCH_LOST * _QUESTIONS:
                name = name_of(str(each.ip)) or str(each.ip)
                told = f"{name}: much multicast is lost: of {_QUESTIONS} questions {host} has answered {by_group}"
                do = "the Wi-Fi's rate for multicast, IGMP snooping, or a repeater: a cable, or another access point"
                yield note("multicast", f"{told} by it, {alone} asked alone", do, _JOIN)


def check_multicast(own: Sequence[Interface]) -> list[Finding]:
    """Check multicast on all interfaces at once.

    If one of several interfaces carries multicast, the others (a VPN's) need not. IPv6 is used only without IPv4.
    """
    own = of_ipv4(own) or own
    with ThreadPoolExecutor(len(own) or 1) as side_by_side:
        tried = list(side_by_side.map(lambda each: try_multicast(with_link(each), _MULTICAST_S), own))
    works = any(each.heard in (Heard.ITSELF, Heard.OTHERS) for each in tried)
    names = [name_of(str(each.ip)) or str(each.ip) for each in own]
    found = [_tell_multicast(name, heard, at) for name, heard, at in zip(names, tried, own, strict=True)]
    return [
        msgspec.structs.replace(each, verdict=Severity.NOTE) if works and broken([each]) else each for each in found
    ]


def check_port(section: MeshSection) -> Finding:
    """Check that a peer can listen at the configured address and port."""
    host, port = section.listen or "0.0.0.0", section.port
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        if not port and error.errno == errno.EADDRINUSE:
            return tell_no_port("cannot listen")
        reason = f"cannot listen at {host} port {port}: {os.strerror(error.errno) if error.errno else error}"
        return fail("port", f"{reason}{_taken_by(port)}", "choose another --port, or 0 for any free one")
    return ok("port", f"port {port} is free" if port else "7300, or any free port (--port gives a fixed one)")


def check_wifi(own: Sequence[Interface], system: Path = Path("/")) -> Iterator[Finding]:
    """Check the power save of Wi-Fi cards: with it they sleep through multicast, and answer late."""
    for name in {name_of(str(each.ip)) for each in own} - {None}:
        if not (system / "sys/class/net" / str(name) / "wireless").exists():
            continue
        command = shutil.which("iw")
        if command is None:
            yield note("wifi", f"{name}: its power saving is not known (iw is not installed)")
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


def _tell_multicast(name: str, tried: Multicast, at: Interface) -> Finding:
    match tried.heard:
        case Heard.TAKEN:
            do = "avahi and systemd-resolved share it; end the program that does not: sudo ss -ulpn 'sport = 5353'"
            return fail("multicast", f"{name}: another program has UDP port 5353 to itself{_taken_by(MDNS)}", do, _JOIN)
        case Heard.NO_WAY:
            do = f"ip link set {name} multicast on; ip route add 224.0.0.0/4 dev {name}; look at the firewall (output)"
            return fail("multicast", f"{name}: multicast does not get out ({tried.problem})", do, _JOIN)
        case Heard.NOTHING:
            do = "allow UDP port 5353 in and out in the firewall: sudo ufw allow 5353/udp"
            return fail("multicast", f"{name}: multicast goes out, but nothing comes in", do, _JOIN)
        case Heard.ITSELF if not at.ip.is_loopback:
            told = f"{name}: multicast works on this machine; nobody else was heard on it"
            return note("multicast", told, "if devices do not meet: mdl doctor on the other one", _JOIN)
    others = f"; heard {', '.join(tried.others[:4])}" if tried.others else ""
    return ok("multicast", f"{name}: multicast goes out and comes in{others}")


def _tell_left_out() -> str:
    """Return in words the other interfaces, and why they are not used."""
    found, states = psutil.net_if_addrs(), interface_states() or {}
    told = []
    for name, addresses in sorted(found.items()):
        if name == "lo" or not states.get(name):
            continue
        if not {each.family for each in addresses} & {socket.AF_INET, socket.AF_INET6}:
            told.append(f"{name} (no address)")
        elif not states[name].isup:
            told.append(f"{name} (no connection)")
        elif not is_outer(name, ()):
            told.append(f"{name} (of containers)")
    return f"; left out: {', '.join(told[:_TOLD])}" if told else ""


def _taken_by(port: int) -> str:
    """Return in words the programs on this port (UDP and TCP), as far as this user may know."""
    try:
        users = [
            each.pid for each in psutil.net_connections("inet") if each.laddr and each.laddr.port == port and each.pid
        ]
        names = sorted({f"{psutil.Process(number).name()} ({number})" for number in users if number != os.getpid()})
    except (OSError, psutil.Error):
        return ""
    return f": {', '.join(names)} has it" if names else ""
