"""The family `varied`: each scenario first draws its way of drawing a mesh, from wide ranges. Pure.

A network that is trained on one way of drawing fits to it. Here shares of classes and kinds of use, speeds, latency,
size, stragglers, and lengths and rates of busy periods differ from scenario to scenario. So a network can learn only
rules that hold for all of them. The assumptions on a kind of use (`mdl.devices.usage`) are then wrong by up to the
factors below, as they will be on phones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mdl.devices.busy_periods import Periods
from mdl.devices.scenario import ScenarioDevice
from mdl.devices.usage import UsageKind, draw_busy_periods
from mdl.sim.timing.device_models import CLASS_SHARES, draw_link_mb_s, draw_merge_mb_s

Floats = npt.NDArray[np.float64]

# Ranges over scenarios (uniform in the logarithm): the fixed families fit well inside the span from quick to slow.
# Sizes and latencies are those between a small model on a LAN and a large one over several radio hops.
_SIZE_MB = (1.0, 50.0)
_LATENCY_S = (0.002, 0.3)
_LINK_FACTOR = (0.4, 2.5)
_MERGE_FACTOR = (0.1, 3.0)
_READY_DEVIATION_S = (0.1, 3.0)
# Factors on the lengths of busy periods, and on the gaps between them, of the kind of use.
_LENGTH_FACTOR = (1.0 / 3.0, 3.0)
_GAP_FACTOR = (0.25, 2.0)
# Uniform over scenarios: the share of stragglers, the delay of the last one, and the spread (log-normal deviation) of
# each single busy period.
_STRAGGLERS = (0.0, 0.4)
_LATEST_S = (1.0, 12.0)
_SPREAD = (0.0, 0.8)
# Dirichlet: classes vary around the fixed shares, kinds of use from one kind alone to all alike.
_CLASS_WEIGHT = 4.0
_KIND_WEIGHT = 0.7
_KINDS = (UsageKind.IDLE, UsageKind.SYNC, UsageKind.INTERACTIVE, UsageKind.CALL, UsageKind.BIMODAL)
_LEAST_BATTERY_PERCENT = 20.0
_CHARGING = 0.3


@dataclass(frozen=True)
class _Way:
    """One way of drawing devices. lengths, gaps: factors by kind of use."""

    classes: Floats
    kinds: Floats
    link: float
    merge: float
    ready_s: float
    stragglers: float
    latest_s: float
    lengths: Floats
    gaps: Floats
    spread: float


def draw_varied(n: int, horizon_s: float, rng: np.random.Generator) -> tuple[float, float, tuple[ScenarioDevice, ...]]:
    """Draw the size in MB, the latency in seconds, and n devices with busy periods that begin before `horizon_s`."""
    way = _Way(
        classes=rng.dirichlet(_CLASS_WEIGHT * np.array(CLASS_SHARES)),
        kinds=rng.dirichlet(np.full(len(_KINDS), _KIND_WEIGHT)),
        link=_log_uniform(_LINK_FACTOR, rng),
        merge=_log_uniform(_MERGE_FACTOR, rng),
        ready_s=_log_uniform(_READY_DEVIATION_S, rng),
        stragglers=float(rng.uniform(*_STRAGGLERS)),
        latest_s=float(rng.uniform(*_LATEST_S)),
        lengths=np.array([_log_uniform(_LENGTH_FACTOR, rng) for _ in _KINDS]),
        gaps=np.array([_log_uniform(_GAP_FACTOR, rng) for _ in _KINDS]),
        spread=float(rng.uniform(*_SPREAD)),
    )
    size_mb, latency_s = _log_uniform(_SIZE_MB, rng), _log_uniform(_LATENCY_S, rng)
    return size_mb, latency_s, tuple(_draw_device(way, horizon_s, rng) for _ in range(n))


def stretch_periods(periods: Periods, factor: float, spread: float, rng: np.random.Generator) -> Periods:
    """Keep the gaps between periods; make the periods `factor` times as long, each varied by log-normal `spread`."""
    if not periods:
        return ()
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(periods)]
    stretched, at_s = [], min(0.0, periods[0][0]) * factor + max(0.0, periods[0][0])
    for (begin_s, end_s), gap_s in zip(periods, [*gaps, 0.0], strict=True):
        length_s = (end_s - begin_s) * factor * math.exp(spread * float(rng.standard_normal()))
        stretched.append((at_s, at_s + length_s))
        at_s += length_s + gap_s
    return tuple(stretched)


def _draw_device(way: _Way, horizon_s: float, rng: np.random.Generator) -> ScenarioDevice:
    device_class = int(rng.choice(len(way.classes), p=way.classes))
    place = int(rng.choice(len(_KINDS), p=way.kinds))
    ready_s = abs(float(rng.normal(0.0, way.ready_s)))
    if rng.random() < way.stragglers:
        ready_s += float(rng.uniform(1.0, 1.0 + way.latest_s))
    factor = float(way.lengths[place])
    # Gaps grow with the lengths: so the length of a busy period and the busy share of the time vary independently.
    periods = draw_busy_periods(_KINDS[place], horizon_s, rng, gap_scale=float(way.gaps[place]) * factor)
    return ScenarioDevice(
        ready_s,
        way.link * draw_link_mb_s(device_class, rng),
        way.merge * draw_merge_mb_s(device_class, rng),
        _KINDS[place],
        device_class,
        battery_percent=float(rng.uniform(_LEAST_BATTERY_PERCENT, 100.0)),
        charging=bool(rng.random() < _CHARGING),
        busy=stretch_periods(periods, factor, way.spread, rng),
    )


def _log_uniform(bounds: tuple[float, float], rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(*np.log(bounds))))
