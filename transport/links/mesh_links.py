"""The links of one node: it receives on one ROUTER and sends through its outbox; nothing ever blocks.

Whoever learns of a peer greets it; whoever is greeted answers with all the peers it knows. That is enough: of two peers
that greet a third, the later one hears of the earlier. Who is called like this node is greeted too, once, so that both
know (`transport/links/namesakes.py`). A machine sees only `Received` for whole messages, `PeerFound`, `NameTaken` and
`TransferProgressed`. Not thread-safe: one thread owns a node's links. Knows no roles.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from secrets import token_bytes
from types import TracebackType

import msgspec
import zmq

from mdl.errors import ConfigError, RemoteProtocolError
from mdl.protocol.bulk import Bulk
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event, NameTaken, PeerFound
from mdl.protocol.messages import Hello, PeersKnown, Said
from mdl.protocol.vocabulary import PeerInfo
from transport.discovery.directory import (
    EVERY_HOST,
    Address,
    Directory,
    Greetings,
    address_of,
    is_loopback,
    parse_address,
)
from transport.discovery.interfaces import hosts_on, name_of
from transport.links.descriptors import Share, raise_limit, share_out
from transport.links.halfopen import TOO_MANY, Doorkeeper
from transport.links.namesakes import MAX_NAMESAKES, Namesakes
from transport.links.outbox import Outbox
from transport.links.sockets import (
    TURN,
    TURN_BYTES,
    LinkCounts,
    check_security,
    new_context,
    open_gate,
    open_router,
    serve_gate,
    take_frames,
)
from transport.links.transfers import Transfers, check_frames
from transport.loglimit import LogLimit
from transport.trust.keys import MeshKeys
from transport.wire.bulk import Outgoing, Step
from transport.wire.codec import Body, Envelope, decode

logger = logging.getLogger(__name__)


class Links:
    """Everything that connects one node with its mesh.

    me: who this node is; `me.port` 0 takes a free port. listen_host: an IP address of this machine, or 0.0.0.0.
    keys: None only with `insecure=True`, which is for loopback only. max_values: the model's size, the largest vector
    that is ever accepted. join: HOST:PORT of members to greet.
    share: how many links and connections there may be; by default what this process's limit of files allows.
    Raises ConfigError for a port that is taken, a bad address, or insecure links beyond loopback.
    """

    def __init__(
        self,
        me: PeerInfo,
        keys: MeshKeys | None,
        *,
        max_values: int,
        now: float,
        listen_host: str = "0.0.0.0",
        join: Iterable[str] = (),
        insecure: bool = False,
        share: Share | None = None,
    ) -> None:
        addresses = [parse_address(text) for text in join]
        check_security(keys, insecure, [listen_host, *(address.host for address in addresses)])
        self.keys = keys
        self.counts = LinkCounts()
        share = share or share_out(raise_limit())
        # A control and a bulk socket for each link, and the few that greet, listen and watch.
        self.context = new_context(2 * share.peers + 2 * MAX_NAMESAKES + len(addresses) + 16)
        self.gate = open_gate(self.context) if keys is not None else None
        try:
            self.router = open_router(self.context, keys, Address(listen_host, me.port))
        except ConfigError:
            self.context.destroy(linger=0)
            raise
        self._door = Doorkeeper(self.context, self.router, share.half_open)
        port = int(self.router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.me = msgspec.structs.replace(me, host=listen_host, port=port)
        self._interface = None if listen_host in EVERY_HOST else name_of(listen_host)
        self.directory = Directory(me.peer_id)
        self.greetings = Greetings(addresses, now)
        self._namesakes = Namesakes(Contributor(me.peer_id, me.incarnation), partial(token_bytes, 16))
        self._now = now
        self._lines = LogLimit(logger)
        self._outbox = Outbox(self.context, keys, self.me, self.directory, self.counts, self._lines, share.peers)
        self._transfers = Transfers(4 * max_values, self._lines)

    def __enter__(self) -> Links:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send(self, receiver: str, message: Said, values: Bulk | None, now: float) -> None:
        """Best effort, never blocks. values: with a carrier or a segment only, and never changed again by anyone."""
        self._now = self._outbox.now = now
        self._carry_out(self._transfers.send(receiver, message, values, now))

    def learn(self, info: PeerInfo, first_hand: bool = True) -> list[Event]:
        """A peer was introduced: greet it if that is news. Raises RemoteProtocolError for an address that is none."""
        address = address_of(info)
        if self.keys is None and not is_loopback(address.host):
            raise RemoteProtocolError(f"{info.peer_id} is at {info.host}: insecure links are for loopback only")
        if info.peer_id == self.me.peer_id:
            if self._namesakes.meet(info, self._now):
                self._outbox.greet(address, self._namesakes.challenge(address))
            return []
        known = self.directory.get(info.peer_id)
        return self._link_anew(known, info) if self.directory.learn(info, first_hand, self._now) else []

    def move(self, kept: frozenset[str]) -> list[Event]:
        """This machine's addresses have changed: greet everybody again whose connection left from one that is gone.

        kept: the addresses it had all along. Who listens at one address only listens at the interface's new one.
        """
        host = self.me.host
        if self._interface and host not in kept and (found := hosts_on(self._interface)) and host not in found:
            self._listen_at(found[0])
        self._outbox.move(self.me, kept)
        self.greetings.begin_again(self._now)
        return []

    def receive(self, now: float, budget: int = TURN) -> list[Event]:
        """Handle at most `budget` messages that have come, or `TURN_BYTES` of them, and whatever is due by now."""
        self._now = self._outbox.now = now
        events: list[Event] = []
        enough = self.counts.received_bytes + TURN_BYTES
        for _ in range(budget):
            frames = take_frames(self.router, self.counts) if self.counts.received_bytes < enough else None
            if frames is None:
                break
            self._door.hear(frames[-1])
            try:
                events += self._handle(frames[1:] or [zmq.Frame(b"")], now)
            except RemoteProtocolError as error:
                self.counts.refused += 1
                self._lines.warning(now, frames[0].bytes, "message refused: %s", error)
        if ended := self._door.look(now):
            self._lines.warning(now, "", TOO_MANY, ended)
        if self.gate is not None and self.keys is not None:
            serve_gate(self.gate, self.keys, self._lines, now)
        return events + self._on_time(now)

    def deadline(self) -> float | None:
        """When `receive` wants to be called even if nothing comes."""
        parts = (self._transfers, self.greetings, self._namesakes)
        times = [part.deadline() for part in parts]
        return min((time for time in times if time is not None), default=None)

    def is_sending(self) -> bool:
        """Bulk transfers that this node offered have not all arrived."""
        return len(self._transfers) > 0

    def pollable(self) -> list[zmq.Socket[bytes]]:
        """What a poll loop waits on before calling `receive`."""
        doors = [self.router, self._door.pollable]
        return doors if self.gate is None else [*doors, self.gate]

    def close(self, linger_ms: int = 0) -> None:
        """Close everything. linger_ms: how long what is still queued may take to get out."""
        for address in self._namesakes.greeted():
            self._outbox.stop_greeting(address, linger_ms)
        self._outbox.close(linger_ms)
        self._transfers.close()
        self.context.destroy(linger=0)

    def _listen_at(self, host: str) -> None:
        try:
            self.router.bind(Address(host, self.me.port).endpoint())
        except zmq.ZMQError as error:
            logger.warning("cannot listen at %s port %d: %s", host, self.me.port, error)
            return
        with contextlib.suppress(zmq.ZMQError):  # it went with its address
            self.router.unbind(Address(self.me.host, self.me.port).endpoint())
        logger.warning("listening at %s now, no more at %s", host, self.me.host)
        self.me = msgspec.structs.replace(self.me, host=host)

    def _handle(self, frames: list[zmq.Frame], now: float) -> list[Event]:
        """Frames after the ROUTER's identity: a header, and with a chunk or a segment its bytes."""
        envelope = decode(frames[0].buffer)
        check_frames(envelope, frames)
        sender = envelope.sender
        if sender.peer_id == self.me.peer_id:
            return self._on_namesake(sender, envelope.body, now)
        known = self.directory.get(sender.peer_id)
        if not self.directory.hear(sender, now):
            if isinstance(envelope.body, Hello) and _introduces_itself(sender, envelope.body):
                self.learn(envelope.body.me)  # where it is, should it turn out to be the one that lives
            return []
        current = self.directory.get(sender.peer_id)
        events = self._link_anew(known, current) if current is not None and current is not known else []
        return events + self._on_accepted(envelope, frames, now)

    def _on_namesake(self, sender: Contributor, body: Body, now: float) -> list[Event]:
        """Somebody who calls itself like this node: ourselves by way of the join list, a copy of us, or a forger.

        It is a copy if it listens where it says it does: it says back what was sent there.
        """
        if sender.incarnation == self.me.incarnation:
            return []
        self._namesakes.hear(sender, now)
        if not isinstance(body, Hello) or not _introduces_itself(sender, body):
            return []
        address = address_of(body.me)
        self.learn(body.me)
        if body.challenge:
            is_wanted, challenge = self._namesakes.answers(address, now)
            if is_wanted:
                self._outbox.greet(address, challenge, body.challenge)
        if not self._namesakes.prove(sender, body.answer):
            return []
        return [NameTaken(sender, self._namesakes.address(sender))]

    def _link_anew(self, known: PeerInfo | None, info: PeerInfo) -> list[Event]:
        """A peer is there, or another start of it, or it has moved."""
        if known is not None and known.incarnation != info.incarnation:
            self._transfers.forget(info.peer_id)
        self._outbox.link_to(info.peer_id)
        return [PeerFound(info)]

    def _on_accepted(self, envelope: Envelope, frames: list[zmq.Frame], now: float) -> list[Event]:
        sender = envelope.sender
        if isinstance(envelope.body, Hello):
            return self._on_hello(sender, envelope.body, now)
        if isinstance(envelope.body, PeersKnown):
            return self._on_peers(sender, envelope.body, now)
        return self._carry_out(self._transfers.take(envelope, frames, now))

    def _on_hello(self, sender: Contributor, hello: Hello, now: float) -> list[Event]:
        if not _introduces_itself(sender, hello):
            raise RemoteProtocolError(f"{sender.peer_id} introduces itself as {hello.me.peer_id}")
        events = self.learn(hello.me)
        self.directory.hear(sender, now)  # now that it is known
        namesakes = self.directory.others_called(sender.peer_id)
        self._outbox.tell_known(sender.peer_id, (self.me, *namesakes, *self.directory.everyone()))
        return events

    def _on_peers(self, sender: Contributor, known: PeersKnown, now: float) -> list[Event]:
        events: list[Event] = []
        for info in known.peers:
            of_itself = info.peer_id == sender.peer_id
            if of_itself:
                self.greetings.answered(address_of(info), now)
            events += self.learn(info, first_hand=of_itself)
        self.directory.hear(sender, now)
        return events

    def _on_time(self, now: float) -> list[Event]:
        self._lines.on_time(now)
        for address in self.greetings.due(now):
            self._outbox.greet(address)
        for address in self._namesakes.unanswered(now):
            self._outbox.stop_greeting(address)
        if self._namesakes.is_sign_due(now):
            for info in self.directory.everyone():
                self._outbox.introduce(info.peer_id)
        self._outbox.on_time()
        return self._carry_out(self._transfers.on_time(now))

    def _carry_out(self, steps: list[Step]) -> list[Event]:
        events: list[Event] = []
        for step in steps:
            if isinstance(step, Outgoing):
                self._outbox.send(step)
            else:
                events.append(step)
        return events


def _introduces_itself(sender: Contributor, hello: Hello) -> bool:
    return (hello.me.peer_id, hello.me.incarnation) == (sender.peer_id, sender.incarnation)
