"""`mdl sim search`: the exhaustive search of `sim/mesh/search.py` with the real machines, over several processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.config import Exchange
from mdl.peers.interrupts import handled, interrupt
from mdl.peers.trials.campaign import run_chunks, seldom_collected, silent_machines
from mdl.peers.trials.run_plan import BUGS, build_mesh
from mdl.reading import decode_json
from mdl.sim.mesh.invariants import judge
from mdl.sim.mesh.search import KINDS, USUAL, AnyDeparture, Walk, explore, first_departures, follow
from mdl.sim.plans.fault_plan import FaultPlan

# Virtual seconds of local training: longer than anything else that a mesh does in a round.
_TRAIN_S = 1.0
# First departures that one process gets at once, if schedules have no other one.
_CHUNK = 25
_MOST = 64

Departures: TypeAlias = tuple[AnyDeparture, ...]


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of a search: meshes of so many devices that get through so many rounds. kinds: of departures, by name.

    from_round: the first one with departures. policy: orders the aggregations. agent: a node without a trainer leads as
    long as it is there. exchange: as in the configuration.
    """

    peers: Annotated[int, Meta(ge=1, le=_MOST)]
    rounds: Annotated[int, Meta(ge=1, le=_MOST)]
    from_round: Annotated[int, Meta(ge=1, le=_MOST)] = 1
    policy: str = "greedy"
    on_partition: str = "continue"
    kinds: tuple[str, ...] = USUAL
    agent: bool = False
    exchange: Exchange = "chain"


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule that breaks something: kind in a word, problem in a sentence, told: its departures in words."""

    bound: Bound
    departures: Annotated[Departures, Meta(max_length=_MOST)]
    kind: str = ""
    problem: str = ""
    told: tuple[str, ...] = ()


class SearchPart(msgspec.Struct, frozen=True):
    """The result of a part of the search. steps: since the last departure of each schedule, so that none counts twice.

    apart: schedules in which two starts of the mesh met too late to add up, which is not promised (docs/faults.md).
    """

    schedules: int = 0
    steps: int = 0
    apart: int = 0
    found: Found | None = None


@dataclass
class Searched:
    """The progress of a search; schedules, steps, apart, found: as in `SearchPart`, of all parts.

    depth: all schedules with fewer departures are done; done: finished first departures at this depth, of `parts`.
    seconds: of the wall clock.
    """

    bound: Bound
    depth: int = 0
    schedules: int = 0
    steps: int = 0
    apart: int = 0
    done: int = 0
    parts: int = 1
    seconds: float = 0.0
    interrupted: bool = False
    found: Found | None = None

    def take(self, part: SearchPart, firsts: int, seconds: float) -> None:
        self.schedules += part.schedules
        self.steps += part.steps
        self.apart += part.apart
        self.done = min(self.done + firsts, self.parts)
        self.seconds = seconds
        self.found = part.found

    def describe(self) -> str:
        return (
            f"{self.depth} departures: {self.done}/{self.parts} first ones done; {self.schedules} schedules, "
            f"{self.steps} steps, {self.seconds:.0f} s"
        )

    def as_dict(self) -> dict[str, object]:
        told = {
            name: getattr(self, name)
            for name in ("depth", "schedules", "steps", "apart", "done", "parts", "interrupted")
        }
        bound: dict[str, object] = msgspec.to_builtins(self.bound)
        return bound | told | {"seconds": round(self.seconds, 1)}


def start_walk(bound: Bound, record: bool = False) -> Walk:
    """Return the usual schedule of this mesh, before its first step. record: keep its story."""
    mesh, _ = build_mesh(_plan(bound), record)
    mesh.network.latency_s, mesh.network.default_mb_s, mesh.network.rates_mb_s = 0.0, 1e6, {}
    for node in mesh.nodes.values():
        node.train_s = _TRAIN_S
    return Walk(mesh, bound.rounds, BUGS, bound.from_round)


def search_all(
    bound: Bound, depth: int, processes: int, progress: Callable[[Searched], None] | None = None
) -> Searched:
    """Search all schedules with at most so many departures, the fewest first, until one breaks something.

    Ctrl-C ends it early; `progress` sees the progress after each part.
    """
    searched, started = Searched(bound), time.monotonic()
    with silent_machines():
        firsts = first_departures(start_walk(bound), _kinds(bound)) if depth else []
    try:
        with handled(interrupt):
            for searched.depth in range(depth + 1):
                starts: list[Departures] = [(first,) for first in firsts] if searched.depth else [()]
                size = 1 if searched.depth > 1 else _CHUNK
                chunks = [starts[at : at + size] for at in range(0, len(starts), size)]
                searched.done, searched.parts = 0, len(starts)
                for part in run_chunks(partial(search_from, bound, searched.depth), chunks, processes):
                    searched.take(part, size, time.monotonic() - started)
                    if progress:
                        progress(searched)
                    if searched.found:
                        return searched
    except KeyboardInterrupt:
        searched.interrupted = True
    return searched


def search_from(bound: Bound, depth: int, starts: list[Departures]) -> SearchPart:
    """Search the schedules that begin with these departures, in this process."""
    schedules = steps = apart = 0
    for start in starts:
        with seldom_collected():
            walk = start_walk(bound)
            follow(walk, start)
            for end in explore(walk, depth - len(start), _kinds(bound)):
                schedules += 1
                steps += end.own_steps
                if (found := _judge(bound, end)) and _began_apart(end, found):
                    apart += 1
                elif found:
                    return SearchPart(schedules, steps, apart, found)
    return SearchPart(schedules, steps, apart)


def tell_found(bound: Bound, departures: Departures) -> tuple[Found, Walk]:
    """Follow these departures to the end; return the result, and the walk with its story."""
    with silent_machines():
        walk = start_walk(bound, record=True)
        follow(walk, departures)
        while walk.step():
            pass
    return _judge(bound, walk) or Found(bound, departures, told=walk.told), walk


def load_found(data: bytes) -> Found:
    """Return a saved result. Raises DataError if the data is none."""
    return decode_json(data, Found, "story", "what `mdl sim search` saved")


def dump_found(found: Found) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def _judge(bound: Bound, walk: Walk) -> Found | None:
    kind, problem = walk.kind, walk.problem
    if not kind:
        verdict = judge(walk.mesh, _plan(bound), settled=True, tell_waits=lambda node: node.peer_id)
        kind, problem = verdict.kind, verdict.problem
    return Found(bound, walk.departures, kind, problem, walk.told) if kind else None


def _began_apart(walk: Walk, found: Found) -> bool:
    """Return True if work is lost only since two starts of a mesh, unaware of one another, met too late."""
    starts = {lineage[0] for _, lineage in walk.mesh.accounts.closed if lineage}
    return found.kind == "lost" and len(starts) > 1


def _plan(bound: Bound) -> FaultPlan:
    return FaultPlan(0, bound.peers, bound.rounds, bound.policy, bound.agent, bound.on_partition, bound.exchange)


def _kinds(bound: Bound) -> tuple[type[AnyDeparture], ...]:
    return tuple(KINDS[kind] for kind in bound.kinds)
