"""The observation of the learned policy: numbers per device, free of units and of the devices' order and number. Pure.

Times are divided by the transfer time of the median link, so that a mesh of slow links and one of fast links look
alike. The same columns come from one view (`observe`) and from a batch of simulated iterations (`look_at`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mdl.devices.usage import UsageKind, expected_busy_s
from mdl.scheduler.policies.chain import BUSY_SHARE, SEND, STATES, Bools, Doubles, Floats, Integers, Stand
from mdl.scheduler.policies.layout import Layout, Prospects, lay_out, picks_now, prospects, receivers_for
from mdl.scheduler.policies.trained_under import OBSERVATION

# These differ by device.
_OWN = (
    *(f"is_{state.value}" for state in STATES),
    "is_sender",
    "may_pick",
    "free_in",
    "free_in_log",
    "eta_ready",
    "op_left",
    "busy_for",
    "expected_rest",
    "link_time",
    "link_time_log",
    "link_unknown",
    "merge_time",
    "merge_unknown",
    "pair_time",
    *(f"kind_{kind.name.lower()}" for kind in UsageKind),
    "busy_share",
    "busy_length",
    "risk",
    "battery",
    "battery_low",
    "charging",
    "cpu",
    "free_memory",
    "in_use",
    "n_agg",
    "theta_share",
    "energy",
    "slower_share",
    "earlier_share",
    "cost",
    "plan_sends",
    "plan_receives",
    "plan_start",
)
# These are the same for every device.
_COMMON = (
    "devices_log",
    "holders_log",
    "holders_share",
    "free_log",
    "unit_log",
    "size_log",
    "time_log",
    "sender_link_time",
    "receiver_phase",
    "wait_valid",
    "plan_waits",
    "plan_ends",
)
FEATURES: tuple[str, ...] = (*_OWN, *_COMMON)
COLUMN = {name: number for number, name in enumerate(FEATURES)}
# The simulated mesh does not vary these: a network starts from ignoring them.
UNVARIED = ("cpu", "free_memory", "in_use", "link_unknown", "merge_unknown")

_LONGEST = OBSERVATION.longest
_KINDS = tuple(UsageKind)
_BUSY_LENGTH_S: Doubles = np.array([expected_busy_s(kind) if kind is not UsageKind.ONCE else 0.0 for kind in _KINDS])
_FIRST_KIND = COLUMN["kind_idle"]
_STATE_CODES, _KIND_CODES = (np.arange(len(codes))[:, None, None] for codes in (STATES, _KINDS))


# Some columns of all devices by name, (B, N) each.
_Columns = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Look:
    """B chains as the network sees them at the first pick, and the layout that it may improve on
    (mdl.scheduler.policies.layout).

    features: (B, N, F). costs: (B, N), the values of Prospects.keep. planned: senders and receivers that the layout
    starts now, (B,) each, -1 to wait.
    """

    stand: Stand
    features: Floats
    costs: Doubles
    layout: Layout
    planned: tuple[Integers, Integers]

    def take(self, rows: Integers) -> Look:
        """Copy these chains. rows: positions or a mask."""
        planned = self.planned[0][rows], self.planned[1][rows]
        return Look(self.stand.take(rows), self.features[rows], self.costs[rows], self.layout.take(rows), planned)

    def put(self, rows: Integers, fresh: Look) -> None:
        """Write over these chains. rows: as many positions as `fresh` has chains."""
        self.stand.put(rows, fresh.stand)
        self.layout.put(rows, fresh.layout)
        self.features[rows], self.costs[rows] = fresh.features, fresh.costs
        self.planned[0][rows], self.planned[1][rows] = fresh.planned


def look_at(stand: Stand) -> Look:
    """Lay out the due hops, and describe every device."""
    expected = prospects(stand)
    costs, layout = expected.keep, lay_out(expected)
    planned = picks_now(layout, costs, stand.free(), stand.may_wait())
    return Look(stand, _describe(stand, expected, layout, planned), costs, layout, planned)


def observe_senders(look: Look) -> tuple[Floats, Bools, Integers]:
    """Return the first pick's features (B, N, F), valid picks (B, N + 1) and the planned one (B,), N for waiting."""
    free = _senders(look.stand)
    wait = look.features[:, :, COLUMN["wait_valid"]].max(axis=1) > 0
    planned = np.where(look.planned[0] < 0, free.shape[1], look.planned[0])
    return look.features, np.concatenate([free, wait[:, None]], axis=1), planned


