"""The planning policy: plans the rest of the round anew at every decision. Pure.

If nothing is hidden (no owner's use interferes), the plan over at most MAX_PLANNED devices is exact: the subset
recursion on the reported ends, as for the optimum. If busy periods are hidden, the candidates are the hops that the
plan and greedy propose, a few alternatives, and waiting. All are tried on the same drawn futures, each played to its
end by a simple rule, and the best on average is taken. Above that many devices greedy decides: a slip there is mended
later.
A device that its owner's limits let receive nothing (Eq. 4) only sends in all of these: a hop to it never ends.
"""

from __future__ import annotations

from math import inf
from statistics import fmean
from typing import TypeAlias

import numpy as np

from mdl.scheduler.policies.chain import ChainView, Decision, DeviceState, DeviceView, Pair, Wait
from mdl.scheduler.policies.greedy import (
    EXPOSED_TRANSFERS,
    RUSH,
    SECONDS_PER_JOULE,
    Greedy,
    expected_free_s,
    pauses_per_second,
    too_few,
    typical_transfer_s,
)
from mdl.scheduler.policies.laid_hops import cost_to_keep
from mdl.scheduler.policies.planning.rollouts import Hops, draw_future, roll_out
from mdl.scheduler.policies.planning.subset_recursion import Indices, Times, earliest_ends, subset_tables
from mdl.scheduler.policies.why import Choice

# The exact plan takes 2 ms for 9 devices; each additional device triples that.
MAX_PLANNED = 9
FUTURES = 64
_SENDERS = 3
_RECEIVERS = 3
# The greedy decision, which evens out energy, is kept unless another is better by this share of a typical transfer.
_MARGIN = 0.02
# The holder of a load is exposed to its user for so many typical transfers longer.
_EXPOSED_TRANSFERS = 2.0
# Futures are drawn this far: no device is busy beyond it.
_HORIZON_S = 60.0

Picked: TypeAlias = tuple[int, int] | None


class Planner:
    """A policy that plans anew. futures: the number drawn for a decision; 0 plans on expected ends alone."""

    name = "dp"

    def __init__(self, *, futures: int = FUTURES, energy: float = SECONDS_PER_JOULE) -> None:
        self._futures = futures
        self._greedy = Greedy(energy=energy)

    def decide(self, view: ChainView) -> Decision:
        if len(view.free()) < 2:
            return Wait(too_few(view))
        typical_s = typical_transfer_s(view)
        expected = [(expected_free_s(device, typical_s), device) for device in view.devices]
        holders = [device for free_s, device in expected if free_s < inf]
        greedy = self._greedy.decide(view)
        if len(holders) > MAX_PLANNED or not any(device.may_receive for device in holders):
            return greedy
        case = _Case(view, holders, np.array([free_s for free_s, _ in expected if free_s < inf]), typical_s)
        place = {device.peer_id: index for index, device in enumerate(holders)}
        hasty = (place[greedy.sender], place[greedy.receiver]) if isinstance(greedy, Pair) else None
        if hasty is not None and not holders[hasty[1]].may_receive:
            hasty = None
        if self._futures and any(pauses_per_second(one.kind) or one.busy_for_s for one in holders):
            picked, why = _try_out(case, hasty, self._futures)
            how = f", on average over {self._futures} drawn futures"
        else:
            picked, why = _follow(case, hasty)
            how = " on expected times"
        if picked is None and not view.may_wait():
            return greedy
        reason = f"dp: {why.picked}: {why.tell()}{how}"
        if picked is None:
            return Wait(reason, (why,))
        sender, receiver = (holders[index].peer_id for index in picked)
        return Pair(sender, receiver, reason, (why,))


class _Case:
    """The holders at one moment, and what hops between them take."""

    def __init__(self, view: ChainView, holders: list[DeviceView], ready_s: Times, typical_s: float) -> None:
        self.view, self.holders, self.ready_s, self.typical_s = view, holders, ready_s, typical_s
        self.pauses = np.array([pauses_per_second(device.kind) for device in holders])
        self.hops = _time_hops(view, holders, typical_s)

    def expected_hop_s(self) -> Times:
        """Return hop times (sender, receiver) with the expected pauses and the receiver's exposure through its load."""
        transfer_s = np.array(self.hops.transfer_s) * (1.0 + np.maximum(self.pauses[:, None], self.pauses))
        merge_s = np.array(self.hops.merge_s) * (1.0 + self.pauses)
        hop_s: Times = transfer_s + merge_s + _EXPOSED_TRANSFERS * self.typical_s * self.pauses
        return hop_s

    def choose(self, picked: Picked, ends_s: dict[Picked, float], hasty: Picked) -> Choice:
        """Describe the choice of this first step among all that were tried; ends_s: the end of the round after each."""
        return Choice(
            self._name(picked),
            "the round ends in",
            tuple((self._name(one), end_s) for one, end_s in ends_s.items()),
            favoured=self._name(hasty) if hasty in ends_s else "",
            favoured_as="greedy's choice",
            margin=_MARGIN * self.typical_s,
        )

    def _name(self, picked: Picked) -> str:
        return " to ".join(self.holders[index].peer_id for index in picked) if picked else "to wait"


