"""Participation rules: which devices take part in a round, and when the round closes. Pure.

A round is open while devices train. Again and again a rule sees all devices (`RoundSeen`) and answers: wait, until when
and for which devices (`WaitFor`), or close with these devices (`Close`). Both say why in one clause, which people read.
Devices that are left out train on. They get the result in the background, and bring the sum of their work later. A rule
sees what an agent may know: never when a busy time ends.

Shipped rules: `third`, `all`, `deadline` and `k-of-n` are one rule (`CloseAfter`) with other bounds. `half` and
`best-ratio` are the rules of a mesh. `mdl.scheduler.rounds.learned` has their names and bounds.

The worth of a round is a formula:

    worth = coverage ** COVERAGE * (sum over members of c / n) ** TOGETHER
    c = (sum over the device's work of periods * FRESH ** age) ** ALONE

A round to which all n devices bring one fresh local period is worth 1: progress counts such rounds. Terms:

- TOGETHER: a round of k of n devices is worth about k ** 0.58 (the fit of an earlier trial over all rules, R2 0.67).
- FRESH: work loses a tenth for each round that closed since the parameters that it began from (given by that trial).
- ALONE: more periods of one device before it gives are worth less each (assumed: the square root).
- COVERAGE: coverage is the mean over all devices of FRESH ** (rounds in a row that closed without it). Devices hold
  different data, so a model that few of them made is worth less (assumed: the square root).

The formula ranks rules and rewards learners. It is a rough one (docs/results/rounds.md): `benchmarks/rounds.py` trains
really, by the same rounds.

`best_set` has the sets of devices that the exact plan of an exchange in segments would rather take. A set of k devices
with links r needs max(1 / min r, 2 (k - 1) / sum r) seconds a megabyte: the bound that shares by bandwidth reach
(`mdl.scheduler.policies.segment_plan`). For any k the fastest k links have the least.

`Bandit` is a rule that tunes itself. Each arm is a pair of bounds of the rule `third`. A round is played under one arm.
Its reward is its worth over its seconds, beside the mean of all rounds. The bandit is UCB1 (Auer et al., 2002) over
rewards of which older ones fade, as a mesh changes. It begins with the arm of `third`, tries each arm once, and has no
chance in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf, log, sqrt
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from mdl.bounds import first_few
from mdl.devices.usage import UsageKind, expected_rest_s
from mdl.scheduler.policies.segment_plan import bandwidth_shares, level

# `DeviceSeen.took_part` looks back on so many rounds.
LOOKED_BACK = 10
# A round of one device would merge nothing.
LEAST_MEMBERS = 2


class DeviceSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One device at one moment of a round.

    device_id: its name.
    progress: its work that no round holds yet, in local periods; from 1.0 on it can give.
    ready_in_s: the expected seconds until it can give; 0.0: it can give now.
    kind: the kind of use by its owner.
    busy_for_s: for how long this use has kept it from working; 0.0: it works.
    link_mb_s: the speed of its link, as last measured.
    link_spread: the standard deviation of the last measurements over their mean.
    battery_percent: of a full charge.
    charging: it is on its charger.
    celsius: temperature of its battery; None: not known.
    base_age: rounds that have closed since the parameters that its oldest work began from.
    took_part: its rounds among the last `LOOKED_BACK`.
    left_out: rounds in a row, up to now, that closed without it.
    able_at_s: seconds after the round opened at which it could give; None: it cannot yet.
    is_new: nobody has seen it train, so `ready_in_s` is a guess.
    """

    device_id: str
    progress: float
    ready_in_s: float
    link_mb_s: float
    kind: UsageKind = UsageKind.IDLE
    busy_for_s: float = 0.0
    link_spread: float = 0.0
    battery_percent: float = 100.0
    charging: bool = False
    celsius: float | None = None
    base_age: int = 0
    took_part: int = 0
    left_out: int = 0
    able_at_s: float | None = None
    is_new: bool = False

    @property
    def can_give(self) -> bool:
        return self.ready_in_s <= 0.0


class RoundSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An open round.

    number: from 1.
    open_s: seconds that it is open.
    size_mb: of a delta.
    latency_s: of a message.
    devices: those that may still take part.
    members: the number that the round was opened with; 0: these.
    """

    number: int
    open_s: float
    size_mb: float
    latency_s: float
    devices: tuple[DeviceSeen, ...]
    members: int = 0

    @property
    def opened_with(self) -> int:
        return self.members or len(self.devices)

    def able(self) -> list[DeviceSeen]:
        """Return the devices that can give now."""
        return [device for device in self.devices if device.can_give]

    def enough_at_s(self, needed: int) -> float | None:
        """Return the seconds after the opening at which so many devices could give; None: they cannot yet."""
        at_s = sorted(each.able_at_s or 0.0 for each in self.able())
        return at_s[needed - 1] if len(at_s) >= needed else None


class WaitFor(msgspec.Struct, frozen=True):
    """Wait for these devices. until_s: since the round opened; the rule is asked again then, or when a device changes.

    inf: until a device changes.
    """

    until_s: float
    devices: tuple[str, ...]
    reason: str


class Close(msgspec.Struct, frozen=True):
    """Close with these devices, which can all give.

    drop_times, drop_extra_s: the exchange may take its planned time so many times, and so many seconds more. Devices
    that hold it up longer are dropped from it. inf: none ever is.
    kept: these are never dropped.
    """

    devices: tuple[str, ...]
    reason: str
    drop_times: float = inf
    drop_extra_s: float = 0.0
    kept: tuple[str, ...] = ()


Decision: TypeAlias = WaitFor | Close


class ParticipationRule(Protocol):
    """The rule of a mesh. It may remember; each mesh gets a fresh one."""

    @property
    def name(self) -> str: ...

    def decide(self, seen: RoundSeen) -> Decision:
        """Answer for an open round. Raise nothing: a rule that cannot close waits."""
        ...


@runtime_checkable
class HearsRounds(Protocol):
    """A rule that learns from the mesh's own rounds."""

    def hear(self, seconds: float, worth: float) -> None:
        """Hear of a round that has ended: its seconds from opening to result, and its worth; 0.0: abandoned."""
        ...


def tell_close(seen: RoundSeen, members: int, left_out_at_most: float) -> str:
    """Tell a close in one clause, with the device that would have kept it waiting longest.

    "closed at 2.0 s with 5 of 9: e needs about 14 s more (in use for 40 s); its work comes with a later round, at the
    latest round 21".
    """
    told = f"closed at {seen.open_s:.1f} s with {members} of {len(seen.devices)}"
    missing = sorted((each for each in seen.devices if not each.can_give), key=lambda each: -each.ready_in_s)
    if not missing:
        return told
    last, more = missing[0], len(missing) - 1
    latest = max(seen.number + 1.0, seen.number + left_out_at_most - last.left_out)
    bound = "" if left_out_at_most == inf else f", at the latest round {latest:.0f}"
    others = f" and {more} more need{'s' if more == 1 else ''} less" if more else ""
    return f"{told}: {_tell_need(last)}{others}; its work comes with a later round{bound}"


def tell_wait(seen: RoundSeen, waited_for: list[DeviceSeen], why: str) -> str:
    """Tell a wait: "waits for d, e: 2 of 9 can give, 3 are needed"."""
    names = first_few([each.device_id for each in waited_for])
    return f"waits for {names}: {len(seen.able())} of {len(seen.devices)} can give, {why}"


def _tell_need(device: DeviceSeen) -> str:
    use = f" (in use for {device.busy_for_s:.0f} s)" if device.busy_for_s > 0.0 else ""
    return f"{device.device_id} needs about {device.ready_in_s:.0f} s more{use}"


TOGETHER = 0.58
FRESH = 0.9
ALONE = 0.5
COVERAGE = 0.5


def contribution(work: Iterable[tuple[int, float]]) -> float:
    """Return c of one device. work: (age in rounds, local periods) of each part of its sum."""
    return float(sum(periods * FRESH**age for age, periods in work) ** ALONE)


def coverage(left_out: Sequence[int]) -> float:
    """Return the coverage. left_out: of each device, rounds in a row up to this one that closed without it."""
    return sum(FRESH**rounds for rounds in left_out) / len(left_out)


def worth(contributions: Sequence[float], left_out: Sequence[int]) -> float:
    """Return the worth of a round of these members, beside the round of all devices with one fresh period each."""
    return worth_of(sum(contributions), coverage(left_out), len(left_out))


