"""The known peers and their addresses: one PeerInfo per peer id, and the greetings that are still unanswered.

An introduced peer is not alive yet: only messages tell that. A peer's own word about itself (mDNS with its proof, or
its Hello) counts more than an introduction by others. A higher incarnation counts more than a lower one, unless it is
silent and the lower one still speaks: a data directory was copied, and the copy has left. Pure: `now` is an argument.
"""

from __future__ import annotations

import math
import re
import socket
from dataclasses import dataclass

from mdl.addresses import parse_host
from mdl.bounds import MAX_MEMBERS
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import PeerInfo

# The first greetings come quickly, for a peer that starts at the same time as its neighbour; later ones cost nothing.
FIRST_GREETING_S = 0.2
SLOWEST_GREETING_S = 5.0
# An address is greeted even after its answer: a member that restarts at the same address is found again.
KEEP_GREETING_S = 15.0
# The time for an address with a listener that may belong to another mesh, or be another program.
TRIED_S = 20.0
# A start of a peer that is silent for so long gives way to an earlier one that still speaks.
SILENT_S = 5.0
# Signs of life that the earlier one must have given since, each a second after the last. The messages of a dead process
# in the queues of a suspended node come in one burst, and must not bring it back (docs/protocol-hops.md).
SIGNS = 3
SIGN_PAUSE_S = 1.0
# Starts kept of each peer id besides the current one: those that spoke last.
OTHER_STARTS = 4
# A peer that is silent for so long may be gone, and gives way to others: six times the longest silence of a live peer.
LOST_S = 60.0
# A node that listens here listens on all of a machine's addresses; nobody can connect to this address itself.
_PORT = re.compile(r"[0-9]{1,5}")
EVERY_HOST = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Address:
    """An IP address and a port that a node listens at."""

    host: str
    port: int

    def endpoint(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Return True for an address of this machine alone. Raises ValueError for an invalid address."""
    return parse_host(host).is_loopback


def parse_address(text: str, key: str = "join") -> Address:
    """Parse HOST:PORT, [IPV6]:PORT or [fe80::1%eth0]:PORT, and resolve names.

    Raises ConfigError naming the key, the text and what would be valid.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon or not host or not _PORT.fullmatch(port_text) or not 1 <= int(port_text) <= 65535:
        raise ConfigError(f"{key} {text[:80]!r}: give HOST:PORT, for example 192.168.1.20:5750 (a port is 1 to 65535)")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port_text), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"{key} {text!r}: no address is known for {host!r}; give its IP address") from None
    where = found[0][4]
    link = f"%{where[3]}" if len(where) > 3 and where[3] else ""
    return Address(f"{where[0]}{link}", int(port_text))


def address_of(info: PeerInfo) -> Address:
    """Return the address that a peer says it listens at. Raises RemoteProtocolError unless it is an IP address.

    The link of that address at the peer does not matter here (`mdl.transport.discovery.scopes`).
    """
    try:
        host = parse_host(info.host)
    except ValueError:
        raise RemoteProtocolError(f"{info.peer_id} gives {info.host!r}, not an IP address") from None
    if "%" in info.host:
        raise RemoteProtocolError(f"{info.peer_id} gives {info.host!r}: a link of its own machine is nobody else's")
    if host.is_unspecified or host.is_multicast:
        raise RemoteProtocolError(f"{info.peer_id} gives {info.host!r}, where nobody can be reached")
    return Address(str(host), info.port)


@dataclass
class _Start:
    """A start of a peer that is not the current one. signs: of life, since the current one's last word."""

    info: PeerInfo
    signs: int = 0
    sign_at: float = -math.inf


