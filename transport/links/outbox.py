"""The sending side of a node: for each peer a `control` DEALER for small messages, and a `bulk` one for values.

Nothing blocks: a full queue drops the message and counts it. A link is opened for the first message, as far as
`mdl.transport.wire.places` allows, and closed when it is of no use. A new address or incarnation of a peer replaces its
link. The first message on every link is a Hello, so that the peer can answer. Until it does, the same Hello waits at
its door: the peer may not know this node's key yet, and lets in only keys that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import zmq

from mdl.bounds import MAX_MEMBERS
from mdl.errors import LocalProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.messages import Hello, PeersKnown
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import Address, Directory, address_of
from mdl.transport.limits import LogLimit
from mdl.transport.links.flows import Flows
from mdl.transport.links.introducer import Introducer
from mdl.transport.links.sockets import Curve, LinkCounts, is_passing, open_dealer
from mdl.transport.wire.bulk import Outgoing
from mdl.transport.wire.codec import Body, RosterTold, encode
from mdl.transport.wire.places import Calls

# The time for a locked-out peer to receive the reason.
_LAST_WORDS_MS = 500
# Resend Hello at the door of a peer that has not admitted us within this time.
KNOCK_S = 10.0
# A round uses a few links of each device; in a mesh of at most this size all links are prepared for bulk values.
READY_LINKS = 16
# Devices that are told at a time why they are refused, and the time for each: its first Hello comes at once.
_MOST_TURNED_AWAY = 16
TURN_AWAY_S = 5.0
# A peer that datagrams do not reach any more is tried at its other addresses: a network card at either end may have
# died silently. A process that loads its model is silent for two seconds.
ELSEWHERE_S = 4.0
# The time for each address: a lost SYN is repeated after one second.
_TRY_S = 2.5


@dataclass
class _Link:
    """The sockets to one peer.

    info: the peer as it was known at the last message.
    own_host: this machine's address on the way to it, when the link was connected.
    """

    info: PeerInfo
    address: Address
    own_host: str
    control: zmq.Socket[bytes]
    curve: Curve | None
    bulk: dict[int, zmq.Socket[bytes]] = field(default_factory=dict)

    def close(self, linger_ms: int = 0) -> None:
        for dealer in (self.control, *self.bulk.values()):
            dealer.close(linger=linger_ms)

    def break_off(self) -> None:
        """Close the link: values are dropped, but the reason may still leave."""
        for dealer in self.bulk.values():
            dealer.close(linger=0)
        self.control.close(linger=_LAST_WORDS_MS)


@dataclass
class _Attempt:
    """An attempt at a silent peer's other address.

    left: addresses to try after this one. knock: the socket to its door there; None if none could be opened.
    """

    left: list[str]
    knock: zmq.Socket[bytes] | None
    since: float


class Outbox:
    """The sending half of a node's links. introducer: tells this node's real port. most: links at a time.

    now: the time, set before each use.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        introducer: Introducer,
        directory: Directory,
        counts: LinkCounts,
        lines: LogLimit,
        most: int = MAX_MEMBERS,
    ) -> None:
        self._context = context
        self._introducer = introducer
        self._sender = Contributor(introducer.me.peer_id, introducer.me.incarnation)
        self._directory = directory
        self._counts = counts
        self._lines = lines
        self.flows = Flows(introducer, directory, counts, lines)
        self.now = 0.0
        self._calls = Calls(most, lambda peer_id: directory.is_calling(peer_id, self.now))
        self._links: dict[str, _Link] = {}
        self._greeters: dict[Address, zmq.Socket[bytes]] = {}
        # peer id of a silent peer -> the attempt under way at another of its addresses.
        self._elsewhere: dict[str, _Attempt] = {}
        self._turned_away: dict[Address, tuple[zmq.Socket[bytes], float]] = {}
        # The socket, None if none could be opened, and the time it was opened.
        self._knocks: dict[str, tuple[zmq.Socket[bytes] | None, float]] = {}

    def send(self, outgoing: Outgoing) -> None:
        if self.flows.is_way_to(outgoing.receiver) and self._send_by_flow(outgoing):
            return
        link = self.link_to(outgoing.receiver)
        dealer = None if link is None else self._way(link, outgoing)
        if dealer is None:
            self._counts.dropped += 1
        else:
            self._put(dealer, outgoing.body, outgoing.payload)

    def _send_by_flow(self, outgoing: Outgoing) -> bool:
        """Return True if this message goes as datagrams, and only so."""
        header = self._encode(outgoing.body)
        return header is None or self.flows.put(outgoing, header, self.now)

    def _way(self, link: _Link, outgoing: Outgoing) -> zmq.Socket[bytes] | None:
        """Return the connection for this message; the first bulk one while that of its stream is not connected.

        In a small mesh the first bulk connection is opened as soon as the peer has spoken: on a long way the handshake
        takes seconds.
        """
        if outgoing.stream:
            dealer = self._bulk(link, outgoing.stream)
            if dealer is not None and dealer.poll(0, zmq.POLLOUT):
                return dealer
        if outgoing.stream is not None:
            return self._bulk(link, 0)
        if not link.bulk and len(self._links) <= READY_LINKS and self._directory.is_heard(outgoing.receiver, self.now):
            self._bulk(link, 0)
        return link.control

    def _bulk(self, link: _Link, stream: int) -> zmq.Socket[bytes] | None:
        if (known := link.bulk.get(stream)) is not None:
            return known
        dealer = self._open(link.curve, link.address, bulk=True, is_extra=stream > 0)
        if dealer is not None:
            link.bulk[stream] = dealer
            # It may be read before the control connection, and messages before the roster do not count.
            for body in () if stream else self._introducer.first_words(link.info.peer_id):
                self._put(dealer, body, None)
        return dealer

    def on_time(self) -> None:
        """Open links that messages wait for, close useless ones, and knock again at doors that gave no answer."""
        while (waiting := self._calls.next()) is not None:
            if self.link_to(waiting) is None and self._calls.next() == waiting:
                break
        for peer_id in self._calls.idle(self.now):
            self._close(peer_id)
        for peer_id, (_, since) in list(self._knocks.items()):
            is_heard = self._directory.is_heard(peer_id, self.now)
            if is_heard or self.now - since >= KNOCK_S:
                self._stop_knocking(peer_id)
                if not is_heard and (link := self._links.get(peer_id)):
                    self._knock(link.info)
        self._try_elsewhere()
        for address, (dealer, since) in list(self._turned_away.items()):
            if self.now - since >= TURN_AWAY_S:
                dealer.close(linger=0)
                del self._turned_away[address]
        for receiver, offer in self.flows.begin(self._links, self.now):
            self._put(self._links[receiver].control, offer, None)
        self.flows.let_out(self.now)

    def linked(self) -> list[str]:
        """Return the peers that there is a link to now."""
        return list(self._links)

    def forget(self, peer_id: str) -> None:
        """Break off with a peer that is out: nothing more is sent to it but its last messages."""
        self._calls.close(peer_id)
        self.flows.forget(peer_id)
        if link := self._links.pop(peer_id, None):
            link.break_off()
        self._stop_knocking(peer_id)

    def begin_again(self, me: Contributor) -> None:
        """Speak as another start of this process, on new links."""
        self._sender = me
        for address in list(self._greeters):
            self.stop_greeting(address)
        for peer_id in list(self._links):
            self._close(peer_id)

    def tell_known(self, receiver: str, infos: tuple[PeerInfo, ...]) -> None:
        link = self.link_to(receiver)
        if link is not None:
            itself = self._directory.get(receiver)
            anew = itself is not None and itself.role is Role.OBSERVER
            seen = tuple(self._introducer.seen_from(link.address.host, info, anew) for info in infos if info != itself)
            self.send(Outgoing(receiver, PeersKnown(seen[:MAX_MEMBERS])))

    def greet(self, address: Address, challenge: bytes = b"", answer: bytes = b"") -> None:
        """Say Hello at an address that has no known peer yet. challenge, answer: between namesakes."""
        greeter = self._greeters.get(address) or self._open(self._introducer.door, address, bulk=False)
        if greeter is not None:
            self._greeters[address] = greeter
            hello = msgspec.structs.replace(self._hello(address.host), challenge=challenge, answer=answer)
            self._put(greeter, hello, None)

    def turn_away(self, address: Address, told: Iterable[RosterTold]) -> None:
        """Tell a device, at its door, why it is not let in: once in TURN_AWAY_S."""
        if address in self._turned_away or len(self._turned_away) >= _MOST_TURNED_AWAY:
            return
        dealer = self._open(self._introducer.door, address, bulk=False)
        if dealer is not None:
            self._turned_away[address] = dealer, self.now
            for body in told:
                self._put(dealer, body, None)

    def stop_greeting(self, address: Address, linger_ms: int = 0) -> None:
        """Stop greeting this address, answered or not. linger_ms: how long a Hello that is still queued may take."""
        if greeter := self._greeters.pop(address, None):
            greeter.close(linger=linger_ms)

    def introduce(self, peer_id: str) -> None:
        """Say Hello once more to a known peer."""
        link = self.link_to(peer_id)
        if link is not None:
            self._put(link.control, self._hello(link.address.host), None)

    def link_to(self, peer_id: str) -> _Link | None:
        """Return the link to the peer's current address; a new address or incarnation replaces it.

        Returns None if the address is unknown, or if there are too many links or attempts now; a later call tries
        again.
        """
        info = self._directory.get(peer_id)
        if info is None:
            self._close(peer_id)
            return None
        link = self._links.get(peer_id)
        if link is not None and link.info is info:  # nothing is new: segments ask here every fraction of a millisecond
            self._calls.use(peer_id, self.now)
            return link
        address, curve = self._introducer.way_to(info)
        if link is not None and (link.address, link.info.incarnation) == (address, info.incarnation):
            link.info = info
            self._calls.use(peer_id, self.now)
            return link
        if link is not None:
            self._close(peer_id)
        closing = self._calls.open(peer_id, self.now)
        if closing is None:
            return None
        for other in closing:
            self._links.pop(other).close()
        control = self._open(curve, address, bulk=False)
        if control is None:
            self._calls.close(peer_id)
            return None
        own_host = self._introducer.own_host_towards(address.host)
        link = self._links[peer_id] = _Link(info, address, own_host, control, curve)
        self._put(control, self._hello(address.host, info.role is Role.OBSERVER), None)
        for body in self._introducer.first_words(peer_id):
            self._put(control, body, None)
        self._knock(info)
        return link

    def _knock(self, info: PeerInfo) -> None:
        """Introduce this node at the peer's door, unless that is under way."""
        if self._introducer.door is None or info.peer_id in self._knocks:
            return
        self._knocks[info.peer_id] = self._say_at_door(address_of(info)), self.now

    def _say_at_door(self, address: Address, anew: bool = False) -> zmq.Socket[bytes] | None:
        """Return a socket that introduces this node at a door while it is open; None if none can be opened."""
        knock = self._open(self._introducer.door, address, bulk=False)
        if knock is not None:
            self._put(knock, self._hello(address.host, anew), None)
        return knock

    def _try_elsewhere(self) -> None:
        """Introduce this node at the other addresses of silent peers: a peer that hears it answers from there."""
        silent = [peer_id for peer_id in self.flows.silent_for(ELSEWHERE_S, self.now) if peer_id in self._links]
        for peer_id in [peer_id for peer_id in self._elsewhere if peer_id not in silent]:
            self._end_attempt(peer_id)
        for peer_id in silent:
            info, attempt = self._links[peer_id].info, self._elsewhere.get(peer_id)
            if attempt is not None and self.now - attempt.since < _TRY_S:
                continue
            left = attempt.left if attempt else self._introducer.other_hosts(info, self._links[peer_id].address.host)
            self._end_attempt(peer_id)
            if left:
                knock = self._say_at_door(Address(left[0], info.port), anew=True)
                self._elsewhere[peer_id] = _Attempt(left[1:], knock, self.now)

    def _end_attempt(self, peer_id: str) -> None:
        attempt = self._elsewhere.pop(peer_id, None)
        if attempt is not None and attempt.knock is not None:
            attempt.knock.close(linger=0)

    def _stop_knocking(self, peer_id: str, linger_ms: int = 0) -> None:
        knock, _ = self._knocks.pop(peer_id, (None, 0.0))
        if knock is not None:
            knock.close(linger=linger_ms)

    def move(self, kept: frozenset[str]) -> None:
        """Connect again and say Hello to each peer that is reached from a changed address.

        Peers without a link at this moment get one too: they have our old address.
        """
        self.flows.move()
        for address in list(self._greeters):
            self.stop_greeting(address)
        for peer_id, link in list(self._links.items()):
            if link.own_host not in kept or link.own_host != self._introducer.own_host_towards(link.address.host):
                self._close(peer_id)
        for info in self._directory.everyone():
            self.link_to(info.peer_id)

    def close(self, linger_ms: int, greeted: Iterable[Address] = ()) -> None:
        """Close all links. linger_ms: how long queued messages may take to leave, at `greeted` too."""
        for address in greeted:
            self.stop_greeting(address, linger_ms)
        for link in self._links.values():
            link.close(linger_ms)
        for peer_id in list(self._knocks):
            self._stop_knocking(peer_id, linger_ms)
        for peer_id in list(self._elsewhere):
            self._end_attempt(peer_id)
        for dealer, _ in self._turned_away.values():
            dealer.close(linger=linger_ms)
        self._turned_away.clear()
        self._links.clear()
        self.flows.close()

    def _open(
        self, curve: Curve | None, address: Address, bulk: bool, is_extra: bool = False
    ) -> zmq.Socket[bytes] | None:
        """Open a socket; return None if the system has none: the message is dropped then, as by a network."""
        where = Address(self._introducer.scopes.dial(address.host), address.port)
        try:
            return open_dealer(self._context, curve, where, bulk, is_extra)
        except zmq.ZMQError as error:
            if not is_passing(error):
                raise
            self._lines.warning(self.now, "", "no link to %s: %s", address.host, error)
            return None

    def _close(self, peer_id: str) -> None:
        self._calls.close(peer_id)
        self._stop_knocking(peer_id)
        self.flows.forget(peer_id)
        if link := self._links.pop(peer_id, None):
            link.close()

    def _put(self, dealer: zmq.Socket[bytes], body: Body, payload: memoryview | None) -> None:
        header = self._encode(body)
        if header is None:
            return
        try:
            if payload is None:
                dealer.send(header, zmq.NOBLOCK)
            else:
                dealer.send(header, zmq.NOBLOCK | zmq.SNDMORE)
                dealer.send(payload, zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if not is_passing(error):
                raise
            self._counts.dropped += 1
            return
        self._counts.sent_bytes += len(header) + (0 if payload is None else len(payload))

    def _hello(self, host: str, anew: bool = False) -> Hello:
        return Hello(self._introducer.seen_from(host, self._introducer.me, anew))

    def _encode(self, body: Body) -> bytes | None:
        try:
            return encode(self._sender, body)
        except LocalProtocolError as error:  # one message too large is no reason to stop training
            self._lines.warning(self.now, "", "message dropped: %s", error)
            self._counts.dropped += 1
            return None
