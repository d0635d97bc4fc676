"""`python -m tests.fuzz.conversations`: whole conversations with whole processes, by the role of who lies.

    python -m tests.fuzz.conversations --messages 1000000 --seed 1            # all scenes and roles
    python -m tests.fuzz.conversations --scene mesh --role member --case 17   # one case again, as a failure names it
    python -m tests.fuzz.conversations --replay FILE                          # a failure that was kept

A case is a scene, a role and a number; all that happens in it follows from them. After each message the process that
heard it is looked at (`process.py`), and after the last one those that are honest have to get on. A failure is shrunk
to the shortest list of messages that still shows it, printed, and written to a file that can be replayed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from mdl.errors import RemoteProtocolError
from mdl.transport.wire.codec import decode
from tests.fuzz.conversations.liars import Liar
from tests.fuzz.conversations.over_sockets import SocketScene
from tests.fuzz.conversations.scenes import CODE_HOLDER, IN_MEMORY, MEMBER, OWNER, THE_CLOUD, Move, Scene
from tests.fuzz.machines import Misbehaved, be_quiet

# Messages of a case: beyond, a mesh has seen most of what it comes to see. Each case is another mesh.
MESSAGES = 3_000
SCENES: dict[str, type[Scene]] = {**IN_MEMORY, "sockets": SocketScene}
# Of all messages, by scene and role.
SHARES: dict[tuple[str, str], float] = {
    ("mesh", CODE_HOLDER): 0.13,
    ("mesh", MEMBER): 0.37,
    ("mesh", OWNER): 0.12,
    ("sharing", CODE_HOLDER): 0.02,
    ("sharing", MEMBER): 0.05,
    ("sharing", OWNER): 0.02,
    ("cloud", CODE_HOLDER): 0.08,
    ("cloud", THE_CLOUD): 0.07,
    ("recommend", CODE_HOLDER): 0.08,
    ("recommend", THE_CLOUD): 0.06,
    ("sockets", CODE_HOLDER): 0.005,
    ("sockets", MEMBER): 0.015,
}
# A turn takes under a millisecond: what takes so much of the processor does not end.
HANG_S = 20.0
# Above what the process has when its first cases are over.
GROWTH_MB = 96
_WARM_CASES = 6
_PROGRESS_S = 15.0
# Runs that a failure is shrunk with, and seconds of the processor.
TRIES, SHRINK_S = 200, 90.0


class HangError(Exception):
    """A message that is never handled to its end."""


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, and how to see it again. moves: those that show it; after them, if `is_calm`, time goes by."""

    scene: str
    role: str
    case: int
    message: int
    text: str
    where: str
    moves: tuple[Move, ...]
    is_calm: bool = False


@dataclass
class Tally:
    """What the cases of one scene and role came to. away: turned away before mdl's own code heard of them."""

    messages: int = 0
    refused: int = 0
    cases: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    sent_ratio: float = 0.0
    most_sent: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.messages += other.messages
        self.refused += other.refused
        self.cases += other.cases
        self.seconds += other.seconds
        self.longest_s = max(self.longest_s, other.longest_s)
        self.sent_ratio = max(self.sent_ratio, other.sent_ratio)
        self.most_sent = max(self.most_sent, other.most_sent)
        self.ends += other.ends
        self.failures += other.failures


Job: TypeAlias = tuple[str, str, int, int]


def run_case(name: str, role: str, case: int, messages: int = MESSAGES) -> Tally:
    """One case from its number; the first failure ends it."""
    tally, played = Tally(cases=1), list[Move]()
    is_calm = False
    started = time.perf_counter()
    try:
        _limit(HANG_S)
        scene = SCENES[name](case, role)
        with scene.open():
            liar = Liar(scene, case)
            while tally.messages < messages and (move := liar.draw()) is not None:
                if tally.messages % 32 == 0:
                    _limit(HANG_S)
                tally.messages += 1
                played.append(move)
                tally.refused += not scene.play(move)
            is_calm = True
            _limit(HANG_S)
            scene.calm()
            tally.longest_s = max((each.longest_s for each in scene.world.processes), default=0.0)
            tally.most_sent = scene.most_sent
            tally.sent_ratio = scene.sent_bytes / max(scene.said_bytes, 1)
            tally.ends = scene.ends
    except Exception as error:  # noqa: BLE001 the outermost loop: whatever it is, it is what we look for
        text, where = _told(error)
        tally.failures.append(Failure(name, role, case, tally.messages, text, where, tuple(played), is_calm))
    finally:
        _limit(0.0)
    tally.seconds = time.perf_counter() - started
    return tally