def _follow(case: _Case, hasty: Picked) -> tuple[Picked, Choice]:
    """Return the best plan's first hop, or greedy's if a plan that begins with it is as good."""
    hop_s = case.expected_hop_s()
    planned, best_s = _plan(case, hop_s)
    ends_s = {planned: best_s}
    if hasty is not None and hasty != planned:
        sender, receiver = hasty
        ready_s = case.ready_s.copy()
        ready_s[receiver] = hop_s[sender, receiver]
        left = [index for index in range(len(ready_s)) if index != sender]
        rest_s = _solve(ready_s[left], hop_s[np.ix_(left, left)])[:, -1].min() if len(left) > 1 else ready_s[receiver]
        ends_s[hasty] = float(rest_s)
        if rest_s <= best_s + _MARGIN * case.typical_s:
            return hasty, case.choose(hasty, ends_s, hasty)
    return planned, case.choose(planned, ends_s, hasty)


def _try_out(case: _Case, hasty: Picked, count: int) -> tuple[Picked, Choice]:
    """Return the first step with the earliest mean end over all rollouts; each step meets the same futures."""
    planned, _ = _plan(case, case.expected_hop_s())
    tried = list(dict.fromkeys([hasty, planned, *_alternatives(case)]))
    if not case.view.may_wait():
        tried = [one for one in tried if one is not None]
    rng = np.random.default_rng([len(case.holders), int(case.view.time_s * 1e3)])
    futures = [draw_future(case.holders, RUSH, _HORIZON_S, case.typical_s, rng) for _ in range(count)]
    means_s = {one: fmean(roll_out(future, case.hops, one) for future in futures) for one in tried}
    best = min(means_s, key=lambda one: means_s[one] - (_MARGIN * case.typical_s if one == hasty else 0.0))
    return best, case.choose(best, means_s, hasty)


def _time_hops(view: ChainView, holders: list[DeviceView], typical_s: float) -> Hops:
    link_s = [view.size_mb / device.link_mb_s if device.link_mb_s else typical_s for device in holders]
    merge_s = [view.size_mb / device.merge_mb_s if device.merge_mb_s else 0.0 for device in holders]
    limit_s = [0.0 if device.may_receive else inf for device in holders]
    transfer_s = [
        [view.latency_s + max(first, second) + limit for second, limit in zip(link_s, limit_s, strict=True)]
        for first in link_s
    ]
    pauses = [pauses_per_second(device.kind) for device in holders]
    exposed_s = EXPOSED_TRANSFERS * typical_s
    cost_s = [
        cost_to_keep(own_s, share, exposed_s) + limit
        for own_s, share, limit in zip(link_s, pauses, limit_s, strict=True)
    ]
    return Hops(transfer_s, merge_s, cost_s)


def _alternatives(case: _Case) -> list[Picked]:
    free = [index for index, device in enumerate(case.holders) if device.state is DeviceState.FREE]
    free.sort(key=lambda index: -case.hops.cost_s[index])
    takers = [index for index in free if case.holders[index].may_receive]
    pairs: list[Picked] = [
        (sender, receiver) for sender in free[:_SENDERS] for receiver in takers[-_RECEIVERS:] if sender != receiver
    ]
    return [*pairs, None]


def _plan(case: _Case, hop_s: Times) -> tuple[Picked, float]:
    """Return the hop of the best plan that starts now, if one does, and the end of that plan."""
    found_s = _solve(case.ready_s, hop_s)
    holder = int(np.argmin(found_s[:, -1]))
    for start_s, sender, receiver in sorted(_trace(found_s, hop_s, holder, found_s.shape[1] - 1)):
        if start_s == 0.0 and case.holders[sender].state is case.holders[receiver].state is DeviceState.FREE:
            return (sender, receiver), float(found_s[holder, -1])
    return None, float(found_s[holder, -1])


def _solve(ready_s: Times, hop_s: Times) -> Times:
    tables = subset_tables(len(ready_s))
    takes_s = hop_s[tables.senders, tables.receivers][:, None, None]
    return earliest_ends(ready_s[:, None], lambda starts_s: starts_s + takes_s, tables)[:, :, 0]


def _trace(found_s: Times, hop_s: Times, holder: int, loads: int) -> list[tuple[float, int, int]]:
    """Return the hops (start, sender, receiver) that lead to this state."""
    if loads == 1 << holder:
        return []
    parts = _parts(loads & ~(1 << holder))
    starts_s = np.maximum(found_s[holder, loads ^ parts], found_s[:, parts])
    sender, chosen = np.unravel_index(int(np.argmin(starts_s + hop_s[:, holder, None])), starts_s.shape)
    part = int(parts[chosen])
    before = _trace(found_s, hop_s, holder, loads ^ part) + _trace(found_s, hop_s, int(sender), part)
    return [*before, (float(starts_s[sender, chosen]), int(sender), holder)]


def _parts(loads: int) -> Indices:
    parts = np.zeros(1, dtype=np.intp)
    while loads:
        bit = loads & -loads
        parts = np.concatenate((parts, parts | bit))
        loads ^= bit
    return parts[1:]
