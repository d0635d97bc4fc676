"""The network interfaces of a machine on which a mesh is looked for, a watch on their addresses, and a scan of subnets.

An interface must be up and carry an IPv4 address, or a link-local one of IPv6, which any link with IPv6 has. The one
with the default route comes first. The inner networks of containers and virtual machines (and links to them) are left
out unless they are asked for by name.

Addresses change: a laptop changes its Wi-Fi, a lease runs out, a cable is pulled. Connections from an address that is
gone are dead, and the others look for this node at the old one. So the watch tells the links and the announcements at
once, and the user in one line.

Hardware addresses of IPv4 addresses are found by an ARP probe (RFC 5227), for root, on Linux. An address that two
machines have, of either kind, makes a switch or a neighbour send frames to the wrong one.

If multicast is blocked, a scan greets the hosts of the own subnet that have the usual port open. It runs once, if
nobody was found for WAIT_S: AT_A_TIME hosts a second, at most MOST_HOSTS. It opens and closes a connection, and sends
nothing: a host that answers a greeting after that has shown by the mesh's keys that it is a member. Peers listen at
DEFAULT_PORT unless they are told otherwise or it is taken.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface
from pathlib import Path
from typing import Any

import psutil

from mdl.bounds import parse_host, printable
from mdl.errors import ConfigError
from mdl.protocol.statements import MAX_HOSTS
from mdl.transport.discovery.directory import EVERY_HOST, Address, Interface, bare, is_link_local

logger = logging.getLogger(__name__)

_ETHERNET, _ARP, _IPV4 = 1, 0x0806, 0x0800
_REQUEST, _REPLY = 1, 2
_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_HEADER_BYTES = 14
_EVERYBODY = b"\xff" * 6
_PROBES = 2
# Frames that came in, to us or to others, as a packet socket marks them (packet(7)).
_CAME_IN = range(4)
_EVERY_KIND = 0x0003
_IPV4_SENDER, _ARP_SENDER = slice(26, 30), slice(28, 32)
_TABLE = Path("/proc/net/arp")
_COMPLETE, _PERMANENT = 0x2, 0x4


def who_else_has(host: str, interface: str, wait_s: float) -> str | None:
    """Return the hardware address of another machine with this address; None if there is none, or it is unknown."""
    # A second interface in the same network answers for the first.
    return who_has(host, interface, wait_s, _hardware_addresses(psutil.net_if_addrs()))


def who_has(host: str, interface: str, wait_s: float, but: Collection[bytes] = ()) -> str | None:
    """Return the hardware address that answers for `host` on this interface; None if none does, or it is unknown.

    but: hardware addresses with answers that do not count.
    """
    own = next(iter(_hardware_addresses([interface])), None)
    if own is None:
        return None
    try:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ARP))
    except PermissionError:
        return None
    address = socket.inet_aton(host)
    probe = _PACKET.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, own, bytes(4), bytes(6), address)
    with found:
        try:
            found.bind((interface, _ARP))
            for _ in range(_PROBES):
                found.send(_EVERYBODY + own + struct.pack("!H", _ARP) + probe)
                if (other := _hear(found, address, but, wait_s / _PROBES)) is not None:
                    return other.hex(":")
        except OSError:  # an interface without hardware addresses, or one that is gone
            return None
    return None


def remembered(host: str) -> tuple[str, bool] | None:
    """Return the hardware address that the system has for a host, and True if somebody has set it permanently."""
    with contextlib.suppress(OSError):
        for line in _TABLE.read_text().splitlines()[1:]:
            words = line.split()
            if len(words) >= 4 and words[0] == host and int(words[2], 16) & _COMPLETE:
                return words[3], bool(int(words[2], 16) & _PERMANENT)
    return None


def hear_namesake(interface: str, wait_s: float) -> str | None:
    """Return the IPv4 address of another machine with this interface's hardware address, if heard in this time."""
    own = next(iter(_hardware_addresses([interface])), None)
    if own is None:
        return None
    ours = {
        socket.inet_aton(each.address) for found in psutil.net_if_addrs().values() for each in found if _is_v4(each)
    }
    try:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_KIND))
    except PermissionError:
        return None
    give_up_at = time.monotonic() + wait_s
    with found, contextlib.suppress(OSError):  # the interface is gone, or nothing more was heard
        found.bind((interface, _EVERY_KIND))
        while (left_s := give_up_at - time.monotonic()) > 0:
            found.settimeout(left_s)
            packet, (_, kind, came, _, sender) = found.recvfrom(64)
            if came not in _CAME_IN or sender != own or kind not in (_IPV4, _ARP):
                continue
            host = packet[_IPV4_SENDER if kind == _IPV4 else _ARP_SENDER]
            if len(host) == 4 and any(host) and host not in ours:  # ours: a switch has sent our own frame back
                return socket.inet_ntoa(host)
    return None


