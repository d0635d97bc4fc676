"""The rules that always hold in a mesh, whatever fails (design: faults), and the verdict at the end of a run.

A check raises InvariantError with evidence. The checks run after every event. They look only at the node that handled
it, and only if it holds something else than before: a comparison of identities, since held objects are never changed in
place. The protocols of `mdl.sim.mesh.process` show the machines, so that the simulator needs to know no roles.

In the end every training that a device held is counted, or still pending, or has a reason. For each training, the count
in w plus the pending work of live devices must be 1. Less is lost with its owner if that process is gone; otherwise it
is lost, which must never be. More would count twice. Work that a device keeps back comes once, or is counted by the
rounds that it is about to take over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.defence.limits import ALTERED
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.machine import KeepDelta, Send
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    DeltaMessage,
    HopReleased,
    PeerReport,
    PieceMessage,
    SegmentMessage,
)
from mdl.protocol.vocabulary import HopDecision
from mdl.sim.mesh.accounts import Accounts, InvariantError, Model, model_at
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.process import HeldRound, Holder, Keeper, Node
from mdl.sim.plans.fault_plan import FaultPlan

# Its own or a partial sum, and one that arrives or is the result: memory does not grow with the mesh (3.2.2).
MOST_DELTAS = 2

Attempt = tuple[int, int]
# Stands for the attempt's term in a round that a device has closed alone. A round that comes by a broadcast has 0.
_ALONE = -1


@dataclass
class _Seen:
    """The state of a node after its last event, and, in office, its undecided hops."""

    digest: bytes = b""
    part: HeldRound | None = None
    term: int = 0
    agent: str = ""
    hold: PartialSum | None = None
    staged: PartialSum | None = None
    order: BroadcastOrdered | None = None
    released: frozenset[int] = frozenset()
    decided: int = 0
    last_decision: HopDecision | None = None
    kept_ledger: Any = None
    kept_term: int = 0
    kept_attempt: Attempt = (0, 0)
    kept_authority: Any = None
    hops: Mapping[Any, Any] = field(default_factory=dict)
    known_hops: int = 0
    undecided: list[Any] = field(default_factory=list)


@dataclass
class Invariants:
    """See the module. `check` is called as a SimMesh's check, `close` as its on_close, `say` as its on_say."""

    accounts: Accounts
    seen: dict[Node, _Seen] = field(default_factory=dict)
    digests: dict[tuple[Any, int], tuple[bytes, str]] = field(default_factory=dict)
    decisions: dict[tuple[Attempt, Contributor, int], HopDecision] = field(default_factory=dict)
    ballots: dict[tuple[Any, ...], tuple[bytes, str]] = field(default_factory=dict)

    def check(self, mesh: SimMesh, node: Node) -> None:
        seen = self.seen.get(node)
        if seen is None:
            seen = self.seen[node] = _Seen()
        holder, keeper, succession = node.holder, node.office.agent, node.succession
        if holder is not None:
            part, digest = holder.part, holder.digest
            if digest != seen.digest:
                seen.digest = digest
                self._check_model(node, holder)
            hold = held_by(part)
            if (
                hold is not seen.hold
                or part is not seen.part
                or (succession is not None and (succession.term != seen.term or succession.agent != seen.agent))
            ):
                self._check_held(mesh, node, holder, hold, seen)
            if part is not None:
                if len(part.released) != len(seen.released):
                    seen.released = frozenset(part.released)
                if part.decisions:
                    self._check_decisions(node, part, seen)
                broadcast = part.broadcast
                if broadcast.staged is not seen.staged or broadcast.order is not seen.order:
                    seen.staged, seen.order = broadcast.staged, broadcast.order
                    self._check_spread(mesh, node, holder, part)
        if keeper is not None:
            self._check_keeper(mesh, node, keeper, seen)

    def close(self, node: Node, kept: KeepDelta) -> None:
        """Check an applied global delta: it is the mean of its contributors' deltas, and counts once."""
        holder, seen = node.holder, self.seen[node]
        assert holder is not None
        if kept.delta.contributors == {node.contributor}:  # alone: held and applied in one step
            self.accounts.hold_own((kept.round_id, _ALONE), seen.digest, node.contributor, kept.delta)
        round_id = holder.round_id
        before = model_at(seen.digest, holder.lineage, round_id - 1)
        if self.accounts.close(before, model_of(holder), round_id, kept.delta, node.peer_id):
            self.accounts.check_result(seen.digest, kept.delta, f"round {kept.round_id} of {node.peer_id}")

    def say(self, mesh: SimMesh, node: Node, send: Send) -> None:
        """Check a message to send: a delta is given to one hop, a sender is freed of a hop that no device merged.

        In segments: a device gives pieces of its own delta, an owner means of all contributors.
        """
        message = send.message
        if message.__class__ is DeltaMessage:
            check_given(node, message, self.seen[node])
        elif message.__class__ is HopReleased and node.keeper is not None:
            check_freed(mesh, node.keeper, send.receiver, message)
        elif message.__class__ is PieceMessage or message.__class__ is SegmentMessage:
            self._check_segment(node, message, send.values)
        elif message.__class__ is PeerReport and message.accused:
            self._check_accused(mesh, node, message)
        elif message.__class__ is BroadcastOrdered and message.owns:
            weight = sum(mesh.nodes[who.peer_id].theta for who in message.contributors)
            if abs(message.theta - weight) > 1e-9 * weight:
                raise InvariantError("theta", f"{node.peer_id} orders theta {message.theta} where it is {weight}")

    def _check_accused(self, mesh: SimMesh, node: Node, report: PeerReport) -> None:
        """Check that no device's sums are held to be altered but those of a device that lies."""
        for each in report.accused:
            if each.reason.startswith(ALTERED) and not mesh.liars & {each.peer_id, node.peer_id}:
                raise InvariantError("accused", f"{node.peer_id} says of {each.peer_id}: {each.reason}")

    def _check_segment(self, node: Node, message: PieceMessage | SegmentMessage, values: Any) -> None:
        holder = node.holder
        part = holder.part if holder else None
        exchange = part.broadcast.exchange if part else None
        if holder is None or exchange is None:
            return
        order = exchange.order
        if (message.term, message.version) != (order.term, order.version):
            return  # it was decided before this same event brought another order
        who: tuple[Contributor, ...] = (node.contributor,)
        if isinstance(message, SegmentMessage):
            kept = [each for number, each in enumerate(order.lost) if number not in message.without]
            who = (*order.contributors, *(each.contributor for each in kept))
        name = f"segment {message.segment} from {node.peer_id}"
        self.accounts.check_segment(
            holder.attempt(), holder.digest, who, exchange.bounds(message.segment), values, name
        )

    def _check_spread(self, mesh: SimMesh, node: Node, holder: Holder, part: HeldRound) -> None:
        """Check a new order or a new result: there is room for both, and a ballot has one value."""
        if (count := count_vectors(part)) > MOST_DELTAS:
            raise InvariantError("memory", f"{node.peer_id} holds {count} deltas")
        broadcast = part.broadcast
        staged, result, order = broadcast.report(), broadcast.staged, broadcast.order
        if staged is None or result is None or order is None:
            return
        ballot = (holder.lineage, part.round_id, staged.term, staged.version)
        if mesh.two_faced or node.peer_id in mesh.liars:
            return  # a staged result may be a lie; an applied one may not
        digest, peer_id = self.ballots.setdefault(ballot, (staged.digest, node.peer_id))
        if digest != staged.digest:
            raise InvariantError("ballot", f"{peer_id} and {node.peer_id} stage two results under {ballot[1:]}")
        if order.owns and (staged.term, staged.version) == (order.term, order.version):
            self.accounts.check_result(holder.digest, result, f"what {node.peer_id} stages")

    def _check_held(self, mesh: SimMesh, node: Node, holder: Holder, hold: PartialSum | None, seen: _Seen) -> None:
        """Check a node that holds something else, or for another agent, than after its last event."""
        part, is_new = holder.part, hold is not seen.hold or holder.part is not seen.part
        if part is not seen.part:
            seen.released = frozenset()
        seen.hold, seen.part = hold, part
        if node.succession is not None:
            seen.term, seen.agent = node.succession.term, node.succession.agent
        if hold is not None:
            if is_new:
                self._check_hold(node, holder, hold)
            for keeper in _keepers(mesh):
                check_disjoint(mesh, keeper)

    def _check_keeper(self, mesh: SimMesh, node: Node, keeper: Keeper, seen: _Seen) -> None:
        ledger, term = keeper.ledger, keeper.term
        if ledger is not None:
            check_decided(node, ledger.hops, seen)
            if ledger is seen.kept_ledger and term == seen.kept_term:
                return  # the attempt of a ledger never changes
        attempt, authority = keeper.attempt(), keeper.authority()
        if attempt != seen.kept_attempt or authority != seen.kept_authority:
            check_disjoint(mesh, keeper)
        seen.kept_ledger, seen.kept_term = ledger, term
        seen.kept_attempt, seen.kept_authority = attempt, authority

    def _check_model(self, node: Node, holder: Holder) -> None:
        """Check that all devices at round r of a lineage have the same parameters, then and ever after."""
        self.accounts.note_model(holder.digest, holder.parameters)
        if not self.accounts.is_known(holder.digest):
            raise InvariantError("model", f"{node.peer_id} has parameters at round {holder.round_id} that none gave")
        key = (holder.lineage, holder.round_id)
        digest, peer_id = self.digests.setdefault(key, (holder.digest, node.peer_id))
        if digest != holder.digest and holder.round_id:
            raise InvariantError("digest", f"round {holder.round_id} differs between {peer_id} and {node.peer_id}")

    def _check_hold(self, node: Node, holder: Holder, hold: PartialSum) -> None:
        is_own = hold.contributors == {node.contributor}
        if is_own and self.accounts.hold_own(holder.attempt(), holder.digest, node.contributor, hold):
            return
        if is_own and holder.part and holder.part.lacks_own:
            return  # a result takes its place: it was checked before, and is taken up again
        self.accounts.check_mean(holder.attempt(), holder.digest, hold, node.peer_id)

    def _check_decisions(self, node: Node, part: HeldRound, seen: _Seen) -> None:
        """Check that no hop is decided a second time."""
        last = next(reversed(part.decisions.values()))
        if last is seen.last_decision and len(part.decisions) == seen.decided:
            return
        seen.last_decision, seen.decided = last, len(part.decisions)
        attempt = (part.round_id, part.attempt)
        for hop_id, decision in part.decisions.items():
            first = self.decisions.setdefault((attempt, node.contributor, hop_id), decision)
            if first is not decision:
                raise InvariantError("hop", f"{node.peer_id} decides hop {hop_id} a second time: {decision.outcome}")


