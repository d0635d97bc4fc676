"""A schedule's chart: rows of spans, hops, waits and delays, the rows' common rules, and a real round as one. Pure.

`find_delays` has each device's waiting for a partner, and its reason. `chart_round` charts a real round from its
agent's records: reports and decided hops, nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf

import msgspec

from mdl.scheduler.policies.chain import Pair, Wait

# The chart begins this much, as a share of the rest, before the first device is ready.
_LEAD_IN = 0.1


class SpanKind(Enum):
    """The state of a device in a stretch of time. STALLED: its hop stands still, because one of the two is busy."""

    TRAINING = "training"
    WAITING = "waiting"
    BUSY = "busy"
    SEND = "send"
    RECEIVE = "receive"
    SEGMENTS = "segments"
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
    """sent_s, end_s: None while it is under way. q: the policy's values of the alternatives.

    stalled_s: the time it stood still, because the devices in stalled_by were busy.
    """

    number: int
    sender: str
    receiver: str
    start_s: float
    sent_s: float | None
    end_s: float | None
    outcome: str
    reason: str
    q: tuple[tuple[str, float], ...] = ()
    stalled_s: float = 0.0
    stalled_by: tuple[str, ...] = ()


class Delay(msgspec.Struct, frozen=True):
    """A device was free for waited_s before its hop with this partner began."""

    device: str
    partner: str
    start_s: float
    end_s: float
    waited_s: float
    why: str


class Waited(msgspec.Struct, frozen=True):
    """The policy was asked and waited, so many times in a row for the same reason; the last time at until_s."""

    time_s: float
    until_s: float
    times: int
    reason: str
    q: tuple[tuple[str, float], ...] = ()


class Exchanged(msgspec.Struct, frozen=True):
    """The deltas travelled in segments: no hops, and all have the result at once.

    plan: in words, and why. owns: device -> segments. start_s: all held their deltas. end_s: all had the result; None
    while it is on its way. bound_s: the best time that the links allow, as known before; 0.0: not known.
    """

    plan: str
    owns: dict[str, int]
    start_s: float
    end_s: float | None
    bound_s: float = 0.0

    def tell(self) -> str:
        """Tell its time beside the time that the links allow, in one line."""
        best = f"the links allow {self.bound_s:.3g} s at best, as they were known before" if self.bound_s else ""
        if self.end_s is None:
            return "; ".join(["it is under way", *([best] if best else [])])
        took_s = self.end_s - self.start_s
        times = f": {took_s / self.bound_s:.2f} times that" if self.bound_s else ""
        return f"it took {took_s:.3g} s" + (f"; {best}{times}" if best else "")


class Chart(msgspec.Struct, frozen=True):
    """makespan_s: the time at which one holder had everything; None while that is open. hops, waits: in order of time.

    exchange: of a round in segments; its makespan_s lasts until every device had the result.
    start_s: the first moment worth showing; before it all devices trained.
    why_hops: the reason against segments; "": it went in segments, or was not meant to.
    """

    title: str
    start_s: float
    end_s: float
    makespan_s: float | None
    rows: tuple[Row, ...]
    hops: tuple[ChartHop, ...]
    waits: tuple[Waited, ...]
    delays: tuple[Delay, ...]
    exchange: Exchanged | None = None
    why_hops: str = ""


class Note(msgspec.Struct, frozen=True):
    """One decision at its time. q: the policy's values of the alternatives; empty if it has none."""

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


def find_start_s(rows: Sequence[Row], end_s: float) -> float:
    """Return 0, unless all train for most of the time: then a moment shortly before the first one is ready."""
    ends = [row.spans[0].end_s if row.spans and row.spans[0].kind is SpanKind.TRAINING else 0.0 for row in rows]
    ready_s = min(ends, default=0.0)
    return max(0.0, ready_s - _LEAD_IN * (end_s - ready_s)) if end_s / 2.0 < ready_s < end_s else 0.0


def append_span(spans: list[Span], span: Span) -> None:
    """Append a span, or extend the last one if it is of the same kind."""
    if spans and (spans[-1].kind, spans[-1].partner) == (span.kind, span.partner):
        spans[-1] = msgspec.structs.replace(spans[-1], end_s=span.end_s)
    elif span.end_s > span.start_s:
        spans.append(span)


