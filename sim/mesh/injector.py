"""Carries out a fault plan on a simulated mesh: timed faults as calls between events, faults that wait for a message as
its watch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mdl.errors import LocalProtocolError
from mdl.protocol.machine import Event, PauseChanged, Received, Send, StopRequested
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import PeerReport
from mdl.sim.mesh.driver import SimMesh, StoryStep, Watch
from mdl.sim.mesh.process import Disk, Node
from mdl.sim.plans.fault_plan import (
    ANYBODY,
    ITSELF,
    OFFICE,
    Alters,
    Burst,
    ClockJump,
    Clone,
    Crash,
    CrashOn,
    Cut,
    CutOneWay,
    DiskFull,
    FaultPlan,
    Leave,
    Lie,
    Moment,
    Pause,
    PowerCut,
    Restart,
    Restore,
    Revoke,
    Split,
    Starve,
    Step,
    Suspend,
    TimedFault,
    TornFile,
    TwoFaced,
    names_of,
    rename,
)

BEFORE_HEARING, AFTER_HEARING, BEFORE_SAYING, AFTER_SAYING = Moment
# A starved process gets the processor for this long at once.
_MOMENT_S = 0.02
Pairs = list[tuple[str, str]]
# A step of a decision: the message that shows it, and True if the device that takes the step says it, else it hears it.
_STEPS = {
    Step.OPENED: ("RoundOpened", True),
    Step.PROPOSED: ("BroadcastOrdered", True),
    Step.STAGED: ("GlobalMessage", False),
    Step.VOTED: ("PeerReport", True),
    Step.CLOSING: ("RoundClosed", True),
    Step.SAVING: ("RoundClosed", False),
    Step.GIVEN: ("PieceMessage", False),
    Step.GOT: ("SegmentMessage", False),
}


@dataclass
class _Trap:
    """A fault that waits for a message. moment, message: the trigger. left: so many more triggers start the fault."""

    fault: CrashOn | Burst
    message: str
    moment: Moment
    left: int


class Injector(Watch):
    """See the module. Make one per mesh, once all its processes are there; ends_s: the end of the last fault."""

    def __init__(self, mesh: SimMesh, plan: FaultPlan) -> None:
        self.mesh = mesh
        self.ends_s = plan.ends_s()
        self._traps: dict[str, list[_Trap]] = {}
        for fault in plan.faults:
            if isinstance(fault, CrashOn | Burst):
                trap = _trap(fault)
                self._traps.setdefault(trap.message, []).append(trap)
            else:
                mesh.at(fault.at_s, partial(self._do, fault))
        if self._traps:
            mesh.watch = self

    def is_over(self) -> bool:
        """Return True if no timed fault is under way or still to come; traps may still wait for a message."""
        return self.mesh.now >= self.ends_s

    def disarm(self) -> None:
        """Drop all traps that have not been triggered by now."""
        self.mesh.watch = None

    # -- timed faults -------------------------------------------------------------------------------------------------

    def _do(self, named: TimedFault) -> None:
        mesh, fault = self.mesh, self._aim(named)
        if fault is None:
            return
        self._tell(_describe(fault))
        match fault:
            case Crash(peer=peer):
                mesh.crash(peer)
            case Restart(peer=peer):
                mesh.restart(peer)
            case Leave(peer=peer):
                if mesh.nodes[peer].holder is not None:
                    mesh.post(peer, StopRequested())
            case Suspend(peer=peer, for_s=for_s):
                if mesh.nodes[peer].running:
                    mesh.suspend(peer, for_s)
            case Pause(peer=peer, for_s=for_s):
                mesh.post(peer, PauseChanged("in use"))
                mesh.at(mesh.now + for_s, partial(mesh.post, peer, PauseChanged()))
            case ClockJump(peer=peer, by_s=by_s):
                node = mesh.nodes[peer]
                node.offset_s += by_s
                mesh.wake(node)
            case DiskFull(peer=peer, for_s=for_s):
                disk = mesh.disk(peer)
                disk.full_until_s = max(mesh.now + for_s, disk.full_until_s)
            case TornFile(peer=peer):
                del mesh.disk(peer).models[-1:]
            case PowerCut(peer=peer, loses_s=loses_s, ballot_loses_s=ballot_loses_s):
                mesh.crash(peer)
                mesh.disk(peer).lose(loses_s, ballot_loses_s, mesh.now)
            case Restore(peer=peer, age_s=age_s):
                self._start_with(peer, mesh.disk(peer).copy(age_s, mesh.now))
            case Clone(peer=peer, age_s=age_s, for_s=for_s):
                own = mesh.disk(peer)
                self._start_with(peer, own.copy(age_s, mesh.now, f"another machine at {mesh.now}"))
                mesh.at(mesh.now + for_s, partial(self._end_clone, peer, own))
            case Starve(peer=peer, for_s=for_s, every_s=every_s):
                self._starve(peer, mesh.now + for_s, every_s or for_s)
            case Cut(a=a, b=b, for_s=for_s):
                self._cut([(a, b), (b, a)], for_s)
            case CutOneWay(a=a, b=b, for_s=for_s):
                self._cut([(a, b)], for_s)
            case Split(group=group, for_s=for_s):
                rest = [peer for peer in mesh.nodes if peer not in group]
                self._cut([pair for a in group for b in rest for pair in ((a, b), (b, a))], for_s)
            case Revoke(peer=peer, by=by, heeds=heeds):
                assert mesh.gate is not None
                mesh.gate.revoke(by, peer, heeds)
            case Lie(peer=peer, times=times, for_s=for_s):
                mesh.lies[peer] = times
                mesh.liars.add(peer)
                mesh.at(mesh.now + for_s, partial(self._end_lie, peer))
            case TwoFaced(peer=peer, to=to, more=more, for_s=for_s, hides=hides):
                mesh.two_faced[peer] = frozenset(to), more
                mesh.hides |= {peer} if hides else set()
                mesh.liars.add(peer)
                mesh.at(mesh.now + for_s, partial(mesh.two_faced.update, {peer: (frozenset(), 0.0)}))
            case Alters(peer=peer, for_s=for_s):
                mesh.alters.add(peer)
                mesh.liars.add(peer)
                mesh.at(mesh.now + for_s, partial(mesh.alters.discard, peer))
            case _:
                raise LocalProtocolError(f"a fault of an unknown kind: {type(fault).__name__}")

    def _aim(self, fault: TimedFault) -> TimedFault | None:
        """Aim a fault that names the office at the present leader; None if there is none. Raises LocalProtocolError."""
        if OFFICE not in names_of(fault):
            return fault
        leader = self._leader()
        return rename(fault, {OFFICE: leader}) if leader else None

    def _leader(self) -> str:
        """Return one node in office, "" if there is none."""
        return next((node.peer_id for node in self.mesh.nodes.values() if node.running and node.keeper is not None), "")

    def _cut(self, pairs: Pairs, for_s: float) -> None:
        for pair in pairs:
            self.mesh.network.cut(*pair)
        self.mesh.at(self.mesh.now + for_s, partial(self._heal, pairs))

    def _start_with(self, peer: str, disk: Disk) -> None:
        self.mesh.crash(peer)
        self.mesh.disks[peer] = disk
        self.mesh.restart(peer)

    def _end_clone(self, peer: str, own: Disk) -> None:
        own.roster = self.mesh.disk(peer).roster
        self._start_with(peer, own)
        self._tell(f"{peer} goes on with its own card")

    def _starve(self, peer: str, until_s: float, every_s: float) -> None:
        """Starve the peer's running process, also one that is started meanwhile, which gets one moment before."""
        now = self.mesh.now
        if (for_s := min(every_s, until_s - now) - _MOMENT_S) <= 0.0:
            return
        if self.mesh.nodes[peer].running:
            self.mesh.suspend(peer, for_s)
        self.mesh.at(now + every_s, partial(self._starve, peer, until_s, every_s))

    def _end_lie(self, peer: str) -> None:
        self.mesh.lies.pop(peer, None)

    def _heal(self, pairs: Pairs) -> None:
        for pair in pairs:
            self.mesh.network.heal(*pair)
        self.mesh.introduce()
        self._tell("the cut heals")

    # -- faults that wait for a message -------------------------------------------------------------------------------

    def before(self, node: Node, event: Event) -> bool:
        if type(event) is Received and type(event.message).__name__ in self._traps:
            self._spring(node, event.message, BEFORE_HEARING)
        return node.running

    def after(self, node: Node, event: Event) -> None:
        if type(event) is Received and type(event.message).__name__ in self._traps:
            self._spring(node, event.message, AFTER_HEARING)

    def saying(self, node: Node, send: Send) -> None:
        if type(send.message).__name__ in self._traps:
            self._spring(node, send.message, BEFORE_SAYING)

    def said(self, node: Node, send: Send) -> None:
        if type(send.message).__name__ in self._traps:
            self._spring(node, send.message, AFTER_SAYING)

    def _spring(self, node: Node, message: Said, moment: Moment) -> None:
        for trap in self._traps[type(message).__name__]:
            fault = trap.fault
            if trap.left <= 0 or trap.moment is not moment or self.mesh.now < fault.at_s:
                continue
            if fault.peer not in (ANYBODY, node.peer_id) and not (fault.peer == OFFICE and node.keeper is not None):
                continue
            if isinstance(fault, Burst) and not _is_step(message, fault):
                continue
            trap.left -= 1
            if trap.left == 0:
                if isinstance(fault, Burst):
                    self._begin(node, fault)
                else:
                    self._crash(node, fault)
                if all(other.left <= 0 for traps in self._traps.values() for other in traps):
                    self.disarm()

    def _crash(self, node: Node, fault: CrashOn) -> None:
        self._tell(f"{node.peer_id} crashes {fault.moment.value} {fault.message} number {fault.nth}")
        self.mesh.crash(node.peer_id)
        if fault.restart_after_s is not None:
            self._do_later(Restart(at_s=fault.restart_after_s, peer=node.peer_id))

    def _begin(self, node: Node, burst: Burst) -> None:
        when = "before" if burst.before else "after"
        self._tell(f"a burst {when} step {burst.step.value} of round {burst.round_id}, by {node.peer_id}")
        names = {ITSELF: node.peer_id, OFFICE: self._leader() or node.peer_id}
        for fault in burst.faults:
            self._do_later(rename(fault, names))

    def _do_later(self, fault: TimedFault) -> None:
        """Do a fault later; its time counts from now. A time of 0: do it at once, in the middle of a process's work."""
        if not fault.at_s:
            self._do(fault)
        self.ends_s = max(self.ends_s, self.mesh.now + fault.at_s + getattr(fault, "for_s", 0.0))
        if fault.at_s:
            self.mesh.at(self.mesh.now + fault.at_s, partial(self._do, fault))

    def _tell(self, text: str) -> None:
        if self.mesh.story is not None:
            self.mesh.story.append(StoryStep(self.mesh.now, None, text))


