"""The mesh as `python -m benchmarks chaos` sees it from outside, and the figures that follow.

Who led, when a fault was noticed, when rounds closed, and whether every global delta is exactly the mean of what its
contributors wrote, each counted once.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mdl.config import MeshSection
from mdl.errors import MdlError
from mdl.files.checkpoint import read_safetensors
from mdl.files.figures import read_rounds
from mdl.peers.edge.node import drive, start_runtime
from mdl.peers.launch.run_directory import error_of, kept_delta
from mdl.peers.roles.membership.majority import has_quorum
from mdl.protocol.delta import Contributor, PartialSum, digest_of
from mdl.protocol.machine import Effect, Event, Finish, PeerFound, Received, Send, StopRequested
from mdl.protocol.status_messages import MeshStatus, RoundSummary, StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.keys import Mesh

_ASK_S = 0.1
_FRESH_S = 1.0  # an answer older than this says nothing about who leads now
_NO_ROUNDS = 1 << 40  # "since" so late that a status comes without its finished rounds
_LOOK_S = 0.5
_SETTLED = 4  # a round is verified once rounds so much later have been seen
# What `spread` tells.
SPREAD = ("n", "missing", "median", "p95", "max")
_EXACT = 0.0  # sums of integers are the same in any order


@dataclass(frozen=True)
class Sight:
    """One answer of one agent. members: name -> (incarnation, alive, round)."""

    at: float
    agent: Contributor
    term: int
    phase: str
    members: dict[str, tuple[int, bool, int]]
    closed: int


class Eye:
    """Asks everybody ten times a second; whoever leads answers. A machine for the ZeroMQ runtime."""

    def __init__(self) -> None:
        self.sights: list[Sight] = []
        self.status: MeshStatus | None = None
        self.changed = threading.Event()
        self.closed = 0
        self._peers: set[str] = set()
        self._dead: dict[str, int] = {}
        self._ask_at = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerFound(info=info) if info.role is not Role.OBSERVER:
                self._peers.add(info.peer_id)
            case Received(sender=sender, message=MeshStatus() as status):
                self._see(sender, status, now)
            case StopRequested():
                return [Finish()]
        if now < self._ask_at:
            return []
        self._ask_at = now + _ASK_S
        return [Send(peer_id, StatusWanted(_NO_ROUNDS)) for peer_id in sorted(self._peers)]

    def deadline(self) -> float | None:
        return self._ask_at

    def leader(self) -> str:
        """Who answers as the agent now; "" if nobody does."""
        sight = self._current()
        return sight.agent.peer_id if sight else ""

    def agent_term(self) -> int:
        return self.sights[-1].term if self.sights else 0

    def alive(self) -> list[str]:
        """Whom the agent hears, in its present incarnation."""
        sight = self._current()
        if sight is None:
            return []
        return [
            name for name, (number, alive, _) in sight.members.items() if alive and number > self._dead.get(name, 0)
        ]

    def incarnation(self, name: str) -> int:
        """The last that was heard of."""
        for sight in reversed(self.sights):
            if sight.agent.peer_id == name:
                return sight.agent.incarnation
            if name in sight.members:
                return sight.members[name][0]
        return 0

    def forget(self, name: str) -> None:
        """It has just been killed: what was heard of this incarnation is over."""
        self._dead[name] = self.incarnation(name)

    def _current(self) -> Sight | None:
        since = time.monotonic() - _FRESH_S
        fresh = list(itertools.takewhile(lambda sight: sight.at >= since, reversed(self.sights)))
        here = [s for s in fresh if s.agent.incarnation > self._dead.get(s.agent.peer_id, 0)]
        return max(here, key=lambda sight: (sight.term, sight.at), default=None)

    def _see(self, sender: Contributor, status: MeshStatus, now: float) -> None:
        members = {each.peer_id: (each.incarnation, each.alive, each.round_id) for each in status.members}
        closed = max((round_id for _, alive, round_id in members.values() if alive), default=0)
        self.sights.append(Sight(now, sender, status.term, status.phase, members, closed))
        self.status, self.closed = status, max(self.closed, closed)
        self.changed.set()


@contextmanager
def watch(mesh: Mesh, section: MeshSection) -> Iterator[Eye]:
    eye = Eye()
    info = PeerInfo(f"eye-{os.getpid()}", 1, Role.OBSERVER, "", 0)
    runtime = start_runtime(eye, info, mesh, section)
    thread = threading.Thread(target=drive, args=(runtime, mesh, section), daemon=True)
    thread.start()
    try:
        yield eye
    finally:
        runtime.stop()
        thread.join(5.0)


@dataclass(frozen=True)
class Fault:
    """What was done to whom. closed: the last round then; down: who was missing already; seconds: until undone."""

    at: float
    kind: str
    name: str
    incarnation: int
    was_agent: bool
    seconds: float
    closed: int
    term: int
    down: list[str]


@dataclass
class Book:
    """All that was done in a run, by the clock of the benchmark."""

    began: float
    ended: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    started: list[tuple[float, str]] = field(default_factory=list)


class DeltaCheck:
    """Reads, compares and deletes what `round.keep_deltas` writes while the mesh runs.

    worst: largest |global - mean of own| over the largest contributed value, of rounds whose own deltas are all known.
    unknown: rounds of which an own delta was never written (its device was killed before). double: a wrong theta.
    twice: a device was counted in two of its lives. in_part: rounds that count one in some segments only.
    """

    def __init__(self, out: Path, names: list[str]) -> None:
        self.worst = 0.0
        self.exact: set[int] = set()
        self.inexact: set[int] = set()
        self.unknown: set[int] = set()
        self.in_part: set[int] = set()
        self.double: set[int] = set()
        self.twice: set[int] = set()
        self.digests: dict[int, dict[bytes, set[str]]] = {}
        self._folders = {name: out / name / "deltas" for name in names}
        self._own: dict[int, dict[str, list[PartialSum]]] = {}
        self._results: dict[int, dict[bytes, tuple[PartialSum, list[str]]]] = {}
        self._next_at = 0.0

    def look(self, now: float, last: bool = False) -> None:
        if now < self._next_at and not last:
            return
        self._next_at = now + _LOOK_S
        for name, folder in self._folders.items():
            for path in sorted(folder.glob("*-*.safetensors")):
                self._take(name, path)
        newest = max(self._results, default=0)
        for round_id in sorted(self._results):
            if last or round_id <= newest - _SETTLED:
                self._verify(round_id)

    def split_rounds(self) -> list[int]:
        """Rounds that gave different results on different devices."""
        return sorted(round_id for round_id, found in self.digests.items() if len(found) > 1)

    def _take(self, name: str, path: Path) -> None:
        number, _, kind = path.stem.partition("-")
        try:
            arrays, metadata = read_safetensors(path)
        except (MdlError, OSError):
            return  # being replaced at this moment
        path.unlink(missing_ok=True)
        round_id, delta = int(number), kept_delta(arrays, metadata)
        if kind == "own":
            self._own.setdefault(round_id, {}).setdefault(name, []).append(delta)
            return
        contributors = metadata["contributors"].split(",")
        if delta.theta != len(contributors):
            self.double.add(round_id)
        if len(set(contributors)) < len(contributors):
            self.twice.add(round_id)
        digest = digest_of(delta.values)
        self.digests.setdefault(round_id, {}).setdefault(digest, set()).add(name)
        if not {round_id} & (self.exact | self.inexact | self.unknown):
            if delta.partial:
                self.in_part.add(round_id)
            self._results.setdefault(round_id, {})[digest] = (delta, contributors)

    def _verify(self, round_id: int) -> None:
        """A device that was started again may have written more than one own delta: one choice must fit."""
        for result, contributors in self._results.pop(round_id).values():
            own = self._own.get(round_id, {})
            in_part = itertools.product(*(own.get(each.contributor.peer_id, []) for each in result.partial))
            choices = itertools.product(_choices(own, Counter(contributors)), in_part)
            errors = [error_of(result, *choice) for choice in itertools.islice(choices, 256)]
            if not errors:
                self.unknown.add(round_id)
                continue
            self.worst = max(self.worst, min(errors)) if min(errors) <= _EXACT else self.worst
            (self.exact if min(errors) <= _EXACT else self.inexact).add(round_id)
        for old in [known for known in self._own if known <= round_id]:
            del self._own[old]


def _choices(own: dict[str, list[PartialSum]], lives: Counter[str]) -> Iterator[tuple[PartialSum, ...]]:
    """Every way to take as many different own deltas of each device as it has lives among the contributors."""
    each = [itertools.combinations(own.get(name, []), count) for name, count in lives.items()]
    return (tuple(itertools.chain(*choice)) for choice in itertools.product(*each))


def summarise(run: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run with faults; all times in seconds."""
    book, eye, check = run["book"], run["eye"], run["check"]
    lines = _read_metrics(run["models"][0].parents[1])
    marked = [_measure(fault, book, eye.sights, lines) for fault in book.faults]
    kills = [each for each in marked if each["kind"] == "kill"]
    stops = [each for each in marked if each["kind"] == "stop"]
    of_trainers = [each for each in kills if not each["agent"]]
    of_agents = [each for each in kills if each["agent"]]
    doubles = {line.round for line in lines.values() if line.theta != len(line.contributors)}
    down = [len({*fault.down, fault.name}) for fault in book.faults]
    return {
        "seconds": round(book.ended - book.began, 1),
        "kills": kills,
        "stops": stops,
        "kills_of_trainers": len(of_trainers),
        "kills_of_agents": len(of_agents),
        "faults_with_a_majority_up": sum(2 * number < len(check._folders) for number in down),
        "rounds_closed": max([eye.closed, *check.digests]),  # one may have been applied after the last status
        "rounds": _round_times(book, eye.sights),
        "rounds_not_closed": sum(each["round_s"] is None for each in marked),
        "hangs": len(run["hangs"]),
        "deaf_processes": len(run["deaf"]),
        "double_counts": len(check.double | doubles),
        "rounds_with_two_results": check.split_rounds(),
        "rounds_with_a_device_twice": sorted(check.twice),
        "rounds_recorded": len(lines),
        "rounds_without_somebody": sum(len(line.contributors) < len(check._folders) for line in lines.values()),
        "rounds_exact": len(check.exact),
        "rounds_inexact": sorted(check.inexact),
        "rounds_in_part": sorted(check.in_part),
        "rounds_unknown": len(check.unknown - check.exact),
        "max_relative_error": check.worst,
        "same_model_at_the_end": _same_models(run["models"]),
        "two_agents_s": _two_agents(eye.sights),
        # "alone": no other fault before it was noticed and the round closed, and a majority of its voters was left.
        "notice_s": spread([each["notice_s"] for each in of_trainers]),
        "notice_alone_s": spread([each["notice_s"] for each in of_trainers if each["alone"]]),
        "takeover_s": spread([each["takeover_s"] for each in of_agents]),
        "takeover_alone_s": spread([each["takeover_s"] for each in of_agents if each["alone"]]),
        "round_after_kill_s": spread([each["round_s"] for each in kills]),
        "round_after_kill_alone_s": spread([each["round_s"] for each in kills if each["alone"]]),
        "round_after_the_last_fault_s": spread([each["round_after_last_s"] for each in marked]),
        "round_after_stop_s": spread([each["round_s"] for each in stops]),
        "back_after_kill_s": spread([each["back_s"] for each in kills]),
        "back_after_stop_s": spread([each["back_s"] for each in stops]),
        "accuracy": run["accuracy"],
    }


