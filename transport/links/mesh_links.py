"""The links of one node: it receives on two ROUTERs and sends through its outbox; nothing ever blocks.

At the door, with keys from the join code, a peer may introduce itself and nothing else. The other ROUTER takes
messages. Each device shows its own key there, and a message counts as the word of that key's owner. Messages count once
the peer has told all that it knows of the members (`mdl.transport.links.introducer`). A node greets each peer that it
learns of, and answers a greeting with all the peers it knows. That is enough: of two peers that greet a third, the
later one hears of the earlier. A peer with this node's own name is greeted too, once, so that both know
(`transport/discovery/directory.py`). A machine sees only `Received` for whole messages, `PeerFound`, `NameTaken`,
`PeerRevoked` and `TransferProgressed`. Not thread-safe: one thread owns a node's links. Knows no roles.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from functools import partial
from secrets import token_bytes
from types import TracebackType

import msgspec
import zmq

from mdl.bounds import MAX_MEMBERS
from mdl.descriptors import DescriptorShare, claim_share
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event, NameTaken, PeerFound, PeerRevoked
from mdl.protocol.messages import Hello, PeersKnown, Said
from mdl.protocol.vocabulary import Bulk, PeerInfo, Role
from mdl.transport.discovery.directory import (
    MAX_NAMESAKES,
    Address,
    Directory,
    Greetings,
    Mark,
    Namesakes,
    address_of,
    is_link_local,
    is_loopback,
    parse_address,
)
from mdl.transport.limits import MET_BUG, MET_BUG_AT_DOOR, Barrier, LogLimit
from mdl.transport.links.doors import Doors, end_connection, link_towards, shown_key
from mdl.transport.links.introducer import Introducer
from mdl.transport.links.outbox import Outbox
from mdl.transport.links.sockets import TURN, LinkCounts, Pollable, check_security, new_context
from mdl.transport.links.standing import LinkStanding, News, Stated
from mdl.transport.links.transfers import Transfers, check_frames
from mdl.transport.trust.keys import MeshKeys
from mdl.transport.trust.membership import Membership, NotLetInError
from mdl.transport.wire.bulk import Outgoing, Step
from mdl.transport.wire.codec import FLOW_MESSAGES, Body, CodeTold, Envelope, RosterTold, decode

logger = logging.getLogger(__name__)


class Links:
    """Everything that connects one node with its mesh.

    me: this node; `me.port` 0 takes a free port. With another port, messages are taken at the next one if that is free.
    listen_host: an IP address of this machine, or 0.0.0.0.
    keys: None only with `insecure=True`, which is for loopback only.
    max_values: the model's size, the largest vector that is ever accepted.
    join: HOST:PORT of members to greet.
    share: of links and connections; by default what this process's limit of files allows.
    membership: this device's membership of the mesh; by default that of a device made up for this process.
    Raises ConfigError for a port that is taken, a bad address, insecure links beyond loopback, or a device that is out.
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
        share: DescriptorShare | None = None,
        membership: Membership | None = None,
    ) -> None:
        addresses = [parse_address(text) for text in join]
        check_security(keys, insecure, [listen_host, *(address.host for address in addresses)])
        self.counts, self._now = LinkCounts(), now
        self.barrier = Barrier()
        self._unheard: dict[str, PeerInfo] = {}
        self._lines = LogLimit(logger)
        self._membership = membership if membership or keys is None else Membership(keys)
        if self._membership is not None and me.role is not Role.OBSERVER:
            self._membership.join(me.peer_id)
        share = share or claim_share()
        # A control and a bulk socket for each link, a knock at some doors, and the few that greet, listen and watch.
        self.context = new_context(3 * share.peers + 2 * MAX_NAMESAKES + len(addresses) + 16)
        self.standing = LinkStanding(
            me.peer_id, self._membership, lambda: self._outbox.linked(), lambda: self.directory.everyone(), now
        )
        where, admit = Address(listen_host, me.port), self.standing.gate
        try:
            self.doors = Doors(self.context, self._membership, where, share.half_open, admit, self.counts, self._lines)
        except ConfigError:
            self.context.destroy(linger=0)
            raise
        self.directory = Directory(me.peer_id)
        self._mark: Mark = (
            self._membership.device.mark if self._membership else lambda challenge, incarnation: challenge
        )
        self._namesakes = Namesakes(Contributor(me.peer_id, me.incarnation), partial(token_bytes, 16), self._mark)
        me = msgspec.structs.replace(me, host=listen_host, port=self.doors.port)
        self.introducer = Introducer(me, self.doors.link_port, self._membership, self.standing.talk)
        note = self.introducer.scopes.note
        self.greetings = Greetings([Address(note(each.host), each.port) for each in addresses], now)
        self._outbox = Outbox(self.context, self.introducer, self.directory, self.counts, self._lines, share.peers)
        self.flows = self._outbox.flows
        self.flows.on_bug = self._put_out_for_bug
        self._transfers = Transfers(4 * max_values, self._lines)

    @property
    def me(self) -> PeerInfo:
        """This node, with the address that it listens at."""
        return self.introducer.me

    def __enter__(self) -> Links:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send(self, receiver: str, message: Said, values: Bulk | None, now: float) -> None:
        """Send a message, best effort, without blocking.

        values: with a carrier or a segment only, and never changed again by anyone.
        """
        self._now = self._outbox.now = now
        self._carry_out(self._transfers.send(receiver, message, values, now))

    def learn(self, info: PeerInfo) -> list[Event]:
        """Learn of a peer that this machine has found, and greet it if that is news. Raises RemoteProtocolError.

        A link-local address may be given with the link that it was found on.
        """
        return self._learn_itself(msgspec.structs.replace(info, host=self.introducer.scopes.note(info.host)))

    def _learn_itself(self, info: PeerInfo, source: str = "") -> list[Event]:
        """Learn of a peer that introduces itself. Raises RemoteProtocolError.

        A peer that is not let in is told the reason at its door.
        """
        try:
            return self._learn(info, source=source)
        except NotLetInError as error:
            if told := self.standing.why_refused(error):
                self._outbox.turn_away(address_of(info), told)
            raise

    def _learn(self, info: PeerInfo, first_hand: bool = True, source: str = "") -> list[Event]:
        """Learn of a peer that was introduced, by `source` if that is known."""
        address = address_of(info)
        if self.is_out(info.peer_id, self._now):
            if (before := self._unheard.get(info.peer_id)) and info.incarnation >= before.incarnation:
                self._unheard[info.peer_id] = info
            return []
        if self._membership is None and not is_loopback(address.host):
            raise RemoteProtocolError(f"{info.peer_id} is at {info.host}: insecure links are for loopback only")
        if not self.standing.admits(info, source, self._now):
            return []
        if info.peer_id == self.me.peer_id:
            if self._namesakes.meet(info, self._now):
                self._outbox.greet(address, self._namesakes.challenge(address))
            return []
        if not first_hand or is_link_local(info.host):
            info = self.introducer.nearest(info, self.directory.get(source), first_hand)
        known = self.directory.get(info.peer_id)
        if known is not None and _is_other_device(known, info):  # the known device has given the name up
            self._outbox.forget(info.peer_id)
            self.directory.forget(info.peer_id)
        return self._link_anew(known, info) if self.directory.learn(info, first_hand, self._now) else []

    def state(self, stated: Stated) -> list[Event]:
        """Tell everybody what this device states. Raises RemoteProtocolError if it may not state that."""
        news = self.standing.state(stated, self._now)
        if stated.keys is not None:
            self._admit_anew()
        return self._follow(news)

    def move(self, kept: frozenset[str]) -> list[Event]:
        """Follow a change of this machine's addresses: greet the peers again that were reached from one that is gone.

        kept: the addresses that this machine had all along. A node that listens at one address moves to the interface's
        new one.
        """
        self.introducer.move(self.doors.follow(kept))
        for info in self.directory.everyone():
            if is_link_local(info.host):  # on the former link; a peer that is on this one will be heard there again
                self.directory.learn(self.introducer.nearest(info), True, self._now)
        self._outbox.move(kept)
        self.greetings.begin_again(self._now)
        return []

    def receive(self, now: float, budget: int = TURN) -> list[Event]:
        """Handle at most `budget` messages that have come, or `TURN_BYTES` of them, and whatever is due by now."""
        self._now = self._outbox.now = now
        events: list[Event] = []
        for frames, at_door in self.flows.beside(self.doors.take(now, budget), now):
            try:
                events += self._handle(frames[1:] or [zmq.Frame(b"")], now, at_door)
            except RemoteProtocolError as error:
                self.counts.refused += 1
                self._lines.warning(now, frames[0].bytes, "message refused: %s", error)
            except Exception:  # noqa: BLE001 (a bug that this message met: it costs its sender, and nobody else)
                self._meet_bug(frames, now, at_door)
        return events + self._on_time(now)

    def deadline(self) -> float | None:
        """Return the time at which `receive` has to be called even if nothing comes."""
        parts = (self._transfers, self.greetings, self._namesakes, self.standing, self.doors, self.flows)
        times = [part.deadline() for part in parts]
        return min((time for time in times if time is not None), default=None)

    def is_sending(self) -> bool:
        """Return True while bulk transfers that this node offered have not all arrived."""
        return len(self._transfers) > 0

    def pollable(self) -> list[Pollable]:
        """Return the sockets that a poll loop waits on before calling `receive`."""
        return [*self.doors.pollable(), *self.flows.pollable()]

    def close(self, linger_ms: int = 0) -> None:
        """Close everything. linger_ms: how long queued messages may take to leave."""
        self._outbox.close(linger_ms, self._namesakes.greeted())
        self.standing.close()
        self._transfers.close()
        self.context.destroy(linger=0)

    def put_out(self, peer_id: str, now: float) -> float:
        """Ignore this peer's device for a while, and drop what the links hold of it; return the seconds.

        The links keep state by peer: a handler that stopped half-way has touched nothing of another peer. The peer's
        address is kept, and it is greeted when the time is over, so that nobody else need introduce it again.
        """
        for_s = self.barrier.put_out(self._device_of(peer_id), peer_id, now)
        self.counts.bugs, self.counts.unheard = self.barrier.met, self.barrier.unheard(now)
        if peer_id != self.me.peer_id:
            if (known := self.directory.get(peer_id)) and len(self._unheard) < MAX_MEMBERS:
                self._unheard[peer_id] = known
            self._outbox.forget(peer_id)
            self.directory.forget(peer_id)
            self._transfers.forget_all_of(peer_id)
            self.standing.forget(peer_id)
        return for_s

    def is_out(self, peer_id: str, now: float) -> bool:
        """Return True while this peer's device is ignored, since its message met a bug."""
        return self.barrier.is_out(self._device_of(peer_id), now)

    def begin_again(self, incarnation: int) -> list[Event]:
        """Go on as another start of this process with the existing links; return the known peers as PeerFound events.

        Every peer learns of the new start by the first message on its new link.
        """
        self.introducer.start_anew(incarnation)
        me = Contributor(self.me.peer_id, incarnation)
        self._namesakes = Namesakes(me, partial(token_bytes, 16), self._mark)
        known = self.directory.everyone()
        self._outbox.begin_again(me)
        for info in known:
            self._transfers.forget_all_of(info.peer_id)
        for info in known:
            self._outbox.introduce(info.peer_id)
        return [PeerFound(info) for info in known]

    def _device_of(self, peer_id: str) -> Hashable:
        """Return the key of a device, the same under all its names; without encryption its name."""
        device = self._membership.device_called(peer_id) if self._membership is not None else None
        return device or peer_id

    def _meet_bug(self, frames: list[zmq.Frame], now: float, at_door: bool) -> None:
        """Put out the sender of a message that met a bug.

        At the door only the message is dropped: any holder of the code may use another peer's name there.
        """
        try:
            sender = "" if at_door else decode(frames[1].buffer).sender.peer_id
        except (RemoteProtocolError, IndexError):
            sender = ""
        if not sender:
            self.counts.bugs = self.barrier.note_unknown()
            self._lines.bug(now, "", MET_BUG_AT_DOOR)
            return
        self._put_out_for_bug(sender, now)

    def _put_out_for_bug(self, peer_id: str, now: float) -> None:
        """Put a peer out and log the traceback; to be called while the exception is handled."""
        self._lines.bug(now, peer_id, MET_BUG, peer_id, self.put_out(peer_id, now))

    def _admit_anew(self) -> None:
        """Sign anew and reopen the door after a change of the join code, which `standing` knows."""
        self.introducer.sign_anew()
        self.doors.reopen()

    def _handle(self, frames: list[zmq.Frame], now: float, at_door: bool) -> list[Event]:
        """Handle the frames after the ROUTER's identity: a header, and the bytes of a chunk or segment."""
        envelope = decode(frames[0].buffer)
        check_frames(envelope, frames)
        sender, body, key = envelope.sender, envelope.body, shown_key(frames[-1])
        if self.is_out(sender.peer_id, now):
            return []
        if isinstance(body, Hello):
            self.introducer.scopes.note(f"{body.me.host}%{link_towards(frames[-1], body.me.host)}")
            is_its_own = not at_door and self.standing.speaks(key, sender.peer_id)
            return self._on_hello(sender, body, now, at_door=not is_its_own)
        if isinstance(body, RosterTold) and at_door:
            return self._follow(self.standing.hear_at_door(sender.peer_id, body, now))  # to a device not let in
        if at_door:
            raise RemoteProtocolError(f"{sender.peer_id} says {type(body).__name__} at the door")
        if not self.standing.is_in(key):
            end_connection(frames[-1])
        self.standing.check(key, sender.peer_id)
        self.standing.check_words(sender.peer_id, body)
        if sender.peer_id == self.me.peer_id:
            return self._on_namesake(sender, body, now)
        known = self.directory.get(sender.peer_id)
        if not self.directory.hear(sender, now):
            return []
        current = self.directory.get(sender.peer_id)
        events = self._link_anew(known, current) if current is not None and current is not known else []
        return events + self._on_accepted(envelope, frames, now)

    def _on_namesake(self, sender: Contributor, body: Body, now: float) -> list[Event]:
        """Hear a node with this node's name: itself by way of the join list, a copy of its data directory, or a forger.

        A copy knows this device's key: it makes the right mark of the challenge that was sent to its address.
        """
        if sender.incarnation == self.me.incarnation:
            return []
        if isinstance(body, Hello):
            self._learn_itself(body.me)
        self._namesakes.hear(sender, now)
        if not isinstance(body, Hello):
            return []
        address = address_of(body.me)
        if body.challenge:
            is_wanted, challenge = self._namesakes.answers(address, now)
            if is_wanted:
                self._outbox.greet(address, challenge, self._namesakes.answer(body.challenge))
        if not self._namesakes.prove(sender, body.answer):
            return []
        return [NameTaken(sender, self._namesakes.address(sender))]

    def _link_anew(self, known: PeerInfo | None, info: PeerInfo) -> list[Event]:
        """Link to a peer that is new, was restarted, or has moved."""
        if known is not None and known.incarnation != info.incarnation:
            self._transfers.forget(info.peer_id)
            self.standing.forget(info.peer_id)
        self._outbox.link_to(info.peer_id)
        return [PeerFound(info)]

    def _on_accepted(self, envelope: Envelope, frames: list[zmq.Frame], now: float) -> list[Event]:
        sender, body = envelope.sender, envelope.body
        if isinstance(body, PeersKnown):
            return self._on_peers(sender, body, now)
        if isinstance(body, RosterTold):
            return self._follow(self.standing.hear(sender.peer_id, body, now))
        if isinstance(body, CodeTold):
            if self.standing.learn_code(body.code) is not None:
                self._admit_anew()
            return []
        if not self.standing.is_settled(sender.peer_id, now):
            return []  # the peer repeats what it still wants
        if isinstance(body, FLOW_MESSAGES):
            return self.flows.agree(sender, body, shown_key(frames[-1]), now)
        return self._carry_out(self._transfers.take(envelope, frames, now))

    def _on_hello(self, sender: Contributor, hello: Hello, now: float, at_door: bool) -> list[Event]:
        """Learn of a peer from its Hello, which proves itself. At the door it may be an old one that is replayed."""
        if not _introduces_itself(sender, hello):
            raise RemoteProtocolError(f"{sender.peer_id} introduces itself as {hello.me.peer_id}")
        if sender.peer_id == self.me.peer_id:
            return self._on_namesake(sender, hello, now)
        known = self.directory.get(sender.peer_id)
        is_current = at_door or self.directory.hear(sender, now)
        current = self.directory.get(sender.peer_id)
        events = self._link_anew(known, current) if current is not None and current is not known else []
        # Learn its address even so, should this turn out to be the start that is alive.
        events += self._learn_itself(hello.me, "" if at_door else sender.peer_id)
        current = self.directory.get(sender.peer_id)
        if not is_current or current is None or current.incarnation != sender.incarnation:
            return events
        if at_door:
            self.directory.call(sender.peer_id, now)
        else:
            self.directory.hear(sender, now)  # again, now that it is known
        namesakes = self.directory.others_called(sender.peer_id)
        me = self.introducer.me
        self._outbox.tell_known(sender.peer_id, (me, *namesakes, *self.directory.everyone()))
        return events

    def _follow(self, news: News) -> list[Event]:
        """Send the news, then forget the peers that are out."""
        for outgoing in news.told:
            self._outbox.send(outgoing)
        events: list[Event] = []
        for peer_id in news.gone:
            self._outbox.forget(peer_id)
            self.directory.forget(peer_id)
            self._transfers.forget(peer_id)
            self.standing.forget(peer_id)
            events.append(PeerRevoked(peer_id, "an owner of the mesh has revoked it"))
        if why := self.standing.why_out():
            events.append(PeerRevoked(self.me.peer_id, why))
        return events

    def _on_peers(self, sender: Contributor, known: PeersKnown, now: float) -> list[Event]:
        events: list[Event] = []
        for info in known.peers:
            of_itself = info.peer_id == sender.peer_id
            if of_itself:
                self.greetings.answered(address_of(info), now)
            try:
                events += self._learn(info, of_itself, sender.peer_id)
            except RemoteProtocolError as error:
                self._lines.warning(now, info.peer_id, "peer refused: %s", error)
        self.directory.hear(sender, now)
        return events

    def _on_time(self, now: float) -> list[Event]:
        self._lines.on_time(now)
        events = self._hear_again(now)
        for address in self.greetings.over(now):
            self._outbox.stop_greeting(address)
        for address in self.greetings.due(now):
            self._outbox.greet(address)
        for address in self._namesakes.unanswered(now):
            self._outbox.stop_greeting(address)
        if self._namesakes.is_sign_due(now):
            for info in self.directory.everyone():
                self._outbox.introduce(info.peer_id)
        self._outbox.on_time()
        for outgoing in self.standing.due(now):
            self._outbox.send(outgoing)
        return events + self._carry_out(self._transfers.on_time(now))

    def _hear_again(self, now: float) -> list[Event]:
        """Greet the peers that are no longer ignored."""
        if not self.counts.unheard:
            return []
        self.counts.unheard = self.barrier.unheard(now)
        events: list[Event] = []
        for peer_id in [peer_id for peer_id in self._unheard if not self.is_out(peer_id, now)]:
            info = self._unheard.pop(peer_id)
            try:
                events += self._learn_itself(info)
            except RemoteProtocolError as error:  # revoked since
                self._lines.warning(now, peer_id, "peer refused: %s", error)
        return events

    def _carry_out(self, steps: list[Step]) -> list[Event]:
        for step in steps:
            if isinstance(step, Outgoing):
                self._outbox.send(step)
        return [step for step in steps if not isinstance(step, Outgoing)]


def _is_other_device(known: PeerInfo, info: PeerInfo) -> bool:
    proofs = known.proof, info.proof
    return all(proofs) and len({proof.enrolled.device for proof in proofs if proof}) > 1


def _introduces_itself(sender: Contributor, hello: Hello) -> bool:
    return (hello.me.peer_id, hello.me.incarnation) == (sender.peer_id, sender.incarnation)
