"""Checks of this machine's network, and of the way to a device: its quality, and where and why a connection ends.

Checks of this machine are about the interfaces in use, multicast on them, the port.

For a device that does not answer, each look returns its finding, or None: the caller then tries the next cause. If one
sign has two causes, both are named. For one that answers, echo requests measure lost packets, lost large packets, delay
and speed if both sides allow them; TCP finds a black hole, too. Each check is a sample of about a second.

The finding of a check: one line, and what to do about it.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
import psutil

from mdl.config import MeshSection
from mdl.errors import ConfigError
from mdl.transport.discovery.directory import Address, Interface, socket_address, with_link
from mdl.transport.discovery.interfaces import (
    DEFAULT_PORT,
    LOOPBACK,
    hear_namesake,
    interface_states,
    is_outer,
    name_of,
    of_ipv4,
    remembered,
    usable_interfaces,
    who_else_has,
    who_has,
)
from mdl.transport.links.probe import PORT as MDNS
from mdl.transport.links.probe import (
    Echoes,
    Heard,
    Multicast,
    ProbeStage,
    are_taken,
    connect,
    count_answers,
    echo,
    measure_speed,
    try_multicast,
)
from mdl.transport.links.sockets import local_host_towards


class Severity(Enum):
    """NOTE: a mesh works all the same; FAIL: it does not, or not with the device in question."""

    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """check: its name, stable for scripts. told: the finding. do: what to type or change. around: the way without."""

    check: str
    verdict: Severity
    told: str
    do: str = ""
    around: str = ""


def ok(check: str, told: str) -> Finding:
    return Finding(check, Severity.OK, told)


def note(check: str, told: str, do: str = "", around: str = "") -> Finding:
    return Finding(check, Severity.NOTE, told, do, around)


def fail(check: str, told: str, do: str, around: str = "") -> Finding:
    return Finding(check, Severity.FAIL, told, do, around)


def broken(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict is Severity.FAIL]


_NEIGHBOUR_S, _CONNECT_S, _ECHO_S = 0.6, 1.0, 1.0
# Ports that hardly any program listens on: discard and tcpmux.
_UNUSED_PORTS = (9, 1)
_FEW, _SMALL_BYTES = 4, 64
# Errors of the system for a route that leads nowhere, and the kind of route (ip-route(8)).
_REFUSALS = {errno.EINVAL: "blackhole", errno.EACCES: "prohibit", errno.EHOSTUNREACH: "unreachable"}


def find_cause(name: str, at: Address, reached: ProbeStage, own: Sequence[Interface]) -> Finding | None:
    """Return why a connection does not get to a device, if it can be seen here; None if it cannot."""
    where = name if at.host in name else f"{name} at {at.host}:{at.port}"
    found = _find_route(where, at)
    if found is None and reached is ProbeStage.NO_WAY:
        found = _find_no_port(where, at)
    if found is None and reached in (ProbeStage.NOT_MDL, ProbeStage.OTHER_KEYS, ProbeStage.SILENT):
        found = _find_proxy(where, at)
    if found is None and reached in (ProbeStage.NO_WAY, ProbeStage.SILENT) and ":" not in at.host:
        found = _find_neighbour(where, at) or _find_dead_card(where, at, own)
    return found


def tell_hidden(name: str, at: Address) -> Finding:
    """Report a device beyond a router: it lets us in, but its answer may not come back."""
    told = f"{name} at {at.host} lets this machine in, but cannot reach it"
    why = "a router between hides this machine behind its own address (NAT), or a firewall here lets nothing in"
    do = f"put both into one network (a second router as access point), or forward TCP {at.port}:{at.port + 1} here"
    return fail("way", f"{told}: {why}", do, "a VPN that holds all devices")


def tell_broken_off(name: str, at: Address) -> Finding:
    """Report a device that loses its connections once some KB pass on them."""
    told = f"{name} at {at.host}: a connection is broken off once some KB have passed on it"
    do = "a firewall or security software, here, there or in the router, ends what it does not know: allow mdl there"
    return fail("path", told, do)


def _find_route(where: str, at: Address) -> Finding | None:
    """Find a route of this machine that refuses; the system tells its kind, and nothing is sent."""
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.connect(socket_address(family, at.host, at.port))
    except OSError as error:
        kind = _REFUSALS.get(error.errno or 0)
        if kind:
            told = f"a route of this machine throws away all that goes to {where} ({kind})"
            return fail(
                "way", told, f"ip route get {at.host}; sudo ip route del {kind} ... (fail2ban, or a VPN made it?)"
            )
    return None


def _find_no_port(where: str, at: Address) -> Finding | None:
    """Report that no port is left for a new connection from here."""
    try:
        with socket.create_connection((at.host, at.port), _CONNECT_S):
            return None
    except OSError as error:
        return tell_no_port(f"no connection to {where}") if error.errno == errno.EADDRNOTAVAIL else None


def tell_no_port(what: str) -> Finding:
    """Report that all ports which the system gives by itself are taken."""
    told = f"{what}: this machine has no free port left (net.ipv4.ip_local_port_range)"
    do = "ss -tanp tells which program takes them; sudo sysctl net.ipv4.ip_local_port_range='32768 60999'"
    return fail("port", told, do)


def _find_proxy(where: str, at: Address) -> Finding | None:
    """Report a proxy: it accepts connections to unused ports too, so it is not the device."""
    if any(connect(Address(at.host, port), _CONNECT_S) is not None for port in _UNUSED_PORTS):
        return None
    told = f"something between answers all connections to {where}, also those to ports where nobody listens"
    do = "a proxy, a captive portal or security software: turn it off for the local network, or log in at the portal"
    return fail("way", told, do)


def _find_neighbour(where: str, at: Address) -> Finding | None:
    """Report that the system sends frames for the device to another hardware address than the one that answers."""
    interface = name_of(local_host_towards(at.host))
    known = remembered(at.host)
    if interface is None or known is None:
        return None
    hardware, is_set = known
    clear = f"sudo ip neigh del {at.host} dev {interface}"
    if (answers := who_has(at.host, interface, _NEIGHBOUR_S)) is not None and answers != hardware:
        told = (
            f"this machine sends what is for {where} to a wrong hardware address: {hardware}, while {answers} answers"
        )
        return fail("address", told, clear)
    if answers is None and is_set:
        told = f"{where} does not answer: it is off, or its hardware address, set by hand here ({hardware}), is wrong"
        return fail("address", told, clear)
    return None


def _find_dead_card(where: str, at: Address, own: Sequence[Interface]) -> Finding | None:
    """Report a silent interface on the way to the device, if another interface is in its network too."""
    used = name_of(local_host_towards(at.host))
    near = {name_of(str(each.ip)) for each in of_ipv4(own) if IPv4Address(at.host) in each.network}
    if used is None or used not in near or len(near) < 2:
        return None
    try:
        before = psutil.net_io_counters(pernic=True).get(used)
        echo(at.host, _SMALL_BYTES, _FEW, _ECHO_S)
        after = psutil.net_io_counters(pernic=True).get(used)
    except PermissionError:  # the system tells no program, as on Android
        return None
    if before is None or after is None or after.packets_recv > before.packets_recv:
        return None
    others = ", ".join(sorted(str(each) for each in near - {used}))
    told = f"the way to {where} leads over {used}, on which nothing comes in; {others} is in its network, too"
    return fail("way", told, f"its cable, switch port or card: sudo ip link set {used} down")


SAME_CODE = "mdl mesh show NAME shows the code on each device: give all of them the same, mdl peer --code ..."


def tell_end(name: str, at: Address, reached: ProbeStage, own: Sequence[Interface], is_heard: bool = False) -> Finding:
    """Report the end of a connection. reached: how far a connection to its port came. is_heard: it reaches us."""
    where = name if at.host in name else f"{name} at {at.host}:{at.port}"
    if lost := _find_detour(at.host, own):
        do = f"ip route get {at.host}; exclude the local network in the settings of the VPN"
        return fail("way", f"the way to {where} leads over {lost}, not into the network that it is in", do)
    if is_heard and reached in (ProbeStage.NO_WAY, ProbeStage.REFUSED, ProbeStage.SILENT):
        do = f"a firewall on one of the two: allow TCP to port {at.port} out of here; there {_open(at.port)}"
        return fail("port", f"{where} reaches this machine, but not the other way round ({reached.value})", do)
    match reached:
        case ProbeStage.NO_WAY if is_near(at.host, own):
            do = "is it on? else the Wi-Fi keeps its clients apart: a guest network, or client isolation in the router"
            return fail("way", f"{where} is in this very network, but nothing gets there", do)
        case ProbeStage.NO_WAY:
            do = f"both must be in one network with one netmask, or a route must lead there: ip route get {at.host}"
            return fail("way", f"no way to {where}: {_tell_networks(own)}, and no route leads there", do)
        case ProbeStage.REFUSED:
            do = f"is it running? there: mdl doctor --peer THIS-ADDRESS, or ss -ltn; or a firewall: {_open(at.port)}"
            return fail("port", f"{where}: nobody listens there", do)
        case ProbeStage.SILENT:
            do = f"a firewall on it, or client isolation of the Wi-Fi (a guest network), drops it; {_open(at.port)}"
            return fail("port", f"{where} does not answer on its TCP port", do)
        case ProbeStage.NOT_MDL:
            do = "give the port that mdl status shows; if it is mdl, it hangs: start it again"
            return fail("port", f"{where}: another program is listening on that port", do)
        case ProbeStage.OTHER_KEYS:
            return fail("code", f"{where} is in another mesh: it does not know our join code", SAME_CODE)
    do = f"a firewall here: {_open(DEFAULT_PORT)} (another --port: that one); the same mdl on both? mdl --version"
    return fail("port", f"{where} lets this machine in, but its answer does not come back", do, "--join from its side")


def tell_second_port(name: str, at: Address) -> Finding:
    """Report a device with an open first port, but no second one, which takes members' messages."""
    told = f"{name} at {at.host} is open at its first port, but not at port {at.port}, which takes members' words"
    return fail("port", told, f"a firewall there, or here on the way out: {_open(at.port - 1)}")