def spread(values: list[float | None]) -> dict[str, float | int | None]:
    """Median, 95 % and maximum of those that are known. missing: how many are not."""
    known = sorted(value for value in values if value is not None)
    missing = len(values) - len(known)
    if not known:
        return {"n": 0, "missing": missing, "median": None, "p95": None, "max": None}
    quantiles = {name: round(float(np.quantile(known, share)), 3) for name, share in (("median", 0.5), ("p95", 0.95))}
    return {"n": len(known), "missing": missing, **quantiles, "max": round(known[-1], 3)}


def _measure(fault: Fault, book: Book, sights: list[Sight], lines: dict[int, RoundSummary]) -> dict[str, Any]:
    after = [sight for sight in sights if sight.at > fault.at]
    undone = fault.at + fault.seconds
    if fault.kind == "kill":
        undone = next((at for at, name in book.started if name == fault.name and at > fault.at), undone)
    notice = _first(after, lambda sight: _is_missed(fault, sight))
    takeover = _first(after, lambda sight: sight.agent.peer_id != fault.name and sight.term > fault.term)
    closed = _first(after, lambda sight: sight.closed > fault.closed)
    back = _first(after, lambda sight: sight.at > undone and _is_back(fault, sight))
    if fault.kind == "stop" and (notice is None or notice > undone):
        notice = None  # it was back before anybody could miss it
    until = max([at for at in (notice, closed) if at is not None], default=fault.at)
    others = [other for other in book.faults if other is not fault and fault.at - 0.5 <= other.at <= until]
    before_close = [
        other.at for other in book.faults if fault.at <= other.at and (closed is None or other.at <= closed)
    ]
    voters = lines[fault.closed].contributors if fault.closed in lines else ()
    left = set(voters) - {*fault.down, fault.name}
    majority = not voters or has_quorum(voters, left)

    def since(moment: float | None, start: float = fault.at) -> float | None:
        return None if moment is None else round(moment - start, 3)

    return {
        "at_s": round(fault.at - book.began, 3),
        "kind": fault.kind,
        "peer": fault.name,
        "agent": fault.was_agent,
        "undone_s": round(undone - fault.at, 3),
        "down_before": len(fault.down),
        "majority_left": majority,
        "alone": not others and majority,
        "notice_s": None if fault.was_agent else since(notice),
        "takeover_s": since(takeover) if fault.was_agent else None,
        "round_s": since(closed),
        "round_after_last_s": since(closed, max(before_close)),
        "back_s": since(back, undone),
    }


