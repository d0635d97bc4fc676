"""Fault plans drawn from seeds, and kinds of faults that a flag adds to a drawn plan. Pure.

A seed gives the same plan as long as this module is the same; a plan that once failed is kept in full
(tests/sim/mesh/plans). A flag draws its faults apart, so that all other faults of a seed stay as they were. Flags add
leaves (users end their devices), power cuts, backups, cloned cards, starved processors, revocations and liars. They add
long splits, too: groups go on as forks, and meet again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.sim.plans.fault_plan import (
    ANYBODY,
    DISK_FORGETS_S,
    ITSELF,
    OFFICE,
    AnyFault,
    Burst,
    ClockJump,
    Clone,
    Crash,
    CrashOn,
    Cut,
    CutOneWay,
    DiskFull,
    FaultPlan,
    Leave,
    Lie,
    Moment,
    PowerCut,
    Restart,
    Restore,
    Revoke,
    Split,
    Starve,
    Step,
    Suspend,
    TimedFault,
    TornFile,
    ordered,
    round_s,
)

LEVELS = ("none", "mild", "hard")
# Devices, and rounds, of the wide family.
SIZES = range(2, 10)
LENGTHS = range(1, 13)
# Messages that an agent sends, and that it and the trainers hear: the steps of a round at which a device can be lost.
OFFICE_SAYS = ("RoundOpened", "HopOrdered", "HopReleased", "BroadcastOrdered", "RoundClosed", "CatchUp")
PEERS_SAY = (
    "PeerReport",
    "DeltaWanted",
    "DeltaMessage",
    "GlobalWanted",
    "GlobalTaken",
    "GlobalMessage",
    "ModelMessage",
)
# They also send these in an exchange in segments: listed twice, since there is far more of them than of all others.
SEGMENTS_SAY = 2 * ("SegmentsReady", "PieceMessage", "SegmentMessage", "SegmentTaken")
# There are dozens of these in a round.
OFTEN_SAID = frozenset(("PeerReport", *SEGMENTS_SAY))
STEPS_OF_SEGMENTS = (Step.GIVEN, Step.GOT)
STEPS_OF_OFFICE = (Step.OPENED, Step.PROPOSED, Step.CLOSING)


def draw_plan(
    seed: int,
    peers: int,
    rounds: int,
    level: str,
    policy: str = "greedy",
    has_agent: bool | None = None,
    on_partition: str | None = None,
    exchange: Exchange = "chain",
) -> FaultPlan:
    """Draw the plan of this seed. level: one of LEVELS.

    has_agent, on_partition: None draws them too, except at level none (an agent, which waits). exchange: segments have
    more moments at which a device can be lost, so that a seed gives another plan.
    """
    rng = np.random.default_rng([seed, 0xFA017])
    any_agent, any_partition = bool(rng.random() < 0.5), "continue" if rng.random() < 1 / 3 else "wait"
    if level == "none":
        any_agent, any_partition = True, "wait"
    has_agent = any_agent if has_agent is None else has_agent
    plan = FaultPlan(seed, peers, rounds, policy, has_agent, on_partition or any_partition, exchange)
    if level == "none":
        return plan
    most, kinds = (_MILD_NETWORK, _MILD) if level == "mild" else (_HARD_NETWORK, _HARD)
    loss, duplication, jitter_s = (_below(rng, limit) for limit in most)
    plan = replace(plan, loss=loss, duplication=duplication, jitter_s=jitter_s)
    count = int(rng.integers(0, 3) if level == "mild" else rng.integers(1, 6))
    return replace(plan, faults=_Draw(rng, plan).faults(count, kinds))


def draw_wide(
    seed: int,
    level: str,
    policy: str = "greedy",
    has_agent: bool | None = None,
    on_partition: str | None = None,
    exchange: Exchange = "chain",
) -> FaultPlan:
    """Draw the plan of this seed in the wide family: sizes and lengths in equal parts, and faults in every round.

    Consecutive seeds go through all pairs of a size and a length, each once. Round 1 has more faults, since the first
    decision of every device rests upon it. A quarter has a network without loss, so that only the faults matter. In a
    quarter of level hard, some messages arrive later than others that were sent long after them.
    """
    rng = np.random.default_rng([seed, 0x51DE])
    size, length = seed % len(SIZES), seed // len(SIZES) % len(LENGTHS)
    any_agent, any_partition = bool(rng.random() < 0.5), "continue" if rng.random() < 0.5 else "wait"
    has_agent = any_agent if has_agent is None else has_agent
    partition = on_partition or any_partition
    plan = FaultPlan(seed, SIZES[size], LENGTHS[length], policy, has_agent, partition, exchange)
    if level == "none":
        return plan
    most, kinds = (_MILD_NETWORK, _MILD) if level == "mild" else (_HARD_NETWORK, _HARD)
    if rng.random() < 0.75:
        loss, duplication, jitter_s = (_below(rng, limit) for limit in most)
        plan = replace(plan, loss=loss, duplication=duplication, jitter_s=jitter_s)
    draw, faults = _Draw(rng, plan), list[AnyFault]()
    begins_s, round_s = 1.0 if has_agent else 2.8, 1.0 + 20.0 * plan.loss  # roughly: of round 1, of each
    for round_id in range(1, plan.rounds + 1):
        draw.window_s = (0.05 if round_id == 1 else begins_s), begins_s + round_s
        begins_s += round_s
        for _ in range(int(rng.integers(1, 5) if round_id == 1 else rng.integers(0, 3))):
            if level == "hard" and rng.random() < 0.5:
                faults.append(_burst(draw, round_id))
            else:
                faults += kinds[int(rng.integers(len(kinds)))](draw)
    if level == "hard" and rng.random() < 0.25:
        plan = replace(plan, late=_below(rng, _MOST_LATE))
    return replace(plan, faults=ordered(faults))


def steps_of(exchange: Exchange) -> list[Step]:
    """List the steps of a decision in such an exchange."""
    return [step for step in Step if exchange != "chain" or step not in STEPS_OF_SEGMENTS]


class _Draw:
    """Draws faults one after the other; remembers devices that stay away or have bad disks: each less than half."""

    def __init__(self, rng: np.random.Generator, plan: FaultPlan) -> None:
        self.rng = rng
        self.plan = plan
        self.window_s = 0.05, 0.8 * plan.rounds + 2.6  # the start, and the least time of the rounds
        self.minority = (plan.peers - 1) // 2
        in_segments = plan.exchange != "chain"
        self.peers_say = PEERS_SAY + SEGMENTS_SAY if in_segments else PEERS_SAY
        self.steps = steps_of(plan.exchange)
        self.may_stay_away = rng.random() < 0.2
        self.away: set[str] = set()
        self.bad_disks: set[str] = set()

    def faults(self, count: int, kinds: tuple[Callable[[_Draw], list[AnyFault]], ...]) -> tuple[AnyFault, ...]:
        drawn = [fault for _ in range(count) for fault in kinds[int(self.rng.integers(len(kinds)))](self)]
        return ordered(drawn)

    def at_s(self) -> float:
        return round(float(self.rng.uniform(*self.window_s)), 3)

    def for_s(self, longest_s: float = 4.0) -> float:
        """Draw a duration: mostly short, sometimes long enough to be lost and to miss a round."""
        return round(float(0.1 + (longest_s - 0.1) * self.rng.random() ** 2), 3)

    def node(self) -> str:
        return str(self.rng.choice(self.plan.node_ids()))

    def peer(self) -> str:
        return str(self.rng.choice(self.plan.peer_ids()))

    def two(self) -> tuple[str, str]:
        ids = self.plan.node_ids()
        first, second = self.rng.permutation(len(ids))[:2] if len(ids) > 1 else (0, 0)
        return ids[first], ids[second]

    def restart_after_s(self, peer: str) -> float | None:
        if self.may_stay_away and len(self.away | {peer}) <= self.minority and self.rng.random() < 0.5:
            self.away.add(peer)
            return None
        return self.for_s(3.0)

    def disk(self) -> str:
        """Draw a peer with a failing disk: at most a minority fails, or models saved by a majority could be lost."""
        peer = self.peer()
        if peer not in self.bad_disks and len(self.bad_disks) >= self.minority:
            peer = min(self.bad_disks, default=peer)
        self.bad_disks.add(peer)
        return peer


def _below(rng: np.random.Generator, most: float) -> float:
    return round(float(rng.uniform(0.0, most)), 3)


def _crash(draw: _Draw) -> list[AnyFault]:
    peer, at_s = draw.node(), draw.at_s()
    back_s = draw.restart_after_s(peer)
    crash = Crash(at_s=at_s, peer=peer)
    return [crash] if back_s is None else [crash, Restart(at_s=round(at_s + back_s, 3), peer=peer)]


def _restart(draw: _Draw) -> list[AnyFault]:
    return [Restart(at_s=draw.at_s(), peer=draw.node())]


def _crash_all(draw: _Draw) -> list[AnyFault]:
    at_s = draw.at_s()
    down: list[AnyFault] = [Crash(at_s=at_s, peer=peer) for peer in draw.plan.node_ids()]
    return [*down, *(Restart(at_s=round(at_s + draw.for_s(2.0), 3), peer=peer) for peer in draw.plan.node_ids())]


def _suspend(draw: _Draw) -> list[AnyFault]:
    return [Suspend(at_s=draw.at_s(), peer=draw.node(), for_s=draw.for_s())]


def _cut(draw: _Draw) -> list[AnyFault]:
    a, b = draw.two()
    return [Cut(at_s=draw.at_s(), a=a, b=b, for_s=draw.for_s())]


def _cut_one_way(draw: _Draw) -> list[AnyFault]:
    a, b = draw.two()
    return [CutOneWay(at_s=draw.at_s(), a=a, b=b, for_s=draw.for_s())]


def _split(draw: _Draw) -> list[AnyFault]:
    ids = draw.plan.node_ids()
    size = int(draw.rng.integers(1, max(2, len(ids))))
    group = tuple(sorted(ids[number] for number in draw.rng.permutation(len(ids))[:size]))
    return [Split(at_s=draw.at_s(), group=group, for_s=draw.for_s())]


def _clock_jump(draw: _Draw) -> list[AnyFault]:
    return [ClockJump(at_s=draw.at_s(), peer=draw.node(), by_s=draw.for_s(20.0))]


def _disk_full(draw: _Draw) -> list[AnyFault]:
    if not draw.minority:
        return []
    return [DiskFull(at_s=draw.at_s(), peer=draw.disk(), for_s=draw.for_s())]


def _torn_file(draw: _Draw) -> list[AnyFault]:
    """Tear a file; this matters only at a restart, so one follows."""
    if not draw.minority:
        return []
    peer, at_s = draw.disk(), draw.at_s()
    back_s = round(at_s + draw.for_s(2.0), 3)
    return [TornFile(at_s=at_s, peer=peer), Crash(at_s=at_s, peer=peer), Restart(at_s=back_s, peer=peer)]


def _crash_on(draw: _Draw) -> list[AnyFault]:
    """Crash at a message: the node in office twice as often as a given one."""
    if draw.rng.random() < 2 / 3:
        peer, moment = OFFICE, Moment.BEFORE_SAYING if draw.rng.random() < 0.5 else Moment.AFTER_SAYING
        message = str(draw.rng.choice(OFFICE_SAYS))
        if draw.rng.random() < 0.3:
            message, moment = "PeerReport", Moment.AFTER_HEARING
        elif draw.plan.exchange != "chain" and draw.rng.random() < 0.3:
            message = str(draw.rng.choice(SEGMENTS_SAY))  # for an agent that is an owner
    else:
        peer, moment = draw.peer(), list(Moment)[int(draw.rng.integers(4))]
        says = moment in (Moment.BEFORE_SAYING, Moment.AFTER_SAYING)
        message = str(draw.rng.choice(draw.peers_say if says else OFFICE_SAYS + draw.peers_say[1:]))
    nth = int(draw.rng.integers(1, 40 if message in OFTEN_SAID else 6))
    back_s = draw.restart_after_s(peer)
    at_s = draw.at_s() if draw.rng.random() < 0.5 else 0.0
    return [CrashOn(at_s=at_s, peer=peer, message=message, nth=nth, moment=moment, restart_after_s=back_s)]


def _burst(draw: _Draw, round_id: int) -> Burst:
    """Let one to three things go wrong at one step of a decision; one may be a row of restarts."""
    rng, plan = draw.rng, draw.plan
    step = draw.steps[int(rng.integers(len(draw.steps)))]
    peer = OFFICE if step in STEPS_OF_OFFICE else ANYBODY if rng.random() < 2 / 3 else draw.peer()
    nth = int(rng.integers(1, plan.peers + 1))
    faults: list[TimedFault] = []
    if rng.random() < 0.7:
        faults += _start_anew(draw, ITSELF, 0.0)
    for _ in range(int(rng.integers(0 if faults else 1, 3))):
        faults += _BURSTING[int(rng.integers(len(_BURSTING)))](draw)
    before, inner = rng.random() < 0.5, ordered(faults)
    return Burst(at_s=0.0, peer=peer, round_id=round_id, step=step, nth=nth, before=before, faults=inner)


def _start_anew(draw: _Draw, peer: str, at_s: float) -> list[TimedFault]:
    return [Crash(at_s=at_s, peer=peer), Restart(at_s=round(at_s + draw.for_s(3.0), 3), peer=peer)]


def _soon_s(draw: _Draw) -> float:
    """Draw a delay: none, or within about a round trip or a training."""
    return 0.0 if draw.rng.random() < 0.5 else round(float(draw.rng.uniform(0.01, 0.6)), 3)


def _office_anew(draw: _Draw) -> list[TimedFault]:
    return _start_anew(draw, OFFICE, _soon_s(draw))


def _one_anew(draw: _Draw) -> list[TimedFault]:
    return _start_anew(draw, draw.peer(), _soon_s(draw))


def _restarts(draw: _Draw) -> list[TimedFault]:
    """Restart some devices or all, one soon after the other."""
    ids = draw.plan.node_ids()
    some = draw.rng.permutation(len(ids))[: int(draw.rng.integers(1, len(ids) + 1))]
    return [Restart(at_s=_soon_s(draw), peer=ids[number]) for number in some]


def _still(draw: _Draw) -> list[TimedFault]:
    peer = (OFFICE, ITSELF, draw.peer())[int(draw.rng.integers(3))]
    return [Suspend(at_s=0.0, peer=peer, for_s=draw.for_s())]


def _apart(draw: _Draw) -> list[TimedFault]:
    peer = (OFFICE, ITSELF, draw.peer())[int(draw.rng.integers(3))]
    return [Split(at_s=_soon_s(draw), group=(peer,), for_s=draw.for_s(6.0))]


def _unsaved(draw: _Draw) -> list[TimedFault]:
    """Prevent the save of a model; the ballot is written in place and kept."""
    if not draw.minority:
        return _one_anew(draw)
    peer = draw.disk()
    return [DiskFull(at_s=0.0, peer=peer, for_s=2.0), Restart(at_s=round(1.0 + _soon_s(draw), 3), peer=peer)]


# The most loss, duplication and jitter in seconds.
_MILD_NETWORK = (0.1, 0.05, 0.05)
_HARD_NETWORK = (0.3, 0.1, 0.15)
# The largest share of all messages that arrive late, in plans that have some.
_MOST_LATE = 0.1
_MILD = (_crash, _suspend, _cut)
_HARD = (
    _crash, _crash, _restart, _suspend, _suspend, _cut, _cut_one_way, _split, _clock_jump, _disk_full, _torn_file,
    _crash_on, _crash_on, _crash_on, _crash_all,
)  # fmt: skip
_BURSTING = (_office_anew, _one_anew, _restarts, _still, _apart, _unsaved)


# The share of plans in which all devices are ended at once.
_ALL = 0.1
_MOST_LEAVES, _LONGEST_LEAVE_S = 3, 4.0


def with_leaves(plan: FaultPlan) -> FaultPlan:
    """Add leaves to a plan: users end devices, at any moment or at a step of a decision; sometimes all at once.

    Most are back soon. The others, together with those that stay away anyhow, are a minority.
    """
    rng = np.random.default_rng([plan.seed, 0x1EA7E])
    faults = list(plan.faults)
    for number in rng.permutation(plan.peers)[: int(rng.integers(1, _MOST_LEAVES + 1))]:
        peer, stays = plan.peer_ids()[number], replace(plan, faults=tuple(faults)).stays_away()
        may_stay = len(stays | {peer}) <= (plan.peers - 1) // 2
        faults += _leave_at_a_step(rng, plan) if rng.random() < 0.5 else _at_some_time(rng, plan, peer, may_stay)
    if rng.random() < _ALL:
        faults += _all(rng, plan)
    return replace(plan, faults=ordered(faults))


def _at_some_time(rng: np.random.Generator, plan: FaultPlan, peer: str, may_stay: bool) -> list[AnyFault]:
    at_s = round_s(rng.uniform(0.05, 0.8 * plan.rounds + 3.0))
    leave, back = Leave(at_s=at_s, peer=peer), Restart(at_s=round_s(at_s + _away_s(rng)), peer=peer)
    return [leave] if may_stay and rng.random() < 0.3 else [leave, back]


def _leave_at_a_step(rng: np.random.Generator, plan: FaultPlan) -> list[AnyFault]:
    steps = steps_of(plan.exchange)
    step = steps[int(rng.integers(len(steps)))]
    round_id, nth = (int(rng.integers(1, most + 1)) for most in (plan.rounds, plan.peers))
    at_s = 0.0 if rng.random() < 0.5 else round_s(rng.uniform(0.01, 0.6))
    ends = Leave(at_s=at_s, peer=ITSELF), Restart(at_s=round_s(at_s + _away_s(rng)), peer=ITSELF)
    peer, before = OFFICE if step in STEPS_OF_OFFICE else ANYBODY, bool(rng.random() < 0.5)
    return [Burst(at_s=0.0, peer=peer, round_id=round_id, step=step, nth=nth, before=before, faults=ends)]


def _all(rng: np.random.Generator, plan: FaultPlan) -> list[AnyFault]:
    at_s = rng.uniform(0.05, 0.8 * plan.rounds + 3.0)
    ends: list[AnyFault] = [Leave(at_s=round_s(at_s + rng.uniform(0.0, 0.15)), peer=peer) for peer in plan.peer_ids()]
    return [*ends, *(Restart(at_s=round_s(at_s + 0.2 + _away_s(rng)), peer=peer) for peer in plan.peer_ids())]


def _away_s(rng: np.random.Generator) -> float:
    return float(0.1 + _LONGEST_LEAVE_S * rng.random() ** 2)


_MOST_MACHINES = 3
# The share of power cuts that hit all devices of a home; the others hit some devices.
_OF_ALL = 0.5
# The share of disks that keep what they call safe; and the share of the others that lose writes of only one file.
_HONEST, _UNORDERED = 0.2, 0.3
# A machine is back after some seconds; a simulated mesh goes on without a majority after 4.
_SHORTEST_AWAY_S, _LONGEST_AWAY_S = 0.2, 5.0
_OLDEST_S = 8.0
_STARVED_S = (8.0, 12.0)


def with_power_cuts(plan: FaultPlan) -> FaultPlan:
    """Add power cuts to a plan: power goes once to three times, at any moment or at a step of a decision.

    All devices lose it at once, or some; each disk loses its last 0 to 2 s. All are back soon.
    """
    rng = np.random.default_rng([plan.seed, 0xB1AC])
    faults = list(plan.faults)
    for _ in range(int(rng.integers(1, _MOST_MACHINES + 1))):
        is_all, at_a_step = rng.random() < _OF_ALL, rng.random() < 0.5
        peers = plan.peer_ids() if is_all else _some(rng, plan)
        if at_a_step:
            faults.append(_power_cut_at_a_step(rng, plan, peers))
        else:
            faults += _power_cuts(rng, peers, _some_time(rng, plan))
    return replace(plan, faults=ordered(faults))


def with_copies(plan: FaultPlan) -> FaultPlan:
    """Add copies to a plan: backups are put back, and copies of cards are used in a device's place."""
    rng = np.random.default_rng([plan.seed, 0xC0B1])
    faults = list(plan.faults)
    for peer in _some(rng, plan)[:_MOST_MACHINES]:
        at_s, age_s = _some_time(rng, plan), round_s(rng.uniform(0.1, _OLDEST_S))
        if rng.random() < 0.5:
            faults.append(Restore(at_s=at_s, peer=peer, age_s=age_s))
        else:
            faults.append(Clone(at_s=at_s, peer=peer, age_s=age_s, for_s=round_s(rng.uniform(0.5, 6.0))))
    return replace(plan, faults=ordered(faults))


