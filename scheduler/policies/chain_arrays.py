"""Chains at one moment as arrays, and estimates for their devices: times in median transfers. Pure.

The constants here are those that the learned policy was trained under: everything that the network sees is made with
them. They belong to the weights. Greedy has its own constants, some of the same value: tuning greedy must not change
the input of a network that is shipped or re-learned on a device. The shipped policy must be trained again after a
change of a constant here, of a usage constant in `mdl.devices.usage`, or of a formula in
`mdl.scheduler.policies.features` or `mdl.scheduler.policies.layout` (then FORMULAS rises). A policy file names the
constants and their hash; a file with others is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mdl.bounds import first_few
from mdl.devices import usage
from mdl.devices.usage import UsageKind, busy_rate, expected_rest_s
from mdl.reading import shorten
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView

# Rises when a column of the observation, or the layout, gets another meaning under the same constants.
FORMULAS = 1
# Policy files from before the stamp do not name their constants: all were made under those of this hash.
UNSTAMPED_HASH = "01ad81b24b29d7f8"
_SHOWN = 3


class LayoutConstants(msgspec.Struct, frozen=True):
    """Constants of the layout (`mdl.scheduler.policies.layout`); times, costs, energy in median-link transfers.

    rush: periods of use come this much more often than over a whole day: rounds run while people are about.
    exposed_transfers: a receiver is exposed to its user for its own transfer and so many typical ones before it.
    waiting_counts: time of waiting counts so many times: an expected end may come late, and a pair that works is no
        longer in the way.
    late_saves: a device costs so much less in the order of senders for each unit of time that it comes later.
    low_battery_percent: a device on battery below this should lose its load early.
    low_battery_transfers: it costs so much more then. Measured on the dying family (docs/results.md).
    energy_transfers: each unit of energy above the mean makes a device so much costlier, and it sends earlier.
    energy_of_a_round: one round alone takes no device further from the mean than so much.
    earlier_counts: energy beyond that was left by earlier rounds, and counts so many times.
    most_energy: energies further from the mean than so much look alike.
    max_gaps: gaps that are kept of one receiver's time.
    """

    rush: float = 2.0
    exposed_transfers: float = 3.0
    waiting_counts: float = 2.0
    late_saves: float = 0.6
    low_battery_percent: float = 15.0
    low_battery_transfers: float = 2.0
    energy_transfers: float = 0.02
    energy_of_a_round: float = 12.0
    earlier_counts: float = 2.0
    most_energy: float = 50.0
    max_gaps: int = 6


class ObservationConstants(msgspec.Struct, frozen=True):
    """Constants of the observation (`mdl.scheduler.policies.features`).

    longest: times beyond so many median transfers look alike.
    unknown_merge: ten times the merge time, in transfers, of a device that has not merged yet.
    nearly_empty_percent: a device on battery below this is close to its end.
    age_step_s, age_steps: the table of mean rests of busy periods, by their age.
    """

    longest: float = 12.0
    unknown_merge: float = 0.2
    nearly_empty_percent: float = 5.0
    age_step_s: float = 0.05
    age_steps: int = 600


LAYOUT = LayoutConstants()
OBSERVATION = ObservationConstants()


def seen_constants() -> dict[str, Any]:
    """Return all constants by name, as JSON values: of the layout, of the observation, and the assumptions on use.

    Only written constants are included. The last digits of a table computed from them differ between machines.
    """
    beliefs = {
        "sync_range_s": list(usage.SYNC_RANGE_S),
        "interactive_median_s": usage.INTERACTIVE_MEDIAN_S,
        "interactive_sigma": usage.INTERACTIVE_SIGMA,
        "call_range_s": list(usage.CALL_RANGE_S),
        "bimodal_short_s": usage.BIMODAL_SHORT_S,
        "bimodal_long_range_s": list(usage.BIMODAL_LONG_RANGE_S),
        "bimodal_long_share": usage.BIMODAL_LONG_SHARE,
        "once_range_transfers": list(usage.ONCE_RANGE_TRANSFERS),
        "busy_shares": {kind.name.lower(): share for kind, share in usage.BUSY_SHARES.items()},
    }
    return {
        "formulas": FORMULAS,
        **msgspec.structs.asdict(LAYOUT),
        **msgspec.structs.asdict(OBSERVATION),
        **beliefs,
    }


def hash_constants(constants: dict[str, Any]) -> str:
    """Hash to hex, 64 bits: enough to tell two sets of constants apart; it protects no secret."""
    return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()[:16]


def stamp() -> dict[str, object]:
    """Return the stamp of a policy file: the constants it was trained under, and their hash."""
    constants = seen_constants()
    return {"hash": hash_constants(constants), "constants": constants}


def describe_difference(found: object) -> str:
    """Describe how a policy file's stamp differs from ours: "rush 3.0 there, 2.0 here"; empty if it does not.

    found: the stamp as read, None if the file has none.
    """
    ours = seen_constants()
    if found is None:
        return "" if hash_constants(ours) == UNSTAMPED_HASH else "it does not name them, so it is of an older version"
    if not isinstance(found, dict):
        return f"{shorten(found)} is no stamp"
    if found.get("hash") == hash_constants(ours):
        return ""
    theirs = found.get("constants")
    known = theirs if isinstance(theirs, dict) else {}
    other = [
        f"{name} {shorten(known[name])} there, {value} here"
        for name, value in ours.items()
        if name in known and known[name] != value
    ]
    return first_few(other, _SHOWN) if other else "it does not say which"


Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STATES: tuple[DeviceState, ...] = tuple(DeviceState)
TRAINING, FREE, BUSY, SEND, GET, DONE, DEAD = range(len(STATES))
_CODES = {state: code for code, state in enumerate(STATES)}

_KINDS = tuple(UsageKind)
# Mean rest of a busy period by kind and age in steps; for the kind "once" in median transfers.
_AGES_S = tuple(step * OBSERVATION.age_step_s for step in range(OBSERVATION.age_steps))
_REST: Doubles = np.array([[expected_rest_s(kind, age_s) for age_s in _AGES_S] for kind in _KINDS])
BUSY_SHARE: Doubles = np.array([busy_rate(kind) for kind in _KINDS])


@dataclass(frozen=True)
class Stand:
    """B chains at one moment as arrays. Shape (B, N) unless said; times in s, speeds in MB/s (nan: unknown).

    exists: False where a row has fewer devices. state: codes in the order of STATES. battery: percent, nan on mains.
    may_receive: their owners' limits leave room for one more delta.
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
    may_receive: Bools
    time_s: Doubles
    size_mb: Doubles
    latency_s: Doubles
    unit_s: Doubles

    def free(self) -> Bools:
        """Return (B, N): the device may be paired now."""
        free: Bools = (self.state == FREE) & self.exists
        return free

    def takers(self) -> Bools:
        """Return (B, N): the device may be paired now, and may receive."""
        takers: Bools = self.free() & self.may_receive
        return takers

    def holds(self) -> Bools:
        """Return (B, N): the device has a load to pass on, or will have one when its training or hop ends."""
        holds: Bools = (self.state < DONE) & self.exists
        return holds

    def may_wait(self) -> Bools:
        """Return (B,): something is under way, so that waiting ends."""
        waits: Bools = np.any(self.holds() & ~self.free(), axis=1)
        return waits

    def count(self) -> Integers:
        """Return (B,): devices of each row, at least 1."""
        count: Integers = np.maximum(1, self.exists.sum(axis=1))
        return count

    def take(self, rows: Integers) -> Stand:
        """Copy these chains. rows: positions or a mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def put(self, rows: Integers, fresh: Stand) -> None:
        """Write over these chains. rows: as many positions as `fresh` has chains."""
        for name in self.__dataclass_fields__:
            getattr(self, name)[rows] = getattr(fresh, name)


def stand_of(view: ChainView) -> Stand:
    """Convert a view to a batch of one: B is 1, N the number of its devices, in their order.

    If no link is known, `unit_s` is 1 s.
    """
    links = [device.link_mb_s for device in view.devices if device.link_mb_s]
    unit_s = view.latency_s + view.size_mb / median(links) if links else 1.0
    numbers = np.array([_numbers(device) for device in view.devices], dtype=np.float64).T[:, None, :]
    state, link, merge, kind, battery, charging, in_use = numbers[:7]
    cpu, free_memory, busy_for, eta_ready, op_left, n_agg, theta, energy, may_receive = numbers[7:]
    return Stand(
        exists=np.ones(state.shape, dtype=np.bool_),
        state=state.astype(np.int64),
        link=link,
        merge=merge,
        kind=kind.astype(np.int64),
        battery=battery,
        charging=charging > 0,
        in_use=in_use > 0,
        cpu=cpu,
        free_memory=free_memory,
        busy_for=busy_for,
        eta_ready=eta_ready,
        op_left=op_left,
        n_agg=n_agg,
        theta=theta,
        energy=energy,
        may_receive=may_receive > 0,
        time_s=np.array([view.time_s]),
        size_mb=np.array([view.size_mb]),
        latency_s=np.array([view.latency_s]),
        unit_s=np.array([unit_s]),
    )


def _numbers(device: DeviceView) -> tuple[float, ...]:
    """List a device's fields in the order in which `stand_of` unpacks them: one array for all is faster than 16."""
    return (
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
        device.may_receive,
    )


def link_times(stand: Stand) -> Doubles:
    """Return the transfer time over each device's own link in units (B, N); an unknown link takes one unit."""
    times: Doubles = (stand.latency_s[:, None] + stand.size_mb[:, None] / stand.link) / stand.unit_s[:, None]
    return np.where(np.isnan(times), 1.0, times)


def expected_rest(stand: Stand) -> Doubles:
    """Return the mean rest of busy periods (B, N) in units, by kind and age, to the step of the table."""
    unit = stand.unit_s[:, None]
    scale = np.where(stand.kind == UsageKind.ONCE, unit, 1.0)
    step = np.minimum(stand.busy_for / scale / OBSERVATION.age_step_s, OBSERVATION.age_steps - 1).astype(np.int64)
    rest: Doubles = _REST[stand.kind, step] * scale / unit
    return rest


def energy_above_mean(stand: Stand) -> Doubles:
    """Return accumulated energy above the mean of all, per watt and transfer of the median link (B, N)."""
    exists = stand.exists
    mean = np.where(exists, stand.energy, 0.0).sum(axis=1, keepdims=True) / exists.sum(axis=1, keepdims=True)
    above: Doubles = (stand.energy - mean) / stand.unit_s[:, None] * exists
    return above
