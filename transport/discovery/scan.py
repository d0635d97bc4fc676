"""Looking for members where multicast is blocked: greet the hosts of the own subnet that have the usual port open.

It runs once, if nobody was found for WAIT_S: AT_A_TIME hosts a second, at most MOST_HOSTS. It opens and closes a
connection, and sends nothing: a host that answers a greeting after that has shown by the mesh's keys that it is a
member. Peers listen at DEFAULT_PORT unless they are told otherwise or it is taken.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network

from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.interfaces import of_ipv4
from mdl.transport.discovery.scopes import Interface

logger = logging.getLogger(__name__)

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