class Directory:
    """The peers that were introduced, without this one; at most MAX_MEMBERS.

    A full directory forgets a peer that has not spoken lately: at once for a peer that introduces itself, after LOST_S
    for one that others mention.
    """

    def __init__(self, my_id: str) -> None:
        self._my_id = my_id
        self._peers: dict[str, PeerInfo] = {}
        self._heard_at: dict[str, float] = {}
        self._spoke_at: dict[str, float] = {}
        self._called_at: dict[str, float] = {}
        self._others: dict[str, dict[int, _Start]] = {}

    def learn(self, info: PeerInfo, first_hand: bool, now: float) -> bool:
        """Add a peer; return True if this is news: a new peer, a higher incarnation, or a changed description.

        A changed description counts only at first hand or signed.
        """
        known = self._peers.get(info.peer_id)
        if info.peer_id == self._my_id or known == info:
            return False
        if known is None:
            if len(self._peers) >= MAX_MEMBERS and not self._forget_one(first_hand, now):
                return False
        elif info.incarnation == known.incarnation:
            if not (first_hand or _has_left(known, info)):
                return False
        elif info.incarnation < known.incarnation or info.incarnation in self._others.get(info.peer_id, ()):
            self._set_aside(info, first_hand)
            return False
        else:
            self._set_aside(known, True)
        if known is None or known.incarnation != info.incarnation:
            self._heard_at[info.peer_id] = now
            self._spoke_at.pop(info.peer_id, None)
        self._peers[info.peer_id] = info
        return True

    def hear(self, sender: Contributor, now: float) -> bool:
        """Note a message; return False if it does not count: a later start of the peer is known.

        An earlier start that goes on speaking while the later one is silent becomes the current one again.
        """
        current = self._peers.get(sender.peer_id)
        if current is None:
            return True
        if sender.incarnation == current.incarnation:
            self._heard_at[sender.peer_id] = self._spoke_at[sender.peer_id] = now
            return True
        start = self._others.get(sender.peer_id, {}).get(sender.incarnation)
        if start is None:
            return sender.incarnation > current.incarnation
        self._take_sign(start, now)
        if start.signs < SIGNS or now - self._heard_at[sender.peer_id] < SILENT_S:
            return False
        self._set_aside(current, True)
        del self._others[sender.peer_id][sender.incarnation]
        self._peers[sender.peer_id] = start.info
        self._heard_at[sender.peer_id] = now
        return True

    def is_heard(self, peer_id: str, now: float) -> bool:
        """Return True if this start of a peer has spoken itself, lately."""
        return now - self._spoke_at.get(peer_id, -math.inf) < LOST_S

    def call(self, peer_id: str, now: float) -> None:
        """Note a Hello of a known peer at the door; it may be an old one that is replayed."""
        self._called_at[peer_id] = now

    def is_calling(self, peer_id: str, now: float) -> bool:
        """Return True if this peer seems to be there: it spoke lately, itself or at the door."""
        return self.is_heard(peer_id, now) or now - self._called_at.get(peer_id, -math.inf) < LOST_S

    def get(self, peer_id: str) -> PeerInfo | None:
        return self._peers.get(peer_id)

    def forget(self, peer_id: str) -> None:
        """Forget a peer that is out of the mesh."""
        for table in (self._peers, self._heard_at, self._spoke_at, self._called_at, self._others):
            table.pop(peer_id, None)

    def everyone(self) -> tuple[PeerInfo, ...]:
        return tuple(self._peers.values())

    def others_called(self, peer_id: str) -> tuple[PeerInfo, ...]:
        """Return other starts of this peer, ended or not."""
        return tuple(start.info for start in self._others.get(peer_id, {}).values())

    def _forget_one(self, at_once: bool, now: float) -> bool:
        """Make room; return False if every peer here speaks, or was introduced only now."""
        silent = [
            (self._spoke_at.get(peer_id, -math.inf), self._heard_at[peer_id], peer_id)
            for peer_id in self._peers
            if not self.is_heard(peer_id, now) and (at_once or now - self._heard_at[peer_id] >= LOST_S)
        ]
        if not silent:
            return False
        self.forget(min(silent)[2])
        return True

    def _set_aside(self, info: PeerInfo, first_hand: bool) -> None:
        """Remember a start that is not, or no longer, current; the one that has been quiet longest is forgotten."""
        others = self._others.setdefault(info.peer_id, {})
        start = others.get(info.incarnation)
        if start is not None:
            start.info = info if first_hand else start.info
            return
        if len(others) >= OTHER_STARTS:
            del others[min(others, key=lambda incarnation: (others[incarnation].sign_at, incarnation))]
        others[info.incarnation] = _Start(info)

    def _take_sign(self, start: _Start, now: float) -> None:
        if start.sign_at <= self._heard_at[start.info.peer_id]:
            start.signs, start.sign_at = 1, now
        elif now - start.sign_at >= SIGN_PAUSE_S:
            start.signs, start.sign_at = start.signs + 1, now


def _has_left(known: PeerInfo, info: PeerInfo) -> bool:
    """Return True if a peer has signed that it is not at its known address any more: this counts from any source.

    The peer's own introduction may have been signed before this one, and does not count then.
    """
    return info.proof is not None and known.host not in info.proof.hosts


@dataclass
class _Greeting:
    """The greeting of one address. ends_at: the time at which it is given up without an answer."""

    due_at: float
    pause_s: float
    ends_at: float = math.inf


class Greetings:
    """The schedule of Hellos to the addresses that the user gave (`--join`), and to those with a listener."""

    def __init__(self, addresses: list[Address], now: float) -> None:
        self._greetings = {address: _Greeting(now, FIRST_GREETING_S) for address in addresses}

    def try_some(self, addresses: list[Address], now: float) -> None:
        """Greet these addresses for TRIED_S: a program listens there, of this mesh or not."""
        for address in addresses:
            self._greetings.setdefault(address, _Greeting(now, FIRST_GREETING_S, now + TRIED_S))

    def over(self, now: float) -> list[Address]:
        """Return the addresses without an answer from this mesh: they are greeted no more."""
        over = [address for address, greeting in self._greetings.items() if greeting.ends_at <= now]
        for address in over:
            del self._greetings[address]
        return over

    def due(self, now: float) -> list[Address]:
        """Return the addresses to greet now; each call moves their next time on."""
        due = [address for address, greeting in self._greetings.items() if greeting.due_at <= now]
        for address in due:
            greeting = self._greetings[address]
            greeting.due_at = now + greeting.pause_s
            if greeting.pause_s < SLOWEST_GREETING_S:
                greeting.pause_s = min(2 * greeting.pause_s, SLOWEST_GREETING_S)
        return due

    def answered(self, address: Address, now: float) -> None:
        greeting = self._greetings.get(address)
        if greeting and greeting.pause_s != KEEP_GREETING_S:  # any member can say that it listens there, for ever
            greeting.due_at, greeting.pause_s = now + KEEP_GREETING_S, KEEP_GREETING_S
            greeting.ends_at = math.inf

    def begin_again(self, now: float) -> None:
        """Greet all addresses anew: this machine has moved, so nobody there knows its new address."""
        for greeting in self._greetings.values():
            greeting.due_at, greeting.pause_s = now, FIRST_GREETING_S

    def deadline(self) -> float | None:
        return min((greeting.due_at for greeting in self._greetings.values()), default=None)