def with_starved(plan: FaultPlan) -> FaultPlan:
    """Add starvation to a plan: devices get hardly any or no processor for about 10 s; in some plans all at once."""
    rng = np.random.default_rng([plan.seed, 0x57A8])
    faults = list(plan.faults)
    at_s, is_at_once = _some_time(rng, plan), rng.random() < 0.5
    for peer in plan.peer_ids() if rng.random() < 0.2 else _some(rng, plan)[:_MOST_MACHINES]:
        every_s = 0.0 if rng.random() < 0.5 else round_s(rng.uniform(0.5, 4.0))
        begins_s, for_s = at_s if is_at_once else _some_time(rng, plan), round_s(rng.uniform(*_STARVED_S))
        faults.append(Starve(at_s=begins_s, peer=peer, for_s=for_s, every_s=every_s))
    return replace(plan, faults=ordered(faults))


def _some(rng: np.random.Generator, plan: FaultPlan) -> list[str]:
    """Pick some devices, at least one."""
    return [plan.peer_ids()[number] for number in rng.permutation(plan.peers)[: int(rng.integers(1, plan.peers + 1))]]


def _some_time(rng: np.random.Generator, plan: FaultPlan) -> float:
    return round_s(rng.uniform(0.05, 0.8 * plan.rounds + 3.0))


