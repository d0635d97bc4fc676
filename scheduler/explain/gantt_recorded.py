"""A real round as a chart, from its agent's records: reports and decided hops, nothing more. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from mdl.scheduler.explain.chart import (
    Chart,
    ChartHop,
    Exchanged,
    Row,
    SeenDevice,
    SeenHop,
    Span,
    SpanKind,
    append_span,
    find_start_s,
)
from mdl.scheduler.explain.delays import find_delays


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
