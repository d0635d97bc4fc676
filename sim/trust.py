"""The gate of a simulated mesh, by its members' rosters, and the judge of what a revocation has to effect. Pure.

Each check of the judge raises InvariantError with the evidence. The judge keeps its own books: the devices that were
told of each revocation, by a message or by their own users. From then on such a device, even after a restart, hears
nothing of the revoked one and tells it nothing. No round that it opens has work of it. If nothing is lost, every device
that can be reached knows within `PROMPT_S`. In the end every device that is not out knows. A result that was staged
before is proposed with whatever contributors it has (docs/protocol-ballots.md, rule 2).

At the gate each process has its roster, spreads it, and hears and tells only members. It does for the machines what
`mdl.transport.links.mesh_links` does in the field, by the same `LinkStanding`. A revoked device is not heard and not
told anything, and no messages count before rosters were compared. Roster messages go through the same network as all
else, and may be lost, come twice or late. A roster is kept on the disk at once.

A revoked device leaves once it hears of it, or is an attacker with the usual software: then it takes in nothing about
itself, and goes on. Pure: the maker of rosters and signatures is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event, PeerFound, PeerRevoked, Received, Send, TransferProgressed
from mdl.protocol.round_messages import BroadcastOrdered, RoundOpened
from mdl.protocol.statements import AnyStatement, DeviceRevoked
from mdl.protocol.vocabulary import PeerInfo
from mdl.sim.mesh.accounts import InvariantError
from mdl.sim.mesh.driver import CLOCK_STEP_S, SimMesh
from mdl.sim.mesh.process import Node
from mdl.transport.wire.codec import RosterTold

if TYPE_CHECKING:
    from mdl.transport.links.standing import LinkStanding, News, Stated
    from mdl.transport.trust.membership import Membership
    from mdl.transport.wire.codec import Body


# A message takes 0.16 s at most in a drawn plan; a roster is told to all at once.
PROMPT_S = 0.4

IsOut = Callable[[str], bool]


class Judge:
    """See the module. out: peer ids of all devices that were ever revoked."""

    def __init__(self, mesh: SimMesh) -> None:
        self._mesh = mesh
        self.out: set[str] = set()
        self._knows: dict[str, set[str]] = {}
        self._parted: dict[str, set[str]] = {}
        self._is_out: dict[str, IsOut] = {}
        self._opened: dict[tuple[int, int], frozenset[str]] = {}
        self._met: dict[tuple[Contributor, Contributor], frozenset[str]] = {}

    def known_out(self) -> set[str]:
        """Return the revoked devices that a running, never revoked device knows of: others may not be heard."""
        known: set[str] = set()
        for node in self._mesh.nodes.values():
            if node.running and node.peer_id not in self.out:
                known |= self._knows.get(node.peer_id, set())
        return known

    def unaware(self) -> str:
        """Name, in words, a running device that is not out and does not know all that are out."""
        out = self.known_out()
        for node in self._mesh.nodes.values():
            if node.running and node.peer_id not in out:
                for peer_id in sorted(out - self._knows.get(node.peer_id, set())):
                    return f"{node.peer_id} has not heard that {peer_id} is out"
        return ""

    # -- events -------------------------------------------------------------------------------------------------------

    def start(self, node: Node, is_out: IsOut) -> None:
        """Note that a process has loaded its roster."""
        self._is_out[node.peer_id] = is_out
        self.remember(node)
        self._parted[node.peer_id] = set(self._knows.get(node.peer_id, ()))
        for other in self._mesh.nodes.values():
            self._meet(node, other)
            self._meet(other, node)

    def revoke(self, owner: Node, peer_id: str, reachable: Iterable[Node]) -> None:
        """Note that the user of `owner` revokes a device now; each reachable process must know it in time."""
        self.out.add(peer_id)
        self.learn(owner, [peer_id])
        for node in reachable:
            self._mesh.at(self._mesh.now + PROMPT_S, partial(self._check_prompt, node, owner.peer_id, peer_id))

    def learn(self, node: Node, peer_ids: Iterable[str]) -> None:
        """Note that a process learns that these are out."""
        self._knows.setdefault(node.peer_id, set()).update(peer_ids)

    def part(self, node: Node, peer_id: str) -> None:
        """Note that its machine is told that a device is out; several are told one after the other."""
        self._parted[node.peer_id].add(peer_id)

    def remember(self, node: Node) -> None:
        """Check a changed or loaded roster: it holds all that this device was ever told."""
        is_out = self._is_out[node.peer_id]
        for peer_id in self._knows.get(node.peer_id, ()):
            if not is_out(peer_id):
                raise InvariantError("forgot", f"{node.peer_id} was told that {peer_id} is out, and knows it no more")

    def hear(self, node: Node, sender: Contributor) -> None:
        """Check that a machine may hear this process."""
        knows, name = self._knows.get(node.peer_id, set()), sender.peer_id
        if name in knows:
            raise InvariantError("heard", f"{node.peer_id} hears {name}, which it knows to be out")
        if lacking := self._met[node.contributor, sender] - knows - {node.peer_id}:
            raise InvariantError("early", f"{node.peer_id} hears {name}, but not yet that {min(lacking)} is out")

    def say(self, node: Node, send: Send) -> None:
        """Check a message of a machine that goes out."""
        knows = self._knows.get(node.peer_id, set())
        if send.receiver in knows:
            raise InvariantError("told", f"{node.peer_id} tells {send.receiver}, which it knows to be out")
        message = send.message
        if type(message) is RoundOpened and message.attempt == message.term:
            parted = frozenset(self._parted[node.peer_id])
            known = self._opened.setdefault((message.round_id, message.attempt), parted)
            self._check_free(node, known, (who.peer_id for who in message.members), "opens")
        elif type(message) is BroadcastOrdered and not message.digest and node.keeper is not None:
            known = self._opened.get(node.keeper.attempt(), frozenset())
            self._check_free(node, known, (who.peer_id for who in message.contributors), "proposes")

    def _meet(self, node: Node, other: Node) -> None:
        """Note that both are there: all that the other one knows now must be told before its messages count."""
        self._met[node.contributor, other.contributor] = frozenset(self._knows.get(other.peer_id, ()))

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_free(self, node: Node, known: frozenset[str], who: Iterable[str], verb: str) -> None:
        for peer_id in who:
            if peer_id in known:
                raise InvariantError("entered", f"{node.peer_id} {verb} a round with {peer_id}, known to be out then")

    def _check_prompt(self, node: Node, owner: str, peer_id: str) -> None:
        knows = self._knows.get(node.peer_id, set())
        is_there = node.running and node.paused_at is None and node.peer_id not in self.out
        if is_there and not knows & {owner, peer_id}:
            raise InvariantError(
                "slow", f"{node.peer_id} has not heard after {PROMPT_S} s that {owner} has revoked {peer_id}"
            )


# Peer id, kept statements (None: those that every device has at the start), introduced peers, the time.
OpenStanding: TypeAlias = (
    "Callable[[str, tuple[AnyStatement, ...] | None, Mapping[str, PeerInfo], float], LinkStanding]"
)
# The statement that revokes the device of this name, at this time.
Revokes: TypeAlias = "Callable[[LinkStanding, str, float], Stated]"


@dataclass(eq=False)
class Desk:
    """One process. linked: peer id -> the start that was introduced. link_key: the key that it shows."""

    node: Node
    standing: LinkStanding
    linked: dict[str, PeerInfo]

    def __post_init__(self) -> None:
        assert self.standing.membership is not None
        assert self.standing.talk is not None
        self.membership, self.talk = self.standing.membership, self.standing.talk
        self.link_key = self.membership.device.link_key


class SimulatedGate:
    """See the module. names: device key -> peer id. judge: is told of all that passes."""

    def __init__(
        self, mesh: SimMesh, open_standing: OpenStanding, revokes: Revokes, names: dict[bytes, str], judge: Judge
    ) -> None:
        self._mesh = mesh
        self._open, self._revokes = open_standing, revokes
        self._names = names
        self.judge = judge
        self._desks: dict[str, Desk] = {}
        self._heeding: set[str] = set()

    def start(self, node: Node) -> None:
        """Open the gate for a process that has started."""
        kept, linked = self._mesh.disk(node.peer_id).roster, dict[str, PeerInfo]()
        standing = self._open(node.peer_id, kept, linked, self._time(node))
        desk = self._desks[node.peer_id] = Desk(node, standing, linked)
        desk.membership.on_change = partial(self._keep, desk)
        self.judge.start(node, partial(_is_out, desk.membership))
        self._leave_if_out(desk)
        self._wait(desk)

    def revoke(self, by: str, peer_id: str, heeds: bool) -> None:
        """Revoke a device in the name of the user of `by`, or of another one if that cannot; between two events."""
        self._mesh.at(self._mesh.now, partial(self._state, by, peer_id, heeds))

    def revoked(self) -> set[str]:
        return self.judge.out

    def known_out(self) -> set[str]:
        return self.judge.known_out()

    def unaware(self) -> str:
        return self.judge.unaware()

    def admits(self, node: Node, event: Event) -> bool:
        """Return True if the machine of a process may hear this."""
        kind = type(event)
        if kind is Received or kind is TransferProgressed:
            sender = event.sender  # type: ignore[union-attr]
            if sender.peer_id == node.peer_id:
                return True
            if not self._is_heeded(self._desks[node.peer_id], sender):
                return False
            self.judge.hear(node, sender)
        elif kind is PeerFound:
            return self._meet(self._desks[node.peer_id], event.info)  # type: ignore[union-attr]
        return True

    def passes(self, node: Node, send: Send) -> bool:
        """Return True if a machine's message goes out: only if there is a link to its receiver."""
        if send.receiver not in self._desks[node.peer_id].linked:
            return False
        self.judge.say(node, send)
        return True

    # -- roster messages ----------------------------------------------------------------------------------------------

    def _meet(self, desk: Desk, info: PeerInfo) -> bool:
        """Meet another process, or another start of it: tell it the known roster first. False if it is out."""
        if desk.membership.is_out(info):
            return False
        known = desk.linked.get(info.peer_id)
        if known is None or info.incarnation > known.incarnation:
            desk.standing.forget(info.peer_id)
            desk.linked[info.peer_id] = info
            for told in desk.talk.open(info.peer_id):
                self._say(desk, info.peer_id, told)
        return True

    def _is_heeded(self, desk: Desk, sender: Contributor) -> bool:
        """Return True if the sender's messages to this desk's machine count."""
        return self._is_known(desk, sender) and desk.standing.is_settled(sender.peer_id, self._time(desk.node))

    def _is_known(self, desk: Desk, sender: Contributor) -> bool:
        """Return True if the sender was introduced and its key shows a member; a later start is a new link."""
        known = desk.linked.get(sender.peer_id)
        if known is None or sender.incarnation < known.incarnation:
            return False
        try:
            desk.standing.check(self._desks[sender.peer_id].link_key, sender.peer_id)
        except RemoteProtocolError:
            return False
        if sender.incarnation > known.incarnation:
            self._meet(desk, structs.replace(known, incarnation=sender.incarnation))
        return True

    def _say(self, desk: Desk, receiver: str, body: Body) -> None:
        assert isinstance(body, RosterTold)  # the code of a simulated mesh never changes
        mesh, sender = self._mesh, desk.node.contributor
        mesh.messages += 1
        if link := desk.linked.get(receiver):
            for arrival in mesh.network.deliver(sender.peer_id, receiver, 0, mesh.now):
                mesh.at(arrival, partial(self._arrive, link.incarnation, receiver, sender, body))

    def _arrive(self, start: int, receiver: str, sender: Contributor, told: RosterTold) -> None:
        """Hear a roster message. start: the receiver's, at sending; a later start has its own links and rosters."""
        desk = self._desks[receiver]
        node = desk.node
        if not node.running or node.contributor.incarnation != start:
            return
        if node.paused_at is not None:
            self._mesh.at(node.resume_at, partial(self._arrive, start, receiver, sender, told))
            return
        if not self._is_known(desk, sender):
            return
        if receiver not in self._heeding:
            kept = tuple(each for each in told.statements if self._who_is_out(each) != receiver)
            told = structs.replace(told, statements=kept)
        self.judge.learn(node, filter(None, map(self._who_is_out, told.statements)))
        self._follow(desk, desk.standing.hear(sender.peer_id, told, self._time(node)))

    def _who_is_out(self, statement: AnyStatement) -> str:
        """Return the device that a statement revokes; "" if it states something else."""
        return self._names[statement.device] if isinstance(statement, DeviceRevoked) else ""

    def _state(self, by: str, peer_id: str, heeds: bool) -> None:
        able = [each for each in sorted(self._desks) if self._may_revoke(each, peer_id)]
        if not able or peer_id in self.judge.out:
            return
        owner = by if by in able else able[0]
        if heeds:
            self._heeding.add(peer_id)
        desk = self._desks[owner]
        now = self._time(desk.node)
        self.judge.revoke(desk.node, peer_id, self._reachable(desk, peer_id))
        self._follow(desk, desk.standing.state(self._revokes(desk.standing, peer_id, now), now))

    def _follow(self, desk: Desk, news: News) -> None:
        """Tell the news, then forget the devices that are out."""
        node = desk.node
        for outgoing in news.told:
            self._say(desk, outgoing.receiver, outgoing.body)
        for peer_id in news.gone:
            desk.linked.pop(peer_id, None)
            desk.standing.forget(peer_id)
        for peer_id in news.gone:
            self.judge.part(node, peer_id)
            self._mesh.tell(node, PeerRevoked(peer_id, "an owner of the mesh has revoked it"))
        self.judge.remember(node)
        self._leave_if_out(desk)

    def _leave_if_out(self, desk: Desk) -> None:
        """Tell a device that heeds its own revocation; it is not started again either."""
        if why := desk.standing.why_out():
            self._mesh.tell(desk.node, PeerRevoked(desk.node.peer_id, why))

    def _keep(self, desk: Desk) -> None:
        self._mesh.disk(desk.node.peer_id).roster = desk.membership.roster.statements()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _wait(self, desk: Desk) -> None:
        deadline = desk.standing.deadline()
        assert deadline is not None
        at_s = max(deadline - desk.node.offset_s, self._mesh.now + CLOCK_STEP_S)  # sums of times are rounded
        self._mesh.at(at_s, partial(self._compare, desk))

    def _compare(self, desk: Desk) -> None:
        """Send the due digest, for comparison."""
        node = desk.node
        if not node.running:
            return
        if node.paused_at is not None:
            self._mesh.at(node.resume_at, partial(self._compare, desk))
            return
        for outgoing in desk.standing.due(self._time(node)):
            self._say(desk, outgoing.receiver, outgoing.body)
        self._wait(desk)

    def _time(self, node: Node) -> float:
        return self._mesh.now + node.offset_s

    # -- able to revoke -----------------------------------------------------------------------------------------------

    def _may_revoke(self, owner: str, peer_id: str) -> bool:
        node = self._desks[owner].node
        awake = node.running and node.paused_at is None
        return awake and owner != peer_id and owner not in self.judge.out

    def _reachable(self, desk: Desk, peer_id: str) -> list[Node]:
        """List the processes that hear this one now, on a network that loses no message; without the named device."""
        network, me = self._mesh.network, desk.node.contributor
        if network.loss or network.late:
            return []
        others = ((self._desks[other], link) for other, link in desk.linked.items() if other != peer_id)
        return [
            other.node
            for other, link in others
            if other.node.peer_id not in self.judge.out
            and other.node.running
            and other.node.contributor.incarnation == link.incarnation
            and other.node.paused_at is None
            and (known := other.linked.get(me.peer_id)) is not None
            and known.incarnation == me.incarnation
            and (me.peer_id, other.node.peer_id) not in network.cuts
        ]


def _is_out(membership: Membership, peer_id: str) -> bool:
    return membership.roster.enrolled(peer_id) is None