def tell_shut_out(name: str, at: Address) -> Finding:
    """Report that the join code is right, but this device's own key is refused."""
    told = f"{name} at {at.host} knows our join code, and does not let this device in: an owner has revoked it"
    do = "mdl mesh members, on another device, shows it; a revocation is for ever"
    return fail("device", told, do, "become another device: remove its device.key, or MDL_KEY=@NEW-FILE")


def _open(port: int) -> str:
    """Return the commands that open a port, the next one, which takes members' messages, and the same of UDP."""
    return f"sudo ufw allow {port}:{port + 1}/tcp; sudo ufw allow {port}/udp (or firewall-cmd --add-port)"


def _find_detour(host: str, own: Sequence[Interface]) -> str:
    """Return the interface for packets to a host of our network, if it is not on that network; else ""."""
    near = [str(each.ip) for each in own if is_near(host, [each])]
    by = local_host_towards(host)
    is_lost = by.startswith("127.")
    return (name_of(by) or by) if near and not is_lost and host not in near and by not in (*near, host) else ""


def is_near(host: str, own: Sequence[Interface]) -> bool:
    return any(IPv4Address(host) in each.network for each in own) if ":" not in host else False


def _tell_networks(own: Sequence[Interface]) -> str:
    return f"this machine is in {', '.join(str(each.network) for each in own[:4])}"