def observe_receivers(look: Look, senders: Integers) -> tuple[Floats, Bools, Integers]:
    """Return the same for the second pick, with the senders (B,) that were picked."""
    stand, rows = look.stand, np.arange(len(senders))
    features, exists = look.features.copy(), stand.exists
    takers = stand.takers()
    takers[rows, senders] = False
    # If no device may receive, the caller has to keep the limits (`mdl.scheduler.policies.chain`).
    takers = np.where(takers.any(axis=1, keepdims=True), takers, stand.free())
    valid = np.concatenate([takers, np.zeros((len(senders), 1), dtype=np.bool_)], axis=1)
    valid[rows, senders] = False
    planned = receivers_for(look.layout, look.costs, valid[:, :-1], senders)
    link_time = features[:, :, COLUMN["link_time"]]
    own = link_time[rows, senders][:, None]
    features[:, :, COLUMN["pair_time"]] = np.maximum(link_time, own) * exists
    features[:, :, COLUMN["sender_link_time"]] = own * exists
    features[:, :, COLUMN["receiver_phase"]] = exists
    features[:, :, COLUMN["wait_valid"]] = 0.0
    features[:, :, COLUMN["plan_receives"]] = 0.0
    features[rows, planned, COLUMN["plan_receives"]] = 1.0
    features[rows, senders, COLUMN["is_sender"]] = 1.0
    features[:, :, COLUMN["may_pick"]] = valid[:, :-1]
    return features, valid, planned


def _senders(stand: Stand) -> Bools:
    """Return (B, N): free; but not the only device that may receive, while others are free that may not."""
    free, takers = stand.free(), stand.takers()
    is_needed = takers & (takers.sum(axis=1, keepdims=True) == 1) & (free & ~takers).any(axis=1, keepdims=True)
    senders: Bools = free & ~is_needed
    return senders


def _describe(stand: Stand, expected: Prospects, layout: Layout, planned: tuple[Integers, Integers]) -> Floats:
    """Return features (B, N, F), columns as FEATURES; all are 0 where a row has no device."""
    rows, count = stand.state.shape
    features = np.zeros((rows, count, len(FEATURES)), dtype=np.float32)
    # Fill column by column: for one chain each in one piece, since a decision must be quick.
    columns = features.transpose(2, 0, 1) if rows > 1 else np.zeros((len(FEATURES), 1, count))
    columns[: len(STATES)] = stand.state == _STATE_CODES
    columns[_FIRST_KIND : _FIRST_KIND + len(_KINDS)] = stand.kind == _KIND_CODES
    for describe in (_readiness, _speeds, _use, _progress):
        for name, values in describe(stand, expected).items():
            columns[COLUMN[name]] = values
    columns[COLUMN["plan_start"]] = np.minimum(layout.starts, _LONGEST)
    pairs = np.flatnonzero(planned[0] >= 0)
    columns[COLUMN["plan_sends"], pairs, planned[0][pairs]] = 1.0
    columns[COLUMN["plan_receives"], pairs, planned[1][pairs]] = 1.0
    columns[len(_OWN) :] = _common(stand, layout, planned)[:, :, None]
    if rows == 1:
        features[:] = columns.transpose(1, 2, 0)
    if not stand.exists.all():
        features *= stand.exists[:, :, None]
    return features


