"""Worlds from a mesh's own rounds: its devices' training times, links and busy times, as its agent recorded them. Pure.

The log is cut into parts by time: rules learn from the first one and are judged on later ones (`split_log`). A world
replays a part from a drawn moment on, around, until the horizon. Training times and links vary by a drawn factor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

import numpy as np

from mdl.devices.busy_periods import Periods, active_s
from mdl.devices.usage import UsageKind
from mdl.errors import DataError
from mdl.protocol.status_messages import DeviceRecord, RoundSummary
from mdl.scheduler.rounds.world import HORIZON_S, SLOT_S, World, WorldDevice

# Two rounds for each of the two last parts, and four to learn from.
LEAST_ROUNDS = 8
# The ends of the parts, in shares of the rounds: to learn from, to watch meanwhile, to judge by at the end.
_ENDS = (0.5, 0.75, 1.0)
_SHORTEST_S = 1e-2
# Stands for merges that nobody has measured: they take no time.
_FAST_MERGE_MB_S = 10_000.0
# The standard deviation of the logarithm of a device's training time and link, from world to world.
_VARIES = 0.1


@dataclass(frozen=True)
class Logged:
    """A part of a log. starts_s: of its rounds. seconds: of the whole part. devices: peer id -> its record by round."""

    starts_s: tuple[float, ...]
    seconds: float
    size_mb: float
    devices: dict[str, tuple[DeviceRecord | None, ...]]
    known: dict[str, _Known]


@dataclass(frozen=True)
class _Known:
    """A device's medians over the whole log, for parts that do not tell them."""

    period_s: float
    link_mb_s: float
    merge_mb_s: float


def split_log(rounds: Sequence[RoundSummary], where: str) -> tuple[Logged, Logged, Logged]:
    """Cut a log into the parts to learn from, to watch, and to judge by.

    Raises DataError for a log with too few rounds or devices, or one that tells no links or no size of the model.
    """
    told = [each for each in rounds if each.devices and each.total_s > 0.0]
    if len(told) < LEAST_ROUNDS:
        raise DataError(f"{where}: {len(told)} rounds that tell their devices; expected {LEAST_ROUNDS} or more")
    sizes = [each.size for each in told if each.size]
    if not sizes:
        raise DataError(f"{where}: its rounds tell no size of the model: an older version recorded them")
    known = _find_known(told, where)
    ends = [0, *(round(len(told) * share) for share in _ENDS)]
    size_mb = 4e-6 * median(sizes)
    parts = (told[begin:end] for begin, end in pairwise(ends))
    learned, watched, judged = (_make_part(part, size_mb, known) for part in parts)
    return learned, watched, judged


def draw_logged_world(log: Logged, rng: np.random.Generator) -> World:
    """Draw a world with all devices of the log."""
    offset_s = float(rng.uniform(0.0, log.seconds))
    devices = tuple(_replay(log, name, offset_s, rng) for name in log.devices)
    return World(f"recorded-{len(devices)}-{offset_s:.1f}s", log.size_mb, 0.0, devices)


def _find_known(rounds: Sequence[RoundSummary], where: str) -> dict[str, _Known]:
    records: dict[str, list[DeviceRecord]] = {}
    for each in rounds:
        for device in each.devices:
            records.setdefault(device.peer_id, []).append(device)
    links = [device.link_mb_s for found in records.values() for device in found if device.link_mb_s]
    if not links:
        raise DataError(f"{where}: its rounds tell no speed of any link")
    known = {}
    for name, found in records.items():
        # A device that was ready at once had trained before the round opened.
        periods = [spent for device in found if device.ready_s and (spent := _worked_s(device)) > _SHORTEST_S]
        if not periods:
            continue
        own = [device.link_mb_s for device in found if device.link_mb_s]
        merges = [device.merge_mb_s for device in found if device.merge_mb_s]
        known[name] = _Known(median(periods), median(own or links), median(merges) if merges else _FAST_MERGE_MB_S)
    if len(known) < 2:
        raise DataError(f"{where}: {len(known)} devices that trained; expected two or more")
    return known


def _worked_s(device: DeviceRecord) -> float:
    """Return the seconds of its training, without those in which it was busy."""
    assert device.ready_s is not None
    return active_s((_closed(device, device.ready_s),), 0.0, device.ready_s)


def _closed(device: DeviceRecord, end_s: float) -> Periods:
    closed = ((start, end_s if end is None else min(end, end_s)) for start, end in device.busy)
    return tuple((start, end) for start, end in closed if end > start)


def _make_part(rounds: Sequence[RoundSummary], size_mb: float, known: dict[str, _Known]) -> Logged:
    ends_s = list(accumulate(each.total_s for each in rounds))
    by_round = [{device.peer_id: device for device in each.devices} for each in rounds]
    devices = {name: tuple(found.get(name) for found in by_round) for name in known}
    return Logged((0.0, *ends_s[:-1]), ends_s[-1], size_mb, devices, known)


def _replay(log: Logged, name: str, offset_s: float, rng: np.random.Generator) -> WorldDevice:
    records, known = log.devices[name], log.known[name]
    slower, faster = (float(np.exp(rng.normal(0.0, _VARIES))) for _ in range(2))
    slots = np.arange(int(HORIZON_S / SLOT_S) + 1) * SLOT_S
    links = [(record.link_mb_s if record else None) or known.link_mb_s for record in records]
    played = [links[bisect_right(log.starts_s, (offset_s + at_s) % log.seconds) - 1] for at_s in slots.tolist()]
    last = next((record for record in reversed(records) if record), None)
    battery = last.battery_percent if last else None
    busy = _busy(log, records, offset_s)
    kind = UsageKind(last.kind) if last and last.kind < len(UsageKind) else UsageKind.IDLE
    return WorldDevice(
        period_s=known.period_s * slower,
        merge_mb_s=known.merge_mb_s,
        links_mb_s=np.array(played) * faster,
        kind=UsageKind.INTERACTIVE if busy and kind is UsageKind.IDLE else kind,
        busy=busy,
        battery_percent=100.0 if battery is None else battery,
        charging=battery is None or bool(last and last.charging),
    )


def _busy(log: Logged, records: Sequence[DeviceRecord | None], offset_s: float) -> Periods:
    """Return its busy periods from that moment on, again and again until the horizon."""
    ends_s = (*log.starts_s[1:], log.seconds)
    once = [
        (starts_s + start, starts_s + end)
        for starts_s, ends, record in zip(log.starts_s, ends_s, records, strict=True)
        if record
        for start, end in _closed(record, ends - starts_s)
    ]
    found: list[tuple[float, float]] = []
    begin_s = -offset_s
    while once and begin_s < HORIZON_S:
        for start, end in once:
            start_s, end_s = max(0.0, begin_s + start), begin_s + end
            if end_s <= start_s or start_s >= HORIZON_S:
                continue
            goes_on = bool(found) and start_s <= found[-1][1]
            found.append((found.pop()[0] if goes_on else start_s, end_s))
        begin_s += log.seconds
    return tuple(found)
