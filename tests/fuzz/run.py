"""`make fuzz`: millions of hostile inputs over all decoders and machines; ends with 1 if anything was wrong.

    python -m tests.fuzz --inputs 10000000 --seed 1            # all targets, one process a core
    python -m tests.fuzz --target mesh --case 123 --inputs 500  # one case again, as a failure names it

A case is a target and a number; all that happens in it follows from the number. A failure prints both, and how far the
case had come. Hangs are ended by a timer, growth is read off the process's peak memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.fuzz.decoders import (
    BulkCase,
    DirectoryCase,
    FileCase,
    RosterCase,
    TextCase,
    TxtCase,
    UpdateCase,
    WireCase,
    remove_folders,
)
from tests.fuzz.machines import CloudCase, LearnerCase, MeshCase, ObserverCase, be_quiet
from tests.fuzz.sharing import GiverCase, TakerCase
from tests.fuzz.trust import TrustCase

# Target -> what makes a case, its share of all inputs, inputs a case. Machines begin anew often: each case is another
# state; slow decoders get the smaller share.
TARGETS: dict[str, tuple[Callable[[int], Any], float, int]] = {
    "wire": (WireCase, 0.37, 20_000),
    "bulk": (BulkCase, 0.13, 20_000),
    "directory": (DirectoryCase, 0.1, 20_000),
    "roster": (RosterCase, 0.03, 1_000),
    "txt": (TxtCase, 0.08, 10_000),
    "trust": (TrustCase, 0.03, 5_000),
    "text": (TextCase, 0.05, 5_000),
    "files": (FileCase, 0.004, 2_000),
    "update": (UpdateCase, 0.002, 2_000),
    "mesh": (MeshCase, 0.12, 1_500),
    "cloud": (CloudCase, 0.04, 10_000),
    "learner": (LearnerCase, 0.04, 10_000),
    "giver": (GiverCase, 0.01, 5_000),
    "taker": (TakerCase, 0.01, 5_000),
    "observer": (ObserverCase, 0.01, 5_000),
}
# One input takes some microseconds to some milliseconds: what takes so much processor time hangs. A first case also
# imports what it needs.
HANG_S = 10.0
_BEGIN_S = 60.0
# Above what a target has when its first cases are over; torch and caches go on for a while.
GROWTH_MB = 96
_WARM_CASES = 3
_PROGRESS_S = 10.0
# Cases of one process.
_CASES = 40

# Target, numbers of its cases, inputs of each, seconds at most (0: no limit).
Job: TypeAlias = tuple[str, list[int], int, float]


class HangError(Exception):
    """An input that is never handled to its end."""


@dataclass
class Tally:
    """What one target came to."""

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    grown_mb: float = 0.0
    failures: list[str] = field(default_factory=list)


def run_case(target: str, number: int, inputs: int) -> Tally:
    """One case from its number; the first failure ends it."""
    make = TARGETS[target][0]
    tally, started = Tally(), time.perf_counter()
    try:
        _limit(_BEGIN_S)
        case = make(number)
        for _ in range(inputs):
            if tally.inputs % 64 == 0:
                _limit()
            tally.inputs += 1
            tally.refused += bool(case.step())
    except Exception as error:  # noqa: BLE001 the outermost loop: whatever it is, it is what we look for
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = "".join(traceback.format_exception_only(error)).strip()
        tally.failures.append(
            f"{target}, case {number}, input {tally.inputs}: {text[:600]} ({where.filename}:{where.lineno})"
        )
    finally:
        _limit(0.0)
        remove_folders()
    tally.seconds = time.perf_counter() - started
    return tally


def run_target(target: str, numbers: list[int], inputs: int, limit_s: float = 0.0) -> Tally:
    """Cases one after the other in this process; what its memory has grown by since the first ones."""
    be_quiet()
    signal.signal(signal.SIGPROF, _hang)
    total, started, base_mb = Tally(), time.monotonic(), 0.0
    for done, number in enumerate(numbers, 1):
        tally = run_case(target, number, inputs)
        total.inputs += tally.inputs
        total.refused += tally.refused
        total.seconds += tally.seconds
        total.failures += tally.failures
        if done == min(_WARM_CASES, len(numbers)):
            base_mb = _peak_mb()
        if limit_s and time.monotonic() - started > limit_s:
            break
    total.grown_mb = max(0.0, _peak_mb() - base_mb) if base_mb else 0.0
    if total.grown_mb > GROWTH_MB:
        total.failures.append(f"{target}, cases {numbers[0]} to {numbers[-1]}: grown by {total.grown_mb:.0f} MB")
    return total


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _limit(seconds: float = HANG_S) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _hang(*_: object) -> None:
    raise HangError(f"no end after {HANG_S:g} s")


def _work(job: Job) -> tuple[str, Tally]:
    target, numbers, inputs, limit_s = job
    return target, run_target(target, numbers, inputs, limit_s)


def _plan(inputs: int, seed: int, targets: list[str], limit_s: float) -> list[Job]:
    """Jobs of some cases each: a fresh process for each job, so that its peak memory is its own."""
    whole = sum(TARGETS[target][1] for target in targets)
    jobs = []
    for target in targets:
        _, share, per_case = TARGETS[target]
        wanted = max(1, round(inputs * share / whole))
        cases = -(-wanted // per_case)
        numbers = [seed * 1_000_003 + number for number in range(cases)]
        per_case = -(-wanted // cases)
        jobs += [(target, numbers[start : start + _CASES], per_case, limit_s) for start in range(0, cases, _CASES)]
    # Mixed, so that the time that is left can be told from what is done.
    return sorted(jobs, key=lambda job: (job[1][0], job[0]))


def main() -> int:
    """The exit code: 0 if all inputs were handled, 1 if one was not."""
    parser = argparse.ArgumentParser(description="Hostile inputs over all decoders and machines.")
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--case", type=int, help="one case again, in this process")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--short", action="store_true", help="all in the same processes, which is quicker")
    parser.add_argument("--seconds", type=float, default=0.0, help="at most about so long for each target")
    options = parser.parse_args()
    targets = options.target or list(TARGETS)
    started = time.monotonic()
    totals = {target: Tally() for target in targets}
    if options.case is not None:
        be_quiet()
        signal.signal(signal.SIGPROF, _hang)
        totals = {target: run_case(target, options.case, options.inputs) for target in targets}
    else:
        jobs = _plan(options.inputs, options.seed, targets, options.seconds)
        jobs_a_process = None if options.short else 1
        with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=jobs_a_process) as pool:
            said_at = started
            for target, tally in pool.imap_unordered(_work, jobs):
                total = totals[target]
                total.inputs += tally.inputs
                total.refused += tally.refused
                total.seconds += tally.seconds
                total.grown_mb = max(total.grown_mb, tally.grown_mb)
                total.failures += tally.failures
                for failure in tally.failures:
                    print(f"FAILED {failure}", flush=True)
                now = time.monotonic()
                if now - said_at >= _PROGRESS_S:
                    said_at = now
                    inputs = sum(each.inputs for each in totals.values())
                    failures = sum(len(each.failures) for each in totals.values())
                    print(f"{inputs:,} inputs, {failures} failures, {now - started:.0f} s", file=sys.stderr, flush=True)
    print(f"{'target':<10} {'inputs':>12} {'refused':>12} {'a second':>9} {'grown MB':>9} {'failures':>9}")
    for target, total in totals.items():
        rate = total.inputs / total.seconds if total.seconds else 0.0
        numbers = f"{total.inputs:>12,} {total.refused:>12,} {rate:>9,.0f} {total.grown_mb:>9.1f}"
        print(f"{target:<10} {numbers} {len(total.failures):>9}")
    failures = [failure for total in totals.values() for failure in total.failures]
    inputs = sum(total.inputs for total in totals.values())
    print(f"{inputs:,} inputs, {len(failures)} failures, {time.monotonic() - started:.0f} s")
    for failure in failures[:20]:
        print(f"FAILED {failure}")
    if failures:
        print("again: python -m tests.fuzz --target TARGET --case CASE --inputs INPUT")
    return 1 if failures else 0