def _power_cuts(rng: np.random.Generator, peers: list[str], at_s: float) -> list[TimedFault]:
    """Cut the power of each peer and restart it: in the same order, or each in its own time."""
    faults: list[TimedFault] = []
    for peer in peers:
        loses_s = 0.0 if rng.random() < _HONEST else round_s(rng.uniform(0.0, DISK_FORGETS_S))
        other_s = round_s(rng.uniform(0.0, DISK_FORGETS_S)) if rng.random() < _UNORDERED else loses_s
        away_s = _SHORTEST_AWAY_S + (_LONGEST_AWAY_S - _SHORTEST_AWAY_S) * rng.random() ** 2
        faults.append(PowerCut(at_s=at_s, peer=peer, loses_s=loses_s, ballot_loses_s=other_s))
        faults.append(Restart(at_s=round_s(at_s + away_s), peer=peer))
    return faults


def _power_cut_at_a_step(rng: np.random.Generator, plan: FaultPlan, peers: list[str]) -> Burst:
    """Cut the power of the device that takes the step, and of the others, at once or within the next second."""
    steps = steps_of(plan.exchange)
    step = steps[int(rng.integers(len(steps)))]
    round_id, nth = (int(rng.integers(1, most + 1)) for most in (plan.rounds, plan.peers))
    peer, before = OFFICE if step in STEPS_OF_OFFICE else ANYBODY, bool(rng.random() < 0.5)
    at_s = 0.0 if rng.random() < 0.5 else round_s(rng.uniform(0.01, 1.0))
    faults = ordered(_power_cuts(rng, [ITSELF, *peers[1:]], at_s))
    return Burst(at_s=0.0, peer=peer, round_id=round_id, step=step, nth=nth, before=before, faults=faults)


