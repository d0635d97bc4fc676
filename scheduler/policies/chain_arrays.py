"""Chains at one moment as arrays, and estimates for their devices: times in median transfers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from mdl.devices.usage import UsageKind, busy_rate, expected_rest_s
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView
from mdl.scheduler.policies.trained_under import OBSERVATION

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
