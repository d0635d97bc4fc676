"""The exact optimum of the paper's reward (Eq. 7), and orders of pairs as policies, so that they can be played.

Devices that are alike are interchangeable, so the optimum is a recursion over what is left, not over who. For judging
the reward: what it asks for is not what makes a round short (docs/paper-notes.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.paper.problem import PaperChain, PaperRules, PaperState
from scheduler.policies.chain import ChainView, Decision, DeviceState, Pair, Wait

# One device that is left: its state, the rounds it is busy yet, and how often it has aggregated.
_Device = tuple[int, int, int]
_Devices = tuple[_Device, ...]
Order = list[tuple[int, int]]


class PaperOptimum:
    """The best return and the best pairs for any busy start, by recursion; remembers what it has solved."""

    def __init__(self, n: int, rules: PaperRules, *, may_quit: bool = True) -> None:
        self._n, self._rules, self._may_quit = n, rules, may_quit
        self._known: dict[tuple[int, _Devices], tuple[float, tuple[_Device, _Device] | None]] = {}

    def best_return(self, busy: Sequence[int]) -> float:
        """The highest return (sum of Eq. 7); with `may_quit`, an illegal pick on purpose counts as an end too."""
        return self._solve(0, _start(busy))[0]

    def best_order(self, busy: Sequence[int]) -> Order | None:
        """Pairs (sender, receiver) of that return, or None where quitting at once or later is best."""
        chain = PaperChain(tuple(busy), self._rules)
        order: Order = []
        left = dict(enumerate(_start(busy)))
        while not chain.ended:
            choice = self._solve(chain.pick, tuple(sorted(left.values())))[1]
            if choice is None:
                return None
            sender = next(device for device in left if left[device] == choice[0])
            receiver = next(device for device in left if left[device] == choice[1] and device != sender)
            for device in (sender, receiver):
                chain.step(device)
            order.append((sender, receiver))
            left = self._stand(chain)
        return order

    def _solve(self, pick: int, devices: _Devices) -> tuple[float, tuple[_Device, _Device] | None]:
        if pick == 2 * (self._n - 1):
            return self._rules.goal_reward, None
        devices = tuple(sorted(devices))
        if (pick, devices) in self._known:
            return self._known[pick, devices]
        best: tuple[float, tuple[_Device, _Device] | None] = (
            (self._rules.illegal_reward, None) if self._may_quit else (float("-inf"), None)
        )
        types = [kind for kind in dict.fromkeys(devices) if kind[0] <= PaperState.BUSY]
        for sender in types:
            for receiver in types:
                if sender == receiver and devices.count(sender) < 2:
                    continue
                reward = self._reward(pick, sender) + self._reward(pick + 1, receiver)
                value = reward + self._solve(pick + 2, self._after(devices, sender, receiver))[0]
                if value > best[0] + 1e-9:
                    best = value, (sender, receiver)
        self._known[pick, devices] = best
        return best

    def _reward(self, pick: int, device: _Device) -> float:
        rules = self._rules
        penalty = rules.penalty(pick, 2 * (self._n - 1)) if device[0] == PaperState.BUSY else 0.0
        return rules.initial_reward - rules.battery_cost * device[2] + penalty

    def _after(self, devices: _Devices, sender: _Device, receiver: _Device) -> _Devices:
        left = list(devices)
        left.remove(sender)
        left.remove(receiver)
        if self._rules.busy != "rounds":
            return (*left, (receiver[0], receiver[1], receiver[2] + 1))
        left.append((PaperState.GET, receiver[1], receiver[2] + 1))
        if sum(state == PaperState.FREE for state, _, _ in left) >= 2:
            return tuple(left)
        return tuple((int(rest > 1), max(0, rest - 1), n_agg) for _, rest, n_agg in left)

    def _stand(self, chain: PaperChain) -> dict[int, _Device]:
        gone = (PaperState.SEND, PaperState.DONE)
        return {
            device: (int(state), chain.busy_left[device], chain.n_agg[device])
            for device, state in enumerate(chain.state)
            if state not in gone
        }


class FollowOrder:
    """Plays one order of pairs: each as soon as both are idle and whatever they take part in before is done.

    `order` is called once, with who is busy at the first decision (1) or not (0); None is "quits": then the last of
    the free sends to the first, so that the round ends all the same.
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


def _start(busy: Sequence[int]) -> _Devices:
    return tuple((int(left > 0), left, 0) for left in busy)
