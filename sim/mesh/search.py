"""An exhaustive search over what may befall a mesh: every schedule that departs at most so often from the usual one.

The usual schedule is the simulated mesh's own: messages arrive at once, in the order in which they were sent, training
takes a second, nobody fails. A step is one event at one process. A departure is possible at each step of a process that
has not had the last round yet: `Lose`, `Late`, `Crash`, `Cut` or `Suspend`. What follows is the usual schedule of the
mesh as it is then, until all stand at one w, or until the next departure. All combinations of so many departures are
gone through, the fewest first, so that the first schedule that breaks something is a shortest one. Where ways part the
mesh is copied (`sim/mesh/snapshot.py`). This is delay-bounded search (Emmi, Qadeer and Rakamaric 2011), with crashes,
cuts and suspensions beside the delays. Knows no roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.protocol.machine import Event, Received, Send
from mdl.protocol.round_messages import RoundOpened
from mdl.sim.mesh.accounts import InvariantError
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.process import Node
from mdl.sim.mesh.snapshot import copy_graph
from mdl.sim.mesh.verdict import is_settled
from mdl.sim.mesh.watch import StoryStep, Watch
from mdl.sim.plans.fault_plan import Seconds

# How long something may last, in virtual seconds of the machines that `mdl sim` runs: all that is under way comes
# first, and is asked for again; another agent leads meanwhile; and a group without a majority has begun a fork.
SOON_S, SUCCEEDED_S, FORKED_S = 0.5, 3.5, 9.0
# So long after the last departure all must stand at one w; a mesh without faults takes a second a round.
PATIENCE_S = 60.0
_AT_ONCE = 0.0


class Departure(msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=True):
    """step: the number of the step at which it happens, counted from the start over all processes."""

    step: Annotated[int, Meta(ge=1)]


class Lose(Departure, frozen=True):
    """The message does not arrive."""


class Late(Departure, frozen=True):
    """It arrives for_s later."""

    for_s: Seconds


class Crash(Departure, frozen=True):
    """The process dies once it has sent so many messages of this step, and starts again from its disk for_s later.

    said: 0 if it has written to its disk, and tells nobody any more.
    """

    said: Annotated[int, Meta(ge=0)]
    for_s: Seconds


class Forget(Crash, frozen=True):
    """As Crash, and the file with its ballot is lost."""


class Cut(Departure, frozen=True):
    """The process handles this step's event, but from before its first answer on nothing passes from or to it."""

    for_s: Seconds


class Sever(Departure, frozen=True):
    """The process handles this step's message, but from before its first answer on nothing passes between the two."""

    for_s: Seconds


class Suspend(Departure, frozen=True):
    """After this step the process stands still (SIGSTOP, a closed lid); what comes meanwhile waits for it."""

    for_s: Seconds


AnyDeparture: TypeAlias = Lose | Late | Crash | Forget | Cut | Sever | Suspend
# A ballot is lost with a device's folder alone, so that is extra.
USUAL = ("lose", "late", "crash", "cut", "sever", "suspend")
KINDS: dict[str, type[AnyDeparture]] = {
    kind.__name__.lower(): kind for kind in (Lose, Late, Crash, Forget, Cut, Sever, Suspend)
}


@dataclass
class _Step:
    """The step that is being taken, or was taken last. stood_at: the round that its process had on the disk."""

    node: Node
    event: Event
    stood_at: int
    disk: tuple[object, ...]
    said: int = 0


