"""A schedule as people look at it: a row a device, the hops in their order, and who waited for whom. Pure.

Made from a scenario that was played (`chart_play`), where every state is known, or from what a real round left behind
(`chart_round`), where only reports and decided hops are. Drawing is not done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import TypeAlias

import msgspec

from scheduler.chain import Pair, Wait
from scheduler.play import Played
from sim.scenario import Scenario
from sim.timing import DeviceState, Iteration

# Waiting for less than this share of the whole is no delay worth a line.
_WORTH_TELLING = 0.01
# Of what follows, so much is shown of the training before it.
_LEAD_IN = 0.1


class SpanKind(Enum):
    """What a device does in a stretch of time. STALLED: its hop stands still, because one of the two is busy."""

    TRAINING = "training"
    WAITING = "waiting"
    BUSY = "busy"
    SEND = "send"
    RECEIVE = "receive"
    STALLED = "stalled"
    MERGE = "merge"
    DONE = "done"
    LOST = "lost"


class Span(msgspec.Struct, frozen=True):
    kind: SpanKind
    start_s: float
    end_s: float
    partner: str = ""


class Row(msgspec.Struct, frozen=True):
    """spans: without gaps, from 0 to the chart's end."""

    device: str
    spans: tuple[Span, ...]


class ChartHop(msgspec.Struct, frozen=True):
    """sent_s, end_s: None as long as it is under way. q: the policy's values of the alternatives."""

    number: int
    sender: str
    receiver: str
    start_s: float
    sent_s: float | None
    end_s: float | None
    outcome: str
    reason: str
    q: tuple[tuple[str, float], ...] = ()


class Delay(msgspec.Struct, frozen=True):
    """A device was free for waited_s before its hop with this partner began."""

    device: str
    partner: str
    start_s: float
    end_s: float
    waited_s: float
    why: str


class Waited(msgspec.Struct, frozen=True):
    """The policy was asked and waited, so many times on end for the same reason; the last time at until_s."""

    time_s: float
    until_s: float
    times: int
    reason: str
    q: tuple[tuple[str, float], ...] = ()


class Chart(msgspec.Struct, frozen=True):
    """makespan_s: when one holder had everything; None as long as that is open. hops, waits: in the order of time.

    start_s: where there is something to see; before it everybody trained.
    """

    title: str
    start_s: float
    end_s: float
    makespan_s: float | None
    rows: tuple[Row, ...]
    hops: tuple[ChartHop, ...]
    waits: tuple[Waited, ...]
    delays: tuple[Delay, ...]


class Note(msgspec.Struct, frozen=True):
    """One decision as it was made. q: the policy's values of the alternatives; empty if it has none."""

    time_s: float
    decision: Pair | Wait
    q: tuple[tuple[str, float], ...] = ()


class SeenDevice(msgspec.Struct, frozen=True):
    """A device of a real round; seconds since the round was opened. busy: an end of None lasts to the chart's end."""

    name: str
    ready_s: float | None
    busy: tuple[tuple[float, float | None], ...] = ()
    lost: bool = False


class SeenHop(msgspec.Struct, frozen=True):
    sender: str
    receiver: str
    outcome: str
    ordered_s: float
    decided_s: float | None
    transfer_s: float
    reason: str


Names: TypeAlias = Sequence[str]


def chart_play(title: str, scenario: Scenario, played: Played, notes: Sequence[Note], names: Names = ()) -> Chart:
    """names: of the devices, by index; their numbers by default."""
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
            )
        )
    delays = _find_delays(rows, hops, notes, end_s)
    return Chart(
        title, _find_start_s(rows, end_s), end_s, played.makespan_s, rows, tuple(hops), _gather_waits(notes), delays
    )


def chart_round(
    title: str, devices: Sequence[SeenDevice], seen: Sequence[SeenHop], end_s: float, is_over: bool = True
) -> Chart:
    """A real round until `end_s`. is_over: it was reduced to one holder then."""
    hops = tuple(_seen_hop(number, hop) for number, hop in enumerate(sorted(seen, key=lambda hop: hop.ordered_s), 1))
    rows = tuple(_seen_row(device, hops, end_s) for device in devices)
    delays = _find_delays(rows, hops, (), end_s)
    makespan_s = end_s if is_over else None
    return Chart(title, _find_start_s(rows, end_s), end_s, makespan_s, rows, hops, (), delays)


