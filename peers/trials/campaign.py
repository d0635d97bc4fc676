"""Many seeds on many cores: `mdl sim run`. Chunks of seeds go to processes; failures come back by their seeds."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar, get_args

from msgspec.structs import replace

from mdl.config import Exchange
from mdl.peers.interrupts import handled, interrupt
from mdl.peers.trials.run_plan import run_guarded
from mdl.protocol.coding import CODINGS, Coding
from mdl.sim.mesh.invariants import RunVerdict
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
