"""Which of a machine's network interfaces a mesh is looked for on.

Those that are up and carry an IPv4 address, the one with the default route first; the inner networks of containers and
virtual machines (and links to them) are left out unless they are asked for by name.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Interface

import psutil

from mdl.bounds import printable
from mdl.errors import ConfigError
from transport.discovery.directory import EVERY_HOST

_INNER = ("docker", "veth", "br-", "virbr", "podman", "cni", "lxc", "vmnet", "vboxnet")
# A documentation address (RFC 5737): asking for the way there tells the interface of the default route.
_ELSEWHERE = "198.51.100.1"
# Interfaces named in a message: more than people have, but not all of a machine with a hundred containers.
_TOLD = 8
LOOPBACK = IPv4Interface("127.0.0.1/8")


def usable_interfaces(asked: Sequence[str] | None = None) -> list[IPv4Interface]:
    """The own addresses, with their networks, that a mesh uses; empty if this machine is on no network.

    asked: interface names, for example ["eth0"]. Raises ConfigError for one that is not there or not up.
    """
    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    up = {
        name: [IPv4Interface(f"{a.address}/{a.netmask}") for a in found if a.family == socket.AF_INET and a.netmask]
        for name, found in addresses.items()
        if name in states and states[name].isup
    }
    usable = {name: found for name, found in up.items() if found}
    for name in asked or ():
        if name not in usable:
            raise ConfigError(f"interfaces: {name!r} is not up with an IPv4 address; there is {', '.join(usable)}")
    names = list(asked) if asked else [name for name in usable if is_outer(name, usable[name])]
    chosen = [interface for name in names for interface in usable[name]]
    preferred = _default_address()
    return sorted(chosen, key=lambda interface: str(interface.ip) != preferred)


def is_outer(name: str, interfaces: Iterable[IPv4Interface]) -> bool:
    """Not loopback and not a container's or a virtual machine's inner network."""
    return not name.startswith(_INNER) and not any(interface.ip.is_loopback for interface in interfaces)


def choose_host(offered: Sequence[str], own: Sequence[IPv4Interface]) -> str | None:
    """Of a peer's addresses the first in a network that is also ours, else the first that is not loopback."""
    hosts = [ipaddress.IPv4Address(text) for text in offered]
    shared = [host for host in hosts if any(host in interface.network for interface in own)]
    reachable = shared or [host for host in hosts if not host.is_loopback]
    return str(reachable[0]) if reachable else None


def networks_near(listen_host: str) -> list[IPv4Interface]:
    """The own networks of a node that listens there, to tell which of a peer's addresses is near."""
    return [LOOPBACK] if ipaddress.ip_address(listen_host).is_loopback else usable_interfaces()


def own_hosts(listen_host: str) -> tuple[str, ...]:
    """The addresses that a node which listens there can be reached at, the likeliest first."""
    if listen_host not in EVERY_HOST:
        return (listen_host,)
    try:
        found = [str(interface.ip) for interface in usable_interfaces()]
    except OSError:  # no descriptor left to ask with
        found = []
    return (*found, str(LOOPBACK.ip))


def name_of(host: str) -> str | None:
    """The interface that carries this address of ours; None if none does."""
    return next((name for name, found in psutil.net_if_addrs().items() if host in [a.address for a in found]), None)


def hosts_on(name: str) -> list[str]:
    """The IPv4 addresses of an interface, none if it is gone."""
    try:
        return [a.address for a in psutil.net_if_addrs().get(name, ()) if a.family == socket.AF_INET]
    except OSError:  # no descriptor left to ask with
        return []


def host_to_listen_on(asked: str) -> str:
    """The IP address that is meant: one of this machine, one that means all of them, or an interface by its name.

    asked: empty for all. Raises ConfigError for anything else, with what there is.
    """
    if not asked or asked in EVERY_HOST:
        return asked or "0.0.0.0"
    if found := hosts_on(asked):
        return found[0]
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(asked).is_loopback or name_of(asked):
            return asked
    there = [f"{name} ({', '.join(hosts)})" for name in sorted(psutil.net_if_addrs()) if (hosts := hosts_on(name))]
    what = f"mesh.listen: {printable(asked)!r} is no address or interface of this machine"
    raise ConfigError(f"{what}; there is {'; '.join(there[:_TOLD])}")


def _default_address() -> str | None:
    """This machine's address on its default route, if it has one; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((_ELSEWHERE, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None
