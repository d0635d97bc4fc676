"""The simplest policies: tree, ring and fifo, and a given order of pairs. Pure.

tree and ring order the devices by position, like the systems that MDLdroid compares with (4.4). fifo takes the devices
that have been free longest, which is optimal on equal devices. `FollowOrder` plays an order that somebody else made.
"""

from __future__ import annotations

from collections.abc import Callable

from mdl.scheduler.policies.chain import ChainView, Decision, DeviceState, DeviceView, Pair, Wait
from mdl.scheduler.policies.greedy import too_few

_GONE = (DeviceState.DONE, DeviceState.DEAD)


class Tree:
    """Binary tree by position: in step k, position i + 2^k sends to i. A lost device is replaced by its parent."""

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
                whose = "its parent" if parent == position & (position - 1) else "its nearest ancestor that is left,"
                told = f"tree: position {position} sends to {whose} {parent}"
                return Pair(devices[position].peer_id, devices[parent].peer_id, told)
        free = view.free()
        if len(free) > 1 and not view.may_wait():
            return Pair(
                free[-1].peer_id, free[0].peer_id, "tree: the last sends to the first, as their parents are gone"
            )
        return Wait("tree: each free position waits for its parent or for earlier hops")


class Ring:
    """One chain by position: the first device that is left sends to the next."""

    name = "ring"

    def decide(self, view: ChainView) -> Decision:
        left = [device for device in view.devices if device.state not in _GONE]
        if len(left) < 2:
            return Wait(f"ring: {len(left)} of {len(view.devices)} devices left; a pair needs two")
        sender, receiver = left[0], left[1]
        for device in (sender, receiver):
            if device.state is not DeviceState.FREE:
                return Wait(f"ring: the next in line, {device.peer_id}, is {device.state.value}")
        return Pair(sender.peer_id, receiver.peer_id, "ring: the first in line sends to the next")


class Fifo:
    """The two devices that have been free longest."""

    name = "fifo"

    def decide(self, view: ChainView) -> Decision:
        free = sorted(view.free(), key=lambda device: device.free_since_s)
        if len(free) < 2:
            return Wait(too_few(view))
        return Pair(free[0].peer_id, free[1].peer_id, "fifo: both have been free longest")


def _living_parent(devices: tuple[DeviceView, ...], position: int) -> int | None:
    while position:
        position &= position - 1
        if devices[position].state not in _GONE:
            return position
    return None


def _all_gone(devices: tuple[DeviceView, ...]) -> bool:
    return all(device.state in _GONE for device in devices)


Order = list[tuple[int, int]]


class FollowOrder:
    """Plays one order of pairs: each as soon as both are idle and their earlier pairs are done.

    `order` is called once, with 1 for each device that is busy at the first decision, else 0. None means "quits": then
    the last of the free sends to the first, so that the round ends all the same.
    """

    def __init__(self, name: str, order: Callable[[tuple[int, ...]], Order | None]) -> None:
        self.name = name
        self.quits = False
        self._order = order
        self._pairs: Order | None = None

    def decide(self, view: ChainView) -> Decision:
        if self._pairs is None and not self.quits:
            self._pairs = self._order(tuple(int(device.state is DeviceState.BUSY) for device in view.devices))
            self.quits = self._pairs is None
        if self._pairs is None:
            free = view.free()
            return Pair(free[-1].peer_id, free[0].peer_id, f"{self.name}: it quits, the last sends to the first")
        return self._next(view, self._pairs)

    def _next(self, view: ChainView, pairs: Order) -> Decision:
        ahead: set[int] = set()
        for pair in pairs:
            free = all(view.devices[device].state is DeviceState.FREE for device in pair)
            if free and not ahead & set(pair):
                pairs.remove(pair)
                sender, receiver = (view.devices[device].peer_id for device in pair)
                return Pair(sender, receiver, f"{self.name}: next in the order that was made at the start")
            ahead |= set(pair)
        return Wait(f"{self.name}: the next pairs of the order are not both free")
