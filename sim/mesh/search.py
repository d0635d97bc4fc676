"""An exhaustive search over a mesh's schedules: every schedule with at most so many departures from the usual one.

The usual schedule is the simulated mesh's own: messages arrive at once, in the order in which they were sent, training
takes a second, nothing fails. A step is one event at one process. A departure is possible at each step of a process
that has not had the last round yet: `Lose`, `Late`, `CrashDuring`, `CutDuring` or `SuspendAfter`. After it, the mesh
follows the usual schedule from its present state, until all stand at one w, or until the next departure.

All combinations of so many departures are tried, the fewest first, so that the first schedule that breaks something is
a shortest one. The mesh is copied where schedules part. This is delay-bounded search (Emmi, Qadeer and Rakamaric 2011),
with crashes, cuts and suspensions beside the delays. Knows no roles.

Copying works on any graph of plain objects. All copies share objects that never change: frozen structs and dataclasses,
functions, and arrays, since deltas and parameters are not changed in place. Values that are under way are the one
exception: their receiver may merge into them (`pair_aggregate`), so each copy has its own. An object that changes
others in place has a method `part_ways`, called on the copy: it gives the copy its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, NoneType
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from mdl.protocol.machine import Event, Received, Send
from mdl.protocol.round_messages import RoundOpened
from mdl.sim.mesh.accounts import InvariantError
from mdl.sim.mesh.driver import SimMesh, StoryStep, Watch
from mdl.sim.mesh.invariants import is_settled
from mdl.sim.mesh.process import Node
from mdl.sim.plans.fault_plan import Seconds

T = TypeVar("T")
# id of an object -> its copy: one object stays one.
_Made: TypeAlias = dict[int, Any]
_Copier: TypeAlias = Callable[[Any, _Made], Any]


def copy_graph(root: T) -> T:
    """Copy `root` and all that it refers to. Raises TypeError for a kind of object that it cannot copy."""
    copy: T = _copy(root, {})
    return copy


def _copy(item: Any, made: _Made) -> Any:
    copier = _COPIERS.get(item.__class__) or _learn(item.__class__)
    if copier is _share:
        return item
    known = made.get(id(item))
    return copier(item, made) if known is None else known


def _share(item: Any, made: _Made) -> Any:
    return item


def _copy_object(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = object.__new__(item.__class__)
    fields = copy.__dict__
    for name, value in item.__dict__.items():
        fields[name] = value if _COPIERS.get(value.__class__) is _share else _copy(value, made)
    return copy


def _copy_parting(item: Any, made: _Made) -> Any:
    copy = _copy_object(item, made)
    copy.part_ways()
    return copy


def _copy_dict(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = item.__class__()
    for key, value in item.items():
        copy[_copy(key, made)] = value if _COPIERS.get(value.__class__) is _share else _copy(value, made)
    return copy


def _copy_list(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = []
    copy += [_copy(each, made) for each in item]
    return copy


def _copy_set(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = {_copy(each, made) for each in item}
    return copy


def _copy_deque(item: Any, made: _Made) -> Any:
    made[id(item)] = copy = deque((_copy(each, made) for each in item), item.maxlen)
    return copy


def _copy_tuple(item: Any, made: _Made) -> Any:
    if all(_COPIERS.get(each.__class__) is _share for each in item):
        return item
    return tuple([_copy(each, made) for each in item])


def _copy_method(item: Any, made: _Made) -> Any:
    return MethodType(item.__func__, _copy(item.__self__, made))


def _copy_partial(item: Any, made: _Made) -> Any:
    return partial(_copy(item.func, made), *[_copy(each, made) for each in item.args])


def _copy_received(item: Any, made: _Made) -> Any:
    return item if item.values is None else msgspec.structs.replace(item, values=item.values.copy())


# A method wrapper is the network's next random number: these meshes draw none, since they leave nothing to chance.
_SHARED = (
    int, float, str, bytes, bool, range, NoneType, frozenset, FunctionType, BuiltinFunctionType, MethodWrapperType,
)  # fmt: skip
_COPIERS: dict[type, _Copier] = {
    **dict.fromkeys(_SHARED, _share),
    np.ndarray: _share,
    dict: _copy_dict,
    Counter: _copy_dict,
    list: _copy_list,
    set: _copy_set,
    deque: _copy_deque,
    tuple: _copy_tuple,
    partial: _copy_partial,
    MethodType: _copy_method,
    Received: _copy_received,
}


def _learn(kind: type) -> _Copier:
    if not (_is_frozen(kind) or _is_plain(kind)):
        raise TypeError(f"cannot tell how a {kind.__name__} is copied")
    plain = _copy_parting if hasattr(kind, "part_ways") else _copy_object
    _COPIERS[kind] = copier = _share if _is_frozen(kind) else plain
    return copier


def _is_frozen(kind: type) -> bool:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    parameters = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, Enum | type | np.random.Generator) or bool(parameters and parameters.frozen)


def _is_plain(kind: type) -> bool:
    """Return True if the fields of this kind are its whole state."""
    return kind.__dictoffset__ != 0 and all(base.__module__ != "builtins" for base in kind.__mro__[:-1])


# Durations of faults, in virtual seconds of the machines that `mdl sim` runs. The first: all messages under way arrive
# before, and are asked for again. Second: another agent leads meanwhile. Third: a group without a majority has forked.
SOON_S, SUCCEEDED_S, FORKED_S = 0.5, 3.5, 9.0
# All must stand at one w this long after the last departure; a mesh without faults takes a second a round.
PATIENCE_S = 60.0
_AT_ONCE = 0.0


class Departure(msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=True):
    """step: the number of the step at which it happens, counted from the start over all processes."""

    step: Annotated[int, Meta(ge=1)]


class Lose(Departure, frozen=True):
    """The message does not arrive."""


class Late(Departure, frozen=True):
    """The message arrives for_s later."""

    for_s: Seconds


class CrashDuring(Departure, frozen=True, tag="Crash"):
    """The process dies once it has sent so many messages of this step, and starts again from its disk for_s later.

    said: 0 if it has written to its disk, and sends nothing any more.
    """

    said: Annotated[int, Meta(ge=0)]
    for_s: Seconds


class Forget(CrashDuring, frozen=True, tag="Forget"):
    """A crash that also loses the file with its ballot."""


class CutDuring(Departure, frozen=True, tag="Cut"):
    """The process handles this step's event, but nothing passes from or to it, from before its first answer on."""

    for_s: Seconds