@dataclass(eq=False)
class Walk(Watch):
    """One schedule, as far as it has come. kind, problem: what is broken, "" if nothing is. told: departures in words.

    bugs: what a machine that is wrong may raise. from_round: the first in which a schedule may part from the usual one.
    """

    mesh: SimMesh
    rounds: int
    bugs: tuple[type[Exception], ...]
    from_round: int = 1
    steps: int = 0
    departures: tuple[AnyDeparture, ...] = ()
    told: tuple[str, ...] = ()
    kind: str = ""
    problem: str = ""
    _ends_s: float = 0.0
    _is_open: bool = False
    _departure: AnyDeparture | None = None
    _step: _Step | None = None

    def __post_init__(self) -> None:
        self.mesh.watch = self

    @property
    def own_steps(self) -> int:
        """Steps since the last departure: before it, this was another schedule."""
        return self.steps - (self.departures[-1].step - 1 if self.departures else 0)

    def step(self, departure: AnyDeparture | None = None) -> bool:
        """Take one step; False at the end of the schedule."""
        if self.kind or self._is_settled():
            return False
        self._departure, before = departure, self.steps
        try:
            self.mesh.run(self._ends_s + PATIENCE_S, lambda: True)
        except self.bugs as error:
            self.kind = error.kind if isinstance(error, InvariantError) else type(error).__name__
            self.problem = str(error)
            return False
        if self.steps == before:
            self.kind, self.problem = "stuck", f"not all stand at one w after {PATIENCE_S:g} s"
        elif self._step and self._step.node.running:
            if isinstance(departure, Crash):
                self.mesh.crash(self._step.node.peer_id)  # it had nothing to say
            elif isinstance(departure, Suspend):
                self.mesh.suspend(self._step.node.peer_id, departure.for_s)
        return not self.kind

    def may_depart(self) -> bool:
        """Whether a departure is possible from here on."""
        if self.kind or self.mesh.now < self._ends_s:
            return not self.kind
        return any(self._kept_round(node) < self.rounds for node in self.mesh.nodes.values() if node.holder)

    def alternatives(self) -> Iterator[AnyDeparture]:
        """What else could have happened at the step that was taken last."""
        step = self._step
        if step is None or not self._is_open or step.stood_at >= self.rounds:
            return
        if not self.departures and step.stood_at < self.from_round - 1:
            return
        if isinstance(step.event, Received):
            yield Lose(step=self.steps)
            yield from (Late(step=self.steps, for_s=for_s) for for_s in (SOON_S, SUCCEEDED_S))
            if step.event.sender.peer_id != step.node.peer_id:
                yield from (Sever(step=self.steps, for_s=for_s) for for_s in (SUCCEEDED_S, FORKED_S))
        for said in range(self._disk(step.node) == step.disk, step.said + 1):
            yield from (Crash(step=self.steps, said=said, for_s=for_s) for for_s in (_AT_ONCE, SUCCEEDED_S, FORKED_S))
            yield Forget(step=self.steps, said=said, for_s=_AT_ONCE)
        if step.said:
            yield from (Cut(step=self.steps, for_s=for_s) for for_s in (SUCCEEDED_S, FORKED_S))
            yield from (Suspend(step=self.steps, for_s=for_s) for for_s in (SUCCEEDED_S, FORKED_S))

    def _is_settled(self) -> bool:
        mesh = self.mesh
        return mesh.now >= self._ends_s and len(mesh.accounts.closed) > self.rounds and is_settled(mesh, self.rounds)()

    # -- the mesh's watch ---------------------------------------------------------------------------------------------

    def before(self, node: Node, event: Event) -> bool:
        self.steps += 1
        self._step = _Step(node, event, self._kept_round(node), self._disk(node))
        departure, mesh = self._departure, self.mesh
        if departure is None:
            return True
        self.departures += (departure,)
        self.told += (_describe(departure, node.peer_id, event),)
        if mesh.story is not None:
            mesh.story.append(StoryStep(mesh.now, None, self.told[-1]))
        over_s = mesh.now + getattr(departure, "for_s", 0.0)
        self._ends_s = max(self._ends_s, over_s)
        match departure:
            case Late():
                mesh.at(over_s, partial(mesh.post, node.peer_id, event))
            case Crash():
                mesh.at(over_s, partial(self._restart, node.peer_id, isinstance(departure, Forget)))
            case Cut() | Sever():
                links = self._links(node.peer_id, event if isinstance(departure, Sever) else None)
                for pair in links:
                    mesh.network.cut(*pair)
                mesh.at(over_s, partial(self._heal, links))
        return not isinstance(departure, Lose | Late)

    def saying(self, node: Node, send: Send) -> None:
        self._is_open = self._is_open or type(send.message) is RoundOpened
        self._crash(node)

    def said(self, node: Node, send: Send) -> None:
        if self._step:
            self._step.said += 1
        self._crash(node)

    def _crash(self, node: Node) -> None:
        if isinstance(self._departure, Crash) and self._step and self._step.said == self._departure.said:
            self.mesh.crash(node.peer_id)

    def _restart(self, peer_id: str, forgets: bool) -> None:
        if self.mesh.nodes[peer_id].running:
            return
        if forgets:
            self.mesh.disk(peer_id).kept = None
        self.mesh.restart(peer_id)

    def _heal(self, links: list[tuple[str, str]]) -> None:
        for pair in links:
            self.mesh.network.heal(*pair)
        self.mesh.introduce()

    def _links(self, peer_id: str, event: Event | None = None) -> list[tuple[str, str]]:
        """Of this process with all others; of an event, with its sender alone."""
        others = [event.sender.peer_id] if isinstance(event, Received) else [*self.mesh.nodes.keys() - {peer_id}]
        return [pair for other in sorted(others) for pair in ((peer_id, other), (other, peer_id))]

    def _kept_round(self, node: Node) -> int:
        models = self.mesh.disk(node.peer_id).models
        return models[-1].round_id if models else 0

    def _disk(self, node: Node) -> tuple[object, ...]:
        disk = self.mesh.disk(node.peer_id)
        return (disk.ballot, *[model.digest for model in disk.models])


