"""Runs fault plans on a simulated mesh of the real machines, judges them, and shrinks those that fail.

The rosters of its devices have real statements and signatures, with keys that follow from the devices' names. Every
device is an owner, named by a founder that takes no part. A signature is checked once for all meshes of this process: a
check takes longer than all else that a simulated device does in a second.
"""

from __future__ import annotations

import gc
import hashlib
import signal
import threading
import traceback
from collections.abc import Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from types import FrameType

import numpy as np

from mdl.config import Rule
from mdl.errors import MdlError
from mdl.peers.roles.agent.settings import TimeLimit
from mdl.peers.roles.build import SEGMENT_VALUES, PeerStart, TrainerStart, build_machine, simulated_start
from mdl.peers.roles.peer import Peer, tell_waits
from mdl.protocol.checksum import piece_values
from mdl.protocol.delta import Contributor
from mdl.protocol.statements import AnyStatement
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.sim.mesh.accounts import Accounts, InvariantError, dimensions_of
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.injector import Injector
from mdl.sim.mesh.invariants import Invariants, RunVerdict, is_settled, judge, patience_s
from mdl.sim.mesh.network import Network
from mdl.sim.mesh.process import Disk, Node
from mdl.sim.mesh.search import copy_graph
from mdl.sim.plans.fault_plan import AGENT_NODE, FaultPlan, Lie, shrink_plan
from mdl.sim.trust import Judge, SimulatedGate
from mdl.transport.links.standing import LinkStanding, Stated
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, is_signed, new_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import Roster

_FOUNDER = "the founder"


def open_gate(mesh: SimMesh, node_ids: tuple[str, ...]) -> SimulatedGate:
    """Return the gate of a mesh with processes of these names."""
    names = {_device(peer_id).public: peer_id for peer_id in node_ids}
    return SimulatedGate(mesh, partial(_open, node_ids), _revoke, names, Judge(mesh))


def _open(
    node_ids: tuple[str, ...],
    peer_id: str,
    kept: tuple[AnyStatement, ...] | None,
    linked: Mapping[str, PeerInfo],
    now: float,
) -> LinkStanding:
    membership = Membership(_keys(), _device(peer_id))
    first = _first_roster(node_ids)
    membership.roster = copy_graph(first) if kept is None else Roster(_keys(), kept, _is_signed)
    return LinkStanding(peer_id, membership, lambda: list(linked), lambda: list(linked.values()), now)


def _revoke(standing: LinkStanding, peer_id: str, now: float) -> Stated:
    assert standing.membership is not None
    return Stated(standing.membership.revoke(_device(peer_id).public, int(1000 * now), ""))


@cache
def _keys() -> MeshKeys:
    return MeshKeys.from_code(new_join_code("sim", bytes(19), founder_mark(_device(_FOUNDER).public)))


@cache
def _device(name: str) -> DeviceKey:
    return DeviceKey.of(hashlib.blake2b(name.encode(), digest_size=32).digest())


@cache
def _first_roster(node_ids: tuple[str, ...]) -> Roster:
    """Return the statements that all devices know when the mesh begins."""
    founder = Membership(_keys(), _device(_FOUNDER))
    roster = Roster(_keys(), check=_is_signed)
    for statement in (founder.found(), *(founder.name_owner(_device(peer_id).public) for peer_id in node_ids)):
        roster.add(statement)
    for peer_id in node_ids:
        roster.add(Membership(_keys(), _device(peer_id)).enrol(peer_id))
    return roster


@lru_cache(4096)
def _checked(public: bytes, claim: bytes, signature: bytes) -> bool:
    return is_signed(public, claim, signature)


def _is_signed(public: bytes, claim: bytes, signature: bytes) -> bool:
    return _checked(public, claim, signature)


