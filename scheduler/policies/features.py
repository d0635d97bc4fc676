"""What the learned policy sees: numbers per device, free of units and of the order and number of devices. Pure.

Times are divided by the transfer time of the median link, so that a mesh of slow links and one of fast links look
alike. The same columns come from one view (`observe`) and from a batch of simulated iterations (`look_at`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from mdl.devices.usage import UsageKind, expected_busy_s
from scheduler.policies.chain import ChainView
from scheduler.policies.chain_arrays import (
    BUSY_SHARE,
    DONE,
    FREE,
    SEND,
    STATES,
    Bools,
    Doubles,
    Floats,
    Integers,
    Stand,
    stand_of,
)
from scheduler.policies.layout import Layout, Prospects, lay_out, picks_now, prospects, receivers_for
from scheduler.policies.trained_under import OBSERVATION

# Of each device.
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
# The same for every device.
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


class Observation(msgspec.Struct, frozen=True):
    """features: float32, shape (n, F), columns as FEATURES. valid: bool, shape (n + 1,): who may be picked now; the
    last is waiting."""

    features: Floats
    valid: Bools


@dataclass(frozen=True)
class Look:
    """B chains as the network sees them at the first pick, and the layout that it may improve on
    (scheduler.policies.layout).

    features: (B, N, F). costs: (B, N), as in Prospects. planned: senders and receivers that the layout starts now, (B,)
    each, -1 to wait.
    """

    stand: Stand
    features: Floats
    costs: Doubles
    layout: Layout
    planned: tuple[Integers, Integers]

    def take(self, rows: Integers) -> Look:
        planned = self.planned[0][rows], self.planned[1][rows]
        return Look(self.stand.take(rows), self.features[rows], self.costs[rows], self.layout.take(rows), planned)

    def put(self, rows: Integers, fresh: Look) -> None:
        """Write over these rows."""
        self.stand.put(rows, fresh.stand)
        self.layout.put(rows, fresh.layout)
        self.features[rows], self.costs[rows] = fresh.features, fresh.costs
        self.planned[0][rows], self.planned[1][rows] = fresh.planned


def observe(view: ChainView, sender: int | None = None) -> Observation:
    """What one view shows, to pick the sender or, with `sender` (its position) given, the receiver."""
    look = look_at(stand_of(view))
    features, valid, _ = observe_senders(look) if sender is None else observe_receivers(look, np.array([sender]))
    return Observation(features[0], valid[0])


def look_at(stand: Stand) -> Look:
    """Lay out what is due, and describe every device."""
    expected = prospects(stand)
    costs, layout = expected.costs, lay_out(expected)
    free = (stand.state == FREE) & stand.exists
    wait = ((stand.state < DONE) & stand.exists & ~free).any(axis=1)
    planned = picks_now(layout, costs, free, wait)
    return Look(stand, _describe(stand, expected, layout, planned), costs, layout, planned)


def observe_senders(look: Look) -> tuple[Floats, Bools, Integers]:
    """Features (B, N, F), valid picks (B, N + 1) and the planned one (B,), N for waiting, of the first pick."""
    free = (look.stand.state == FREE) & look.stand.exists
    wait = look.features[:, :, COLUMN["wait_valid"]].max(axis=1) > 0
    planned = np.where(look.planned[0] < 0, free.shape[1], look.planned[0])
    return look.features, np.concatenate([free, wait[:, None]], axis=1), planned


def observe_receivers(look: Look, senders: Integers) -> tuple[Floats, Bools, Integers]:
    """The same for the second pick, with the senders (B,) that were picked."""
    stand, rows = look.stand, np.arange(len(senders))
    features, exists = look.features.copy(), stand.exists
    valid = np.concatenate([(stand.state == FREE) & exists, np.zeros((len(senders), 1), dtype=np.bool_)], axis=1)
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
    features[rows, senders, COLUMN["may_pick"]] = 0.0
    return features, valid, planned


def _describe(stand: Stand, expected: Prospects, layout: Layout, planned: tuple[Integers, Integers]) -> Floats:
    rows, count = stand.state.shape
    exists, unit = stand.exists, stand.unit_s[:, None]
    features = np.zeros((rows, count, len(FEATURES)), dtype=np.float32)
    # Column by column: for one chain each in one piece, since a decision must be quick.
    columns = features.transpose(2, 0, 1) if rows > 1 else np.zeros((len(FEATURES), 1, count))

    def put(name: str, values: npt.NDArray[np.generic]) -> None:
        columns[COLUMN[name]] = values

    columns[: len(STATES)] = stand.state == _STATE_CODES
    columns[_FIRST_KIND : _FIRST_KIND + len(_KINDS)] = stand.kind == _KIND_CODES
    free = (stand.state == FREE) & exists
    holds = (stand.state < DONE) & exists
    op_left = stand.op_left / unit
    share = BUSY_SHARE[stand.kind]
    # Work stands still while its device is busy, which stretches it by the share of time that is left.
    under_way = np.where(stand.state == SEND, np.inf, op_left / (1.0 - share))
    eta_ready = stand.eta_ready / unit
    free_in = np.where(holds, eta_ready + expected.rest + under_way, np.inf)
    time_left = np.minimum(free_in, _LONGEST)
    put("may_pick", free)
    put("free_in", time_left)
    put("free_in_log", np.log1p(time_left))
    put("eta_ready", np.minimum(eta_ready, _LONGEST))
    put("op_left", np.minimum(op_left, _LONGEST))
    put("busy_for", np.log1p(holds * stand.busy_for / unit))
    put("expected_rest", np.minimum(expected.rest, _LONGEST))
    put("link_time", np.minimum(expected.link, _LONGEST))
    put("link_time_log", np.log(np.minimum(np.maximum(expected.link, 0.01), 100.0)))
    put("link_unknown", np.isnan(stand.link))
    merge_unknown = np.isnan(stand.merge)
    put(
        "merge_time",
        np.where(
            merge_unknown,
            OBSERVATION.unknown_merge,
            np.minimum(10.0 * stand.size_mb[:, None] / stand.merge / unit, _LONGEST),
        ),
    )
    put("merge_unknown", merge_unknown)
    put("busy_share", 4.0 * share)
    put("busy_length", np.log1p(_BUSY_LENGTH_S[stand.kind] / unit))
    put("risk", np.minimum(4.0 * share * expected.link, _LONGEST))
    battery = np.where(np.isnan(stand.battery), 100.0, stand.battery)
    put("battery", battery / 100.0)
    put("battery_low", ~stand.charging * np.maximum(0.0, 1.0 - battery / OBSERVATION.nearly_empty_percent))
    put("charging", stand.charging)
    put("cpu", stand.cpu / 100.0)
    put("free_memory", np.log1p(stand.free_memory / 1e9))
    put("in_use", stand.in_use)
    put("n_agg", np.log1p(stand.n_agg))
    existing = np.maximum(1, exists.sum(axis=1, keepdims=True))
    put("theta_share", np.minimum(1.0, stand.theta / existing))
    put("energy", np.arcsinh(expected.energy))
    put("slower_share", _share_above(expected.link, holds, existing))
    put("earlier_share", _share_above(-free_in, holds, existing))
    put("cost", np.minimum(expected.costs, _LONGEST))
    put("plan_start", np.minimum(layout.starts, _LONGEST))
    waits = planned[0] < 0
    pairs = np.flatnonzero(~waits)
    columns[COLUMN["plan_sends"], pairs, planned[0][pairs]] = 1.0
    columns[COLUMN["plan_receives"], pairs, planned[1][pairs]] = 1.0
    common = np.empty((len(_COMMON), rows))
    holders, free_count = holds.sum(axis=1), free.sum(axis=1)
    for column, values in enumerate(
        (
            np.log(existing[:, 0]),
            np.log1p(holders),
            holders / existing[:, 0],
            np.log1p(free_count),
            np.log(np.minimum(np.maximum(stand.unit_s, 1e-3), 1e3)),
            np.log1p(stand.size_mb) / 4.0,
            np.log1p(np.maximum(0.0, stand.time_s) / stand.unit_s),
            0.0,
            0.0,
            holders > free_count,
            waits,
            np.minimum(layout.ends, 4.0 * _LONGEST) / 4.0,
        )
    ):
        common[column] = values
    columns[len(_OWN) :] = common[:, :, None]
    if rows == 1:
        features[:] = columns.transpose(1, 2, 0)
    if not exists.all():
        features *= exists[:, :, None]
    return features


def _share_above(values: Doubles, counted: Bools, existing: npt.NDArray[np.generic]) -> Doubles:
    """Of each device: the share of all devices that are counted and have a greater value."""
    above = (values[:, None, :] > values[:, :, None]) & counted[:, None, :]
    share: Doubles = above.sum(axis=2) / existing
    return share
