"""Many plans on many cores: `mdl sim run` draws them from seeds, `mdl sim search` goes through all of a small mesh.

Chunks of seeds of `mdl sim run` go to processes; failures come back by their seeds. `mdl sim search` is the exhaustive
search of `sim/mesh/search.py` with the real machines, over several processes.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.peers.interrupts import handled, interrupt
from mdl.peers.trials.run_plan import BUGS, build_mesh, run_guarded
from mdl.protocol.coding import CODINGS, Coding
from mdl.reading import decode_json
from mdl.sim.mesh.invariants import RunVerdict, judge
from mdl.sim.mesh.search import KINDS, USUAL, AnyDeparture, Walk, explore, first_departures, follow
from mdl.sim.plans.draw_plan import (
    LENGTHS,
    SIZES,
    draw_plan,
    draw_wide,
    with_copies,
    with_leaves,
    with_liars,
    with_power_cuts,
    with_revocations,
    with_splits,
    with_starved,
)
from mdl.sim.plans.fault_plan import FaultPlan
from mdl.workers import ProcessPool, result_of

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")
# Small enough that Ctrl-C and progress are quick, large enough that handing over costs nothing.
_CHUNK = 25
# The most failing seeds that a run keeps; a broken mesh fails everywhere.
_MOST_FAILURES = 1_000
EXCHANGES: tuple[Exchange, ...] = get_args(Exchange)
_OF_EACH_EXCHANGE = len(SIZES) * len(LENGTHS)


@dataclass(frozen=True)
class Campaign:
    """The settings of all seeds. has_agent, on_partition: None draws them for each seed.

    wide: peers and rounds are drawn, too, and faults in every round (`draw_wide`). exchange: as in the configuration,
    or any: each in turn, for as many seeds as the wide family has sizes and lengths. compress: likewise, each seed.
    outer_momentum, overlap, slow: of all. revocations: devices are locked out, too. leaves: users end some. splits: the
    mesh falls apart for long. power_cuts: machines lose power, and disks their last writes. copies: backups are put
    back, and cloned cards used. starved: devices get no processor. liars: devices of each plan that lie.
    """

    peers: int = 6
    rounds: int = 3
    level: str = "hard"
    policy: str = "greedy"
    has_agent: bool | None = None
    on_partition: str | None = None
    wide: bool = False
    exchange: Exchange | Literal["any"] = "chain"
    compress: Coding | Literal["any"] = "none"
    outer_momentum: float = 0.0
    overlap: bool = False
    slow: bool = False
    revocations: bool = False
    leaves: bool = False
    splits: bool = False
    power_cuts: bool = False
    copies: bool = False
    starved: bool = False
    liars: int = 0

    def plan(self, seed: int) -> FaultPlan:
        exchange = EXCHANGES[seed // _OF_EACH_EXCHANGE % len(EXCHANGES)] if self.exchange == "any" else self.exchange
        drawn = (self.level, self.policy, self.has_agent, self.on_partition, exchange)
        plan = draw_wide(seed, *drawn) if self.wide else draw_plan(seed, self.peers, self.rounds, *drawn)
        compress = CODINGS[seed % len(CODINGS)] if self.compress == "any" else self.compress
        plan = replace(plan, compress=compress, outer_momentum=self.outer_momentum, overlap=self.overlap)
        plan = replace(plan, slow=self.slow)
        plan = with_revocations(plan) if self.revocations else plan
        plan = with_leaves(plan) if self.leaves else plan
        plan = with_splits(plan) if self.splits else plan
        plan = with_power_cuts(plan) if self.power_cuts else plan
        plan = with_copies(plan) if self.copies else plan
        plan = with_starved(plan) if self.starved else plan
        return with_liars(plan, self.liars) if self.liars else plan


@dataclass
class SizeTotals:
    """The results of the seeds of one size and length. failed: in any way; violations: by kind."""

    peers: int
    rounds: int
    seeds: int = 0
    failed: int = 0
    without_quorum: int = 0
    violations: Counter[str] = field(default_factory=Counter)


@dataclass
class Totals:
    """The results of all seeds so far. failing: the verdicts of those that failed, at most a thousand.

    interrupted: by Ctrl-C, before all seeds were run. sizes: (peers, rounds) -> the results of one size.
    """

    seeds: int = 0
    messages: int = 0
    events: int = 0
    rounds_closed: int = 0
    lost_with_owner: int = 0
    lost: int = 0
    double: int = 0
    stuck: int = 0
    without_quorum: int = 0
    revoked: int = 0
    interrupted: bool = False
    violations: Counter[str] = field(default_factory=Counter)
    failing: list[RunVerdict] = field(default_factory=list)
    sizes: dict[tuple[int, int], SizeTotals] = field(default_factory=dict)

    def add(self, plan: FaultPlan, verdict: RunVerdict) -> None:
        size = self.sizes.setdefault((plan.peers, plan.rounds), SizeTotals(plan.peers, plan.rounds))
        size.seeds += 1
        size.failed += bool(verdict.kind)
        size.without_quorum += verdict.without_quorum
        size.violations.update([verdict.kind] if verdict.kind else [])
        self.seeds += 1
        self.messages += verdict.messages
        self.events += verdict.events
        self.rounds_closed += verdict.rounds_closed
        self.lost_with_owner += verdict.lost_with_owner
        self.lost += verdict.lost
        self.double += verdict.double
        self.stuck += verdict.kind == "stuck"
        self.without_quorum += verdict.without_quorum
        self.revoked += verdict.revoked
        if verdict.kind:
            self.violations[verdict.kind] += 1
            if len(self.failing) < _MOST_FAILURES:
                self.failing.append(verdict)

    def merge(self, other: Totals) -> None:
        for name in ("seeds", "messages", "events", "rounds_closed", "lost_with_owner", "lost", "double", "stuck",
                     "without_quorum", "revoked"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.violations += other.violations
        self.failing = (self.failing + other.failing)[:_MOST_FAILURES]
        for key, size in other.sizes.items():
            mine = self.sizes.setdefault(key, SizeTotals(*key))
            mine.seeds += size.seeds
            mine.failed += size.failed
            mine.without_quorum += size.without_quorum
            mine.violations += size.violations

    def by_size(self) -> list[SizeTotals]:
        return [self.sizes[key] for key in sorted(self.sizes)]


def size_table(sizes: list[SizeTotals]) -> list[str]:
    """Return a table for people: failed seeds of all, a row for each number of peers, a column for each of rounds."""
    cells = {(size.peers, size.rounds): f"{size.failed}/{size.seeds}" for size in sizes}
    rows, columns = sorted({size.peers for size in sizes}), sorted({size.rounds for size in sizes})
    width = 2 + max((len(cell) for cell in cells.values()), default=0)
    lines = ["failed/seeds by peers and rounds", "peers  " + "".join(f"{rounds:>{width}}" for rounds in columns)]
    for peers in rows:
        lines.append(f"{peers:>5}  " + "".join(f"{cells.get((peers, rounds), '-'):>{width}}" for rounds in columns))
    return lines


def run_campaign(
    campaign: Campaign, seeds: range, processes: int, progress: Callable[[Totals], None] | None = None
) -> Totals:
    """Run all seeds; `progress` sees the totals after each chunk. Ctrl-C ends all processes and keeps the totals."""
    totals = Totals()
    try:
        with handled(interrupt):
            chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
            for part in run_chunks(partial(run_seeds, campaign), chunks, processes):
                totals.merge(part)
                if progress:
                    progress(totals)
    except KeyboardInterrupt:
        totals.interrupted = True
    totals.failing.sort(key=lambda verdict: verdict.seed)
    return totals


def run_seeds(campaign: Campaign, seeds: range) -> Totals:
    """Run these seeds here, one after the other."""
    totals = Totals()
    with seldom_collected():
        for seed in seeds:
            plan = campaign.plan(seed)
            totals.add(plan, run_guarded(plan))
    return totals


@contextmanager
def silent_machines() -> Iterator[None]:
    """Silence the machines' logs: thousands of seeds warn about faults that are on purpose."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_chunks(run: Callable[[Chunk], Result], chunks: Sequence[Chunk], processes: int) -> Iterator[Result]:
    """Run `run` on each chunk in so many processes; yield the results in the order in which they are done."""
    if processes <= 1 or len(chunks) <= 1:
        with silent_machines():
            yield from (run(chunk) for chunk in chunks)
        return
    pool = ProcessPool(min(processes, len(chunks)), _prepare)
    waiting = iter(chunks)
    running: set[Future[Result]] = set()
    try:
        while True:
            while len(running) < 2 * processes and (chunk := next(waiting, None)) is not None:
                running.add(pool.submit(run, chunk))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (result_of(future) for future in done)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage once a chunk, not all the time (5 %): a mesh is a circle of references of some hundred KB."""
    was_enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _prepare() -> None:
    logging.disable(logging.CRITICAL)


# Virtual seconds of local training: longer than anything else that a mesh does in a round.
_TRAIN_S = 1.0
# First departures that one process gets at once, if schedules have no other one.
_WALKS_AT_ONCE = 25
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
                size = 1 if searched.depth > 1 else _WALKS_AT_ONCE
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