_SMALL_ECHO_BYTES, _USUAL_MTU = 64, 1_500
# The sizes that each network of IPv4 (RFC 791) and IPv6 (RFC 8200) must take.
_SMALLEST_MTU, _SMALLEST_MTU_V6 = 576, 1_280
_MANY, _FEW_ECHOES = 12, 3
_WAIT_S = 0.8
_SEGMENTS_S = 1.5
# A mesh of four closes a round with a fifth of all frames lost, and slowly; a tenth is worth a note.
_MUCH_LOSS, _LONG_S = 0.1, 0.2
# Below the first, LeNet's parameters, 0.4 MB, take more than a second each way. A train of echoes cannot tell speeds
# above the second apart.
_SLOW_MB_S, _FAST_MB_S = 0.4, 12.0


def check_path(name: str, at: Address, link_mb_s: float | None) -> Iterator[Finding]:
    """Check the way; takes up to some 5 s if all is lost, else well under one.

    link_mb_s: the speed that the mesh has measured.
    """
    small = echo(at.host, _SMALL_ECHO_BYTES, _MANY, _WAIT_S)
    if not small or not small.round_trips_s:
        if are_taken(at, _SEGMENTS_S) is False:
            yield _tell_hole(name, at.host, "large packets")
        yield ok("path", f"{name}: echo requests are not allowed or not answered{_tell_speed(link_mb_s, '')}")
        return
    if _find_mtu(at.host) >= _USUAL_MTU:
        large = echo(at.host, _find_mtu(at.host), _FEW_ECHOES, _WAIT_S)
        if large and not large.too_long and not large.round_trips_s:
            fits = _largest_that_fits(at.host, max(0.1, 4 * min(small.round_trips_s)))
            yield _tell_hole(name, at.host, f"packets above {fits} bytes", fits)
            yield _tell(name, small, link_mb_s)
            return
    is_new = link_mb_s is None and small.loss <= _MUCH_LOSS
    measured = measure_speed(at.host, min(_find_mtu(at.host) or _USUAL_MTU, _USUAL_MTU)) if is_new else None
    yield _tell(name, small, measured / 1e6 if measured else link_mb_s)


