"""The exact optimum of one iteration with full information, for judging: it sees every busy period. Pure.

It is the least time until all devices have the result: hops to one holder, then its broadcast. A broadcast that begins
later never ends earlier, so the best schedule of hops to each holder is enough. The least time to one holder is there
for comparisons with the paper.

Hops do not share a channel, so the subset recursion (`mdl.scheduler.policies.planner`) is exact.
Later hops depend only on each device's loads and the time it has them, and starting a hop earlier is never worse.
Deaths are not defined here: with a lost load, the best schedule depends on the worth of a load. So a scenario with a
dying device is refused, and so is one in which no device may receive.
"""

from __future__ import annotations

import msgspec
import numpy as np

from mdl.devices.scenario import Scenario
from mdl.devices.usage import Periods, active_end_s
from mdl.errors import ConfigError
from mdl.scheduler.policies.chain import ChainView, Decision, DeviceState, Pair, Wait
from mdl.scheduler.policies.planner import Indices, Tables, Times, earliest_ends, subset_tables
from mdl.sim.timing.iteration import TimedHop, broadcast_end_s

# 9 devices take about 10 ms, 12 about 150 ms; each additional device triples that.
MAX_DEVICES = 12


class Plan(msgspec.Struct, frozen=True):
    """hops: in the order of their starts. makespan_s: until one device holds everything.

    everywhere_s: until all devices have the result.
    """

    makespan_s: float
    hops: tuple[TimedHop, ...]
    everywhere_s: float


class Optimal:
    """Follows the plan of `solve`; knows the scenario, so it is for judging only."""

    name = "optimal"

    def __init__(self, scenario: Scenario) -> None:
        self.plan = solve(scenario, for_all=True)

    def decide(self, view: ChainView) -> Decision:
        taken: set[int] = set()
        for hop in self.plan.hops:
            ends = {hop.sender, hop.receiver}
            sender, receiver = view.devices[hop.sender], view.devices[hop.receiver]
            if sender.state in (DeviceState.SEND, DeviceState.DONE):
                continue
            if not ends & taken and sender.state is receiver.state is DeviceState.FREE:
                reason = f"optimal: {sender.peer_id} sends to {receiver.peer_id} in the best plan"
                return Pair(sender.peer_id, receiver.peer_id, reason)
            taken |= ends
        return Wait("optimal: no hop of the best plan can start yet")


def solve(scenario: Scenario, *, for_all: bool = False) -> Plan:
    """Find the least time to one holder, or with for_all until all devices have the result.

    Raises ConfigError above MAX_DEVICES devices, if one dies, or if none may receive (Eq. 4)."""
    n = len(scenario.devices)
    if n > MAX_DEVICES:
        raise ConfigError(f"scenario {scenario.scenario_id!r}: optimal plans at most {MAX_DEVICES} devices, not {n}")
    for index, device in enumerate(scenario.devices):
        if device.dies_at_s is not None:
            raise ConfigError(f"scenario {scenario.scenario_id!r}: optimal is not defined where device {index} dies")
    if not any(device.may_receive for device in scenario.devices):
        raise ConfigError(f"scenario {scenario.scenario_id!r}: optimal is not defined where no device may receive")
    tables = subset_tables(n)
    clocks = _Clocks(scenario, tables)
    ready_s = np.array([[device.ready_s] for device in scenario.devices])
    found_s = earliest_ends(ready_s, clocks.end_of, tables)[:, :, 0]
    everything = (1 << n) - 1
    ends_s = found_s[:, everything].copy()
    if for_all:
        for holder in np.flatnonzero(np.isfinite(ends_s)).tolist():
            ends_s[holder] = broadcast_end_s(scenario, holder, range(n), float(ends_s[holder]))
    pairs = _trace(found_s, clocks, int(np.argmin(ends_s)), everything)
    return time_plan(scenario, pairs)


def time_plan(scenario: Scenario, pairs: list[tuple[int, int]]) -> Plan:
    """Time hops (sender, receiver), each as early as the hops before it at its two ends allow."""
    idle_s = [device.ready_s for device in scenario.devices]
    hops = []
    for sender, receiver in pairs:
        first, second = scenario.devices[sender], scenario.devices[receiver]
        start_s = active_end_s((first.busy, second.busy), max(idle_s[sender], idle_s[receiver]), 0.0)
        transfer_s = scenario.latency_s + scenario.size_mb / min(first.link_mb_s, second.link_mb_s)
        merge_s = scenario.size_mb / second.merge_mb_s
        sent_s = active_end_s((first.busy, second.busy), start_s, transfer_s)
        merged_s = active_end_s((second.busy,), sent_s, merge_s)
        hops.append(TimedHop(sender, receiver, start_s, sent_s, merged_s, transfer_s, merge_s))
        idle_s[sender], idle_s[receiver] = sent_s, merged_s
    makespan_s = max(hop.merged_s for hop in hops)
    everywhere_s = broadcast_end_s(scenario, pairs[-1][1], range(len(idle_s)), makespan_s)
    return Plan(makespan_s, tuple(sorted(hops, key=lambda hop: hop.start_s)), everywhere_s)