def explore(walk: Walk, left: int, kinds: tuple[type[AnyDeparture], ...]) -> Iterator[Walk]:
    """Every schedule that goes on from here with just so many more departures of these kinds, at its end."""
    if left == 0:
        while walk.step():
            pass
        yield walk
        return
    for child in _children(walk, kinds):
        yield from explore(child, left - 1, kinds)


def first_departures(walk: Walk, kinds: tuple[type[AnyDeparture], ...]) -> list[AnyDeparture]:
    """Where schedules part for the first time."""
    found: list[AnyDeparture] = []
    while walk.may_depart() and walk.step():
        found += [departure for departure in walk.alternatives() if type(departure) in kinds]
    return found


def follow(walk: Walk, departures: tuple[AnyDeparture, ...]) -> bool:
    """Go this way until the last of the departures; False if it ends before."""
    for departure in departures:
        while walk.steps + 1 < departure.step:
            if not walk.step():
                return False
        if not walk.step(departure):
            return False
    return True


def _children(walk: Walk, kinds: tuple[type[AnyDeparture], ...]) -> Iterator[Walk]:
    while walk.may_depart():
        before = copy_graph(walk)
        if not walk.step():
            return
        for departure in walk.alternatives():
            if type(departure) in kinds:
                child = copy_graph(before)
                child.step(departure)
                yield child


def _describe(departure: AnyDeparture, who: str, event: Event) -> str:
    what = type(event).__name__
    if isinstance(event, Received):
        what = f"{type(event.message).__name__} of {event.sender.peer_id}"
    match departure:
        case Lose():
            return f"{what} to {who} is lost"
        case Late(for_s=for_s):
            return f"{what} comes to {who} {for_s:g} s late"
        case Crash(said=said, for_s=for_s):  # also Forget
            again = f"{for_s:g} s later" if for_s else "at once"
            again += ", its ballot lost" if isinstance(departure, Forget) else ""
            return f"{who} crashes at {what} with {said} messages said, and starts again {again}"
        case Cut(for_s=for_s):
            return f"{who} is cut off for {for_s:g} s at {what}"
        case Sever(for_s=for_s):
            return f"nothing passes between {who} and whom it heard {what} from, for {for_s:g} s"
        case Suspend(for_s=for_s):
            return f"{who} is suspended for {for_s:g} s after {what}"
