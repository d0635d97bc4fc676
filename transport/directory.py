"""Who is known, and where: one PeerInfo per peer id, and the greetings that are still unanswered.

Introduced is not alive: only messages tell that. A peer's own word about itself (mDNS with its proof, or its Hello)
counts more than what others pass on; a higher incarnation counts more than a lower one. Pure: `now` is an argument.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from mdl.delta import Contributor
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.messages import MAX_MEMBERS, PeerInfo

# The first greetings come quickly, for a peer that starts at the same time as its neighbour; later ones cost nothing.
FIRST_GREETING_S = 0.2
SLOWEST_GREETING_S = 5.0
# Greeting an address goes on after its answer: a member started anew at the same address is found again.
KEEP_GREETING_S = 15.0
# To listen here is to listen on all of a machine's addresses; nobody can connect to it.
EVERY_HOST = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Address:
    """An IP address and a port that a node listens at."""

    host: str
    port: int

    def endpoint(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def parse_address(text: str) -> Address:
    """HOST:PORT or [IPV6]:PORT, names resolved. Raises ConfigError naming the text and what would be valid."""
    host, colon, port_text = text.rpartition(":")
    if not colon or not host or not port_text.isdecimal() or not 1 <= int(port_text) <= 65535:
        raise ConfigError(f"join {text!r}: give HOST:PORT, for example 192.168.1.20:5750")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port_text), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"join {text!r}: no address is known for {host!r}; give its IP address") from None
    return Address(str(found[0][4][0]), int(port_text))


def address_of(info: PeerInfo) -> Address:
    """Where a peer says that it listens. Raises RemoteProtocolError unless the host is an IP address."""
    try:
        host = ipaddress.ip_address(info.host)
    except ValueError:
        raise RemoteProtocolError(f"{info.peer_id} gives {info.host!r}, not an IP address") from None
    if host.is_unspecified or host.is_multicast:
        raise RemoteProtocolError(f"{info.peer_id} gives {info.host!r}, where nobody can be reached")
    return Address(str(host), info.port)


class Directory:
    """The peers that were introduced, this one not among them; at most MAX_MEMBERS."""

    def __init__(self, my_id: str) -> None:
        self._my_id = my_id
        self._peers: dict[str, PeerInfo] = {}

    def learn(self, info: PeerInfo, first_hand: bool) -> bool:
        """True if this is news: a new peer, a higher incarnation, or (first hand only) a changed description."""
        known = self._peers.get(info.peer_id)
        if info.peer_id == self._my_id or known == info:
            return False
        if known is None and len(self._peers) >= MAX_MEMBERS:
            return False
        if known is not None and (info.incarnation, first_hand) <= (known.incarnation, False):
            return False
        self._peers[info.peer_id] = info
        return True

    def get(self, peer_id: str) -> PeerInfo | None:
        return self._peers.get(peer_id)

    def is_outdated(self, sender: Contributor) -> bool:
        """A later start of the same peer is known (fault rule 4)."""
        known = self._peers.get(sender.peer_id)
        return known is not None and sender.incarnation < known.incarnation

    def everyone(self) -> tuple[PeerInfo, ...]:
        return tuple(self._peers.values())


@dataclass
class _Greeting:
    due_at: float
    pause_s: float


class Greetings:
    """When to say Hello to the addresses that the user gave (`--join`)."""

    def __init__(self, addresses: list[Address], now: float) -> None:
        self._greetings = {address: _Greeting(now, FIRST_GREETING_S) for address in addresses}

    def due(self, now: float) -> list[Address]:
        """The addresses to greet now; each call moves their next time on."""
        due = [address for address, greeting in self._greetings.items() if greeting.due_at <= now]
        for address in due:
            greeting = self._greetings[address]
            greeting.due_at = now + greeting.pause_s
            if greeting.pause_s < SLOWEST_GREETING_S:
                greeting.pause_s = min(2 * greeting.pause_s, SLOWEST_GREETING_S)
        return due

    def answered(self, address: Address, now: float) -> None:
        if greeting := self._greetings.get(address):
            greeting.due_at, greeting.pause_s = now + KEEP_GREETING_S, KEEP_GREETING_S

    def deadline(self) -> float | None:
        return min((greeting.due_at for greeting in self._greetings.values()), default=None)
