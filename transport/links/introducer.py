"""The introduction of this node to others, and the keys that lead to another node: with encryption, and without.

A device signs what it says of itself, with all the addresses that it listens at. Others pass on no other address than
these. Without encryption, on loopback alone, nothing is signed, and there is one socket instead of two.

The comparison of rosters before messages count: a peer that knows of a revocation tells it to every peer it meets.

Each new link begins with this node's roster, or with its digest if the roster is large. A peer that receives another
digest tells all it knows. News is passed on at once to everybody. A peer's messages count once all that it knows has
come, so that nobody follows an order of a member that the peer knows to be out. Digests are compared again every
second.

`Checks` bounds the signatures that this node verifies for others. A check takes 0.1 ms, on a small computer four times
as much, and one message may ask for a thousand. Each member has a budget a second, and so have all members together,
and all messages at the door. Known statements cost nothing. Excess statements are dropped; their senders repeat them. A
member that says something forged is not believed about others for a while.
Pure: `now` is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

import msgspec
from zmq.utils import z85

from mdl.bounds import MAX_MEMBERS
from mdl.errors import ForgedError, RemoteProtocolError
from mdl.protocol.statements import MAX_ENROLLED, MAX_KEPT, STATEMENTS_A_MESSAGE, AnyStatement, CodeChanged
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.discovery.directory import EVERY_HOST, Address, Interface, Scopes, address_of, is_loopback
from mdl.transport.discovery.interfaces import choose_host, near_hosts, networks_near, own_hosts
from mdl.transport.limits import TokenBucket
from mdl.transport.links.sockets import Curve, local_host_towards
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import Roster
from mdl.transport.wire.codec import Body, RosterTold

# A roster of up to so many statements is told at once: some 8 KB. Devices of a home never ask.
_AT_ONCE = 32
# The interval between comparisons of digests, and the number of peers in each, in turn.
COMPARE_S = 1.0
_COMPARED = 8
# News may have been lost with a link, and is told again, ever more seldom: two rosters stay different for as long as
# one of them refuses a statement of the other.
_FIRST_S, _AGAIN_S = 2.0, 30.0
# Answers to one peer at once, and per second: a peer that names ever new digests gets the whole roster no more often.
_ANSWERS, _ANSWERS_A_S = 4, 0.2
_REMEMBERED = 1024
# At once: all that a member of the largest mesh tells a new device. Then two or three joining devices at a time.
_OF_ONE, _OF_ONE_A_S = MAX_MEMBERS + 64, 20.0
_OF_ALL, _OF_ALL_A_S = 4 * MAX_MEMBERS, 400.0
# At the door: as many as devices that start together; then one of each a second.
_AT_DOOR, _AT_DOOR_A_S = 512, 50.0
_DEAF_S = 60.0
_SOURCES_REMEMBERED = MAX_MEMBERS


class RosterTalk:
    """Talks with each peer about the roster.

    roster: this node's; statements from peers go into it. checks: bounds how many are checked.
    """

    def __init__(self, roster: Roster, now: float, checks: Checks | None = None) -> None:
        self._roster = roster
        self._checks = checks or Checks()
        self._settled: set[str] = set()
        self._heard: dict[str, bytes] = {}  # the latest peer comes last
        self._told: dict[str, tuple[float, float, bytes, bytes, TokenBucket]] = {}
        self._compare_at = now + COMPARE_S
        self._turn = 0

    def open(self, peer_id: str) -> list[RosterTold]:
        """Return the first messages on a new link."""
        if len(self._roster.statements()) <= _AT_ONCE:
            return self._everything()
        return [RosterTold(self._roster.digest)]

    def hear(self, peer_id: str, told: RosterTold, now: float) -> tuple[list[AnyStatement], list[RosterTold]]:
        """Return the news for everybody else, and the answer to this peer. Statements that cannot stand are dropped."""
        before = self._roster.digest
        new = self._take_in(peer_id, told.statements, now)
        self._heard.pop(peer_id, None)
        self._heard[peer_id] = told.digest
        if len(self._heard) > MAX_ENROLLED:  # each member, and room for observers
            self.forget(next(iter(self._heard)))
        if told.is_all or told.digest == self._roster.digest:
            self._settled.add(peer_id)
        if told.digest == self._roster.digest != before:
            return new, [RosterTold(told.digest)]  # it cannot know that nothing is left to tell
        return new, self._answer(peer_id, told.digest, now)

    def tell(self, statements: Sequence[AnyStatement]) -> list[RosterTold]:
        """Return news as messages for everybody."""
        return [RosterTold(self._roster.digest, page) for page in _pages(statements)]

    def is_settled(self, peer_id: str) -> bool:
        """Return True if all that this peer knows has come."""
        return peer_id in self._settled

    def agreeing(self) -> set[str]:
        """Return the peers that knew just what this node knows when they told last."""
        return {peer_id for peer_id, digest in self._heard.items() if digest == self._roster.digest}

    def forget(self, peer_id: str) -> None:
        """Forget a peer that begins anew."""
        self._settled.discard(peer_id)
        self._heard.pop(peer_id, None)

    def due(self, peer_ids: Iterable[str], now: float) -> list[tuple[str, RosterTold]]:
        """Return the peers to send the digest to now, each with the message."""
        if now < self._compare_at:
            return []
        self._compare_at = now + COMPARE_S
        everyone = sorted(peer_ids)
        if not everyone:
            return []
        start = self._turn % len(everyone)
        self._turn += _COMPARED
        chosen = (everyone[start:] + everyone[:start])[:_COMPARED]
        return [(peer_id, RosterTold(self._roster.digest)) for peer_id in chosen]

    def deadline(self) -> float:
        return self._compare_at

    def _take_in(self, peer_id: str, statements: Iterable[AnyStatement], now: float) -> list[AnyStatement]:
        """Add statements, up to the first that is forged or beyond the bound on checks; return those that are new."""
        new = []
        for statement in statements:
            if self._roster.knows(statement):
                continue
            if not self._checks.may(peer_id, now):
                break
            try:
                if self._roster.add(statement):
                    new.append(statement)
            except ForgedError:
                self._checks.note_forged(peer_id, now)
                break
            except RemoteProtocolError:
                continue  # admitted by another code, or stated by an owner that is out
        return new

    def _answer(self, peer_id: str, digest: bytes, now: float) -> list[RosterTold]:
        if digest == self._roster.digest:
            return []
        at, wait_s, *told, budget = self._told.get(peer_id, (-inf, 0.0, b"", b"", TokenBucket(_ANSWERS, _ANSWERS_A_S)))
        is_same = told == [digest, self._roster.digest]
        if (is_same and now - at < wait_s) or not budget.take(now):
            return []
        self._told.pop(peer_id, None)
        wait_s = min(2 * wait_s, _AGAIN_S) if is_same else _FIRST_S
        self._told[peer_id] = now, wait_s, digest, self._roster.digest, budget
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        return self._everything()

    def _everything(self) -> list[RosterTold]:
        digest = self._roster.digest
        pages = _pages(self._roster.statements()) or [()]
        return [RosterTold(digest, page, page is pages[-1]) for page in pages]


def _pages(statements: Sequence[AnyStatement]) -> list[tuple[AnyStatement, ...]]:
    """Part statements into pages, as many in each as one message has room for."""
    pages: list[tuple[AnyStatement, ...]] = []
    page: list[AnyStatement] = []
    keys = 0
    for statement in statements:
        kept = len(statement.kept) if isinstance(statement, CodeChanged) else 0
        if len(page) == STATEMENTS_A_MESSAGE or (page and keys + kept > MAX_KEPT):
            pages.append(tuple(page))
            page, keys = [], 0
        page.append(statement)
        keys += kept
    return [*pages, tuple(page)] if page else pages


class Checks:
    """See the module. source: the peer id that the connection has shown; "" at the door."""

    def __init__(self) -> None:
        self._door, self._all = TokenBucket(_AT_DOOR, _AT_DOOR_A_S), TokenBucket(_OF_ALL, _OF_ALL_A_S)
        self._of: dict[str, TokenBucket] = {}
        self._deaf_until: dict[str, float] = {}

    def may(self, source: str, now: float) -> bool:
        """Return True if one more statement from this source may be checked."""
        if not source:
            return self._door.take(now)
        if now < self._deaf_until.get(source, -inf):
            return False
        budget = self._of.get(source) or self._of.setdefault(source, TokenBucket(_OF_ONE, _OF_ONE_A_S))
        if len(self._of) > _SOURCES_REMEMBERED:
            del self._of[next(iter(self._of))]
        return budget.take(now) and self._all.take(now)

    def note_forged(self, source: str, now: float) -> None:
        """Note that this source has sent a wrong signature."""
        if source:
            self._deaf_until.pop(source, None)
            self._deaf_until[source] = now + _DEAF_S
        if len(self._deaf_until) > _SOURCES_REMEMBERED:
            del self._deaf_until[next(iter(self._deaf_until))]


class Introducer:
    """Introduces this node, and finds the ways to others.

    me: this node, with the port of its door and the host that it listens on, with a link if it needs one.
    link_port: the port that takes members' messages. membership: None without encryption.
    clock: milliseconds since 1970.
    """

    def __init__(
        self,
        me: PeerInfo,
        link_port: int,
        membership: Membership | None,
        talk: RosterTalk | None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.me = me
        self._link_port = link_port
        self._membership = membership
        self._talk = talk
        self.scopes = Scopes()
        self._clock = clock
        self._last_ms = 0
        # The latest: of two signed introductions the later one counts, so none is said again after another.
        self._signed: PeerInfo | None = None
        self._hosts: tuple[str, ...] = ()
        self._own: Sequence[Interface] = ()
        self.move(me.host)

    @property
    def door(self) -> Curve | None:
        """The keys of any member's door."""
        return None if self._membership is None else Curve.of_door(self._membership.keys)

    def move(self, host: str) -> None:
        """Note that this node listens on `host` from now on, and look up the machine's addresses again."""
        self.me = msgspec.structs.replace(self.me, host=self.scopes.note(host))
        self._hosts, self._own = own_hosts(host), networks_near(host)
        self.scopes.move(self._own)
        self._signed = None

    def start_anew(self, incarnation: int) -> None:
        """Note that this node is another start of its process from now on."""
        self.me = msgspec.structs.replace(self.me, incarnation=incarnation)
        self._signed = None

    def sign_anew(self) -> None:
        """Sign again with the mesh's new join code, which says anew that this device is admitted."""
        self._signed = None

    def first_words(self, peer_id: str) -> list[Body]:
        return [] if self._talk is None else [*self._talk.open(peer_id)]

    def seen_from(self, host: str, info: PeerInfo, anew: bool = False) -> PeerInfo:
        """Return a peer as it is introduced to a node at `host`; this node appears with its address on the way there.

        anew: signed now, so that the other node can compare the clocks.

        Without encryption a neighbour on this machine, known by its loopback address, gets this machine's address too.
        """
        is_me = info.peer_id == self.me.peer_id and info.incarnation == self.me.incarnation
        if self._membership is None:
            everywhere = is_me and info.host in EVERY_HOST
            if everywhere or (is_loopback(info.host) and not is_loopback(host)):
                return msgspec.structs.replace(info, host=self.own_host_towards(host))
            return info
        if not is_me:
            return info
        own = self.me.host if self.me.host not in EVERY_HOST else self.own_host_towards(host)
        if anew or self._signed is None or self._signed.host != own:
            hosts = (own, *(other for other in self._hosts if other != own))
            told = msgspec.structs.replace(self.me, host=own)
            self._signed = self._membership.introduce(told, self._link_port, hosts, self._next_ms())
        return self._signed

    def own_host_towards(self, host: str) -> str:
        """Return this machine's own address on the way to `host`."""
        return local_host_towards(self.scopes.dial(host))

    def nearest(self, info: PeerInfo, by: PeerInfo | None = None, is_on_link: bool = False) -> PeerInfo:
        """Return a peer with the nearest of its addresses.

        by: the peer that told of it. is_on_link: the peer told so itself, on a link of this machine.
        """
        if info.proof is None:
            return info
        host = choose_host(info.proof.hosts, self._own, is_on_link) or info.host
        if by is not None:
            self.scopes.follow(host, by.host)
        return msgspec.structs.replace(info, host=host)

    def other_hosts(self, info: PeerInfo, host: str) -> list[str]:
        """Return the other addresses that a peer listens at, in networks of this machine's own."""
        return [] if info.proof is None else near_hosts([each for each in info.proof.hosts if each != host], self._own)

    def announced(self, hosts: Sequence[str]) -> PeerInfo:
        """Return this node as it is announced at these addresses."""
        if self._membership is None or not hosts:
            return self.me
        told = msgspec.structs.replace(self.me, host=hosts[0])
        self._signed = None
        return self._membership.introduce(told, self._link_port, hosts, self._next_ms())

    def _next_ms(self) -> int:
        """Return the time, but always later than the last signature, even if the clock was set back."""
        self._last_ms = max(self._clock(), self._last_ms + 1)
        return self._last_ms

    def way_to(self, info: PeerInfo) -> tuple[Address, Curve | None]:
        """Return the address and keys for messages to a peer. Raises RemoteProtocolError if it has not told them."""
        if self._membership is None:
            return address_of(info), None
        if info.proof is None:
            raise RemoteProtocolError(f"{info.peer_id} has not told where it takes words")
        device = self._membership.device
        curve = Curve(z85.encode(info.proof.enrolled.link_key), device.curve_public, device.curve_secret)
        return Address(address_of(info).host, info.proof.link_port), curve
