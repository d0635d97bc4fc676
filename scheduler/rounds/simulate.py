"""Plays whole rounds of a world on a virtual clock, under a participation rule. Pure, and the same for the same world.

- A device trains until it holds one local period of work, then waits, as a trainer does. A device that could give and
  was left out trains one more.
- A round closes with some devices. They exchange in segments with shares by bandwidth (`mdl.sim.timing.iteration`),
  planned by the links as last measured, over the links as they are.
- A device that holds the exchange up beyond the rule's bound is dropped. It keeps its work, and the others go on
  without it: they have merged what was there, and share out anew what it owned.
- The result goes in the background to all others, from the members' links. Bytes still on their way take part of those
  links in the next exchange. From its arrival on a device's work begins from the newer parameters.

Not modelled: an agent's delay, lost messages, batteries that give out, and a processor that slows down when it is warm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from mdl.devices.energy import MERGE_W, RECEIVE_W, SEND_W
from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import active_end_s, active_s, busy_rate, expected_rest_s, periods_begun
from mdl.errors import LocalProtocolError
from mdl.scheduler.rounds.participation import (
    LEAST_MEMBERS,
    LOOKED_BACK,
    Close,
    DeviceSeen,
    HearsRounds,
    ParticipationRule,
    RoundSeen,
    WaitFor,
    contribution,
    plan_exchange,
    worth,
)
from mdl.scheduler.rounds.world import HORIZON_S, World, WorldDevice
from mdl.sim.timing.iteration import exchange_end_s

# Parts of a device's sum: (the version that it began from, local periods).
Work = tuple[tuple[int, float], ...]
# A wait moves the clock by this much at least: reports come no faster.
_LEAST_WAIT_S = 0.05
# Rounding: a period of work that is counted in several steps must still be whole.
_WHOLE = 1.0 - 1e-9
# When devices are dropped, their results have still to go out: half of the exchange, at least.
_RESULTS = 0.5


@dataclass(frozen=True)
class RoundPlayed:
    """One round. Its result is version `number`; version 0 is the start.

    members: device -> the work that the round holds. dropped: devices that closed it and were then left behind.
    worth: see `mdl.scheduler.rounds.participation`.
    """

    number: int
    opened_s: float
    closed_s: float
    ended_s: float
    members: dict[int, Work]
    dropped: tuple[int, ...]
    worth: float
    reason: str


@dataclass(frozen=True)
class PlayedWorld:
    """A world under a rule. joules: of each device, for training, exchanges and results.

    abandoned: exchanges that ended without a result, since fewer than two members were left.
    """

    world_id: str
    rule: str
    rounds: tuple[RoundPlayed, ...]
    joules: tuple[float, ...]
    abandoned: int
    ended_s: float

    @property
    def progress(self) -> float:
        return sum(each.worth for each in self.rounds)

    def reached_s(self, level: float) -> float:
        """Return the time at which progress reaches the level; inf: it does not."""
        progress = 0.0
        for each in self.rounds:
            progress += each.worth
            if progress >= level:
                return each.ended_s
        return inf

    def shares(self) -> list[float]:
        """Return the share of the rounds that each device took part in."""
        count = max(1, len(self.rounds))
        return [sum(index in each.members for each in self.rounds) / count for index in range(len(self.joules))]

    def longest_gap(self) -> int:
        """Return the most rounds in a row that any device was left out of."""
        longest = 0
        for index in range(len(self.joules)):
            gap = 0
            for each in self.rounds:
                gap = 0 if index in each.members else gap + 1
                longest = max(longest, gap)
        return longest


@dataclass
class _Device:
    """The state of a device. since_s: work is counted up to here. stops_at: it trains until it holds so many periods.

    able_s: the time since which it can give; None: it cannot.

    fetches: version, the time at which the transfer began and ends, and the devices that give it.
    """

    given: WorldDevice
    base: int = 0
    parts: list[tuple[int, float]] = field(default_factory=list)
    since_s: float = 0.0
    stops_at: float = 1.0
    fetches: tuple[int, float, float, tuple[int, ...]] | None = None
    took_part: list[bool] = field(default_factory=list)
    left_out: int = 0
    joules: float = 0.0
    able_s: float | None = None

    @property
    def periods(self) -> float:
        return sum(periods for _, periods in self.parts)

    def ready_s(self) -> float:
        """Return the time at which it holds a local period, if nothing changes."""
        return active_end_s((self.given.busy,), self.since_s, (1.0 - self.periods) * self.given.period_s)

    def train(self, until_s: float) -> None:
        """Count its work until then, as long as it trains."""
        gained = active_s((self.given.busy,), self.since_s, until_s) / self.given.period_s
        gained = min(gained, max(0.0, self.stops_at - self.periods))
        self.since_s = max(self.since_s, until_s)
        if gained <= 0.0:
            return
        self.joules += gained * self.given.period_s * MERGE_W
        if self.parts and self.parts[-1][0] == self.base:
            self.parts[-1] = (self.base, self.parts[-1][1] + gained)
        else:
            self.parts.append((self.base, gained))
        if self.able_s is None and self.periods >= _WHOLE:
            self.able_s = self.since_s


class RoundsMesh:
    """A world in the middle of its rounds: see what a rule sees, then `wait` or `close`, until it is `over`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now_s, self.opened_s, self.abandoned = 0.0, 0.0, 0
        self.rounds: list[RoundPlayed] = []
        self._devices = [_Device(given) for given in world.devices]
        self._names = [str(index) for index in range(len(world.devices))]

    @property
    def over(self) -> bool:
        return self.now_s >= HORIZON_S

    @property
    def joules(self) -> tuple[float, ...]:
        return tuple(device.joules for device in self._devices)

    def see(self) -> RoundSeen:
        """Return what a rule may see now."""
        return RoundSeen(
            number=len(self.rounds) + 1,
            open_s=self.now_s - self.opened_s,
            size_mb=self.world.size_mb,
            latency_s=self.world.latency_s,
            devices=tuple(self._see(index) for index in range(len(self._devices))),
        )

    def wait(self, until_s: float) -> None:
        """Wait until then, in seconds since the round opened, or until a device changes."""
        least_s = self.now_s + _LEAST_WAIT_S
        wanted_s = max(least_s, min(self.opened_s + until_s, HORIZON_S))
        self._advance(max(least_s, min(wanted_s, self._next_change_s())))

    def close(self, close: Close) -> RoundPlayed | None:
        """Close the round and play its exchange; None if it was abandoned, and the same round is open again.

        Raises LocalProtocolError for a set that cannot give: a rule is wrong.
        """
        members = self._members_of(close)
        closed_s = self.now_s
        for index, device in enumerate(self._devices):
            if index not in members and self._can_give(index):
                device.stops_at = max(device.stops_at, int(device.periods + 1e-9) + 1.0)
        ended_s, left = self._exchange(members, close)
        dropped = tuple(index for index in members if index not in left)
        for index in members:  # in an exchange nobody trains
            self._devices[index].since_s = ended_s
        if len(left) < LEAST_MEMBERS:
            self.abandoned += 1
            self.now_s = ended_s
            self._advance(ended_s)
            self.opened_s = ended_s
            return None
        self._advance(ended_s)
        played = self._end_round(left, dropped, closed_s, close.reason)
        self.opened_s = ended_s
        return played

    def _members_of(self, close: Close) -> list[int]:
        members = [self._names.index(name) for name in close.devices if name in self._names]
        able = all(self._can_give(index) for index in members)
        if len(set(members)) != len(close.devices) or len(members) < LEAST_MEMBERS or not able:
            raise LocalProtocolError(f"closed with {close.devices}: expected {LEAST_MEMBERS} or more that can give")
        return members

    def _see(self, index: int) -> DeviceSeen:
        device, now_s = self._devices[index], self.now_s
        given = device.given
        condition = given.condition_at(now_s)
        link_mb_s, spread = given.measured_at(now_s)
        oldest = min((version for version, _ in device.parts), default=device.base)
        return DeviceSeen(
            device_id=self._names[index],
            progress=1.0 if self._can_give(index) and device.periods < 1.0 else device.periods,
            ready_in_s=self._expected_s(index),
            kind=given.kind_at(now_s),
            busy_for_s=given.busy_for_s(now_s),
            link_mb_s=link_mb_s,
            link_spread=spread,
            battery_percent=condition.battery_percent,
            charging=condition.charging,
            celsius=condition.celsius,
            base_age=len(self.rounds) - oldest,
            took_part=sum(device.took_part[-LOOKED_BACK:]),
            left_out=device.left_out,
            able_at_s=None if device.able_s is None else max(0.0, device.able_s - self.opened_s),
        )

    def _can_give(self, index: int) -> bool:
        return self._devices[index].periods >= _WHOLE

    def _expected_s(self, index: int) -> float:
        """Return the seconds until it can give, as far as its kind of use tells: never when a busy time ends."""
        device = self._devices[index]
        if self._can_give(index):
            return 0.0
        kind, busy_for_s = device.given.kind_at(self.now_s), device.given.busy_for_s(self.now_s)
        work_s = (1.0 - device.periods) * device.given.period_s / (1.0 - busy_rate(kind))
        return max(1e-3, work_s + (expected_rest_s(kind, busy_for_s) if busy_for_s > 0.0 else 0.0))

    def _next_change_s(self) -> float:
        """Return the next time at which a device can give, or begins or ends to be busy."""
        found = inf
        for index, device in enumerate(self._devices):
            if not self._can_give(index):
                found = min(found, device.ready_s())
            busy = device.given.busy
            place = periods_begun(busy, self.now_s)
            if place and busy[place - 1][1] > self.now_s:
                found = min(found, busy[place - 1][1])
            elif place < len(busy):
                found = min(found, busy[place][0])
        return found

    def _advance(self, until_s: float) -> None:
        """Let the devices train until then; results arrive on the way."""
        for device in self._devices:
            while device.fetches and device.fetches[2] <= until_s:
                version, _, arrives_s, _ = device.fetches
                device.train(max(arrives_s, device.since_s))
                device.base, device.fetches = version, None
                self._fetch(device, arrives_s)
            if device.since_s < until_s:
                device.train(until_s)
        self.now_s = until_s

    def _end_round(self, left: list[int], dropped: tuple[int, ...], closed_s: float, reason: str) -> RoundPlayed:
        number = len(self.rounds) + 1
        members = {index: tuple(self._devices[index].parts) for index in sorted(left)}
        for index, device in enumerate(self._devices):
            device.took_part.append(index in members)
            if index in members:
                device.base, device.parts, device.stops_at, device.left_out, device.fetches = number, [], 1.0, 0, None
                device.able_s = None
            else:
                device.left_out += 1
        given = [
            contribution((number - 1 - version, periods) for version, periods in parts) for parts in members.values()
        ]
        value = worth(given, [device.left_out for device in self._devices])
        played = RoundPlayed(number, self.opened_s, closed_s, self.now_s, members, dropped, value, reason)
        self.rounds.append(played)
        for index, device in enumerate(self._devices):
            if index not in members and device.fetches is None:
                self._fetch(device, self.now_s)
        return played

    def _fetch(self, device: _Device, from_s: float) -> None:
        """Begin to bring the newest result to a device that lacks it, from the links of that round's members."""
        if not self.rounds or device.base >= self.rounds[-1].number:
            return
        last = self.rounds[-1]
        begins_s = max(from_s, last.ended_s)
        givers = tuple(last.members)
        given_mb_s = sum(self.world.devices[index].link_at(begins_s) for index in givers)
        takers = len(self._devices) - len(givers)
        rate = min(device.given.link_at(begins_s), given_mb_s / max(1, takers))
        ends_s = active_end_s((device.given.busy,), begins_s + self.world.latency_s, self.world.size_mb / rate)
        device.fetches = (last.number, begins_s, ends_s, givers)
        device.joules += RECEIVE_W * self.world.size_mb / rate
        for index in givers:
            self._devices[index].joules += SEND_W * self.world.size_mb / rate / len(givers)

    def _background_mb(self, members: list[int]) -> list[float]:
        """Return the megabytes of results that each link has still to carry, by device; members get the next one."""
        carried = [0.0] * len(self._devices)
        for index, device in enumerate(self._devices):
            if device.fetches is None or index in members:
                continue
            _, begun_s, ends_s, givers = device.fetches
            rest = self.world.size_mb * max(0.0, ends_s - self.now_s) / max(1e-9, ends_s - begun_s)
            for giver in givers:
                carried[giver] += rest / len(givers)
        return carried

    def _exchange(self, members: list[int], close: Close) -> tuple[float, list[int]]:
        """Return the time at which all that are left have the result, and these; fewer than two: abandoned then."""
        seen = [self.world.devices[index].measured_at(self.now_s)[0] for index in members]
        free = [self.world.devices[index].busy_for_s(self.now_s) == 0.0 for index in members]
        size_mb, begun_s = self.world.size_mb, self.now_s
        kept = {self._names.index(name) for name in close.kept}
        carried = self._background_mb(members)
        plan = plan_exchange(seen, free, size_mb, self.world.latency_s)
        shares = dict(zip(members, plan.shares, strict=True))
        left = list(members)
        while True:
            whole = self._scenario(size_mb, carried)
            end_s = exchange_end_s(whole, self._spread(shares), left, begun_s)
            deadline_s = begun_s + close.drop_times * plan.seconds + close.drop_extra_s
            late = self._late(whole, shares, begun_s, deadline_s) if end_s > deadline_s else []
            blocked = [index for index in late if index not in kept]
            if not blocked:
                self._spend(whole, shares, left, size_mb)
                return end_s, left
            left = [index for index in left if index not in blocked]
            if len(left) < LEAST_MEMBERS:
                self._spend(whole, shares, [*left, *blocked], size_mb / 2.0)
                return deadline_s, []
            lost = sum(shares.pop(index) for index in blocked)
            total = sum(shares.values())
            # The owners that are left may have owned nothing: then the fastest owns all that is lost.
            fastest = max(left, key=lambda index: self.world.devices[index].measured_at(self.now_s)[0])
            shares = {index: share / total if total else float(index == fastest) for index, share in shares.items()}
            rest_s = exchange_end_s(whole, self._spread(shares), left, begun_s)
            ahead = max(_RESULTS, (rest_s - deadline_s) / (rest_s - begun_s))
            self._spend(whole, shares, left, size_mb * (1.0 - ahead))
            size_mb *= lost + (1.0 - lost) * ahead
            begun_s = deadline_s
            rates = [self.world.devices[index].measured_at(self.now_s)[0] for index in left]
            plan = plan_exchange(rates, [True] * len(left), size_mb, self.world.latency_s)

    def _scenario(self, size_mb: float, carried: list[float]) -> Scenario:
        """Return the exchange's devices, with the links as they are now, less what the background takes of them."""
        devices = tuple(
            ScenarioDevice(
                0.0,
                given.link_at(self.now_s) * self.world.size_mb / (self.world.size_mb + carried[index]),
                given.merge_mb_s,
                busy=given.busy,
            )
            for index, given in enumerate(self.world.devices)
        )
        return Scenario(self.world.world_id, "rounds", size_mb, self.world.latency_s, devices)

    def _spread(self, shares: dict[int, float]) -> list[float]:
        return [shares.get(index, 0.0) for index in range(len(self._devices))]

    @staticmethod
    def _late(scenario: Scenario, shares: dict[int, float], begun_s: float, deadline_s: float) -> list[int]:
        """Return the members that cannot carry their own bytes by the deadline."""
        found = []
        for index, share in shares.items():
            device = scenario.devices[index]
            own_s = scenario.size_mb * (1.0 + (len(shares) - 2) * share) / device.link_mb_s
            if active_end_s((device.busy,), begun_s, own_s) > deadline_s:
                found.append(index)
        return found

    def _spend(self, scenario: Scenario, shares: dict[int, float], members: list[int], size_mb: float) -> None:
        """Count the energy: each member sends and receives M (1 + (k - 2) s), an owner merges its share."""
        for index in members:
            share, device = shares[index], scenario.devices[index]
            carried_s = size_mb * (1.0 + (len(members) - 2) * share) / device.link_mb_s
            merged_s = size_mb * share * (len(members) - 1) / device.merge_mb_s
            self._devices[index].joules += (SEND_W + RECEIVE_W) * carried_s + MERGE_W * merged_s


def play_world(world: World, rule: ParticipationRule, level: float) -> PlayedWorld:
    """Play rounds until progress reaches the level, or the world's horizon."""
    mesh, progress = RoundsMesh(world), 0.0
    while progress < level and not mesh.over:
        decision = rule.decide(mesh.see())
        if isinstance(decision, WaitFor):
            mesh.wait(decision.until_s)
            continue
        opened_s = mesh.opened_s
        played = mesh.close(decision)
        progress += played.worth if played else 0.0
        if isinstance(rule, HearsRounds):
            rule.hear(mesh.now_s - opened_s, played.worth if played else 0.0)
    return PlayedWorld(world.world_id, rule.name, tuple(mesh.rounds), mesh.joules, mesh.abandoned, mesh.now_s)