def _readiness(stand: Stand, expected: Prospects) -> _Columns:
    """Describe the time until each device is expected to be free, and its reasons."""
    unit, holds = stand.unit_s[:, None], stand.holds()
    op_left, eta_ready = stand.op_left / unit, stand.eta_ready / unit
    # Work stands still while its device is busy, which stretches it by the share of time that is left.
    under_way = np.where(stand.state == SEND, np.inf, op_left / (1.0 - BUSY_SHARE[stand.kind]))
    free_in = np.where(holds, eta_ready + expected.rest + under_way, np.inf)
    time_left = np.minimum(free_in, _LONGEST)
    return {
        "may_pick": _senders(stand),
        "free_in": time_left,
        "free_in_log": np.log1p(time_left),
        "eta_ready": np.minimum(eta_ready, _LONGEST),
        "op_left": np.minimum(op_left, _LONGEST),
        "busy_for": np.log1p(holds * stand.busy_for / unit),
        "expected_rest": np.minimum(expected.rest, _LONGEST),
        "earlier_share": _share_above(-free_in, holds, stand.count()[:, None]),
    }


def _speeds(stand: Stand, expected: Prospects) -> _Columns:
    """Describe the time of a transfer and of a merge on each device, and the cost of keeping a load there."""
    merge_unknown = np.isnan(stand.merge)
    merge_time = 10.0 * stand.size_mb[:, None] / stand.merge / stand.unit_s[:, None]
    return {
        "link_time": np.minimum(expected.link, _LONGEST),
        "link_time_log": np.log(np.minimum(np.maximum(expected.link, 0.01), 100.0)),
        "link_unknown": np.isnan(stand.link),
        "merge_time": np.where(merge_unknown, OBSERVATION.unknown_merge, np.minimum(merge_time, _LONGEST)),
        "merge_unknown": merge_unknown,
        "slower_share": _share_above(expected.link, stand.holds(), stand.count()[:, None]),
        "cost": np.minimum(expected.costs, _LONGEST),
    }


def _use(stand: Stand, expected: Prospects) -> _Columns:
    """Describe each device's use by its owner, and its battery."""
    share = BUSY_SHARE[stand.kind]
    battery = np.where(np.isnan(stand.battery), 100.0, stand.battery)
    return {
        "busy_share": 4.0 * share,
        "busy_length": np.log1p(_BUSY_LENGTH_S[stand.kind] / stand.unit_s[:, None]),
        "risk": np.minimum(4.0 * share * expected.link, _LONGEST),
        "battery": battery / 100.0,
        "battery_low": ~stand.charging * np.maximum(0.0, 1.0 - battery / OBSERVATION.nearly_empty_percent),
        "charging": stand.charging,
        "cpu": stand.cpu / 100.0,
        "free_memory": np.log1p(stand.free_memory / 1e9),
        "in_use": stand.in_use,
    }


def _progress(stand: Stand, expected: Prospects) -> _Columns:
    """Describe each device's work so far: hops received, its share of all loads, energy."""
    return {
        "n_agg": np.log1p(stand.n_agg),
        "theta_share": np.minimum(1.0, stand.theta / stand.count()[:, None]),
        "energy": np.arcsinh(expected.energy),
    }


def _common(stand: Stand, layout: Layout, planned: tuple[Integers, Integers]) -> Doubles:
    """Describe what all devices of a chain share at the first pick: (columns of _COMMON, B)."""
    count, holders, free_count = stand.count(), stand.holds().sum(axis=1), stand.free().sum(axis=1)
    values = {
        "devices_log": np.log(count),
        "holders_log": np.log1p(holders),
        "holders_share": holders / count,
        "free_log": np.log1p(free_count),
        "unit_log": np.log(np.minimum(np.maximum(stand.unit_s, 1e-3), 1e3)),
        "size_log": np.log1p(stand.size_mb) / 4.0,
        "time_log": np.log1p(np.maximum(0.0, stand.time_s) / stand.unit_s),
        "wait_valid": holders > free_count,
        "plan_waits": planned[0] < 0,
        "plan_ends": np.minimum(layout.ends, 4.0 * _LONGEST) / 4.0,
    }
    common = np.zeros((len(_COMMON), len(count)))
    for name, column in values.items():
        common[COLUMN[name] - len(_OWN)] = column
    return common


def _share_above(values: Doubles, counted: Bools, existing: npt.NDArray[np.generic]) -> Doubles:
    """Return for each device the share of all devices that are counted and have a greater value."""
    above = (values[:, None, :] > values[:, :, None]) & counted[:, None, :]
    share: Doubles = above.sum(axis=2) / existing
    return share
