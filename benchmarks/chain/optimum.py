"""The exact optimum of the paper's reward (Eq. 7), to judge the reward and what learned from it.

Devices that are alike are interchangeable. So the optimum is a recursion (dynamic programming) over the state that is
left: the number of busy devices, and the receptions of each free one. The order that the reward asks for does not make
a round short (docs/paper-notes.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from mdl.scheduler.paper.policy import PaperChain, PaperRules, PaperState
from mdl.scheduler.policies.fixed import Order

# One device that is left: True if it is busy; and, if it is free, the number of its receptions.
_Device = tuple[bool, int]
_Devices = tuple[_Device, ...]


class PaperOptimum:
    """The best return and the best pairs for any busy start, by recursion; remembers its solutions."""

    def __init__(self, n: int, rules: PaperRules, *, may_quit: bool = True) -> None:
        self._n, self._rules, self._may_quit = n, rules, may_quit
        self._known: dict[tuple[int, _Devices], tuple[float, tuple[_Device, _Device] | None]] = {}

    def best_return(self, busy: Sequence[int]) -> float:
        """Return the highest sum of Eq. 7; with `may_quit`, an illegal pick on purpose counts as an end too."""
        return self._solve(0, tuple(sorted(_start(busy))))[0]

    def best_order(self, busy: Sequence[int]) -> Order | None:
        """Return pairs (sender, receiver) of that return, or None if quitting at once or later is best."""
        chain = PaperChain(busy, self._rules)
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
            left = _left(chain)
        return order

    def _solve(self, pick: int, devices: _Devices) -> tuple[float, tuple[_Device, _Device] | None]:
        if (pick, devices) in self._known:
            return self._known[pick, devices]
        kinds = list(dict.fromkeys(devices))
        out_of_steps = pick + 1 >= self._rules.most_steps(self._n)
        ends = self._may_quit or out_of_steps
        best: tuple[float, tuple[_Device, _Device] | None] = (self._quit(pick, kinds) if ends else float("-inf"), None)
        for sender in kinds if not out_of_steps else []:
            for receiver in kinds:
                if sender == receiver and devices.count(sender) < 2:
                    continue
                value = self._value(pick, devices, sender, receiver)
                if value > best[0] + 1e-9:
                    best = value, (sender, receiver)
        self._known[pick, devices] = best
        return best

    def _quit(self, pick: int, kinds: list[_Device]) -> float:
        """Return the best value of an end without a chain: at once, or after a sender with a reward of its own.

        The very first pick cannot be invalid.
        """
        last = self._rules.illegal_reward
        if pick >= self._rules.most_steps(self._n):
            return last
        later = max(self._reward(pick, sender, 1) for sender in kinds)
        return last + (later if pick == 0 else max(0.0, later))

    def _value(self, pick: int, devices: _Devices, sender: _Device, receiver: _Device) -> float:
        """Return the reward of this pair plus the best that can follow it."""
        reward = self._reward(pick, sender, 1)
        if len(devices) == 2:
            return reward + self._rules.goal_reward
        left = list(devices)
        left.remove(sender)
        left.remove(receiver)
        left.append(receiver if receiver[0] else (False, receiver[1] + 1))
        return reward + self._reward(pick + 1, receiver, -1) + self._solve(pick + 2, tuple(sorted(left)))[0]

    def _reward(self, pick: int, device: _Device, sign: int) -> float:
        """Return the reward of a valid pick that does not end the chain; sign: 1 sends, -1 gets."""
        rules, (busy, n_agg) = self._rules, device
        return rules.busy_reward(pick, self._n) if busy else rules.initial_reward + sign * rules.battery_cost * n_agg


def _start(busy: Sequence[int]) -> _Devices:
    return tuple((bool(each), 0) for each in busy)


def _left(chain: PaperChain) -> dict[int, _Device]:
    """Return the devices that still hold something, as the recursion sees them; a busy one's n_agg does not count."""
    busy = [state is PaperState.BUSY for state in chain.state]
    return {
        device: (busy[device], 0 if busy[device] else chain.n_agg[device])
        for device, legal in enumerate(chain.legal())
        if legal
    }