def worth_of(contributed: float, covered: float, n: int) -> float:
    """Return the same of sums: of the members' contributions, and the coverage."""
    return float(covered**COVERAGE * (contributed / n) ** TOGETHER)


# Order, answer and the first piece before anything flows, and the last result (`mdl.sim.timing.iteration`).
_MESSAGES = 4
# An owner's link takes this much longer than its bytes do, since it is full both ways (measured there).
_FULL_BOTH_WAYS = 1.15


class Planned(NamedTuple):
    """shares: of the model, by member. seconds: from the close to the result everywhere, if nobody is busy."""

    shares: list[float]
    seconds: float


class BestSet(NamedTuple):
    """devices: in the plan's order. close_in_s: seconds until the last one can give. ratio: worth a second."""

    devices: tuple[DeviceSeen, ...]
    close_in_s: float
    ratio: float


def plan_exchange(rates: Sequence[float], may_own: Sequence[bool], size_mb: float, latency_s: float) -> Planned:
    """Plan an exchange. rates: MB/s of each member. may_own: False for a member in use; if all are, all may own."""
    owners = may_own if any(may_own) else [True] * len(rates)
    shares, time_per_mb = bandwidth_shares(level(rates), owners)
    return Planned(shares, _FULL_BOTH_WAYS * size_mb * time_per_mb + _MESSAGES * latency_s)


def in_plan_order(devices: Sequence[DeviceSeen], left_out_at_most: float) -> list[DeviceSeen]:
    """Sort devices: those at the bound first, then those that are not in use, the fastest link first."""
    return sorted(devices, key=lambda each: (each.left_out < left_out_at_most, each.busy_for_s > 0.0, -each.link_mb_s))


def best_set(
    seen: RoundSeen, left_out_at_most: float, *, now: bool = False, least: int = LEAST_MEMBERS
) -> BestSet | None:
    """Return the set with the best ratio of worth to time since the round opened; None if no set can ever give.

    Sets are the beginnings of the plan's order, at the moment of each device's expected end of training. A set holds
    every device that has been left out `left_out_at_most` times. now: sets that can give now alone, without that.
    least: the fewest devices of a set.
    """
    if now:
        moments, bound = [0.0], 0
    else:
        bound = sum(each.left_out >= left_out_at_most for each in seen.devices)
        moments = sorted({max(0.0, each.ready_in_s) for each in seen.devices})
    best: BestSet | None = None
    for moment_s in moments:
        able = [each for each in seen.devices if each.ready_in_s <= moment_s]
        if sum(each.left_out >= left_out_at_most for each in able) < bound:
            continue
        order = in_plan_order(able, left_out_at_most)
        for count, ratio in _ratios(seen, order, moment_s):
            if count >= max(bound, least) and (best is None or ratio > best.ratio):
                best = BestSet(tuple(order[:count]), moment_s, ratio)
    return best


def _ratios(seen: RoundSeen, order: Sequence[DeviceSeen], moment_s: float) -> list[tuple[int, float]]:
    """Return the number of members and the worth a second of each beginning of the order."""
    n = len(seen.devices)
    covered = sum(FRESH ** (each.left_out + 1) for each in seen.devices)
    contributed, total_mb_s, slowest_mb_s, rest_s = 0.0, 0.0, inf, 0.0
    found = []
    for count, device in enumerate(order, 1):
        contributed += contribution([(device.base_age, max(1.0, device.progress))])
        covered += 1.0 - FRESH ** (device.left_out + 1)
        total_mb_s += device.link_mb_s
        slowest_mb_s = min(slowest_mb_s, device.link_mb_s)
        if device.busy_for_s > 0.0:
            rest_s = max(rest_s, expected_rest_s(device.kind, device.busy_for_s) - moment_s)
        if count < LEAST_MEMBERS:
            continue
        time_per_mb = max(1.0 / slowest_mb_s, 2.0 * (count - 1) / total_mb_s)
        exchange_s = _FULL_BOTH_WAYS * seen.size_mb * time_per_mb + _MESSAGES * seen.latency_s
        seconds = seen.open_s + moment_s + rest_s + exchange_s
        found.append((count, worth_of(contributed, covered / n, n) / seconds))
    return found