def check_loss(name: str, host: str) -> Finding | None:
    """Report a device behind a silent port, if the cause is packet loss."""
    small = echo(host, _SMALL_ECHO_BYTES, _MANY, _WAIT_S)
    return _tell(name, small, None) if small and small.round_trips_s and small.loss > _MUCH_LOSS else None


def _tell(name: str, small: Echoes, link_mb_s: float | None) -> Finding:
    best_s = min(small.round_trips_s)
    told = f"{name}: {best_s * 1e3:.1f} ms there and back, {small.loss:.0%} of {small.sent} lost"
    told += _tell_speed(link_mb_s, ", ")
    if small.loss > _MUCH_LOSS:
        return note("path", told, "rounds take several times as long: move nearer, another channel, a cable")
    if link_mb_s is not None and link_mb_s < _SLOW_MB_S:
        do = f"a model of 1 MB takes {1 / link_mb_s:.0f} s each way: a cable, another channel, or --compress"
        return note("path", told, do)
    if best_s > _LONG_S:
        return note("path", told, "rounds wait for it: is there a VPN or a mobile network between?")
    return ok("path", told)


def _tell_speed(mb_s: float | None, before: str) -> str:
    if mb_s is None:
        return ""
    mbit = 8 * mb_s
    return f"{before}more than 100 Mbit/s" if mb_s > _FAST_MB_S else f"{before}some {mbit:.2g} Mbit/s"


def _tell_hole(name: str, host: str, which: str, fits: int = 1_280) -> Finding:
    told = f"{name}: {which} vanish on the way, and no error comes back (an MTU black hole)"
    own = name_of(local_host_towards(host)) or "eth0"
    return fail("mtu", told, f"sudo ip link set {own} mtu {fits}, or mend the tunnel or switch between")


def _find_mtu(host: str) -> int:
    stats = (interface_states() or {}).get(name_of(local_host_towards(host)) or "")
    return min(stats.mtu, 9_000) if stats and stats.mtu else 0


def _largest_that_fits(host: str, wait_s: float) -> int:
    """Find it by halving, to 8 bytes."""
    fits, too_long = _SMALLEST_MTU_V6 if ":" in host else _SMALLEST_MTU, _find_mtu(host)
    while too_long - fits > 8:
        tried = (fits + too_long) // 2
        found = echo(host, tried, 2, wait_s)
        if found and found.round_trips_s:
            fits = tried
        else:
            too_long = tried
    return fits


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
