"""Ways of drawing meshes that no policy was trained or tuned on, different in kind from those of sim/timing.

- heavy: busy for Weibull times (shape 0.6: many short, few very long), free for gamma times (shape 3: at regular
  intervals), links and merges log-normal without classes. The kind is what the mean length looks like;
- together: devices of one owner are busy at the same times, a little apart, for log-normal times;
- recorded: busy when phones of a recording were loaded (phone_traces, read in place).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.phones.traces import STRETCH_GAP_S, Phone, read_phones
from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import Periods, UsageKind
from mdl.errors import ConfigError

Draw = Callable[[int, np.random.Generator], list[tuple[UsageKind, Periods]]]

_SIZE_MB, _LATENCY_S = 10.0, 0.02
# As long as the fixed families draw: the slowest policy ends long before.
_HORIZON_S_PER_DEVICE = 60.0
# Medians and log-normal deviations of links and merges, MB/s: the middle of the classes, spread as wide as they are.
_LINK_MB_S, _LINK_DEVIATION = 7.0, 0.7
_MERGE_MB_S, _MERGE_DEVIATION = 400.0, 0.8
_READY_SHAPE, _READY_MEAN_S = 1.0, 1.0
_WEIBULL, _GAP_SHAPE = 0.6, 3.0
_MEAN_BUSY_S, _MEAN_GAP_S = (0.3, 10.0), (5.0, 40.0)
_OWNED = 3  # devices of one owner
_JOINS, _APART_S, _EVENT_MEAN_S, _EVENT_DEVIATION, _EVENT_GAP_S = 0.7, 0.3, 3.0, 0.8, 15.0


def draw_held_out(way: str, n: int, seed: int, phones: Sequence[Phone] = ()) -> Scenario:
    """The same way, n and seed give the same scenario. phones: of `read_recordings`, for `recorded`."""
    ways: dict[str, Draw] = {
        "heavy": _draw_heavy,
        "together": _draw_together,
        "recorded": lambda count, rng: _draw_recorded(count, rng, phones),
    }
    if way not in ways:
        raise ConfigError(f"unknown way of drawing {way!r} (valid: {', '.join(ways)})")
    rng = np.random.default_rng([list(ways).index(way), n, seed, 15])  # 15: apart from the families' generators
    devices = []
    for kind, periods in ways[way](n, rng):
        link, merge = np.exp(rng.normal(0.0, (_LINK_DEVIATION, _MERGE_DEVIATION)))
        ready_s = float(rng.gamma(_READY_SHAPE, _READY_MEAN_S / _READY_SHAPE))
        devices.append(
            ScenarioDevice(ready_s, _LINK_MB_S * float(link), _MERGE_MB_S * float(merge), kind, busy=periods)
        )
    return Scenario(f"{way}-{n}-{seed}", way, _SIZE_MB, _LATENCY_S, tuple(devices))


def read_recordings(folder: Path) -> list[Phone]:
    """Phones with an hour of readings or more."""
    return [phone for phone in read_phones(folder) if len(phone.at_s) >= 2 and phone.at_s[-1] - phone.at_s[0] >= 3600.0]


def _draw_heavy(n: int, rng: np.random.Generator) -> list[tuple[UsageKind, Periods]]:
    found = []
    for _ in range(n):
        busy_s, gap_s = (float(np.exp(rng.uniform(*np.log(bounds)))) for bounds in (_MEAN_BUSY_S, _MEAN_GAP_S))
        at_s, periods = -float(rng.uniform(0.0, busy_s + gap_s)), []
        while at_s < _HORIZON_S_PER_DEVICE * n:
            at_s += float(rng.gamma(_GAP_SHAPE, gap_s / _GAP_SHAPE))
            ends_s = at_s + busy_s * float(rng.weibull(_WEIBULL)) / 1.5  # 1.5: mean of this Weibull law
            if ends_s > 0.0:
                periods.append((at_s, ends_s))
            at_s = ends_s
        found.append((_kind_of(busy_s), tuple(periods)))
    return found


def _draw_together(n: int, rng: np.random.Generator) -> list[tuple[UsageKind, Periods]]:
    found: list[tuple[UsageKind, Periods]] = []
    while len(found) < n:
        starts: npt.NDArray[np.float64] = np.cumsum(rng.exponential(_EVENT_GAP_S, 8 + 8 * n))
        starts = starts[starts < _HORIZON_S_PER_DEVICE * n] - _EVENT_MEAN_S
        for _ in range(min(_OWNED, n - len(found))):
            joined = starts[rng.random(len(starts)) < _JOINS] + rng.normal(0.0, _APART_S, 1)
            lengths = _EVENT_MEAN_S * np.exp(rng.normal(-(_EVENT_DEVIATION**2) / 2.0, _EVENT_DEVIATION, len(joined)))
            found.append((UsageKind.INTERACTIVE, _merge(joined, joined + lengths)))
    return found


def _draw_recorded(n: int, rng: np.random.Generator, phones: Sequence[Phone]) -> list[tuple[UsageKind, Periods]]:
    if not phones:
        raise ConfigError("recorded: there are no recordings of phones")
    found = []
    for _ in range(n):
        phone = phones[int(rng.integers(len(phones)))]
        first = int(rng.integers(len(phone.at_s) - 1))
        last = int(np.searchsorted(phone.at_s, phone.at_s[first] + _HORIZON_S_PER_DEVICE * n))
        at_s = phone.at_s[first : last + 1] - phone.at_s[first]
        until_s = np.minimum(np.append(at_s[1:], at_s[-1] + STRETCH_GAP_S), at_s + STRETCH_GAP_S)
        loaded = phone.loaded()[first : last + 1]
        kind = UsageKind.INTERACTIVE if phone.in_use[first] else UsageKind.SYNC
        found.append((kind, _merge(at_s[loaded], until_s[loaded])))
    return found


def _kind_of(mean_s: float) -> UsageKind:
    if mean_s < 1.0:
        return UsageKind.SYNC
    return UsageKind.INTERACTIVE if mean_s < 5.0 else UsageKind.CALL


def _merge(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> Periods:
    """Periods that touch or overlap become one; those that ended before 0 are left out."""
    merged: list[tuple[float, float]] = []
    for start_s, end_s in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        elif end_s > 0.0:
            merged.append((start_s, end_s))
    return tuple(merged)
