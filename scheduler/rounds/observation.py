"""A round as a table of numbers, and the choices that it leaves: what learners see and do. Pure.

The choices are numbered: 0 waits, k from 1 on closes with the first k devices of the exact plan's order, and the last
one closes with the plan's best set of devices that can give now.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p

import numpy as np
import numpy.typing as npt

from mdl.devices.usage import expected_rest_s
from mdl.scheduler.rounds.exchange_plan import best_set, in_plan_order, plan_exchange
from mdl.scheduler.rounds.participation import LEAST_MEMBERS, LOOKED_BACK, DeviceSeen, RoundSeen
from mdl.scheduler.rounds.shipped import Bounds

Floats = npt.NDArray[np.float32]

# The columns of an observation. The first describe the row's device, those from `open_s` on the round, in each row.
COLUMNS = (
    *("exists", "can_give", "closes", "progress", "ready_in_s", "busy", "busy_for_s", "rest_s", "link", "link_spread"),
    *("battery", "charging", "base_age", "took_part", "left_out", "owed"),
    *("open_s", "exchange_s", "devices", "able", "best_now", "best_later", "best_later_in_s"),
)
# No value is beyond it.
BOUND = 20.0
# Seconds are told as log(1 + s), links as log(MB/s), ages in tens of rounds.
_TENS = 10.0


@dataclass(frozen=True)
class Choices:
    """observation: float32 (max_n * F,), row after row. valid: bool (max_n + 2,), the choices that are possible.

    order: the devices that can give, in the plan's order. best: the plan's best set of them.
    """

    observation: Floats
    valid: npt.NDArray[np.bool_]
    order: list[DeviceSeen]
    best: tuple[DeviceSeen, ...]

    def members(self, choice: int) -> list[DeviceSeen]:
        """Return the devices that a choice closes with; none: it waits, as one that is not possible does."""
        if not choice or not self.valid[choice]:
            return []
        return list(self.best) if choice == len(self.valid) - 1 else self.order[:choice]


def observe(seen: RoundSeen, bounds: Bounds, max_n: int) -> Choices:
    """Return the choices of an open round of at most max_n devices."""
    most = bounds.left_out_at_most
    owed = sum(each.left_out >= most for each in seen.devices)
    order = in_plan_order(seen.able(), most)
    now, later = best_set(seen, most, now=True), best_set(seen, most)
    best = now.devices if now else ()
    valid = np.zeros(max_n + 2, np.bool_)
    valid[0] = True
    least = max(LEAST_MEMBERS, owed)
    if sum(each.left_out >= most for each in order) == owed and len(order) >= least:
        valid[least : len(order) + 1] = True
        valid[-1] = owed <= sum(each.left_out >= most for each in best)
    rates = [each.link_mb_s for each in seen.devices]
    exchange_s = plan_exchange(rates, [True] * len(rates), seen.size_mb, seen.latency_s).seconds
    later_ratio = later.ratio if later else 0.0
    about = (
        log1p(seen.open_s),
        log1p(exchange_s),
        log(len(seen.devices)),
        len(order) / len(seen.devices),
        now.ratio / later_ratio if now and later_ratio else 0.0,
        len(later.devices) / len(seen.devices) if later else 0.0,
        log1p(later.close_in_s) if later else 0.0,
    )
    table = np.zeros((max_n, len(COLUMNS)), np.float32)
    rest = sorted((each for each in seen.devices if not each.can_give), key=lambda each: each.ready_in_s)
    for row, device in enumerate([*order, *rest]):
        table[row] = (*_describe(device, bool(valid[row + 1]), most), *about)
    return Choices(np.clip(table, -BOUND, BOUND).reshape(-1), valid, order, best)


def valid_choices(observations: Floats) -> npt.NDArray[np.bool_]:
    """Return the possible choices, bool (B, max_n + 2), of a batch of observations; the best set counts as possible."""
    closes = observations.reshape(len(observations), -1, len(COLUMNS))[:, :, COLUMNS.index("closes")] > 0
    best = closes.any(axis=1, keepdims=True)
    return np.concatenate([np.ones_like(best), closes, best], axis=1)


def best_ratio_choices(observations: Floats) -> npt.NDArray[np.int64]:
    """Return the choices (B,) of the rule `best-ratio` in a batch of observations: the best set, or a wait for one."""
    table = observations.reshape(len(observations), -1, len(COLUMNS))
    waits = table[:, 0, COLUMNS.index("best_later_in_s")] > 0.0
    closes = valid_choices(observations)[:, -1] & ~waits
    return np.where(closes, table.shape[1] + 1, 0).astype(np.int64)


def _describe(device: DeviceSeen, closes: bool, most: float) -> tuple[float, ...]:
    is_busy = device.busy_for_s > 0.0
    return (
        1.0,
        float(device.can_give),
        float(closes),
        device.progress,
        log1p(device.ready_in_s),
        float(is_busy),
        log1p(device.busy_for_s),
        log1p(expected_rest_s(device.kind, device.busy_for_s)) if is_busy else 0.0,
        log(device.link_mb_s),
        device.link_spread,
        device.battery_percent / 100.0,
        float(device.charging),
        device.base_age / _TENS,
        device.took_part / LOOKED_BACK,
        device.left_out / _TENS,
        float(device.left_out >= most),
    )
