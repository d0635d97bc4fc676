"""The verdict on a simulated run: every training that a device held is counted, or still pending, or has a reason.

For each training, the count in w plus the pending work of live devices must be 1. Less is lost with its owner if that
process is gone; otherwise it is lost, which must never be. More would count twice. Work that a device keeps back comes
once, or is counted by the rounds that it is about to take over.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import model_of
from mdl.sim.mesh.process import Holder, Keeper, Node
from mdl.sim.plans.fault_plan import FaultPlan


class Verdict(msgspec.Struct, frozen=True):
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


def judge(mesh: SimMesh, plan: FaultPlan, settled: bool, tell_waits: Callable[[Node], str]) -> Verdict:
    """Judge a run in which no invariant was broken. settled: True if it came to its end in time.

    tell_waits: describes a node's wait in a line.
    """
    out, revoked = _out(mesh), mesh.gate.revoked() if mesh.gate is not None else ()
    verdict = Verdict(
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


def _count(mesh: SimMesh, verdict: Verdict) -> Verdict:
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
