"""Open invitations on the local network: mDNS service `_mdl-invite._tcp.local.`

An announcement is an address under a random name: it tells no word, no mesh and no device. Nothing of it is believed
either: a false announcement gets one guess at the words of each device that comes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import AddressValueError, IPv4Address, IPv4Interface

from zeroconf import (
    Error,
    EventLoopBlocked,
    IPVersion,
    NotRunningException,
    ServiceInfo,
    ServiceListener,
    Zeroconf,
)

from mdl.errors import MeshNotFoundError
from mdl.transport.discovery.directory import Address

SERVICE = "_mdl-invite._tcp.local."
_DETAILS_MS = 1_000
# The time after the first one to hear a second, which must be told from it.
_SETTLE_S = 1.0
# No network has more, and none of them would be tried.
_MOST = 8


def is_near(host: str, own: Sequence[IPv4Interface]) -> bool:
    """Return True if an IPv4 address lies in a network that this machine is on."""
    try:
        return any(IPv4Address(host) in each.network for each in own)
    except AddressValueError:
        return False


@contextmanager
def announced(port: int, own: Sequence[IPv4Interface]) -> Iterator[None]:
    """Announce an open invitation on these networks. Raises MeshNotFoundError if mDNS is not available."""
    hosts, name = [str(each.ip) for each in own], secrets.token_hex(8)
    service = ServiceInfo(
        SERVICE, f"{name}.{SERVICE}", port=port, properties={}, parsed_addresses=hosts, server=f"{name}.local."
    )
    with _opened(own) as zeroconf:
        zeroconf.register_service(service, cooperating_responders=True)  # a random name is nobody else's
        yield


def find_invitations(own: Sequence[IPv4Interface], wait_s: float) -> list[Address]:
    """Return the open invitations on these networks; wait so long for the first.

    Raises MeshNotFoundError as `announced`.
    """
    with _opened(own) as zeroconf:
        heard = _Heard(own)
        zeroconf.add_service_listener(SERVICE, heard)
        if heard.first.wait(wait_s):
            heard.more.wait(_SETTLE_S)
        return list(heard.addresses)


@contextmanager
def _opened(own: Sequence[IPv4Interface]) -> Iterator[Zeroconf]:
    problem = "this machine is on no network"
    try:
        zeroconf = Zeroconf(interfaces=[str(each.ip) for each in own], ip_version=IPVersion.V4Only) if own else None
    except (OSError, Error) as error:
        zeroconf, problem = None, str(error)
    if zeroconf is None:
        raise MeshNotFoundError(f"mDNS is not available ({problem}): give --at HOST:PORT of the inviting device")
    try:
        yield zeroconf
    finally:
        zeroconf.close()


class _Heard(ServiceListener):
    """The open invitations heard so far. addresses: in our own networks, in the order in which they came."""

    def __init__(self, own: Sequence[IPv4Interface]) -> None:
        self._own = own
        self.addresses: dict[Address, None] = {}
        self.first, self.more = threading.Event(), threading.Event()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        try:
            info = zc.get_service_info(type_, name, timeout=_DETAILS_MS)
        except (NotRunningException, EventLoopBlocked, Error):
            return  # closed meanwhile, or nonsense
        hosts = info.parsed_addresses(IPVersion.V4Only) if info else []
        near = next((host for host in hosts if is_near(host, self._own)), None)
        if info is None or not info.port or near is None or len(self.addresses) >= _MOST:
            return
        (self.more if self.addresses else self.first).set()
        self.addresses[Address(near, info.port)] = None

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Do nothing: it was there a moment ago, and trying it will tell."""
