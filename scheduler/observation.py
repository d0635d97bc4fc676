"""What the learned policy sees: numbers per device, free of units and of the order and number of devices. Pure.

Times are divided by the transfer time of the median link, so that a mesh of slow links and one of fast links look
alike. The same columns come from one view (`observe`) and from a batch of simulated iterations (`observe_stand`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler.chain import ChainView, DeviceState
from sim.usage import UsageKind, busy_rate, expected_busy_s, expected_rest_s

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STATES: tuple[DeviceState, ...] = tuple(DeviceState)
TRAINING, FREE, BUSY, SEND, GET, DONE, DEAD = range(len(STATES))
_CODES = {state: code for code, state in enumerate(STATES)}

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
)
FEATURES: tuple[str, ...] = (*_OWN, *_COMMON)
COLUMN = {name: number for number, name in enumerate(FEATURES)}
# The simulated mesh does not vary these: a network starts from ignoring them.
UNVARIED = ("cpu", "free_memory", "in_use", "link_unknown", "merge_unknown")

# Times beyond so many median transfers look alike.
_LONGEST = 12.0
# A device on battery below this is close to its end.
_LOW_BATTERY_PERCENT = 5.0
_AGE_STEP_S = 0.05
_AGE_STEPS = 600
_KINDS = tuple(UsageKind)
# Mean rest of a busy period by kind and age in steps; of the kind "once" in median transfers.
_AGES_S = tuple(step * _AGE_STEP_S for step in range(_AGE_STEPS))
_REST: Doubles = np.array([[expected_rest_s(kind, age_s) for age_s in _AGES_S] for kind in _KINDS])
_BUSY_SHARE: Doubles = np.array([busy_rate(kind) for kind in _KINDS])
_BUSY_LENGTH_S: Doubles = np.array([expected_busy_s(kind) if kind is not UsageKind.ONCE else 0.0 for kind in _KINDS])


class Observation(msgspec.Struct, frozen=True):
    """features: float32, shape (n, F), columns as FEATURES. valid: bool, shape (n + 1,): who may be picked now; the
    last is waiting."""

    features: Floats
    valid: Bools


@dataclass(frozen=True)
class Stand:
    """B chains at one moment as arrays. Shape (B, N) unless said; times in s, speeds in MB/s (nan: unknown).

    exists: False where a row has fewer devices. state: codes in the order of STATES. battery: percent, nan on mains.
    time_s, size_mb, latency_s, unit_s (transfer time of the median link): (B,).
    """

    exists: Bools
    state: Integers
    link: Doubles
    merge: Doubles
    kind: Integers
    battery: Doubles
    charging: Bools
    in_use: Bools
    cpu: Doubles
    free_memory: Doubles
    busy_for: Doubles
    eta_ready: Doubles
    op_left: Doubles
    n_agg: Doubles
    theta: Doubles
    energy: Doubles
    time_s: Doubles
    size_mb: Doubles
    latency_s: Doubles
    unit_s: Doubles

    def take(self, rows: Integers) -> Stand:
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def observe(view: ChainView, sender: int | None = None) -> Observation:
    """What one view shows, to pick the sender or, with `sender` (its position) given, the receiver."""
    senders = np.array([-1 if sender is None else sender])
    features, valid = observe_stand(stand_of(view), senders)
    return Observation(features[0], valid[0])


def stand_of(view: ChainView) -> Stand:
    """A view as a batch of one."""
    devices = view.devices
    links = [device.link_mb_s for device in devices if device.link_mb_s]
    unit_s = view.latency_s + view.size_mb / median(links) if links else 1.0
    numbers = np.array(
        [
            (
                _CODES[device.state],
                device.link_mb_s or np.nan,
                device.merge_mb_s or np.nan,
                device.kind,
                np.nan if device.battery_percent is None else device.battery_percent,
                bool(device.charging),
                bool(device.in_use),
                device.cpu_percent,
                device.free_memory_bytes,
                device.busy_for_s,
                device.eta_ready_s,
                device.op_left_s,
                device.n_agg,
                device.theta,
                device.energy_j,
            )
            for device in devices
        ],
        dtype=np.float64,
    ).T[:, None, :]
    state, link, merge, kind, battery, charging, in_use = numbers[:7]
    cpu, free_memory, busy_for, eta_ready, op_left, n_agg, theta, energy = numbers[7:]
    return Stand(
        np.ones(state.shape, dtype=np.bool_),
        state.astype(np.int64),
        link,
        merge,
        kind.astype(np.int64),
        battery,
        charging > 0,
        in_use > 0,
        cpu,
        free_memory,
        busy_for,
        eta_ready,
        op_left,
        n_agg,
        theta,
        energy,
        time_s=np.array([view.time_s]),
        size_mb=np.array([view.size_mb]),
        latency_s=np.array([view.latency_s]),
        unit_s=np.array([unit_s]),
    )


def observe_stand(stand: Stand, senders: Integers) -> tuple[Floats, Bools]:
    """Features (B, N, F) and valid picks (B, N + 1) of a batch; senders (B,): position, -1 where it is to be picked."""
    features = observe_senders(stand)
    return observe_receivers(stand, features, senders)


def observe_senders(stand: Stand) -> Floats:
    """The features of the first pick, (B, N, F)."""
    rows, count = stand.state.shape
    exists, unit = stand.exists, stand.unit_s[:, None]
    features = np.zeros((rows, count, len(FEATURES)), dtype=np.float32)
    features[:, :, : len(STATES)] = (stand.state[:, :, None] == np.arange(len(STATES))) & exists[:, :, None]
    free = (stand.state == FREE) & exists
    holds = (stand.state < DONE) & exists
    link_time, merge_time = _hop_times(stand)
    kinds = stand.kind
    share = _BUSY_SHARE[kinds]
    rest = np.where(stand.state == BUSY, _expected_rest(stand), 0.0)
    # Work stands still while its device is busy, which stretches it by the share of time that is left.
    under_way = np.where(stand.state == SEND, np.inf, stand.op_left / unit / (1.0 - share))
    free_in = np.where(holds, stand.eta_ready / unit + rest + under_way, np.inf)
    time_left = np.minimum(free_in, _LONGEST)

    def put(name: str, values: npt.NDArray[np.generic]) -> None:
        features[:, :, COLUMN[name]] = values

    put("may_pick", free)
    put("free_in", time_left)
    put("free_in_log", np.log1p(time_left))
    put("eta_ready", np.minimum(stand.eta_ready / unit, _LONGEST))
    put("op_left", np.minimum(stand.op_left / unit, _LONGEST))
    put("busy_for", np.log1p(stand.busy_for / unit))
    put("expected_rest", np.minimum(rest, _LONGEST))
    put("link_time", np.minimum(link_time, _LONGEST))
    put("link_time_log", np.log(np.clip(link_time, 0.01, 100.0)))
    put("link_unknown", np.isnan(stand.link) & exists)
    put("merge_time", np.minimum(10.0 * merge_time, _LONGEST))
    put("merge_unknown", np.isnan(stand.merge) & exists)
    first = COLUMN["kind_idle"]
    features[:, :, first : first + len(_KINDS)] = (kinds[:, :, None] == np.arange(len(_KINDS))) & exists[:, :, None]
    put("busy_share", 4.0 * share)
    put("busy_length", np.log1p(_BUSY_LENGTH_S[kinds] / unit))
    put("risk", np.minimum(4.0 * share * link_time, _LONGEST))
    battery = np.where(np.isnan(stand.battery), 100.0, stand.battery)
    put("battery", battery / 100.0)
    put("battery_low", np.where(stand.charging, 0.0, np.maximum(0.0, 1.0 - battery / _LOW_BATTERY_PERCENT)))
    put("charging", stand.charging)
    put("cpu", stand.cpu / 100.0)
    put("free_memory", np.log1p(stand.free_memory / 1e9))
    put("in_use", stand.in_use)
    put("n_agg", np.log1p(stand.n_agg))
    existing = np.maximum(1, exists.sum(axis=1, keepdims=True))
    put("theta_share", np.minimum(1.0, stand.theta / existing))
    mean_energy = np.where(exists, stand.energy, 0.0).sum(axis=1, keepdims=True) / existing
    put("energy", np.arcsinh((stand.energy - mean_energy) / unit) * exists)
    put("slower_share", _share_above(link_time, holds, existing))
    put("earlier_share", _share_above(-free_in, holds, existing))
    holders = holds.sum(axis=1, keepdims=True)
    put("devices_log", np.log(existing))
    put("holders_log", np.log1p(holders))
    put("holders_share", holders / existing)
    put("free_log", np.log1p(free.sum(axis=1, keepdims=True)))
    put("unit_log", np.log(np.clip(unit, 1e-3, 1e3)))
    put("size_log", np.log1p(stand.size_mb[:, None]) / 4.0)
    put("time_log", np.log1p(np.maximum(0.0, stand.time_s[:, None]) / unit))
    put("wait_valid", (holds & ~free).any(axis=1, keepdims=True))
    features *= exists[:, :, None]
    return features


def observe_receivers(stand: Stand, features: Floats, senders: Integers) -> tuple[Floats, Bools]:
    """The features once the senders are picked (rows with -1 stay as they were), and the valid picks (B, N + 1)."""
    free = (stand.state == FREE) & stand.exists
    wait: Bools = np.asarray(features[:, :, COLUMN["wait_valid"]].max(axis=1) > 0)
    picked = np.flatnonzero(senders >= 0)
    if len(picked):
        features = features.copy()
        who = senders[picked]
        link_time = features[picked, :, COLUMN["link_time"]]
        own = link_time[np.arange(len(picked)), who]
        exists = stand.exists[picked]
        features[picked, :, COLUMN["pair_time"]] = np.maximum(link_time, own[:, None]) * exists
        features[picked, :, COLUMN["sender_link_time"]] = own[:, None] * exists
        features[picked, :, COLUMN["receiver_phase"]] = exists
        features[picked, :, COLUMN["wait_valid"]] = 0.0
        features[picked, who, COLUMN["is_sender"]] = 1.0
        features[picked, who, COLUMN["may_pick"]] = 0.0
        free[picked, who] = False
        wait[picked] = False
    return features, np.concatenate([free, wait[:, None]], axis=1)


def _hop_times(stand: Stand) -> tuple[Doubles, Doubles]:
    """Transfer over the own link and merge of each device in units; unknown ones take the unit, or no time to merge."""
    unit = stand.unit_s[:, None]
    link_time = (stand.latency_s[:, None] + stand.size_mb[:, None] / stand.link) / unit
    merge_time = stand.size_mb[:, None] / stand.merge / unit
    return np.where(np.isnan(link_time), 1.0, link_time), np.where(np.isnan(merge_time), 0.02, merge_time)


def _expected_rest(stand: Stand) -> Doubles:
    """Mean rest of busy periods in units, by kind and age, to the step of the table."""
    unit = stand.unit_s[:, None]
    scale = np.where(stand.kind == UsageKind.ONCE, unit, 1.0)
    step = np.minimum(stand.busy_for / scale / _AGE_STEP_S, _AGE_STEPS - 1).astype(np.int64)
    rest: Doubles = _REST[stand.kind, step] * scale / unit
    return rest


def _share_above(values: Doubles, counted: Bools, existing: npt.NDArray[np.generic]) -> Doubles:
    """Of each device: the share of all devices that are counted and have a greater value."""
    above = (values[:, None, :] > values[:, :, None]) & counted[:, None, :]
    share: Doubles = above.sum(axis=2) / existing
    return share


def interrupted_link_times(stand: Stand) -> Doubles:
    """Link time of each device in units (B, N), stretched by the share of time that its kind of use keeps it busy."""
    times: Doubles = _hop_times(stand)[0] / (1.0 - _BUSY_SHARE[stand.kind])
    return times
