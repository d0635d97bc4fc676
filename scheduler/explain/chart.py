"""The parts of a schedule's chart: rows of spans, hops, waits and delays; and the rows' common rules. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

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