def _find_start_s(rows: Sequence[Row], end_s: float) -> float:
    """0, unless everybody trains for most of the time: then shortly before the first of them is ready."""
    ends = [row.spans[0].end_s if row.spans and row.spans[0].kind is SpanKind.TRAINING else 0.0 for row in rows]
    ready_s = min(ends, default=0.0)
    return max(0.0, ready_s - _LEAD_IN * (end_s - ready_s)) if end_s / 2.0 < ready_s < end_s else 0.0


# -- a played scenario ------------------------------------------------------------------------------------------------


def _trace(scenario: Scenario, played: Played, names: Names) -> tuple[tuple[Row, ...], dict[int, float], float]:
    """Steps through the same hops again: the rows, when each undone hop was undone, and when all ended."""
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
            _append(spans[index], Span(kind, start_s, iteration.now_s, partner))
    rows = tuple(Row(name, tuple(spans[index])) for index, name in enumerate(names))
    return rows, undone, iteration.now_s


def _gather_waits(notes: Sequence[Note]) -> tuple[Waited, ...]:
    waits: list[Waited] = []
    last: Note | None = None
    for note in notes:
        if isinstance(note.decision, Wait):
            reason = note.decision.reason
            if last is not None and last.decision == note.decision:
                waits[-1] = Waited(waits[-1].time_s, note.time_s, waits[-1].times + 1, reason, note.q)
            else:
                waits.append(Waited(note.time_s, note.time_s, 1, reason, note.q))
        last = note
    return tuple(waits)


def _key(played: Played, number: int) -> tuple[int, int, float]:
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
    iteration: Iteration, played: Played, index: int, engaged: dict[int, int], names: Names
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


def _append(spans: list[Span], span: Span) -> None:
    """Goes on with the last span if it is of the same kind."""
    if spans and (spans[-1].kind, spans[-1].partner) == (span.kind, span.partner):
        spans[-1] = msgspec.structs.replace(spans[-1], end_s=span.end_s)
    elif span.end_s > span.start_s:
        spans.append(span)


# -- a real round -----------------------------------------------------------------------------------------------------


def _seen_hop(number: int, hop: SeenHop) -> ChartHop:
    sent_s = None
    if hop.decided_s is not None:
        sent_s = min(hop.decided_s, hop.ordered_s + hop.transfer_s) if hop.outcome == "merged" else hop.decided_s
    return ChartHop(number, hop.sender, hop.receiver, hop.ordered_s, sent_s, hop.decided_s, hop.outcome, hop.reason)


def _seen_row(device: SeenDevice, hops: Sequence[ChartHop], end_s: float) -> Row:
    spans: list[Span] = []
    ready_s = end_s if device.ready_s is None else min(device.ready_s, end_s)
    if device.ready_s is None and device.lost:
        ready_s = 0.0
    _append(spans, Span(SpanKind.TRAINING, 0.0, ready_s))
    at_s, given = ready_s, False
    for hop in (hop for hop in hops if device.name in (hop.sender, hop.receiver)):
        start_s, until_s = max(at_s, hop.start_s), min(end_s, end_s if hop.end_s is None else hop.end_s)
        _rest(spans, device, at_s, start_s, given)
        at_s = max(start_s, until_s)
        given = device.name == hop.sender and hop.outcome == "merged"
        if device.name == hop.sender:
            _append(spans, Span(SpanKind.SEND, start_s, at_s, hop.receiver))
            continue
        sent_s = max(start_s, at_s if hop.sent_s is None else min(hop.sent_s, at_s))
        _append(spans, Span(SpanKind.RECEIVE, start_s, sent_s, hop.sender))
        _append(spans, Span(SpanKind.MERGE, sent_s, at_s, hop.sender))
    if device.lost:
        _append(spans, Span(SpanKind.LOST, at_s, end_s))
    else:
        _rest(spans, device, at_s, end_s, given)
    return Row(device.name, tuple(spans))