# Waiting for less than this share of the whole is not worth a line.
_WORTH_TELLING = 0.01


def find_delays(
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
    """Return the end of its last activity: training, or another hop. Being busy in between does not count."""
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
    """Tell what the partner did meanwhile; if it was free as well, tell the policy's reason."""
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


def chart_round(
    title: str,
    devices: Sequence[SeenDevice],
    seen: Sequence[SeenHop],
    end_s: float,
    is_over: bool = True,
    exchange: Exchanged | None = None,
) -> Chart:
    """Draw a real round until `end_s`. is_over: then one holder had everything, or all segments had arrived.

    Hops of devices that are not among these are left out: any member may claim to lead, and report such a status.
    """
    names = {device.name for device in devices}
    known = [hop for hop in sorted(seen, key=lambda hop: hop.ordered_s) if {hop.sender, hop.receiver} <= names]
    hops = tuple(_seen_hop(number, hop) for number, hop in enumerate(known, 1))
    rows = tuple(_seen_row(device, hops, end_s, exchange) for device in devices)
    delays = find_delays(rows, hops, (), end_s)
    makespan_s = end_s if is_over else None
    return Chart(title, find_start_s(rows, end_s), end_s, makespan_s, rows, hops, (), delays, exchange)


def _seen_hop(number: int, hop: SeenHop) -> ChartHop:
    sent_s = None
    if hop.decided_s is not None:
        sent_s = min(hop.decided_s, hop.ordered_s + hop.transfer_s) if hop.outcome == "merged" else hop.decided_s
    return ChartHop(number, hop.sender, hop.receiver, hop.ordered_s, sent_s, hop.decided_s, hop.outcome, hop.reason)


def _seen_row(device: SeenDevice, hops: Sequence[ChartHop], end_s: float, exchange: Exchanged | None) -> Row:
    spans: list[Span] = []
    ready_s = end_s if device.ready_s is None else min(device.ready_s, end_s)
    if device.ready_s is None and device.lost:
        ready_s = 0.0
    append_span(spans, Span(SpanKind.TRAINING, 0.0, ready_s))
    at_s, given = ready_s, False
    for hop in (hop for hop in hops if device.name in (hop.sender, hop.receiver)):
        start_s, until_s = max(at_s, hop.start_s), min(end_s, end_s if hop.end_s is None else hop.end_s)
        _rest(spans, device, at_s, start_s, given)
        at_s = max(start_s, until_s)
        given = device.name == hop.sender and hop.outcome == "merged"
        if device.name == hop.sender:
            append_span(spans, Span(SpanKind.SEND, start_s, at_s, hop.receiver))
            continue
        sent_s = max(start_s, at_s if hop.sent_s is None else min(hop.sent_s, at_s))
        append_span(spans, Span(SpanKind.RECEIVE, start_s, sent_s, hop.sender))
        append_span(spans, Span(SpanKind.MERGE, sent_s, at_s, hop.sender))
    if device.lost:
        append_span(spans, Span(SpanKind.LOST, at_s, end_s))
    elif exchange and device.name in exchange.owns:
        start_s = min(max(at_s, exchange.start_s), end_s)
        _rest(spans, device, at_s, start_s, given)
        append_span(spans, Span(SpanKind.SEGMENTS, start_s, end_s))
    else:
        _rest(spans, device, at_s, end_s, given)
    return Row(device.name, tuple(spans))


def _rest(spans: list[Span], device: SeenDevice, start_s: float, end_s: float, given: bool) -> None:
    """Append the spans of a device without a hop: done if it has given its load away, else busy or waiting."""
    if given:
        return append_span(spans, Span(SpanKind.DONE, start_s, end_s))
    at_s = start_s
    for busy_s, until in device.busy:
        until_s = min(end_s, inf if until is None else until)
        if until_s <= at_s or busy_s >= end_s:
            continue
        append_span(spans, Span(SpanKind.WAITING, at_s, max(at_s, busy_s)))
        append_span(spans, Span(SpanKind.BUSY, max(at_s, busy_s), until_s))
        at_s = until_s
    return append_span(spans, Span(SpanKind.WAITING, at_s, end_s))