# The share of plans with a network that loses nothing, so that every device that can be reached knows in time.
_SOUND = 0.25
_LIES = (1000.0, -1000.0)


def with_revocations(plan: FaultPlan) -> FaultPlan:
    """Add revocations to a plan; the revoked devices and those that stay away are together a minority.

    Half of them come with another fault at about that time: a cut, a split, a restart, a suspension.
    """
    rng = np.random.default_rng([plan.seed, 0x0FF])
    most = (plan.peers - 1) // 2 - len(plan.stays_away())
    if most < 1:
        return plan
    if rng.random() < _SOUND:
        plan = replace(plan, loss=0.0, duplication=0.0, late=0.0)
    faults = list(plan.faults)
    for number in rng.permutation(len(plan.node_ids()))[: int(rng.integers(1, most + 1))]:
        peer = OFFICE if rng.random() < 0.25 else plan.node_ids()[number]
        faults += _revocation(rng, plan, peer)
    return replace(plan, faults=ordered(faults))


def with_liars(plan: FaultPlan, count: int) -> FaultPlan:
    """Add liars to a plan: so many devices give a thousand times their true values, as long as its rounds may take.

    They are less than half: others must be left to judge. The vectors share no value, so only lengths expose a lie.
    """
    rng = np.random.default_rng([plan.seed, 0x11A5])
    liars = rng.permutation(plan.peers)[: min(count, (plan.peers - 1) // 2)]
    lies = [
        Lie(at_s=0.0, peer=f"p{number}", times=float(rng.choice(_LIES)), for_s=2.0 * plan.rounds) for number in liars
    ]
    return replace(plan, faults=(*lies, *plan.faults))


def _revocation(rng: np.random.Generator, plan: FaultPlan, peer: str) -> list[AnyFault]:
    at_s = round_s(rng.uniform(0.05, 0.8 * plan.rounds + 3.0))
    others = [each for each in plan.node_ids() if each != peer]
    by, third = (others[int(rng.integers(len(others)))] for _ in range(2))
    revoke = Revoke(at_s=at_s, peer=peer, by=by, heeds=bool(rng.random() < 1 / 3))
    if rng.random() < 0.5:
        return [revoke]
    return [revoke, _beside(rng, plan, revoke, third)]


def _beside(rng: np.random.Generator, plan: FaultPlan, revoke: Revoke, third: str) -> AnyFault:
    """Draw a fault near the moment of a revocation. third: a device, perhaps the one that revokes."""
    at_s, for_s = round_s(max(0.0, revoke.at_s - rng.uniform(0.0, 1.0))), round_s(rng.uniform(0.3, 5.0))
    match int(rng.integers(5)):
        case 0:
            return Restart(at_s=round_s(revoke.at_s + rng.uniform(0.0, 2.0)), peer=(revoke.by, third)[rng.integers(2)])
        case 1:
            return Restart(at_s=round_s(revoke.at_s + rng.uniform(0.0, 2.0)), peer=revoke.peer)
        case 2:
            return Suspend(at_s=at_s, peer=third, for_s=for_s)
        case 3:
            return (
                Cut(at_s=at_s, a=revoke.by, b=third, for_s=for_s)
                if third != revoke.by
                else _split_beside(rng, plan, at_s)
            )
        case _:
            return replace(_split_beside(rng, plan, at_s), for_s=for_s)


def _split_beside(rng: np.random.Generator, plan: FaultPlan, at_s: float) -> Split:
    ids = plan.node_ids()
    some = rng.permutation(len(ids))[: int(rng.integers(1, len(ids)))]
    return Split(at_s=at_s, group=tuple(sorted(ids[number] for number in some)), for_s=round_s(rng.uniform(0.3, 5.0)))


# Groups apart from the beginning are two meshes, which do not add up (docs/faults.md): round 1 has begun by then.
_FROM_S = 4.0
_FEWEST_SPLITS, _MOST_SPLITS = 2, 7
# A group goes on without its majority after 4 s of a simulated mesh.
_SHORTEST_SPLIT_S, _LONGEST_SPLIT_S = 2.0, 14.0


def with_splits(plan: FaultPlan) -> FaultPlan:
    """Add splits to a plan: groups, pairs or single devices are apart 2 to 7 times, for 2 to 14 s each."""
    rng = np.random.default_rng([plan.seed, 0x5A117])
    last_s = _FROM_S + 2.0 * plan.rounds
    apart = [
        _long_split(rng, plan, round_s(rng.uniform(_FROM_S, last_s)))
        for _ in range(rng.integers(_FEWEST_SPLITS, _MOST_SPLITS + 1))
    ]
    return replace(plan, faults=ordered([*plan.faults, *apart]))


def _long_split(rng: np.random.Generator, plan: FaultPlan, at_s: float) -> TimedFault:
    ids, for_s, kind = plan.node_ids(), round_s(rng.uniform(_SHORTEST_SPLIT_S, _LONGEST_SPLIT_S)), rng.random()
    some = [ids[number] for number in rng.permutation(len(ids))]
    if kind < 0.2 or len(ids) < 2:
        return Suspend(at_s=at_s, peer=some[0], for_s=for_s)
    if kind < 0.3:
        return Cut(at_s=at_s, a=some[0], b=some[1], for_s=for_s)
    if kind < 0.4:
        return CutOneWay(at_s=at_s, a=some[0], b=some[1], for_s=for_s)
    return Split(at_s=at_s, group=tuple(sorted(some[: int(rng.integers(1, len(ids)))])), for_s=for_s)
