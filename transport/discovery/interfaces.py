"""The network interfaces of a machine on which a mesh is looked for, and a watch on their addresses.

An interface must be up and carry an IPv4 address, or a link-local one of IPv6, which any link with IPv6 has. The one
with the default route comes first. The inner networks of containers and virtual machines (and links to them) are left
out unless they are asked for by name.

Addresses change: a laptop changes its Wi-Fi, a lease runs out, a cable is pulled. Connections from an address that is
gone are dead, and the others look for this node at the old one. So the watch tells the links and the announcements at
once, and the user in one line.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Any

import psutil

from mdl.addresses import parse_host
from mdl.bounds import printable
from mdl.errors import ConfigError
from mdl.protocol.statements import MAX_HOSTS
from mdl.transport.discovery.arp import who_else_has
from mdl.transport.discovery.directory import EVERY_HOST
from mdl.transport.discovery.scopes import Interface, bare, is_link_local

logger = logging.getLogger(__name__)

_INNER = ("docker", "veth", "br-", "virbr", "podman", "cni", "lxc", "vmnet", "vboxnet")
# A documentation address (RFC 5737): the route to it tells the interface of the default route.
_ELSEWHERE = "198.51.100.1"
# Interfaces named in a message: more than people have, but not all of a machine with a hundred containers.
_TOLD = 8
LOOPBACK = IPv4Interface("127.0.0.1/8")
# Linux lists IPv6 addresses that it still checks for duplicates, or has found to be one (RFC 4862, 5.4).
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_TENTATIVE, _TAKEN = 0x40, 0x08
# Android forbids the query; an emulator (qemu) cannot ask for a link's speed.
_UNTOLD = frozenset((errno.EACCES, errno.EPERM, errno.ENOTTY))
# The prefix of a link-local address (RFC 4291, 2.5.6).
_LINK_PREFIX = 64
# A look takes a millisecond; a peer counts as lost after 2 s of silence, so that a new address is told before.
LOOK_EVERY_S = 1.0
# The interval and wait of ARP probes for a shared address, which lasts for days. A probe needs root, and few packets.
ASK_EVERY_S, _ANSWER_S = 30.0, 0.3
# The thread may be in the middle of a new announcement (RFC 6762 repeats packets) when it is to end.
_END_S = 2.0

Moved = Callable[[Sequence[Interface], frozenset[str]], None]


def usable_interfaces(asked: Sequence[str] | None = None) -> list[Interface]:
    """Return the own addresses, with their networks, that a mesh uses; empty if this machine is on no network.

    IPv4 first; of IPv6 the link-local ones, each with its link. asked: interface names, for example ["eth0"]. Raises
    ConfigError for one that is not there or not up.
    """
    addresses, states, unready = psutil.net_if_addrs(), interface_states(), _unready()
    up: dict[str, list[Interface]] = {
        name: [
            *(IPv4Interface(f"{a.address}/{a.netmask}") for a in found if a.family == socket.AF_INET and a.netmask),
            *(_on_link(name, a.address) for a in found if _is_of_a_link(a) and bare(a.address) not in unready),
        ]
        for name, found in addresses.items()
        if states is None or (name in states and states[name].isup)
    }
    usable = {name: found for name, found in up.items() if found}
    for name in asked or ():
        if name not in usable:
            raise ConfigError(f"interfaces: {name!r} is not up with an address; there is {', '.join(usable)}")
    names = list(asked) if asked else [name for name in usable if is_outer(name, usable[name])]
    chosen = [interface for name in names for interface in usable[name]]
    preferred = _default_address()
    return sorted(chosen, key=lambda interface: (interface.version, str(interface.ip) != preferred))


def interface_states() -> dict[str, Any] | None:
    """Return the state of each interface, with its MTU in bytes; None where the system does not tell programs."""
    try:
        return dict(psutil.net_if_stats())
    except OSError as error:
        if error.errno in _UNTOLD:
            return None
        raise


def of_ipv4(own: Iterable[Interface]) -> list[IPv4Interface]:
    """Return those of IPv4 alone."""
    return [each for each in own if isinstance(each, IPv4Interface)]


def is_outer(name: str, interfaces: Iterable[Interface]) -> bool:
    """Return True unless this is loopback or an inner network of containers or virtual machines."""
    return not name.startswith(_INNER) and not any(interface.ip.is_loopback for interface in interfaces)


def choose_host(offered: Sequence[str], own: Sequence[Interface], is_on_link: bool = False) -> str | None:
    """Return a peer's first address in an IPv4 network that is also ours, else the first that is not loopback.

    Its link-local one comes before those that need a router if it was heard on a link of ours, else after them. None if
    it has no address of a kind that this machine has. Raises ValueError for an invalid address.
    """
    if near := near_hosts(offered, own):
        return near[0]
    kinds = {each.version for each in own} or {4, 6}
    hosts = [host for host in map(parse_host, offered) if host.version in kinds]
    beyond = [host for host in hosts if not host.is_loopback]
    beyond.sort(key=lambda host: is_link_local(str(host)) is not is_on_link)
    return str(beyond[0]) if beyond else None


def near_hosts(offered: Sequence[str], own: Sequence[Interface]) -> list[str]:
    """Return a peer's addresses in IPv4 networks that are also ours. Raises ValueError for an invalid address."""
    networks = [each.network for each in of_ipv4(own)]
    return [str(host) for host in map(parse_host, offered) if any(host in network for network in networks)]


def networks_near(listen_host: str) -> list[Interface]:
    """Return the own networks of a node that listens there, to tell which of a peer's addresses is near."""
    return [LOOPBACK] if parse_host(listen_host).is_loopback else usable_interfaces()