class Sever(Departure, frozen=True):
    """The process handles this step's message; from before its first answer nothing passes to or from the sender."""

    for_s: Seconds


class SuspendAfter(Departure, frozen=True, tag="Suspend"):
    """After this step the process stands still (SIGSTOP, a closed lid); events that arrive meanwhile wait for it."""

    for_s: Seconds


AnyDeparture: TypeAlias = Lose | Late | CrashDuring | Forget | CutDuring | Sever | SuspendAfter
# Only the loss of a device's folder loses a ballot, so Forget is extra.
USUAL = ("lose", "late", "crash", "cut", "sever", "suspend")
KINDS: dict[str, type[AnyDeparture]] = {
    str(kind.__struct_config__.tag).lower(): kind
    for kind in (Lose, Late, CrashDuring, Forget, CutDuring, Sever, SuspendAfter)
}


@dataclass
class _Step:
    """The present or last step. stood_at: the round that its process had on the disk."""

    node: Node
    event: Event
    stood_at: int
    disk: tuple[object, ...]
    said: int = 0


@dataclass(eq=False)
class Walk(Watch):
    """One schedule, as far as it has come. kind, problem: the broken rule, "" if none is. told: departures in words.

    bugs: the errors that a faulty machine may raise. from_round: the first round in which a schedule may depart.
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
        """Return the steps since the last departure: before it, this was another schedule."""
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
            if isinstance(departure, CrashDuring):
                self.mesh.crash(self._step.node.peer_id)  # it sent no message
            elif isinstance(departure, SuspendAfter):
                self.mesh.suspend(self._step.node.peer_id, departure.for_s)
        return not self.kind

    def may_depart(self) -> bool:
        """Return True if a departure is possible from here on."""
        if self.kind or self.mesh.now < self._ends_s:
            return not self.kind
        return any(self._kept_round(node) < self.rounds for node in self.mesh.nodes.values() if node.holder)

    def alternatives(self) -> Iterator[AnyDeparture]:
        """Yield the departures that were possible at the last step."""
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
            yield from (
                CrashDuring(step=self.steps, said=said, for_s=for_s) for for_s in (_AT_ONCE, SUCCEEDED_S, FORKED_S)
            )
            yield Forget(step=self.steps, said=said, for_s=_AT_ONCE)
        if step.said:
            yield from (CutDuring(step=self.steps, for_s=for_s) for for_s in (SUCCEEDED_S, FORKED_S))
            yield from (SuspendAfter(step=self.steps, for_s=for_s) for for_s in (SUCCEEDED_S, FORKED_S))

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
            case CrashDuring():
                mesh.at(over_s, partial(self._restart, node.peer_id, isinstance(departure, Forget)))
            case CutDuring() | Sever():
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
        if isinstance(self._departure, CrashDuring) and self._step and self._step.said == self._departure.said:
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
        """Return the links of this process with all others; given an event, only those with its sender."""
        others = [event.sender.peer_id] if isinstance(event, Received) else [*self.mesh.nodes.keys() - {peer_id}]
        return [pair for other in sorted(others) for pair in ((peer_id, other), (other, peer_id))]

    def _kept_round(self, node: Node) -> int:
        models = self.mesh.disk(node.peer_id).models
        return models[-1].round_id if models else 0

    def _disk(self, node: Node) -> tuple[object, ...]:
        disk = self.mesh.disk(node.peer_id)
        return (disk.ballot, *[model.digest for model in disk.models])


def explore(walk: Walk, left: int, kinds: tuple[type[AnyDeparture], ...]) -> Iterator[Walk]:
    """Yield every schedule with exactly so many more departures of these kinds from here on, at its end."""
    if left == 0:
        while walk.step():
            pass
        yield walk
        return
    for child in _children(walk, kinds):
        yield from explore(child, left - 1, kinds)


def first_departures(walk: Walk, kinds: tuple[type[AnyDeparture], ...]) -> list[AnyDeparture]:
    """List the departures at which schedules part for the first time."""
    found: list[AnyDeparture] = []
    while walk.may_depart() and walk.step():
        found += [departure for departure in walk.alternatives() if type(departure) in kinds]
    return found


def follow(walk: Walk, departures: tuple[AnyDeparture, ...]) -> bool:
    """Follow these departures up to the last; False if the schedule ends before."""
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
        case CrashDuring(said=said, for_s=for_s):  # also Forget
            again = f"{for_s:g} s later" if for_s else "at once"
            again += ", its ballot lost" if isinstance(departure, Forget) else ""
            return f"{who} crashes at {what} with {said} messages said, and starts again {again}"
        case CutDuring(for_s=for_s):
            return f"{who} is cut off for {for_s:g} s at {what}"
        case Sever(for_s=for_s):
            return f"nothing passes between {who} and the sender of {what}, for {for_s:g} s"
        case SuspendAfter(for_s=for_s):
            return f"{who} is suspended for {for_s:g} s after {what}"