# Devices that train have this share of the time that the others took, if the grace is shorter: training times of equal
# devices differ by less. A device that nobody has seen train has so many times the grace.
_GRACE, _NEW = 0.25, 5.0


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of a rule.

    wait_for: the share of the devices that must be able to give, 0 to 1; two devices at least.
    grace_s: seconds that a round stays open in any case, unless all can give; `half` and `best-ratio`: seconds that the
    others have once enough can give.
    left_out_at_most: rounds in a row that may close without one device; the next one waits for it. inf: no bound.
    drop_times, drop_extra_s: see `Close`.
    """

    wait_for: float = 1.0 / 3.0
    grace_s: float = 2.0
    left_out_at_most: float = 9.0
    drop_times: float = 2.0
    drop_extra_s: float = 1.0

    def needed(self, n: int) -> int:
        """Return the number of devices that must be able to give."""
        return max(LEAST_MEMBERS, ceil(self.wait_for * n - 1e-9))


class CloseAfter:
    """Close `grace_s` after opening, once enough devices can give, with all that can."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name, self.bounds = name, bounds

    def decide(self, seen: RoundSeen) -> Decision:
        able, n, bounds = seen.able(), len(seen.devices), self.bounds
        needed = bounds.needed(n)
        missing = _missing(seen)
        owed = [each for each in missing if each.left_out >= bounds.left_out_at_most]
        if owed and len(able) < n:
            return wait_for_owed(seen, owed, bounds)
        if len(able) < needed:
            return WaitFor(inf, _ids(missing), tell_wait(seen, missing, f"{needed} are needed"))
        if missing and seen.open_s < bounds.grace_s:
            return WaitFor(bounds.grace_s, _ids(missing), tell_wait(seen, missing, f"open until {bounds.grace_s:g} s"))
        return close_with(seen, able, bounds)


class Half:
    """Close once enough devices can give, and the others have had the grace (`_grace_end_s`)."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name, self.bounds = name, bounds

    def decide(self, seen: RoundSeen) -> Decision:
        bounds, able, missing = self.bounds, seen.able(), _missing(seen)
        needed = _needed(seen, bounds)
        if wait := _wait_for_enough(seen, missing, needed, bounds):
            return wait
        end_s = _grace_end_s(seen, missing, needed, max(bounds.grace_s, _GRACE * (seen.enough_at_s(needed) or 0.0)))
        if seen.open_s < end_s:
            return WaitFor(end_s, _ids(missing), tell_wait(seen, missing, f"open until {end_s:.1f} s"))
        return close_with(seen, able, bounds)


class BestRatio:
    """Close with the set of the exact plan that has the best ratio of worth to time, now or when it can give.

    The others have the grace once enough can give, as with `Half`.
    """

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name, self.bounds = name, bounds

    def decide(self, seen: RoundSeen) -> Decision:
        bounds, missing = self.bounds, _missing(seen)
        needed = _needed(seen, bounds)
        if wait := _wait_for_enough(seen, missing, needed, bounds):
            return wait
        best = best_set(seen, bounds.left_out_at_most, least=needed)
        if best is None:
            return WaitFor(inf, _ids(missing), tell_wait(seen, missing, "no set can give yet"))
        awaited = [each for each in best.devices if not each.can_give]
        end_s = seen.open_s + best.close_in_s
        if not awaited:
            awaited, end_s = missing, _grace_end_s(seen, missing, needed, bounds.grace_s)
        if seen.open_s < end_s:
            return WaitFor(
                end_s, _ids(awaited), tell_wait(seen, awaited, f"a round of {len(best.devices)} is worth it")
            )
        return close_with(seen, list(best.devices), bounds)


def _needed(seen: RoundSeen, bounds: Bounds) -> int:
    """Return the number of devices that must be able to give, of those that the round was opened with."""
    return min(bounds.needed(seen.opened_with), len(seen.devices))


def _missing(seen: RoundSeen) -> list[DeviceSeen]:
    return [each for each in seen.devices if not each.can_give]


def _wait_for_enough(seen: RoundSeen, missing: list[DeviceSeen], needed: int, bounds: Bounds) -> WaitFor | None:
    """Wait for devices at the bound, and until enough can give; None: there is no need to."""
    if owed := [each for each in missing if each.left_out >= bounds.left_out_at_most]:
        return wait_for_owed(seen, owed, bounds)
    if missing and len(seen.devices) - len(missing) < needed:
        return WaitFor(inf, _ids(missing), tell_wait(seen, missing, f"{needed} are needed"))
    return None


def _grace_end_s(seen: RoundSeen, missing: list[DeviceSeen], needed: int, grace_s: float) -> float:
    """Return the seconds after the opening at which the grace of the missing devices ends; 0.0 if none is missing."""
    if not missing:
        return 0.0
    longest_s = grace_s * (_NEW if any(each.is_new for each in missing) else 1.0)
    return (seen.enough_at_s(needed) or 0.0) + longest_s


def mesh_rule(name: str, bounds: Bounds) -> Half | BestRatio:
    """Return a mesh's rule. name: "half" or "best-ratio"."""
    return BestRatio(name, bounds) if name == "best-ratio" else Half(name, bounds)


