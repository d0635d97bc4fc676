"""Orders of pairs as policies, so that they can be played."""

from __future__ import annotations

from collections.abc import Callable

from mdl.scheduler.policies.chain import ChainView, Decision, DeviceState, Pair, Wait

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