def own_hosts(listen_host: str) -> tuple[str, ...]:
    """Return the addresses of a node that listens there, the likeliest to be reached first."""
    if listen_host not in EVERY_HOST:
        return (bare(listen_host),)
    try:
        found = [str(each.ip) for each in usable_interfaces() if each.version == 4 or listen_host == "::"]
    except OSError:  # no descriptor left to ask with
        found = []
    return (*found[: MAX_HOSTS - 1], str(LOOPBACK.ip))


def name_of(host: str) -> str | None:
    """Return the interface that carries this address of ours; None if none does."""
    found = psutil.net_if_addrs()
    return next((name for name in found if bare(host) in [bare(each.address) for each in found[name]]), None)


def hosts_on(name: str) -> list[str]:
    """Return the addresses of an interface to listen at, IPv4 first; none if it is gone."""
    try:
        found, unready = psutil.net_if_addrs().get(name, ()), _unready()
    except OSError:  # no descriptor left to ask with
        return []
    links = [f"{bare(a.address)}%{name}" for a in found if _is_of_a_link(a) and bare(a.address) not in unready]
    return [a.address for a in found if a.family == socket.AF_INET] + links


def every_host() -> str:
    """Return the wildcard address of this machine: for both kinds where the system knows IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            tried.bind(("::", 0))
            return "::"
    except OSError:
        return "0.0.0.0"


def host_to_listen_on(asked: str) -> str:
    """Return the IP address to listen on: an own one, a wildcard, or that of an interface given by name.

    asked: empty for all. Raises ConfigError for anything else, with what there is.
    """
    if not asked or asked in EVERY_HOST:
        return asked or every_host()
    if found := hosts_on(asked):
        return found[0]
    with contextlib.suppress(ValueError):
        if parse_host(asked).is_loopback or name_of(asked):
            return asked
    there = [f"{name} ({', '.join(hosts)})" for name in sorted(psutil.net_if_addrs()) if (hosts := hosts_on(name))]
    what = f"mesh.listen: {printable(asked)!r} is no address or interface of this machine"
    raise ConfigError(f"{what}; there is {'; '.join(there[:_TOLD])}")


def _is_of_a_link(address: Any) -> bool:
    return address.family == socket.AF_INET6 and is_link_local(bare(address.address))


def _on_link(name: str, address: str) -> IPv6Interface:
    return IPv6Interface(f"{bare(address)}%{name}/{_LINK_PREFIX}")


def _unready() -> set[str]:
    """Return IPv6 addresses that cannot be used yet, or that another machine has, too."""
    try:
        lines = [line.split() for line in _IPV6_ADDRESSES.read_text().splitlines()]
    except OSError:
        return set()
    return {str(ipaddress.IPv6Address(int(line[0], 16))) for line in lines if int(line[4], 16) & (_TENTATIVE | _TAKEN)}


def _default_address() -> str | None:
    """Return this machine's address on its default route, if it has one; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((_ELSEWHERE, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


class AddressWatch:
    """Calls `moved` from its own thread with the addresses as they are now, and those that were there all along.

    asked: interface names, as for `usable_interfaces`. Without any network `moved` is not called. It is called as soon
    as this machine is on a network again, even with the old addresses: connections have stood still meanwhile.
    """

    def __init__(self, asked: Sequence[str] | None, moved: Moved) -> None:
        self._asked, self._moved = asked, moved
        self._last: Sequence[Interface] = []
        self._last = self._look()
        self._kept = _hosts(self._last)
        self._asked_at = time.monotonic()
        self._shared: set[tuple[str, str]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mdl-addresses", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(_END_S)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self.look()
            if time.monotonic() - self._asked_at >= ASK_EVERY_S:
                self.ask()
                self._asked_at = time.monotonic()

    def ask(self) -> None:
        """Log once each own address that another machine has, too: packets for one of them reach the other."""
        shared = set()
        for each in of_ipv4(self._last):
            host, name = str(each.ip), name_of(str(each.ip))
            other = None if name is None or each.ip.is_loopback else who_else_has(host, name, _ANSWER_S)
            if other is not None:
                shared.add((host, other))
        for host, other in sorted(shared - self._shared):
            logger.warning(
                "another machine (hardware address %s) has this device's address %s, too: give one of them another, "
                "or let the router give both (DHCP)",
                *(other, host),
            )
        self._shared = shared

    def look(self) -> None:
        """Compare the addresses with the last look."""
        before, now = self._last, self._look()
        if now == before:
            return
        self._last = now
        self._kept &= _hosts(now)
        if not now:
            logger.warning("this device is on no network any more (it was at %s)", _describe(before))
            return
        if not before or _describe(now) != _describe(before):
            logger.warning("this device's address has changed: it is at %s now, the others are told", _describe(now))
        kept, self._kept = self._kept, _hosts(now)
        self._moved(now, kept)

    def _look(self) -> list[Interface]:
        try:
            return usable_interfaces(self._asked)
        except ConfigError:  # an interface that was asked for is down
            return []
        except OSError:  # no descriptor left to ask with: assume that nothing has changed
            return list(self._last)


def _hosts(interfaces: Sequence[Interface]) -> frozenset[str]:
    """Return the IPv4 addresses: a link-local IPv6 one is the same on the next network, and leads nowhere there."""
    return frozenset(str(interface.ip) for interface in of_ipv4(interfaces))


def _describe(interfaces: Sequence[Interface]) -> str:
    """Return the addresses that people know: IPv6 only if there is nothing else."""
    return ", ".join(str(each.ip) for each in of_ipv4(interfaces) or interfaces) or "none"