def check_disjoint(mesh: SimMesh, keeper: Keeper) -> None:
    """Check that no two live holders that this agent would pair answer for one contribution: nothing can count twice.

    Once the round has its result, no holders are paired any more.
    A holder does not count if another one has merged its own work. An agent that takes over may find both a freed
    sender and the receiver that it was freed from, back again.
    """
    attempt, authority = keeper.attempt(), keeper.authority()
    if attempt == (0, 0) or keeper.is_settled():
        return
    live = set(keeper.live_members())
    holds: dict[Contributor, PartialSum] = {}
    for node in mesh.nodes.values():
        holder = node.holder
        if holder is None or not node.running or node.contributor not in live:
            continue
        if holder.attempt() != attempt or obeyed_by(node) != authority:
            continue
        if hold := held_by(holder.part):
            holds[node.contributor] = hold
    if sum(len(hold.contributors) for hold in holds.values()) == len(
        {who for hold in holds.values() for who in hold.contributors}
    ):
        return
    carried = {who for holder, hold in holds.items() for who in hold.contributors if who != holder}
    seen: dict[Contributor, Contributor] = {}
    for peer, hold in holds.items():
        if peer in carried:
            continue
        for contributor in hold.contributors:
            if other := seen.get(contributor):
                raise InvariantError("disjoint", f"{contributor} is held by {other.peer_id} and by {peer.peer_id}")
            seen[contributor] = peer


