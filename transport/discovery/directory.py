"""The known peers and their addresses: one PeerInfo per peer id, and the greetings that are still unanswered.

An introduced peer is not alive yet: only messages tell that. A peer's own word about itself (mDNS with its proof, or
its Hello) counts more than an introduction by others. A higher incarnation counts more than a lower one, unless it is
silent and the lower one still speaks: a data directory was copied, and the copy has left.

`Scopes` knows the link of this machine that each link-local address of IPv6 is on (RFC 4007). fe80::1 can be on any
link, and each machine numbers its own links. So this machine adds the link when it dials, and no address that is told
to others names one.

Namesakes are other processes with this node's peer id: its data directory was copied to a second device. Each side
greets the other once, with a challenge. The other returns a mark that only the very same device can make, and each
start of it makes another one. A message alone proves no namesake: somebody may replay an old one of this device
from where it listened then. The machine decides which of the two goes on. The other members have dropped the earlier
start's messages since they heard of the later one (docs/protocol-hops.md, fault rule 4). So it says Hello to all of
them for a while, as a sign of life. An announcement of this node's own last start, which has ended, costs one
unanswered Hello. Pure, but for `socket_address`: `now` is an argument.
"""

from __future__ import annotations

import math
import re
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from typing import TypeAlias

from mdl.bounds import MAX_MEMBERS, parse_host
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.statements import MAX_HOSTS
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

    The link of that address at the peer does not matter here (`mdl.transport.discovery.directory`).
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


Interface: TypeAlias = IPv4Interface | IPv6Interface
# All addresses of all members.
_REMEMBERED = MAX_MEMBERS * MAX_HOSTS
_MAPPED = "::ffff:"


def bare(host: str) -> str:
    """Return the address as others may hear it: without a link."""
    return host.partition("%")[0]


def is_link_local(host: str) -> bool:
    """Return True if this IP address needs a link: fe80::/10."""
    address = parse_host(host)
    return address.version == 6 and address.is_link_local


def links_of(own: Iterable[Interface]) -> list[str]:
    """Return the names of the links that these addresses of ours are on, of IPv6 alone."""
    return [each.scope_id for each in own if isinstance(each, IPv6Interface) and each.scope_id]


def with_link(own: Interface) -> str:
    """Return an address of ours as this machine takes it."""
    return f"{own.ip}%{own.scope_id}" if isinstance(own, IPv6Interface) and own.scope_id else str(own.ip)


def unmapped(host: str) -> str:
    """Return an IPv4 address without the prefix that a socket for both kinds adds."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


def socket_address(family: int, host: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return the address for a socket of this family. Raises OSError for a link that is gone."""
    if family == socket.AF_INET:
        return host, port
    if ":" not in host:
        return f"{_MAPPED}{host}", port, 0, 0
    address, _, link = host.partition("%")
    return address, port, 0, int(link) if link.isdigit() else socket.if_nametoindex(link) if link else 0


class Scopes:
    """The links of link-local addresses. own: this machine's addresses.

    An address never heard of on a link is looked for on the first of this machine's links.
    """

    def __init__(self, own: Iterable[Interface] = ()) -> None:
        self._links: OrderedDict[str, str] = OrderedDict()
        self._first = ""
        self.move(own)

    def move(self, own: Iterable[Interface]) -> None:
        """Use these addresses as this machine's from now on."""
        self._first = next(iter(links_of(own)), "")

    def note(self, host: str) -> str:
        """Return the bare address, and remember its link if it names one."""
        address, _, link = host.partition("%")
        if link:
            self._links[address] = link
            self._links.move_to_end(address)
            if len(self._links) > _REMEMBERED:
                self._links.popitem(last=False)
        return address

    def follow(self, host: str, other: str) -> None:
        """Note that the peer at `other` tells of `host`: it is on the same link, unless it was heard of on another."""
        if host not in self._links and is_link_local(host) and other in self._links:
            self.note(f"{host}%{self._links[other]}")

    def dial(self, host: str) -> str:
        """Return the address as this machine dials it."""
        if "%" in host or not is_link_local(host):
            return host
        link = self._links.get(host, self._first)
        return f"{host}%{link}" if link else host