def replay(failure: Failure) -> tuple[str, str] | None:
    """What goes wrong with these moves now, and where; None if nothing does."""
    try:
        _limit(HANG_S)
        scene = SCENES[failure.scene](failure.case, failure.role)
        with scene.open():
            for number, move in enumerate(failure.moves):
                if number % 32 == 0:
                    _limit(HANG_S)
                scene.play(move)
            if failure.is_calm:
                scene.calm()
    except Exception as error:  # noqa: BLE001 as in run_case
        return _told(error)
    finally:
        _limit(0.0)
    return None


def shrink(failure: Failure, tries: int = TRIES) -> Failure:
    """The shortest list of moves found in so many runs that goes wrong in the same place."""
    moves, left = list(failure.moves), tries
    until = time.process_time() + SHRINK_S

    def still_fails(candidate: list[Move]) -> bool:
        nonlocal left
        left = left - 1 if time.process_time() < until else -1
        found = replay(msgspec.structs.replace(failure, moves=tuple(candidate))) if left >= 0 else None
        return found is not None and found[1] == failure.where

    last = 1
    while last < len(moves) and left > 0:  # most often the last few are enough
        if still_fails(moves[-last:]):
            moves = moves[-last:]
            break
        last *= 4
    size = len(moves) // 2
    while size >= 1 and left > 0:
        start = 0
        while start < len(moves) and left > 0:
            candidate = moves[:start] + moves[start + size :]
            if candidate and still_fails(candidate):
                moves = candidate
            else:
                start += size
        size //= 2
    return msgspec.structs.replace(failure, moves=tuple(moves))


def describe(failure: Failure, most: int = 12) -> str:
    """In lines, with the moves as they are read."""
    lines = [
        f"FAILED {failure.scene}, {failure.role}, case {failure.case}, message {failure.message}: {failure.text}",
        f"  at {failure.where}",
        *(f"  {move.wait_s:g} s later, {move.to} by {move.door}: {_body(move)}" for move in failure.moves[-most:]),
    ]
    if failure.is_calm:
        lines.append("  then the liar is silent")
    return "\n".join(lines)


def _body(move: Move) -> str:
    try:
        envelope = decode(move.frames[0])
    except RemoteProtocolError as error:
        return f"{len(move.frames[0])} bytes ({str(error)[:120]})"
    beside = f" and {len(move.frames[1])} bytes" if len(move.frames) > 1 else ""
    return f"{envelope.sender.peer_id}: {repr(envelope.body)[:400]}{beside}"


def _told(error: BaseException) -> tuple[str, str]:
    """What went wrong, and where: in the first place of mdl's own on the way out that is not this one."""
    frames = traceback.extract_tb(error.__traceback__)
    text = "".join(traceback.format_exception_only(error)).strip()[:500]
    if isinstance(error, Misbehaved):
        return text, "".join(letter for letter in str(error).split(":")[0] if not letter.isdigit())[:60]
    last = frames[-1]
    own = next((each for each in reversed(frames) if _is_own(each.filename)), last)
    return text, f"{type(error).__name__} in {Path(own.filename).name}, {own.name}"


def _is_own(filename: str) -> bool:
    return any(f"/{folder}/" in filename for folder in ("mdl", "transport", "peers", "scheduler", "sim", "tests"))


