"""A watch on this machine's own addresses: a laptop changes its Wi-Fi, a lease runs out, a cable is pulled.

Connections from an address that is gone are dead, and the others look for this node at the old one. So the watch tells
the links and the announcements at once, and the user in one line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mdl.errors import ConfigError
from mdl.transport.discovery.arp import who_else_has
from mdl.transport.discovery.interfaces import name_of, of_ipv4, usable_interfaces
from mdl.transport.discovery.scopes import Interface

logger = logging.getLogger(__name__)

# A look takes a millisecond; a peer counts as lost after 2 s of silence, so that a new address is told before.
LOOK_EVERY_S = 1.0
# The interval and wait of ARP probes for a shared address, which lasts for days. A probe needs root, and few packets.
ASK_EVERY_S, _ANSWER_S = 30.0, 0.3
# The thread may be in the middle of a new announcement (RFC 6762 repeats packets) when it is to end.
_END_S = 2.0

Moved = Callable[[Sequence[Interface], frozenset[str]], None]


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