def check_given(node: Node, message: DeltaMessage, seen: _Seen) -> None:
    """Check that a sender serves only the hop that it gave its delta to, to a member, and none that it was freed of.

    seen: the state before this event. The agent on this same node may free it of a hop, or open another round, right
    after it has served it.
    """
    part, hop = seen.part or (node.holder.part if node.holder else None), message.hop_id
    if part is None:
        return
    if hop in seen.released:
        raise InvariantError("given", f"{node.peer_id} serves hop {message.hop_id} that it was freed of")
    if hop in part.released:
        return
    hop_id, receiver = part.given or (0, None)
    if hop_id != message.hop_id or receiver not in part.members:
        raise InvariantError(
            "given", f"{node.peer_id} serves hop {message.hop_id}, which it has not given its delta to"
        )


def check_decided(node: Node, hops: Mapping[Any, Any], seen: _Seen) -> None:
    """Check that only receivers decide hops; an agent that takes over may find hops that no device remembers.

    hops: those that the agent on this node has ordered in its round. A decision is final: only the others are checked
    again.
    """
    if hops is not seen.hops or len(hops) != seen.known_hops:
        seen.hops, seen.known_hops = hops, len(hops)
        seen.undecided = list(hops.values())
    if not seen.undecided:
        return
    for hop in seen.undecided:
        if (
            hop.decided_at is None
            and hop.state._value_ != "ordered"
            and not hop.reason.startswith("ordered by another")
        ):
            raise InvariantError("decided", f"{node.peer_id} has decided hop {hop.hop_id} without its receiver")
    seen.undecided = [hop for hop in seen.undecided if hop.decided_at is None]


