"""Finds the cause between this machine and a device that does not answer, as far as it can be seen from here.

Each look returns its finding, or None: the caller then tries the next cause. If one sign has two causes, both are
named.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address

import psutil

from mdl.peers.doctor.finding import Finding, fail
from mdl.transport.discovery.arp import remembered, who_has
from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.interfaces import name_of, of_ipv4
from mdl.transport.discovery.reach import echo
from mdl.transport.discovery.scopes import Interface, socket_address
from mdl.transport.links.probe import Reached, connect
from mdl.transport.links.sockets import local_host_towards

_ARP_S, _CONNECT_S, _ECHO_S = 0.6, 1.0, 1.0
# Ports that hardly any program listens on: discard and tcpmux.
_UNUSED_PORTS = (9, 1)
_FEW, _SMALL_BYTES = 4, 64
# Errors of the system for a route that leads nowhere, and the kind of route (ip-route(8)).
_REFUSALS = {errno.EINVAL: "blackhole", errno.EACCES: "prohibit", errno.EHOSTUNREACH: "unreachable"}


def find_cause(name: str, at: Address, reached: Reached, own: Sequence[Interface]) -> Finding | None:
    """Return why a connection does not get to a device, if it can be seen here; None if it cannot."""
    where = name if at.host in name else f"{name} at {at.host}:{at.port}"
    found = _find_route(where, at)
    if found is None and reached is Reached.NO_WAY:
        found = _find_no_port(where, at)
    if found is None and reached in (Reached.NOT_MDL, Reached.OTHER_KEYS, Reached.SILENT):
        found = _find_proxy(where, at)
    if found is None and reached in (Reached.NO_WAY, Reached.SILENT) and ":" not in at.host:
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
    if (answers := who_has(at.host, interface, _ARP_S)) is not None and answers != hardware:
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