# Namesakes that are remembered; a copy that is started again and again counts each time.
MAX_NAMESAKES = 16
# An address that does not answer for this long has no peer.
GREETING_S = 10.0
# Signs of life come often until a later namesake that left has been silent for long enough, with some to spare for a
# slow exit. Then they come seldom, for peers that were suspended or cut off meanwhile.
SIGN_EVERY_S = SIGN_PAUSE_S + 0.2
OFTEN_S = 2 * SILENT_S + SIGNS * SIGN_EVERY_S
SELDOM_S = 15.0
LASTING_S = 300.0
# Makes a start's mark: challenge, incarnation of the start -> at most 16 bytes.
Mark: TypeAlias = Callable[[bytes, int], bytes]


class Namesakes:
    """See the module. me: this node. draw: returns a number that nobody can guess, at most 16 bytes."""

    def __init__(self, me: Contributor, draw: Callable[[], bytes], mark: Mark) -> None:
        self._me = me
        self._mark = mark
        self._draw = draw
        self._challenges: dict[Address, bytes] = {}
        self._addresses: dict[int, Address] = {}
        self._proven: deque[int] = deque(maxlen=MAX_NAMESAKES)
        self._greeted: dict[Address, float] = {}
        self._signs_since: float | None = None
        self._sign_at = 0.0

    def meet(self, info: PeerInfo, now: float) -> bool:
        """Note a peer with this node's id; return True if it is to be greeted: once per incarnation and address."""
        address = address_of(info)
        if info.incarnation == self._me.incarnation or self._addresses.get(info.incarnation) == address:
            return False
        if info.incarnation not in self._addresses and len(self._addresses) >= MAX_NAMESAKES:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[info.incarnation] = address
        self._begin_signs(info.incarnation, now)
        return self._greet(address, now)

    def hear(self, sender: Contributor, now: float) -> None:
        """Note a message in this node's name: its sender may be alive."""
        self._begin_signs(sender.incarnation, now)

    def prove(self, sender: Contributor, answer: bytes) -> bool:
        """Return True, once, if `answer` is this start's mark of a challenge that was sent."""
        right = {self._mark(challenge, sender.incarnation) for challenge in self._challenges.values()}
        if answer not in right or sender.incarnation in self._proven:
            return False
        self._proven.append(sender.incarnation)
        return True

    def answer(self, challenge: bytes) -> bytes:
        """Return this start's mark of a challenge that another one has sent."""
        return self._mark(challenge, self._me.incarnation)

    def challenge(self, address: Address) -> bytes:
        """Return the challenge of the greeting under way; empty if there is none."""
        return self._challenges.get(address, b"")

    def answers(self, address: Address, now: float) -> tuple[bool, bytes]:
        """Return True if a challenge from there is to be answered, and a challenge to send if none was sent lately."""
        if address in self._greeted:
            return True, b""
        return self._greet(address, now), self.challenge(address)

    def address(self, other: Contributor) -> str:
        """Return HOST:PORT, or "" if it is unknown."""
        address = self._addresses.get(other.incarnation)
        return address.endpoint().removeprefix("tcp://") if address else ""

    def unanswered(self, now: float) -> list[Address]:
        """Return the addresses at which a greeting is over, each once."""
        over = [address for address, greeted_at in self._greeted.items() if now - greeted_at >= GREETING_S]
        for address in over:
            del self._greeted[address], self._challenges[address]
        return over

    def greeted(self) -> list[Address]:
        """Return the addresses to which a greeting may still be on its way."""
        return list(self._greeted)

    def is_sign_due(self, now: float) -> bool:
        """Return True if this node is to send a sign of life to all peers now; each call moves the next time on."""
        if self._signs_since is None or now < self._sign_at:
            return False
        lasted_s = now - self._signs_since
        self._sign_at = now + (SIGN_EVERY_S if lasted_s < OFTEN_S else SELDOM_S)
        if lasted_s >= LASTING_S:
            self._signs_since = None
        return True

    def deadline(self) -> float | None:
        times = [greeted_at + GREETING_S for greeted_at in self._greeted.values()]
        if self._signs_since is not None:
            times.append(self._sign_at)
        return min(times, default=None)

    def _greet(self, address: Address, now: float) -> bool:
        if address not in self._greeted and len(self._greeted) >= MAX_NAMESAKES:
            return False
        self._greeted[address] = now
        self._challenges.setdefault(address, self._draw())
        return True

    def _begin_signs(self, incarnation: int, now: float) -> None:
        """Begin signs of life for a later start, present or recent. No peer drops our messages for an earlier one."""
        if incarnation > self._me.incarnation:
            if self._signs_since is None:
                self._sign_at = now
            self._signs_since = now
