"""Plays scenarios and watches the policy: each decision, its alternatives, and its time; and charts what was played.

In a played scenario every state is known, so `chart_play` steps through the same hops again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import TypeAlias

import msgspec

from mdl.devices.scenario import Scenario
from mdl.devices.usage import DeviceState
from mdl.errors import ConfigError
from mdl.own import Own
from mdl.scheduler.explain.chart import (
    Chart,
    ChartHop,
    Note,
    Row,
    Span,
    SpanKind,
    Waited,
    append_span,
    find_delays,
    find_start_s,
)
from mdl.scheduler.given import policy_of
from mdl.scheduler.policies.chain import ChainView, Decision, Pair, Policy, Wait
from mdl.scheduler.policies.registry import OPTIMAL, SHARES_BY
from mdl.scheduler.study.optimal import Optimal
from mdl.scheduler.study.play import PlayedScenario, play, play_segments
from mdl.sim.timing.iteration import Iteration, TimedHop

Names: TypeAlias = Sequence[str]


def chart_play(
    title: str, scenario: Scenario, played: PlayedScenario, notes: Sequence[Note], names: Names = ()
) -> Chart:
    """Draw a chart of a play. names: of the devices, by index; their numbers by default."""
    names = names or [str(index) for index in range(len(scenario.devices))]
    rows, undone, end_s = _trace(scenario, played, names)
    pairs = [note for note in notes if isinstance(note.decision, Pair)]
    hops = []
    for number, ordered in enumerate(played.ordered, 1):
        hop = ordered.hop
        q = pairs[number - 1].q if len(pairs) == len(played.ordered) else ()
        lost_s = undone.get(number)
        hops.append(
            ChartHop(
                number,
                names[hop.sender],
                names[hop.receiver],
                hop.start_s,
                hop.sent_s if lost_s is None else min(hop.sent_s, lost_s),
                hop.merged_s if lost_s is None else min(hop.merged_s, lost_s),
                "merged" if lost_s is None else "undone by a death",
                ordered.reason,
                q,
                *_find_stall(scenario, hop, names),
            )
        )
    delays = find_delays(rows, hops, notes, end_s)
    return Chart(
        title, find_start_s(rows, end_s), end_s, played.makespan_s, rows, tuple(hops), _gather_waits(notes), delays
    )


def _trace(scenario: Scenario, played: PlayedScenario, names: Names) -> tuple[tuple[Row, ...], dict[int, float], float]:
    """Step through the same hops again; return the rows, the time at which each undone hop was undone, and the end."""
    iteration = Iteration(scenario)
    waiting = list(enumerate(played.ordered, 1))
    engaged: dict[int, int] = {}
    live: dict[int, tuple[int, int]] = {}
    undone: dict[int, float] = {}
    spans: list[list[Span]] = [[] for _ in names]
    while True:
        there = {(hop.sender, hop.receiver, hop.start_s) for hop in iteration.hops}
        for number in [number for number in live if _key(played, number) not in there]:
            undone[number] = iteration.now_s
            del live[number]
        while waiting and waiting[0][1].hop.start_s <= iteration.now_s:
            number, ordered = waiting.pop(0)
            iteration.start(ordered.hop.sender, ordered.hop.receiver)
            live[number] = (ordered.hop.sender, ordered.hop.receiver)
            engaged[ordered.hop.sender] = engaged[ordered.hop.receiver] = number
        start_s = iteration.now_s
        found = [_kind_now(iteration, played, index, engaged, names) for index in range(len(names))]
        if iteration.ended or not iteration.advance():
            break
        for index, (kind, partner) in enumerate(found):
            append_span(spans[index], Span(kind, start_s, iteration.now_s, partner))
    rows = tuple(Row(name, tuple(spans[index])) for index, name in enumerate(names))
    return rows, undone, iteration.now_s


def _gather_waits(notes: Sequence[Note]) -> tuple[Waited, ...]:
    waits: list[Waited] = []
    last: Note | None = None
    for note in notes:
        if isinstance(note.decision, Wait):
            reason = note.decision.reason
            if last is not None and isinstance(last.decision, Wait) and last.decision.reason == reason:
                waits[-1] = Waited(waits[-1].time_s, note.time_s, waits[-1].times + 1, reason, note.q)
            else:
                waits.append(Waited(note.time_s, note.time_s, 1, reason, note.q))
        last = note
    return tuple(waits)


def _find_stall(scenario: Scenario, hop: TimedHop, names: Names) -> tuple[float, tuple[str, ...]]:
    """Return the time for which the hop stands still, if nothing undoes it, and the devices that cause it."""
    stalled_s = hop.merged_s - hop.start_s - hop.transfer_s - hop.merge_s
    if stalled_s <= 1e-9:
        return 0.0, ()
    ends = ((hop.sender, hop.sent_s), (hop.receiver, hop.merged_s))
    busy = [
        names[index]
        for index, until_s in ends
        if any(begin < until_s and end > hop.start_s for begin, end in scenario.devices[index].busy)
    ]
    return stalled_s, tuple(busy)


def _key(played: PlayedScenario, number: int) -> tuple[int, int, float]:
    hop = played.ordered[number - 1].hop
    return hop.sender, hop.receiver, hop.start_s


_PLAIN = {
    DeviceState.TRAINING: SpanKind.TRAINING,
    DeviceState.FREE: SpanKind.WAITING,
    DeviceState.BUSY: SpanKind.BUSY,
    DeviceState.DONE: SpanKind.DONE,
    DeviceState.DEAD: SpanKind.LOST,
}


def _kind_now(
    iteration: Iteration, played: PlayedScenario, index: int, engaged: dict[int, int], names: Names
) -> tuple[SpanKind, str]:
    state, now_s = iteration.state(index), iteration.now_s
    if state in _PLAIN:
        return _PLAIN[state], ""
    hop = played.ordered[engaged[index] - 1].hop
    transferring = now_s < hop.sent_s
    held_up = (hop.sender, hop.receiver) if transferring else (hop.receiver,)
    partner = names[hop.receiver if index == hop.sender else hop.sender]
    if any(_is_busy(iteration, each) for each in held_up):
        return SpanKind.STALLED, partner
    if state is DeviceState.SEND:
        return SpanKind.SEND, partner
    return (SpanKind.RECEIVE if transferring else SpanKind.MERGE), partner


def _is_busy(iteration: Iteration, index: int) -> bool:
    return any(start <= iteration.now_s < end for start, end in iteration.scenario.devices[index].busy)


class WatchedPolicy:
    """A policy, and its decisions. explains: True to record its alternatives, too.

    seconds: processor time of each decision, so that other programs do not count. names: the device names that the
    policy sees, by index; their numbers by default.
    """

    def __init__(self, policy: Policy, explains: bool = True, names: Sequence[str] = ()) -> None:
        self.name = policy.name
        self.notes: list[Note] = []
        self.seconds: list[float] = []
        self._policy = policy
        self._names = names
        self._explain = getattr(policy, "explain", None) if explains else None

    def decide(self, view: ChainView) -> Decision:
        if self._names:
            view = _rename(view, self._names)
        alternatives = self._explain(view) if self._explain else ()
        started = time.thread_time()
        decision = self._policy.decide(view)
        self.seconds.append(time.thread_time() - started)
        self.notes.append(Note(view.time_s, decision, _tell_alternatives(alternatives)))
        if self._names and isinstance(decision, Pair):
            sender, receiver = (self._names.index(name) for name in (decision.sender, decision.receiver))
            return Pair(str(sender), str(receiver), decision.reason)
        return decision


def parse_policies(text: str, own: Callable[[str], str | Own] = str) -> tuple[str | Own, ...]:
    """Parse names, files and functions with commas between them. Raises ConfigError or DataError for an unknown one.

    own: makes a function that the user's command line names (`mdl.own.own_policy`); by default nothing is imported.
    """
    names = tuple(own(name) for name in dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--policies {text!r}: expected names with commas between them, e.g. greedy,tree")
    for name in names:
        check_policy(name)
    return names


def check_policy(name: str | Own) -> None:
    """Raise ConfigError with the closest valid name, or DataError for a file that is no policy."""
    if name != OPTIMAL and name not in SHARES_BY:
        policy_of(name)


class Bench:
    """Makes policies for one scenario after the other, so that none remembers the last; reads no file twice."""

    def __init__(self) -> None:
        self._fresh: dict[str, Policy] = {}

    def policy(self, name: str | Own, scenario: Scenario) -> Policy:
        """Make a policy; a user's function is called for each scenario, since its result may not be copied."""
        if isinstance(name, Own):
            return policy_of(name)
        if name == OPTIMAL:
            return Optimal(scenario)
        if name not in self._fresh:
            self._fresh[name] = policy_of(name)
        return deepcopy(self._fresh[name])


def play_watched(
    scenario: Scenario, policy: Policy, explains: bool = True, names: Sequence[str] = ()
) -> tuple[PlayedScenario, WatchedPolicy]:
    watched = WatchedPolicy(policy, explains, names)
    return play(scenario, watched), watched


def play_named(
    scenario: Scenario, name: str | Own, bench: Bench, names: Sequence[str] = ()
) -> tuple[PlayedScenario, list[float]]:
    """Play under a policy by its name, or in segments; return the play and the seconds of each decision."""
    if name in SHARES_BY:
        return play_segments(scenario, compress=SHARES_BY[str(name)]).played, []
    played, watched = play_watched(scenario, bench.policy(name, scenario), explains=False, names=names)
    return played, watched.seconds


def _rename(view: ChainView, names: Sequence[str]) -> ChainView:
    devices = (msgspec.structs.replace(device, peer_id=name) for device, name in zip(view.devices, names, strict=True))
    return msgspec.structs.replace(view, devices=tuple(devices))


def _tell_alternatives(alternatives: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Convert alternatives, in the order of the policy: senders, the best first, then receivers."""
    return tuple((action, float(q)) for action, q in alternatives)