class _Clocks:
    """Ends of each pair's hops, for arrays of starts: work goes on in active time only. A hop never ends if its
    receiver's owner allows it no delta."""

    def __init__(self, scenario: Scenario, tables: Tables) -> None:
        devices = scenario.devices
        self._place = {
            (int(i), int(j)): index for index, (j, i) in enumerate(zip(tables.receivers, tables.senders, strict=True))
        }
        own = [_Clock(device.busy) for device in devices]
        pairs = [(devices[i], devices[j]) for i, j in self._place]
        self._transfer_s = [scenario.latency_s + scenario.size_mb / min(a.link_mb_s, b.link_mb_s) for a, b in pairs]
        self._merge_s = [scenario.size_mb / b.merge_mb_s if b.may_receive else np.inf for _, b in pairs]
        shared: dict[frozenset[int], _Clock] = {}
        for i, j in self._place:
            if frozenset((i, j)) not in shared:
                shared[frozenset((i, j))] = _Clock(devices[i].busy + devices[j].busy)
        self._shared = [shared[frozenset(pair)] for pair in self._place]
        self._own = [own[j] for _, j in self._place]

    def end_of(self, starts_s: Times) -> Times:
        return np.stack([self._end_s(pair, starts) for pair, starts in enumerate(starts_s)])

    def hop_end_s(self, sender: int, receiver: int, starts_s: Times) -> Times:
        return self._end_s(self._place[sender, receiver], starts_s)

    def _end_s(self, pair: int, starts_s: Times) -> Times:
        return self._own[pair].end_s(self._shared[pair].end_s(starts_s, self._transfer_s[pair]), self._merge_s[pair])


class _Clock:
    """Active time as a function of time, and back; it stands still during the busy periods."""

    def __init__(self, periods: Periods) -> None:
        edges = np.array(sorted(periods), dtype=np.float64).reshape(-1, 2)
        reach = np.maximum.accumulate(edges[:, 1])
        opens = np.ones(len(edges), dtype=bool)
        opens[1:] = edges[1:, 0] > reach[:-1]
        self._starts = edges[opens, 0]
        ends = reach[np.append(np.flatnonzero(opens)[1:] - 1, len(edges) - 1)] if len(edges) else reach
        self._busy_before = np.concatenate(([0.0], np.cumsum(ends - self._starts)))
        self._active_at = self._starts - self._busy_before[:-1]

    def end_s(self, starts_s: Times, work_s: float) -> Times:
        if not len(self._starts):
            return starts_s + work_s
        place = np.searchsorted(self._starts, starts_s, side="right")
        active = starts_s - self._busy_before[place]
        begun = place > 0
        active[begun] = np.maximum(active[begun], self._active_at[place[begun] - 1])
        active += work_s
        ends: Times = active + self._busy_before[np.searchsorted(self._active_at, active, side="left")]
        return ends


def _trace(found_s: Times, clocks: _Clocks, holder: int, loads: int) -> list[tuple[int, int]]:
    """Return the hops (sender, receiver) that lead to this state; at each device in their order."""
    if loads == 1 << holder:
        return []
    best_s, best = np.inf, (0, 0)
    for sender in range(len(found_s)):
        if sender == holder or not loads >> sender & 1:
            continue
        parts = _parts(loads, sender, holder)
        starts_s = np.maximum(found_s[holder, loads ^ parts], found_s[sender, parts])
        chosen = int(np.argmin(starts_s))
        end_s = float(clocks.hop_end_s(sender, holder, starts_s[chosen : chosen + 1])[0])
        if end_s < best_s:
            best_s, best = end_s, (sender, int(parts[chosen]))
    sender, part = best
    before = _trace(found_s, clocks, holder, loads ^ part) + _trace(found_s, clocks, sender, part)
    return [*before, (sender, holder)]


def _parts(loads: int, sender: int, holder: int) -> Indices:
    """Return the subsets of the loads with the sender and without the holder."""
    free = loads & ~(1 << sender) & ~(1 << holder)
    members = [bit for bit in range(loads.bit_length()) if free >> bit & 1]
    parts = np.array([1 << sender], dtype=np.intp)
    for bit in members:
        parts = np.concatenate((parts, parts | (1 << bit)))
    return parts
