"""The delays in a schedule: each device's waiting for a partner, and its reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mdl.scheduler.explain.chart import ChartHop, Delay, Note, Row, Span, SpanKind
from mdl.scheduler.policies.chain import Wait

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