def _rest(spans: list[Span], device: SeenDevice, start_s: float, end_s: float, given: bool) -> None:
    """What a device without a hop does: it is done if it has given its load away, else busy or waiting."""
    if given:
        return _append(spans, Span(SpanKind.DONE, start_s, end_s))
    at_s = start_s
    for busy_s, until in device.busy:
        until_s = min(end_s, inf if until is None else until)
        if until_s <= at_s or busy_s >= end_s:
            continue
        _append(spans, Span(SpanKind.WAITING, at_s, max(at_s, busy_s)))
        _append(spans, Span(SpanKind.BUSY, max(at_s, busy_s), until_s))
        at_s = until_s
    return _append(spans, Span(SpanKind.WAITING, at_s, end_s))


# -- who waited for whom ----------------------------------------------------------------------------------------------


def _find_delays(
    rows: Sequence[Row], hops: Sequence[ChartHop], notes: Sequence[Note], end_s: float
) -> tuple[Delay, ...]:
    spans = {row.device: row.spans for row in rows}
    delays = []
    for hop in hops:
        for device, partner in ((hop.sender, hop.receiver), (hop.receiver, hop.sender)):
            since_s = _free_since_s(spans[device], hop.start_s)
            free = [
                span
                for span in spans[device]
                if span.kind is SpanKind.WAITING and since_s <= span.start_s < hop.start_s
            ]
            waited_s = sum(span.end_s - span.start_s for span in free)
            if waited_s <= _WORTH_TELLING * end_s:
                continue
            until_s = free[-1].end_s
            digits = 2 if end_s >= 10.0 else 3
            why = _explain(spans[partner], partner, since_s, until_s, notes, digits)
            if until_s < hop.start_s:
                why += f"; then {device} itself was busy until {hop.start_s:.{digits}f} s"
            delays.append(Delay(device, partner, since_s, until_s, waited_s, why))
    return tuple(delays)


def _free_since_s(spans: Sequence[Span], start_s: float) -> float:
    """The end of what it did before: training, or another hop. Being busy in between does not count."""
    ended = [
        span.end_s for span in spans if span.end_s <= start_s and span.kind not in (SpanKind.WAITING, SpanKind.BUSY)
    ]
    return max(ended, default=0.0)


_DID = {
    SpanKind.TRAINING: "trained",
    SpanKind.BUSY: "was busy",
    SpanKind.SEND: "sent to {}",
    SpanKind.RECEIVE: "was in its hop with {}",
    SpanKind.STALLED: "was in its hop with {}",
    SpanKind.MERGE: "was in its hop with {}",
    SpanKind.DONE: "had given its load away",
    SpanKind.LOST: "was lost",
}


def _explain(
    spans: Sequence[Span], partner: str, since_s: float, until_s: float, notes: Sequence[Note], digits: int
) -> str:
    """What the partner did meanwhile; if it was free as well, what the policy said."""
    kept = [span for span in spans if span.kind in _DID and _overlap_s(span, since_s, until_s) > 0.0]
    if not kept:
        return f"{partner} was free too: {_why_free(since_s, until_s, notes)}"
    last = kept[-1]
    ended_s = max(span.end_s for span in spans if span is last or _is_same_hop(last, span))
    told = f"{partner} {_DID[last.kind].format(last.partner)} until {ended_s:.{digits}f} s"
    if until_s - ended_s <= _WORTH_TELLING * until_s:
        return told
    return f"{told}, then {_why_free(ended_s, until_s, notes)}"


def _is_same_hop(span: Span, later: Span) -> bool:
    return bool(span.partner) and later.partner == span.partner and later.start_s >= span.end_s


def _why_free(since_s: float, until_s: float, notes: Sequence[Note]) -> str:
    waits = [note.decision for note in notes if since_s <= note.time_s < until_s and isinstance(note.decision, Wait)]
    return f"the policy waited ({waits[-1].reason})" if waits else "the policy paired others first"


def _overlap_s(span: Span, start_s: float, end_s: float) -> float:
    return max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s))