def wait_for_owed(seen: RoundSeen, owed: list[DeviceSeen], bounds: Bounds) -> WaitFor:
    """Wait for devices that have been left out as long as the bounds allow."""
    first = owed[0]
    why = f"{first.device_id} was left out of {first.left_out} rounds in a row, the most is {bounds.left_out_at_most:g}"
    return WaitFor(inf, _ids(owed), tell_wait(seen, owed, why))


def close_with(seen: RoundSeen, members: list[DeviceSeen], bounds: Bounds) -> Close:
    """Close with these devices; those at the bound are kept in the exchange."""
    told = tell_close(seen, len(members), bounds.left_out_at_most)
    if slower := sorted({each.device_id for each in seen.able()} - set(_ids(members))):
        told += f"; without {first_few(slower)}, which would slow it down"
    kept = _ids([each for each in members if each.left_out >= bounds.left_out_at_most])
    order = in_plan_order(members, bounds.left_out_at_most)
    return Close(_ids(order), told, bounds.drop_times, bounds.drop_extra_s, kept)


def _ids(devices: list[DeviceSeen]) -> tuple[str, ...]:
    return tuple(each.device_id for each in devices)


# (wait_for, grace_s): the first one is that of `third`. Few, since a mesh has to try each.
ARMS = ((1.0 / 3.0, 2.0), (0.2, 0.0), (1.0 / 3.0, 0.0), (0.5, 0.0), (0.5, 4.0), (2.0 / 3.0, 0.0))
# The weight of a round falls to a half after about 70 rounds.
_FADES = 0.99
# UCB1's bonus, in units of the mean reward: rewards of rounds vary by about so much.
_BONUS = 0.5


class Bandit:
    """`third` with the bounds that this mesh's own rounds speak for."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name = name
        self._arms = [
            CloseAfter(name, msgspec.structs.replace(bounds, wait_for=share, grace_s=grace_s))
            for share, grace_s in ARMS
        ]
        self._tries, self._worth, self._seconds = ([0.0] * len(ARMS) for _ in range(3))
        self._arm = 0

    @property
    def bounds(self) -> Bounds:
        """The bounds of the round that is open."""
        return self._arms[self._arm].bounds

    def decide(self, seen: RoundSeen) -> Decision:
        return self._arms[self._arm].decide(seen)

    def hear(self, seconds: float, worth: float) -> None:
        """Count the round for its arm, and choose the arm of the next one."""
        for values in (self._tries, self._worth, self._seconds):
            values[:] = [_FADES * value for value in values]
        self._tries[self._arm] += 1.0
        self._worth[self._arm] += worth
        self._seconds[self._arm] += seconds
        untried = [arm for arm, tries in enumerate(self._tries) if not tries]
        self._arm = untried[0] if untried else max(range(len(ARMS)), key=self._promise)

    def _promise(self, arm: int) -> float:
        """Return the arm's worth a second over the mean of all, and the bonus of what it may still be."""
        mean = sum(self._worth) / sum(self._seconds)
        if not mean:
            return -self._tries[arm]
        rate = self._worth[arm] / self._seconds[arm] / mean
        return rate + _BONUS * sqrt(log(max(2.0, sum(self._tries))) / self._tries[arm])
