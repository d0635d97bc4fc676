"""Who is known, and where: one PeerInfo per peer id, and the greetings that are still unanswered.

Introduced is not alive: only messages tell that. A peer's own word about itself (mDNS with its proof, or its Hello)
counts more than what others pass on; a higher incarnation counts more than a lower one, unless that one is silent and
the lower one still speaks (a data directory was copied, and the copy has left). Pure: `now` is an argument.
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
# Greeting an address goes on after its answer: a member started anew at the same address is found again.
KEEP_GREETING_S = 15.0
# An address where somebody listens that may be of another mesh, or another program.
TRIED_S = 20.0
# A start of a peer that said nothing for so long gives way to an earlier one that still speaks.
SILENT_S = 5.0
# Signs of life that the earlier one must have given since, each a second after the one before: what a process that died
# has left in the queues of a suspended node comes in one burst, and must not bring it back (fault rule 4).
SIGNS = 3
SIGN_PAUSE_S = 1.0
# Of each peer id: the current start, and as many others that spoke last.
OTHER_STARTS = 4
# Who has said nothing for so long may be gone, and gives way to others: six times the longest silence of a live peer.
LOST_S = 60.0
# To listen here is to listen on all of a machine's addresses; nobody can connect to it.
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
    """Return True for an address of this machine alone. Raises ValueError for what is no address."""
    return parse_host(host).is_loopback


def parse_address(text: str, key: str = "join") -> Address:
    """HOST:PORT, [IPV6]:PORT or [fe80::1%eth0]:PORT, names resolved.

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
    """Where a peer says that it listens. Raises RemoteProtocolError unless the host is an IP address.

    Which link it is on, at that peer, is nothing to us (`mdl.transport.discovery.scopes`).
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
    """The peers that were introduced, this one not among them; at most MAX_MEMBERS.

    If there are more, whoever has not spoken lately is forgotten: at once for a peer that introduces itself, after
    LOST_S for one that others mention.
    """

    def __init__(self, my_id: str) -> None:
        self._my_id = my_id
        self._peers: dict[str, PeerInfo] = {}
        self._heard_at: dict[str, float] = {}
        self._spoke_at: dict[str, float] = {}
        self._called_at: dict[str, float] = {}
        self._others: dict[str, dict[int, _Start]] = {}

    def learn(self, info: PeerInfo, first_hand: bool, now: float) -> bool:
        """True if this is news: a new peer, a higher incarnation, or a changed description, at first hand or signed."""
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
        """A message has come; False if it does not count: a later start of the same peer is known (fault rule 4).

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
        """Whether this start of a peer has spoken itself, lately."""
        return now - self._spoke_at.get(peer_id, -math.inf) < LOST_S

    def call(self, peer_id: str, now: float) -> None:
        """Somebody that is known has said at the door that it is this peer; it may be a repetition of long ago."""
        self._called_at[peer_id] = now

    def is_calling(self, peer_id: str, now: float) -> bool:
        """Whether this peer seems to be there: somebody spoke for it lately."""
        return self.is_heard(peer_id, now) or now - self._called_at.get(peer_id, -math.inf) < LOST_S

    def get(self, peer_id: str) -> PeerInfo | None:
        return self._peers.get(peer_id)

    def forget(self, peer_id: str) -> None:
        """It is in the mesh no more."""
        for table in (self._peers, self._heard_at, self._spoke_at, self._called_at, self._others):
            table.pop(peer_id, None)

    def everyone(self) -> tuple[PeerInfo, ...]:
        return tuple(self._peers.values())

    def others_called(self, peer_id: str) -> tuple[PeerInfo, ...]:
        """Other starts of this peer, that may or may not have ended."""
        return tuple(start.info for start in self._others.get(peer_id, {}).values())

    def _forget_one(self, at_once: bool, now: float) -> bool:
        """Make room; False if everybody here speaks, or was introduced only now."""
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
        """Remember a start that is not, or no longer, the current one; whoever has been quiet longest is forgotten."""
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
    """Whether a peer has signed where it is, and is no longer where it is known: whoever tells it, it is its word.

    Its own telling may have been signed before this one, and is not heeded then.
    """
    return info.proof is not None and known.host not in info.proof.hosts


@dataclass
class _Greeting:
    """ends_at: when it is given up without an answer."""

    due_at: float
    pause_s: float
    ends_at: float = math.inf


class Greetings:
    """When to say Hello to the addresses that the user gave (`--join`), and where somebody listens."""

    def __init__(self, addresses: list[Address], now: float) -> None:
        self._greetings = {address: _Greeting(now, FIRST_GREETING_S) for address in addresses}

    def try_some(self, addresses: list[Address], now: float) -> None:
        """Somebody listens there, of this mesh or not: greet it for TRIED_S."""
        for address in addresses:
            self._greetings.setdefault(address, _Greeting(now, FIRST_GREETING_S, now + TRIED_S))

    def over(self, now: float) -> list[Address]:
        """Where nobody of this mesh has answered: they are greeted no more."""
        over = [address for address, greeting in self._greetings.items() if greeting.ends_at <= now]
        for address in over:
            del self._greetings[address]
        return over

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
        greeting = self._greetings.get(address)
        if greeting and greeting.pause_s != KEEP_GREETING_S:  # any member can say that it listens there, for ever
            greeting.due_at, greeting.pause_s = now + KEEP_GREETING_S, KEEP_GREETING_S
            greeting.ends_at = math.inf

    def begin_again(self, now: float) -> None:
        """This machine has moved: the addresses are strange to it once more."""
        for greeting in self._greetings.values():
            greeting.due_at, greeting.pause_s = now, FIRST_GREETING_S

    def deadline(self) -> float | None:
        return min((greeting.due_at for greeting in self._greetings.values()), default=None)