def check_freed(mesh: SimMesh, keeper: Keeper, sender: str, message: HopReleased) -> None:
    """Check that no sender is freed of a hop while a live member that follows this agent carries its load.

    A sender that was freed before, while the agent has not heard so yet, is an exception: it is only told again.
    """
    held = mesh.nodes[sender].holder
    if held is None or held.part is None or (held.part.given or (0, None))[0] != message.hop_id:
        return
    attempt, authority, live = keeper.attempt(), keeper.authority(), set(keeper.live_members())
    for node in mesh.nodes.values():
        holder = node.holder
        if holder is None or not node.running or node.peer_id == sender or node.contributor not in live:
            continue
        if holder.attempt() != attempt or obeyed_by(node) != authority:
            continue
        if (hold := held_by(holder.part)) and mesh.nodes[sender].contributor in hold.contributors:
            raise InvariantError("freed", f"{sender} is freed while {node.peer_id} carries its load")


def model_of(holder: Holder) -> Model:
    """Return the model of this device, as the books name it."""
    return model_at(holder.digest, holder.lineage, holder.round_id)


def obeyed_by(node: Node) -> object:
    """Return (term, peer id) of the agent that this node's trainer obeys; None for a machine that never obeys."""
    succession = node.succession
    return (succession.term, succession.agent) if succession else None


def held_by(part: HeldRound | None) -> PartialSum | None:
    """Return the partial sum that this device answers for: None once it has been given away."""
    return None if part is None or part.given else part.hold


def count_vectors(part: HeldRound) -> int:
    """Count the different vectors of partial sums and results that a part of a round keeps alive."""
    broadcast, exchange = part.broadcast, part.broadcast.exchange
    kept = part.hold, broadcast.staged, exchange.result if exchange else None, broadcast.gapped
    return len({id(each.values) for each in kept if each is not None})


def _keepers(mesh: SimMesh) -> Iterator[Keeper]:
    for node in mesh.nodes.values():
        if node.running and (keeper := node.keeper) is not None:
            yield keeper