# 0.3 MB at 2.5 to 5 MB/s: a hop takes 0.06 to 0.12 s, not much less than local training, so that faults hit both.
SIZE_BYTES = 300_000
RATES_MB_S = (2.5, 5.0)
# A round of a device that trains alone takes as long as its training does: 0.15 s at least, mostly more.
_ALONE_S = 0.15
# If nothing in a plan keeps devices apart for longer, the trainings of a run of its size are enough.
_APART_S = 6.0
# A run that takes so many seconds of this process's own processor time hangs inside one event: that is some 500 times
# its usual time. The wall clock does not count: if other programs want the processor, any run takes long.
HANG_S = 20.0
# Slow devices train so many times as long as the others. A round waits for half of the devices, and a moment for the
# others; it goes on without a device at most so many times running.
_SLOW, _WAIT_FOR, _GRACE_S, _MOST_LEFT_OUT = 6.0, 0.51, 0.3, 3
# The timer rings again after so many seconds, in case its first bell was lost.
_AGAIN_S = 0.05
# Exceptions that a bug in a machine may raise; any other is a bug of the simulator.
BUGS = (MdlError, AssertionError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def build_mesh(plan: FaultPlan, record: bool = False) -> tuple[SimMesh, Injector]:
    """Return the mesh of this plan, with all processes about to start and the faults waiting."""
    rng = np.random.default_rng([plan.seed, 0x5EED])
    start = np.zeros(_count_trainings(plan), np.float32)
    accounts = Accounts(start, plan.compress, plan.outer())
    rates = {peer_id: float(rng.uniform(*RATES_MB_S)) for peer_id in plan.peer_ids()}
    network = Network(
        rng, jitter_s=plan.jitter_s, rates_mb_s=rates, loss=plan.loss, duplication=plan.duplication, late=plan.late
    )

    def build(peer_id: str, incarnation: int, disk: Disk, now: float) -> Peer:
        saved = disk.models
        process = process_start(plan, peer_id, incarnation, disk, now)
        if record:
            mesh.starts[process.me] = process
        if not saved:
            return build_machine(process, start)
        return build_machine(process, saved[-1].parameters, momentum=saved[-1].momentum)

    invariants = Invariants(accounts)
    mesh = SimMesh(network, accounts, SIZE_BYTES, invariants.check, build, record)
    mesh.on_close, mesh.on_say = invariants.close, invariants.say
    if plan.has_revocations():
        mesh.gate = open_gate(mesh, tuple(plan.node_ids()))
    for peer_id in plan.node_ids():
        role = Role.AGENT if peer_id == AGENT_NODE else Role.TRAINER
        mesh.add(peer_id, role, build(peer_id, 1, Disk(), 0.0), train_s=_train_s(plan, peer_id, rng))
    return mesh, Injector(mesh, plan)


def _train_s(plan: FaultPlan, peer_id: str, rng: np.random.Generator) -> float:
    """Return the virtual seconds that a device trains for a round."""
    return float(rng.uniform(0.15, 0.4)) * (_SLOW if plan.is_slow(peer_id) else 1.0)


def _count_trainings(plan: FaultPlan) -> int:
    """Return how many trainings a run may take.

    A locked-out device may go on alone, and so may one that is apart from the others for long.
    """
    alone_s = patience_s(plan) if plan.has_revocations() else plan.peers * plan.apart_s(_APART_S)
    return dimensions_of(plan.peers, plan.rounds) + int(alone_s / _ALONE_S)


def _segment_values(plan: FaultPlan) -> int:
    """Return the values of a segment: a plan with a larger model has no more segments than one of the usual size.

    Each segment has messages of its own, all of which a plan may lose. Segments are made of whole pieces.
    """
    size = _count_trainings(plan)
    values, piece = round(SEGMENT_VALUES * size / dimensions_of(plan.peers, plan.rounds)), piece_values(size)
    return -(-values // piece) * piece


def process_start(plan: FaultPlan, peer_id: str, incarnation: int, disk: Disk, now: float) -> PeerStart:
    """Return how one process of this plan starts, from its saved state if there is any."""
    start = None
    if peer_id != AGENT_NODE:
        size = _count_trainings(plan)
        start = TrainerStart(size, b"", ballot=disk.ballot)
        if disk.models:
            saved = disk.models[-1]
            start = TrainerStart(size, saved.digest, round_id=saved.round_id, history=saved.history, ballot=disk.ballot)
    me = Contributor(peer_id, incarnation)
    judges = any(isinstance(fault, Lie) for fault in plan.faults)
    exchange = (plan.exchange, plan.compress, plan.outer(), judges, plan.overlaps(peer_id))
    values, limit = _segment_values(plan), TimeLimit()
    if plan.slow:
        rule: Rule = "half" if plan.seed % 2 else "best-ratio"
        limit = TimeLimit(_WAIT_FOR, _GRACE_S, 1 + plan.seed % _MOST_LEFT_OUT, rule=rule)
    told = (plan.policy, plan.peers, plan.on_partition, start, now)
    return simulated_start(me, *told, *exchange, segment_values=values, limit=limit, meets=plan.slow)


def run_plan(plan: FaultPlan, record: bool = False) -> tuple[RunVerdict, SimMesh]:
    """Run one plan to its end; the mesh has the story if `record`."""
    mesh, injector = build_mesh(plan, record)
    settled = is_settled(mesh, plan.rounds)
    closed = mesh.accounts.closed

    def is_done() -> bool:
        return len(closed) > plan.rounds and mesh.now >= injector.ends_s and settled()

    try:
        done = False
        while not done:
            ends_s = injector.ends_s
            mesh.run(ends_s)
            done = mesh.run(ends_s + patience_s(plan), is_done)
            if injector.ends_s == ends_s:
                break
        return judge(mesh, plan, done and settled(), lambda node: _tell_waits(mesh, node)), mesh
    except BUGS as error:
        kind = error.kind if isinstance(error, InvariantError) else type(error).__name__
        return _broken(mesh, plan, kind, str(error)), mesh


def run_guarded(plan: FaultPlan, limit_s: float = HANG_S) -> RunVerdict:
    """Run a plan as `run_plan` does, but a machine that never returns from an event is a verdict too.

    That works in the main thread, on POSIX; elsewhere it equals `run_plan`.
    """
    verdict, mesh = _run_guarded(plan, False, limit_s)
    mesh.end()
    return verdict


def tell_plan(plan: FaultPlan, limit_s: float = HANG_S) -> tuple[RunVerdict, SimMesh]:
    """Do the same as `run_guarded`, with the story."""
    return _run_guarded(plan, True, limit_s)


def shrink(plan: FaultPlan, kind: str, limit_s: float = HANG_S / 2) -> FaultPlan:
    """Return the shortest plan found that fails in the same way."""
    return shrink_plan(plan, lambda smaller: run_guarded(smaller, limit_s).kind == kind)


def _run_guarded(plan: FaultPlan, record: bool, limit_s: float) -> tuple[RunVerdict, SimMesh]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return run_plan(plan, record)
    before = signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s, _AGAIN_S)
    try:
        return run_plan(plan, record)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _interrupt(_: int, frame: FrameType | None) -> None:
    if _is_swallowed(frame):
        return  # the timer rings again
    where = traceback.extract_stack(frame)[-1]
    place = f"{Path(where.filename).name}, {where.name}" if frame else "somewhere"
    raise InvariantError("hang", f"an event is never handled to its end; at {place}")


def _is_swallowed(frame: FrameType | None) -> bool:
    """Return True if Python would only print an exception from here: in a finalizer or a callback of its collector."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _tell_waits(mesh: SimMesh, node: Node) -> str:
    told = tell_waits(node.machine, mesh.now + node.offset_s) if isinstance(node.machine, Peer) else node.peer_id
    return told if node.paused_at is None else f"{told}; suspended"


def _broken(mesh: SimMesh, plan: FaultPlan, kind: str, problem: str) -> RunVerdict:
    return RunVerdict(
        plan.seed,
        mesh.messages,
        mesh.events,
        round(mesh.now, 3),
        mesh.accounts.rounds_closed(),
        double=int(kind == "double"),
        kind=kind,
        problem=problem,
    )
