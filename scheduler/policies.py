"""The fixed policies: tree, ring, fifo and greedy. `make_policy` finds one by name.

tree and ring order the devices by position, as the systems that MDLdroid compares with do (4.4); fifo takes whoever is
free first, which is optimal on equal devices; greedy lets the costly send and the fast receive.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from statistics import fmean, median

from mdl.errors import ConfigError
from scheduler.chain import ChainView, Decision, DeviceState, DeviceView, Pair, Policy, Wait

_GONE = (DeviceState.DONE, DeviceState.DEAD)
# One joule above the mean costs as much as this many seconds of link time (shared over rounds, so that it evens out).
_SECONDS_PER_JOULE = 0.05
# A device on battery below this is better relieved of its load early.
_LOW_BATTERY_PERCENT = 15.0


class Tree:
    """Binary tree by position: in step k, position i + 2^k sends to i. The dead are replaced by their parent."""

    name = "tree"

    def decide(self, view: ChainView) -> Decision:
        devices = view.devices
        for position in range(len(devices) - 1, 0, -1):
            if devices[position].state is not DeviceState.FREE:
                continue
            reach = position & -position
            parent = _living_parent(devices, position)
            if parent is None or devices[parent].state is not DeviceState.FREE:
                continue
            if _all_gone(devices[position + 1 : position + reach]) and _all_gone(devices[parent + 1 : position]):
                return Pair(
                    devices[position].peer_id,
                    devices[parent].peer_id,
                    f"tree: position {position} sends to its parent {parent}",
                )
        free = view.free()
        if len(free) > 1 and not view.may_wait():
            return Pair(free[-1].peer_id, free[0].peer_id, "tree: their parents are gone, the last sends to the first")
        return Wait("tree: no position has both itself and its parent ready")


class Ring:
    """One chain by position: whoever comes first among those left sends to the next."""

    name = "ring"

    def decide(self, view: ChainView) -> Decision:
        left = [device for device in view.devices if device.state not in _GONE]
        if len(left) < 2:
            return Wait("ring: one device is left")
        sender, receiver = left[0], left[1]
        for device in (sender, receiver):
            if device.state is not DeviceState.FREE:
                return Wait(f"ring: the next in line, {device.peer_id}, is {device.state.value}")
        return Pair(sender.peer_id, receiver.peer_id, "ring: the first in line sends to the next")


class Fifo:
    """The two who have been free longest."""

    name = "fifo"

    def decide(self, view: ChainView) -> Decision:
        free = sorted(view.free(), key=lambda device: device.free_since_s)
        if len(free) < 2:
            return Wait(_too_few(view))
        return Pair(free[0].peer_id, free[1].peer_id, "fifo: both have been free longest")


class Greedy:
    """The costliest device sends and is done with it, the cheapest receives.

    Cost in seconds: link time of the delta, plus the energy it spent above the mean of all, plus one link time each for
    being close to busy (in use, CPU full) and for a low battery.
    """

    name = "greedy"

    def decide(self, view: ChainView) -> Decision:
        free = view.free()
        if len(free) < 2:
            return Wait(_too_few(view))
        links = [device.link_mb_s for device in view.devices if device.link_mb_s]
        typical_s = view.size_mb / median(links) if links else 1.0
        energy_j = fmean(device.energy_j for device in view.devices)
        costs = {device.peer_id: _cost_s(device, view.size_mb, typical_s, energy_j) for device in free}
        ranked = sorted(free, key=lambda device: costs[device.peer_id])
        sender, receiver = ranked[-1].peer_id, ranked[0].peer_id
        return Pair(
            sender,
            receiver,
            f"greedy: {sender} costs most ({costs[sender]:.2f} s), {receiver} least ({costs[receiver]:.2f} s)",
        )


POLICIES: dict[str, Callable[[], Policy]] = {"greedy": Greedy, "fifo": Fifo, "tree": Tree, "ring": Ring}


def make_policy(name: str) -> Policy:
    """Raises ConfigError with the closest valid name."""
    if name not in POLICIES:
        close = difflib.get_close_matches(name, POLICIES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown policy {name!r}{hint} (valid: {', '.join(POLICIES)})")
    return POLICIES[name]()


def _cost_s(device: DeviceView, size_mb: float, typical_s: float, mean_energy_j: float) -> float:
    link_s = size_mb / device.link_mb_s if device.link_mb_s else typical_s
    energy_s = _SECONDS_PER_JOULE * (device.energy_j - mean_energy_j)
    near_busy = bool(device.in_use) or device.cpu_percent >= 95.0
    battery = device.battery_percent
    low = battery is not None and battery < _LOW_BATTERY_PERCENT and not device.charging
    return link_s + energy_s + typical_s * (near_busy + low)


def _living_parent(devices: tuple[DeviceView, ...], position: int) -> int | None:
    while position:
        position &= position - 1
        if devices[position].state not in _GONE:
            return position
    return None


def _all_gone(devices: tuple[DeviceView, ...]) -> bool:
    return all(device.state in _GONE for device in devices)


def _too_few(view: ChainView) -> str:
    training = sum(device.state is DeviceState.TRAINING for device in view.devices)
    busy = sum(device.state is DeviceState.BUSY for device in view.devices)
    return f"waiting: fewer than two are free, {training} of {len(view.devices)} still train, {busy} are busy"