class RunVerdict(msgspec.Struct, frozen=True):
    """One run. problem: empty if all is well, otherwise a description; kind: the same in a word.

    without_quorum: it could rightly not go on: most of the last contributors are gone for good.
    waits: in a stuck mesh, a line for each node on its wait. revoked: the number of devices that are out in the end.
    """

    seed: int
    messages: int = 0
    events: int = 0
    seconds: float = 0.0
    rounds_closed: int = 0
    lost_with_owner: int = 0
    lost: int = 0
    double: int = 0
    without_quorum: bool = False
    revoked: int = 0
    kind: str = ""
    problem: str = ""
    waits: tuple[str, ...] = ()


# The exit code of a device that its user has stopped.
_ENDED = 130
# Virtual seconds for elections, silences, cuts that only just healed, and catching up: about thirty timeouts of a
# simulated process.
_START_S = 60.0
# The same for each round. Without loss one takes 0.8 to 1.5 s; with 30 % loss, where much is asked for three times and
# healthy agents are taken for lost, 3 to 9 s (2 to 9 devices). The limit is about half more than that: agents that take
# turns never come to an end.
_ROUND_S = 3.0
_ROUND_OF_LOSS_S = 36.0


def patience_s(plan: FaultPlan) -> float:
    """Return the virtual seconds a mesh may take for its rounds once all faults are over; then it is stuck."""
    return _START_S + plan.rounds * (_ROUND_S + _ROUND_OF_LOSS_S * (plan.loss + plan.late))


def is_settled(mesh: SimMesh, rounds: int) -> Callable[[], bool]:
    """Return a test: all live members stand at one w, of this round or a later one, and know all devices that are out.

    No member may be fetching another model: its contribution to that one is not known before.
    """
    closed = mesh.accounts.closed  # one more than the rounds

    def settled() -> bool:
        if len(closed) <= rounds:
            return False
        digest, gate = b"", mesh.gate
        out = gate.known_out() if gate is not None else ()
        for node in mesh.nodes.values():
            holder = node.holder
            if holder is None or not node.running or node.peer_id in out:
                continue
            if holder.round_id < rounds or holder.catching_up_to or (digest and holder.digest != digest):
                return False
            digest = holder.digest
        return bool(digest) and not (gate is not None and gate.unaware())

    return settled


def judge(mesh: SimMesh, plan: FaultPlan, settled: bool, tell_waits: Callable[[Node], str]) -> RunVerdict:
    """Judge a run in which no invariant was broken. settled: True if it came to its end in time.

    tell_waits: describes a node's wait in a line.
    """
    out, revoked = _out(mesh), mesh.gate.revoked() if mesh.gate is not None else ()
    verdict = RunVerdict(
        plan.seed,
        mesh.messages,
        mesh.events,
        round(mesh.now, 3),
        rounds_closed=mesh.accounts.rounds_closed(),
        revoked=len(out),
    )
    for node in mesh.nodes.values():
        if node.peer_id in revoked or not node.finished or (node.finished.exit_code == _ENDED and plan.has_leaves()):
            continue
        if node.finished.problem or node.finished.exit_code:
            problem = f"{node.peer_id} left: {node.finished.problem or node.finished.exit_code}"
            return msgspec.structs.replace(verdict, kind="left", problem=problem)
    if mesh.gate is not None and (unaware := mesh.gate.unaware()):
        return msgspec.structs.replace(verdict, kind="unaware", problem=unaware)
    if not settled:
        if (plan.stays_away() or revoked) and not _has_quorum(mesh, plan.peers):
            return msgspec.structs.replace(verdict, without_quorum=True)
        waits = tuple(tell_waits(node) for node in mesh.nodes.values() if node.running)
        problem = f"stuck, {patience_s(plan):.0f} s after the last fault: {_standings(mesh)}"
        return msgspec.structs.replace(verdict, kind="stuck", problem=problem, waits=waits)
    return _count(mesh, verdict)