def _trap(fault: CrashOn | Burst) -> _Trap:
    if isinstance(fault, CrashOn):
        return _Trap(fault, fault.message, fault.moment, fault.nth)
    message, is_said = _STEPS[fault.step]
    before, after = (BEFORE_SAYING, AFTER_SAYING) if is_said else (BEFORE_HEARING, AFTER_HEARING)
    return _Trap(fault, message, before if fault.before else after, fault.nth)


def _is_step(message: Said, burst: Burst) -> bool:
    """Return True if the message belongs to the burst's round; a report is a vote if it names a staged result."""
    if type(message) is PeerReport:
        return message.staged is not None and message.open_round == burst.round_id
    return getattr(message, "round_id", None) == burst.round_id


def _describe(fault: TimedFault) -> str:
    match fault:
        case Crash(peer=peer):
            return f"{peer} crashes"
        case Restart(peer=peer):
            return f"{peer} starts again"
        case Leave(peer=peer):
            return f"{peer} is ended by its user"
        case Suspend(peer=peer, for_s=for_s):
            return f"{peer} is suspended for {for_s:g} s"
        case Pause(peer=peer, for_s=for_s):
            return f"{peer} may not train for {for_s:g} s"
        case ClockJump(peer=peer, by_s=by_s):
            return f"the clock of {peer} jumps by {by_s:g} s"
        case DiskFull(peer=peer, for_s=for_s):
            return f"the disk of {peer} is full for {for_s:g} s"
        case TornFile(peer=peer):
            return f"what {peer} saved last is torn"
        case PowerCut(peer=peer, loses_s=loses_s, ballot_loses_s=ballot_loses_s):
            return (
                f"{peer} loses power, its disk the models of the last {loses_s:g} s and the ballots of the last "
                f"{ballot_loses_s:g} s"
            )
        case Restore(peer=peer, age_s=age_s):
            return f"{peer} starts again with its files of {age_s:g} s ago"
        case Clone(peer=peer, age_s=age_s, for_s=for_s):
            return f"a copy of {peer}'s card of {age_s:g} s ago runs in its place for {for_s:g} s"
        case Starve(peer=peer, for_s=for_s, every_s=every_s):
            how = f"the processor once in {every_s:g} s" if every_s else "no processor"
            return f"{peer} gets {how} for {for_s:g} s"
        case Cut(a=a, b=b, for_s=for_s):
            return f"nothing passes between {a} and {b} for {for_s:g} s"
        case CutOneWay(a=a, b=b, for_s=for_s):
            return f"nothing passes from {a} to {b} for {for_s:g} s"
        case Split(group=group, for_s=for_s):
            return f"{', '.join(group)} are cut off for {for_s:g} s"
        case Revoke(peer=peer, by=by, heeds=heeds):
            return f"{by}, or another that can, revokes {peer}{', which will heed it' if heeds else ''}"
        case Lie(peer=peer, times=times, for_s=for_s):
            return f"{peer} gives {times:g} times what it should for {for_s:g} s"
        case TwoFaced(peer=peer, to=to, more=more, for_s=for_s):
            return f"{peer} gives {', '.join(to)} a result that is {more:g} more than its own for {for_s:g} s"
        case Alters(peer=peer, for_s=for_s):
            return f"{peer} alters a value of each sum that it gives on for {for_s:g} s"
    raise LocalProtocolError(f"a fault of an unknown kind: {type(fault).__name__}")