def _first(sights: list[Sight], claim: Any) -> float | None:
    return next((sight.at for sight in sights if claim(sight)), None)


def _is_missed(fault: Fault, sight: Sight) -> bool:
    if sight.agent.peer_id == fault.name:
        return False
    incarnation, alive, _ = sight.members.get(fault.name, (0, False, 0))
    return not alive or incarnation > fault.incarnation


def _is_back(fault: Fault, sight: Sight) -> bool:
    """Alive, and not behind the others' model."""
    incarnation, alive, round_id = sight.members.get(fault.name, (0, False, 0))
    grown = incarnation > fault.incarnation if fault.kind == "kill" else True
    return grown and alive and round_id >= sight.closed - 1


def _round_times(book: Book, sights: list[Sight]) -> list[tuple[float, int]]:
    """(seconds, closed rounds) whenever that has grown."""
    times, closed = [], 0
    for sight in sights:
        if sight.closed > closed:
            closed = sight.closed
            times.append((round(sight.at - book.began, 2), closed))
    return times


def _two_agents(sights: list[Sight]) -> float:
    """The longest time for which two agents answered side by side."""
    longest, since = 0.0, None
    last: dict[str, float] = {}
    for sight in sights:
        last[sight.agent.peer_id] = sight.at
        if sum(sight.at - at < 3 * _ASK_S for at in last.values()) < 2:
            since = None
        else:
            since = sight.at if since is None else since
            longest = max(longest, sight.at - since)
    return round(longest, 2)


def _read_metrics(out: Path) -> dict[int, RoundSummary]:
    """The line of each round; one may lack it, if its agent was killed before it wrote it."""
    return {line.round: line for path in out.glob("*/metrics.jsonl") for line in read_rounds(path)}


def _same_models(paths: list[Path]) -> bool:
    """Whether all exports of the same round have the same floats (how many batches each device saw is its own)."""
    found: dict[str, set[bytes]] = {}
    for path in paths:
        arrays, metadata = read_safetensors(path)
        floats = [arrays[name] for name in sorted(arrays) if arrays[name].dtype == np.float32]
        content = b"".join(np.ascontiguousarray(values).tobytes() for values in floats)
        found.setdefault(metadata["mdl"], set()).add(content)
    return all(len(models) == 1 for models in found.values())