def _count(mesh: SimMesh, verdict: RunVerdict) -> RunVerdict:
    accounts, out = mesh.accounts, _out(mesh)
    live = _holders(mesh)
    if not live:
        return verdict
    model = model_of(live[0][1])
    coming, kept_back = np.zeros(accounts.size), np.zeros(accounts.size)
    for node, holder in live:
        coming += _pending(accounts, node, holder)
        if (kept := holder.kept_back) is not None:
            kept_back += kept / accounts.amounts
    with_owner, lost, twice = 0, [], []
    for work, dimension, count in accounts.held_works(model):
        owner = mesh.nodes[work.owner.peer_id]
        owner_lives = owner.running and owner.contributor == work.owner and owner.peer_id not in out
        total = count + coming[dimension]
        name = f"{work.owner.peer_id}/{work.owner.incarnation}'s training of round {work.round_id}"
        if total - kept_back[dimension] > 1 + accounts.rounding:
            twice.append(f"{name} counts {count:.3g} and comes {total - count:.3g} times more")
        elif total < 1 - accounts.rounding and not (owner_lives and dimension in accounts.under_way):
            if owner_lives:
                lost.append(f"{name} counts {count:.3g} and {total - count:.3g} is to come")
            else:
                with_owner += 1
    kind = "double" if twice else "lost" if lost else ""
    return msgspec.structs.replace(
        verdict,
        lost_with_owner=with_owner,
        lost=len(lost),
        double=len(twice),
        kind=kind,
        problem="; ".join((twice + lost)[:3]),
    )


def _pending(accounts: Accounts, node: Node, holder: Holder) -> NDArray[np.float32]:
    """Return the pending work of this device: its carry, and its own delta of the open round."""
    pending = np.zeros(accounts.size, np.float32)
    if (carry := holder.carry) is not None:
        pending += carry
    own = accounts.own(holder.attempt(), holder.digest, node.contributor)
    return (pending if own is None else pending + own) / accounts.amounts


def _out(mesh: SimMesh) -> set[str]:
    """Return the devices that are out of the mesh; their processes may run on."""
    return mesh.gate.known_out() if mesh.gate is not None else set()


def _holders(mesh: SimMesh) -> list[tuple[Node, Holder]]:
    out = _out(mesh)
    return [
        (node, node.holder)
        for node in mesh.nodes.values()
        if node.running and node.holder is not None and node.peer_id not in out
    ]


def _has_quorum(mesh: SimMesh, peers: int) -> bool:
    """Return True if most deciders on the newest round's successor are running: its contributors, or the starters.

    A mesh of nobody, of which no model is left, needs most of the `peers` running, enough to start one (`min_peers` of
    `simulated_start` in peers/roles/build.py).
    """
    holders = _holders(mesh)
    newest = max(holders, key=lambda found: found[1].round_id, default=None)
    if newest is None:
        return False
    base = set(newest[1].base)
    if not base:
        return 2 * len(holders) > peers
    there = {node.peer_id for node, _ in holders} & base
    return 2 * len(there) > len(base) or (2 * len(there) == len(base) and min(base) in there)


def _standings(mesh: SimMesh) -> str:
    """Describe each device's round, each agent with its followers, and its wait."""
    told = [f"{node.peer_id} at {holder.round_id}" for node, holder in _holders(mesh)]
    running = [node for node in mesh.nodes.values() if node.running]
    leaders = [
        f"{node.peer_id} by the view of {_followers(running, node.peer_id)}, {_phase(keeper)}"
        for node in running
        if (keeper := node.keeper) is not None
    ]
    return f"{', '.join(told)}; in office: {'; '.join(leaders) or 'nobody'}"


def _followers(running: list[Node], agent: str) -> str:
    obeying = [node.peer_id for node in running if node.succession and node.succession.agent == agent]
    return " ".join(obeying) or "nobody"


def _phase(keeper: Keeper) -> str:
    told = str(keeper.phase.value)
    return f"{told}, waits for {keeper.waiting_for}" if keeper.waiting_for else told