def _limit(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _hang(*_: object) -> None:
    raise HangError(f"no end after {HANG_S:g} s of the processor")


def _begin() -> None:
    be_quiet()
    signal.signal(signal.SIGPROF, _hang)


def _resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _work(job: Job) -> tuple[Job, Tally, float]:
    name, role, case, messages = job
    tally = run_case(name, role, case, messages)
    gc.collect()
    return job, tally, _resident_mb()


def plan(messages: int, seed: int, chosen: list[tuple[str, str]]) -> list[Job]:
    """Cases, mixed, so that any part of them has all scenes and roles."""
    whole = sum(SHARES[each] for each in chosen)
    jobs = list[tuple[float, Job]]()
    for name, role in chosen:
        wanted = max(1, round(messages * SHARES[name, role] / whole))
        cases = -(-wanted // MESSAGES)
        each = -(-wanted // cases)
        jobs += [((number + 0.5) / cases, (name, role, seed * 1_000_003 + number, each)) for number in range(cases)]
    return [job for _, job in sorted(jobs)]


def main() -> int:
    """The exit code: 0 if nothing went wrong, 1 if something did."""
    parser = argparse.ArgumentParser(description="Whole conversations with whole processes, by the role of who lies.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scene", action="append", choices=sorted(SCENES), help="only this one; may be repeated")
    parser.add_argument("--role", action="append", choices=(CODE_HOLDER, MEMBER, OWNER, THE_CLOUD), help="likewise")
    parser.add_argument("--case", type=int, help="one case again, in this process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="a file that a failure was written to")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="where failures are written to")
    options = parser.parse_args()
    if options.replay:
        _begin()
        failure = msgspec.json.decode(options.replay.read_bytes(), type=Failure)
        print(describe(failure, 50))
        found = replay(failure)
        print("nothing goes wrong now" if found is None else f"now: {found[0]} at {found[1]}")
        return int(found is not None)
    chosen = [
        each
        for each in SHARES
        if (not options.scene or each[0] in options.scene) and (not options.role or each[1] in options.role)
    ]
    if options.case is not None:
        jobs = [(name, role, options.case, min(options.messages, MESSAGES)) for name, role in chosen]
    else:
        jobs = plan(options.messages, options.seed, chosen)
    return _run(jobs, options.processes, options.keep)


def _run(jobs: list[Job], processes: int, keep: Path) -> int:
    _begin()
    started = said_at = time.monotonic()
    totals: dict[tuple[str, str], Tally] = {(name, role): Tally() for name, role, _, _ in jobs}
    kinds: Counter[str] = Counter()
    memory = list[float]()
    with multiprocessing.get_context("spawn").Pool(processes, _begin) if processes > 1 else _Here() as pool:
        for job, tally, resident_mb in pool.imap_unordered(_work, jobs):
            totals[job[0], job[1]].add(tally)
            memory.append(resident_mb)
            for failure in tally.failures:
                kinds[failure.where] += 1
                if kinds[failure.where] == 1:
                    _keep(failure, keep)
                else:
                    print(f"again: {failure.where} ({failure.scene}, {failure.role}, case {failure.case})", flush=True)
            if (now := time.monotonic()) - said_at >= _PROGRESS_S:
                said_at = now
                done = sum(each.messages for each in totals.values())
                print(
                    f"{done:,} messages, {kinds.total()} failures, {now - started:.0f} s", file=sys.stderr, flush=True
                )
    for (name, role), total in totals.items():
        rate = total.messages / total.seconds if total.seconds else 0.0
        print(
            f"{name:<10}{role:<12}{total.messages:>10,} messages{total.refused:>10,} refused{total.cases:>6} cases"
            f"{rate:>8,.0f} a second; a turn {1000 * total.longest_s:.0f} ms at most, {total.most_sent:,} bytes said in"
            f" one, {total.sent_ratio:.1f} a byte heard; {len(total.failures)} failures"
        )
        if total.ends:
            print("    ended: " + ", ".join(f"{count} {end}" for end, count in total.ends.most_common(6)))
    warm = memory[min(_WARM_CASES * len(totals), len(memory) - 1)] if memory else 0.0
    grown_mb = max(0.0, max(memory[-20:], default=0.0) - warm)
    messages, failures = sum(each.messages for each in totals.values()), kinds.total()
    print(f"{messages:,} messages, {failures} failures, grown by {grown_mb:.1f} MB, {time.monotonic() - started:.0f} s")
    if grown_mb > GROWTH_MB:
        print(f"FAILED: grown by {grown_mb:.0f} MB, more than {GROWTH_MB}")
    return int(failures > 0 or grown_mb > GROWTH_MB)


def _keep(failure: Failure, folder: Path) -> None:
    """Print it at once, and again when it is short."""
    print(describe(msgspec.structs.replace(failure, moves=failure.moves[-1:])), flush=True)
    failure = shrink(failure)
    print(describe(failure), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.scene}-{failure.role}-{failure.case}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(failure), indent=1))
    print(f"  {len(failure.moves)} messages: python -m tests.fuzz.conversations --replay {path}", flush=True)


class _Here:
    """In this process, one after the other."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    @staticmethod
    def imap_unordered(work: Any, jobs: list[Job]) -> Any:
        return map(work, jobs)