def _is_v4(address: Any) -> bool:
    return bool(address.family == socket.AF_INET)


def _hear(found: socket.socket, address: bytes, ours: Collection[bytes], wait_s: float) -> bytes | None:
    give_up_at = time.monotonic() + wait_s
    while (left_s := give_up_at - time.monotonic()) > 0:
        found.settimeout(left_s)
        try:
            packet = found.recv(2_048)[_HEADER_BYTES:]
        except TimeoutError:
            return None
        if len(packet) < _PACKET.size:
            continue
        _, _, _, _, operation, sender, sender_host, _, _ = _PACKET.unpack_from(packet)
        if operation == _REPLY and sender_host == address and sender not in ours:
            return bytes(sender)
    return None


def _hardware_addresses(interfaces: Iterable[str]) -> set[bytes]:
    family = getattr(socket, "AF_PACKET", None)
    found, told = psutil.net_if_addrs(), set()
    for each in (each for name in interfaces for each in found.get(name, ()) if each.family == family):
        with contextlib.suppress(ValueError):
            told.add(bytes.fromhex(each.address.replace(":", "")))
    return {address for address in told if len(address) == 6 and any(address)}


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


DEFAULT_PORT = 7300
# mDNS finds a peer within 2 s, or not at all.
WAIT_S = 5.0
# A home's network of 254 hosts takes 5 s; few enough at a time that no router takes it for an attack.
AT_A_TIME, TRY_S = 50, 1.0
# A /22, the largest that homes and halls have; of a larger network only the part around this device.
MOST_HOSTS, _SMALLEST_PREFIX = 1022, 22
# Networks of homes, halls and labs (RFC 1918), and without a router (RFC 3927). Nobody should try others' addresses.
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16")))
# Another program may have the port; members that answer tell of the further ones.
MOST_FOUND = 8
_UNDER_WAY = frozenset((0, errno.EINPROGRESS))


def hosts_near(own: Sequence[Interface]) -> list[str]:
    """Return the other hosts of the private IPv4 networks that this device is on, at most MOST_HOSTS.

    An IPv6 link has 2^64 addresses, too many to try.
    """
    own = of_ipv4(own)
    mine = {interface.ip for interface in own}
    found: dict[str, None] = {}
    for interface in own:
        around = interface.network
        if around.prefixlen < _SMALLEST_PREFIX:
            around = IPv4Network((interface.ip, _SMALLEST_PREFIX), strict=False)
        if any(interface.ip in network for network in _PRIVATE):
            found |= {str(host): None for host in around.hosts() if host not in mine}
    return list(found)[:MOST_HOSTS]


class Scan:
    """The scan's thread.

    is_alone: returns True if nobody was found otherwise. found: called from another thread with the addresses that have
    the port open.
    """

    def __init__(
        self,
        own: Sequence[Interface],
        is_alone: Callable[[], bool],
        found: Callable[[list[Address]], None],
        port: int = DEFAULT_PORT,
        wait_s: float = WAIT_S,
    ) -> None:
        self._own, self._is_alone, self._found, self._port, self._wait_s = own, is_alone, found, port, wait_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="mdl-scan", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(2 * TRY_S)

    def _look(self) -> None:
        hosts = hosts_near(self._own)
        if not hosts or self._ended.wait(self._wait_s) or not self._is_alone():
            return
        logger.warning("nobody was found by multicast: looking at port %d of %d addresses", self._port, len(hosts))
        count = 0
        for start in range(0, len(hosts), AT_A_TIME):
            began = time.monotonic()
            there = self._try_some(hosts[start : start + AT_A_TIME])[: MOST_FOUND - count]
            count += len(there)
            if there:
                self._found(there)
            if count >= MOST_FOUND or self._ended.wait(max(0.0, began + TRY_S - time.monotonic())):
                return

    def _try_some(self, hosts: list[str]) -> list[Address]:
        """Return the addresses of those hosts that accept a connection within TRY_S."""
        there: list[Address] = []
        with selectors.DefaultSelector() as waiting:
            try:
                for host in hosts:
                    self._begin(host, waiting)
                until = time.monotonic() + TRY_S
                while waiting.get_map() and (left_s := until - time.monotonic()) > 0 and not self._ended.is_set():
                    for key, _ in waiting.select(left_s):
                        tried = key.fileobj
                        assert isinstance(tried, socket.socket)
                        waiting.unregister(tried)
                        if tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                            there.append(Address(key.data, self._port))
                        tried.close()
            finally:
                for key in list(waiting.get_map().values()):
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.close()
        return there

    def _begin(self, host: str, waiting: selectors.BaseSelector) -> None:
        try:
            tried = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError:  # no descriptor left: this host is not looked at
            return
        tried.setblocking(False)
        if tried.connect_ex((host, self._port)) in _UNDER_WAY:
            waiting.register(tried, selectors.EVENT_WRITE, host)
        else:
            tried.close()
