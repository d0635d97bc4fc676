"""A round until one holder has everybody in it (MDLdroid 3.2.2): announce it, order pairs, mend what faults leave.

In segments it lasts until everybody holds its own delta, and a plan says in which segments they become the result. Then
no pair is ordered, and the round goes on with the broadcast at once. The next step follows from the ledger alone, and
is said again until a report shows that it was heard (`Repeater`, at most once every `retry_s`). Values never come here:
theta and contributors are those of the reports. Pure.

The mesh's participation rule (`mdl.scheduler.rounds`) says which devices take part (`TakingPart`). It sees all live
members: when each can give, the speed of its link, and how often it was left out. It decides once in a round. Work of a
device that is left out comes with a later round. The policy that orders pairs sees the round as `chain_view` makes it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import cast

import msgspec

from mdl.bounds import first_few
from mdl.peers.roles.agent.doubt import Judging, SecondOpinion
from mdl.peers.roles.agent.ledger import ABORTED, MERGED, Hop, RoundLedger
from mdl.peers.roles.agent.settings import AgentSettings, TimeLimit
from mdl.peers.roles.membership.members import Members, ReportChange, TrainerSeen
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import coding_in
from mdl.protocol.machine import Effect, Send
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import (
    NOTHING_CAME,
    AgentMessage,
    BroadcastOrdered,
    HopCancelled,
    HopOrdered,
    HopReleased,
    RoundOpened,
    exchanging,
)
from mdl.protocol.status_messages import LEFT_OUT
from mdl.protocol.vocabulary import Activity, Holding, ResourceState
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Policy, Wait, go_around
from mdl.scheduler.policies.device_book import DeviceBook, learn_from_hop, usual_link
from mdl.scheduler.policies.segment_plan import SegmentPlan, plan_segments
from mdl.scheduler.rounds.participation import LOOKED_BACK, Bounds, Close, DeviceSeen, RoundSeen, mesh_rule

logger = logging.getLogger(__name__)


class Attendance:
    """See the module. It begins anew with each agent."""

    def __init__(self) -> None:
        self._given: deque[frozenset[str]] = deque(maxlen=LOOKED_BACK)
        self._left_out: dict[str, int] = {}
        self._trains_since: dict[Contributor, float] = {}

    @property
    def rounds(self) -> int:
        """The number of rounds looked back on, at most `LOOKED_BACK`."""
        return len(self._given)

    def open(self, members: Collection[Contributor], now: float) -> None:
        """Note that a round has opened: its members train, those left out before it since then."""
        self._trains_since = {peer: self._trains_since.get(peer, now) for peer in members}

    def close(self, given: Collection[Contributor], behind: Collection[Contributor], here: Collection[str]) -> None:
        """Note a closed round. given: the devices with work in it. behind: those without its result as it closed.

        here: the peer ids of all that might have given some.
        """
        names = frozenset(peer.peer_id for peer in given if peer not in behind)
        self._given.append(names)
        before = self._left_out
        self._left_out = {peer_id: before.get(peer_id, 0) + 1 for peer_id in here if peer_id not in names}
        for peer in given:
            self._trains_since.pop(peer, None)

    def took_part(self, peer_id: str) -> int:
        """Return its rounds among the last ones."""
        return sum(peer_id in given for given in self._given)

    def left_out(self, peer_id: str) -> int:
        """Return the rounds in a row, up to now, that closed without it."""
        return self._left_out.get(peer_id, 0)

    def trains_since(self, peer: Contributor, opened_at: float) -> float:
        """Return the time since which it trains; the opening of the round if nothing else is known."""
        return self._trains_since.get(peer, opened_at)


# A training that is due is expected to take this share of its usual time more. One that is late takes as long again as
# it is late: training times have no bound that an agent knows.
_LATE_SHARE = 0.1
# Links of a round in which nobody has measured any: alike, and without an exchange that would be worth a second.
_UNKNOWN_MB_S = 1e6


class TakingPart:
    """See the module."""

    def __init__(self, ledger: RoundLedger, members: Members, limit: TimeLimit, attendance: Attendance) -> None:
        self._ledger = ledger
        self._members = members
        self._limit = limit
        self._attendance = attendance
        bounds = Bounds(limit.wait_for, limit.grace_s, float(limit.left_out_at_most))
        self._rule = mesh_rule(limit.rule, bounds)
        self._is_closed = limit.is_for_all

    def leave_out(self, now: float) -> dict[Contributor, str]:
        """Return the devices to leave out from here on, and why; {}: none, or it is not decided yet."""
        if self._is_closed:
            return {}
        peers = {peer.peer_id: peer for peer in self._ledger.live()}
        seen = self._see(list(peers.values()), now)
        decision = self._rule.decide(seen)
        if not isinstance(decision, Close):
            return {}
        self._is_closed = True
        out = [each for each in seen.devices if each.device_id not in decision.devices]
        told = {peers[each.device_id]: self._tell(seen, each, peers[each.device_id], now) for each in out}
        return {peer: why for peer, why in told.items() if self._may_be_left(peer)}

    def _may_be_left(self, peer: Contributor) -> bool:
        """Return True if no other device's work would have to be given again without it."""
        holding = self._ledger.holding(peer)
        return holding is None or (holding.sent_hop is None and holding.contributors == (peer,))

    def _see(self, peers: list[Contributor], now: float) -> RoundSeen:
        members = {peer: member for peer in peers if (member := self._members.get(peer))}
        usual_mb_s = usual_link((member.device.link_mb_s for member in members.values()), _UNKNOWN_MB_S)
        took_s = [at - self._ledger.opened_at for peer in peers if (at := self._ledger.ready_at.get(peer)) is not None]
        others_s = median(took_s) if took_s else now - self._ledger.opened_at
        size = max((member.report.size for member in members.values()), default=0)
        return RoundSeen(
            number=self._ledger.round_id,
            open_s=now - self._ledger.opened_at,
            size_mb=4e-6 * size,
            latency_s=0.0,
            devices=tuple(
                self._see_device(peer, member.device, usual_mb_s, others_s, now) for peer, member in members.items()
            ),
            members=len(self._ledger.members),
        )

    def _see_device(
        self, peer: Contributor, book: DeviceBook, usual_mb_s: float, others_s: float, now: float
    ) -> DeviceSeen:
        """others_s: the time that others took; a device that nobody has seen train is expected to take as long."""
        ledger, attendance = self._ledger, self._attendance
        usual_s = book.training_s if book.training_s is not None else others_s
        ready_at = ledger.ready_at.get(peer) if ledger.holding(peer) else None
        left_out = attendance.left_out(peer.peer_id)
        spent_s = now - attendance.trains_since(peer, ledger.opened_at)
        return DeviceSeen(
            device_id=peer.peer_id,
            progress=float(ready_at is not None),
            ready_in_s=0.0 if ready_at is not None else _time_left_s(usual_s, spent_s),
            link_mb_s=book.link_mb_s or usual_mb_s,
            kind=book.kind(now),
            base_age=left_out,
            took_part=attendance.took_part(peer.peer_id),
            left_out=left_out,
            able_at_s=None if ready_at is None else max(0.0, ready_at - ledger.opened_at),
            is_new=book.training_s is None,
        )

    def _tell(self, seen: RoundSeen, device: DeviceSeen, peer: Contributor, now: float) -> str:
        """Tell why a device is left out, in one clause, and the round that waits for it at the latest."""
        latest = seen.number + self._limit.left_out_at_most - device.left_out
        later = f"its work comes by round {max(seen.number + 1, latest)}"
        if device.can_give:
            return f"its link of {device.link_mb_s:.2g} MB/s would hold up the others; {later}"
        told = f"{len(seen.able())} of {seen.members} were ready after {seen.open_s:.1f} s"
        member = self._members.get(peer)
        for_s = member.device.busy_for_s(now) if member else 0.0
        use = f" (in use for {for_s:.0f} s)" if for_s > 0.0 else ""
        need = "it still trained" if device.is_new else f"it needs about {device.ready_in_s:.1f} s more"
        return f"{told}, and {need}{use}; {later}"


def _time_left_s(usual_s: float, spent_s: float) -> float:
    """Return the expected seconds of training that are left, > 0."""
    return max(usual_s - spent_s, _LATE_SHARE * usual_s, spent_s - usual_s, 1e-3)


_TRAINING, _FREE, _BUSY, _SEND, _GET, _DONE, _DEAD = DeviceState
_NOTHING_KNOWN = ResourceState(free_memory_bytes=0, cpu_percent=0.0)
# A step that is late is expected to take this share of its usual time again.
_LATE_STEP_SHARE = 0.1


def chain_view(ledger: RoundLedger, members: Members, now: float) -> ChainView:
    """Return the round as a policy sees it; devices in the order of their ids."""
    free = set(ledger.free())
    under_way: dict[Contributor, Hop] = {}
    for hop in ledger.undecided():
        under_way.setdefault(hop.sender, hop)
        under_way.setdefault(hop.receiver, hop)
    senders = {hop.sender for hop in ledger.undecided()}
    merges, received, free_since = _hops_so_far(ledger)
    size_mb = 0.0
    devices = []
    for peer in ledger.in_order:
        member = members.get(peer)
        if member is None:
            devices.append(DeviceView(peer.peer_id, _DEAD))
            continue
        holding = ledger.holding(peer)
        if peer in ledger.lost:
            state = _DEAD
        elif peer in senders:
            state = _SEND
        elif peer in under_way:
            state = _GET
        elif peer in free:
            state = _BUSY if member.is_busy and not _nobody_else_to_come(ledger, members, free) else _FREE
        else:
            state = _DONE if holding else _TRAINING
        size_mb = member.report.size * 4 / 1e6
        since_s = max(ledger.ready_at.get(peer, 0.0), free_since.get(peer, 0.0))
        theta = holding.theta if holding else 0.0
        hops = merges.get(peer, 0), received.get(peer, 0)
        left_s = _time_left(under_way[peer], members, now) if state is _SEND or state is _GET else 0.0
        devices.append(_device_view(ledger, member, state, hops, since_s, theta, left_s, now))
    apart = frozenset((one.peer_id, other.peer_id) for one, other in members.reach.apart(now))
    return ChainView(now, size_mb, tuple(devices), apart=apart)


def _hops_so_far(ledger: RoundLedger) -> tuple[Counter[Contributor], Counter[Contributor], dict[Contributor, float]]:
    """Return per member its merges, those that it received, and the time its last hop was decided."""
    merges: Counter[Contributor] = Counter()
    received: Counter[Contributor] = Counter()
    decided_at: dict[Contributor, float] = {}
    for hop in ledger.hops.values():
        if hop.state is MERGED:
            merges.update((hop.sender, hop.receiver))
            received[hop.receiver] += 1
        for peer in (hop.sender, hop.receiver):
            if hop.decided_at is not None:
                decided_at[peer] = max(decided_at.get(peer, 0.0), hop.decided_at)
    return merges, received, decided_at


def _device_view(
    ledger: RoundLedger,
    member: TrainerSeen,
    state: DeviceState,
    hops: tuple[int, int],
    free_since_s: float,
    theta: float,
    left_s: float,
    now: float,
) -> DeviceView:
    resources, book = member.report.resources or _NOTHING_KNOWN, member.device
    return DeviceView(
        member.peer_id,
        state,
        book.link_mb_s,
        book.merge_mb_s,
        free_since_s,
        *hops,
        theta,
        book.energy_j,
        resources.battery_percent,
        resources.charging,
        resources.in_use,
        resources.cpu_percent,
        resources.free_memory_bytes,
        book.kind(now),
        busy_for_s=book.busy_for_s(now),
        eta_ready_s=_time_to_ready(book, now - ledger.opened_at) if state is _TRAINING else 0.0,
        op_left_s=left_s,
        may_receive=resources.may_take(member.report.size * 4),
    )


def _time_to_ready(book: DeviceBook, elapsed_s: float) -> float:
    """Return the expected seconds; a device that trains longer than usual is given a part of its usual time again."""
    usual_s = book.training_s if book.training_s is not None else elapsed_s
    return max(usual_s - elapsed_s, _LATE_STEP_SHARE * usual_s)


def _time_left(hop: Hop, members: Members, now: float) -> float:
    """Return the seconds left of a hop: by the values so far, else by the slower link's speed."""
    receiver = members.get(hop.receiver)
    elapsed_s = now - hop.ordered_at
    transfer = receiver.report.transfer if receiver else None
    if transfer and transfer.received_bytes:
        return elapsed_s * max(0.0, transfer.size_bytes / transfer.received_bytes - 1.0)
    ends = [member for end in (hop.sender, hop.receiver) if (member := members.get(end))]
    speeds = [member.device.link_mb_s for member in ends if member.device.link_mb_s]
    if not speeds:
        return 0.0
    usual_s = ends[0].report.size * 4 / 1e6 / min(speeds)
    return max(usual_s - elapsed_s, _LATE_STEP_SHARE * usual_s)


def _nobody_else_to_come(ledger: RoundLedger, members: Members, free: set[Contributor]) -> bool:
    """Return True if only busy devices are left to pair: they are paired, or the round would never end."""
    at_ease = {peer for peer in ledger.live() if (member := members.get(peer)) and not member.is_busy}
    engaged = {peer for hop in ledger.undecided() for peer in (hop.sender, hop.receiver)}
    training = set(ledger.live()).difference(ledger.held())
    return len(at_ease & (free | engaged | training)) < 2


class Repeater:
    """The time at which each message was last said to each peer. `clear` forgets all, at the start of every round."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._said: dict[AgentMessage, dict[str, float]] = {}

    def say(self, peer: Contributor, message: AgentMessage, now: float) -> list[Effect]:
        """Return the message to send, or nothing if it was said to this peer a moment ago."""
        return self.say_to_all((peer,), message, now)

    def say_to_all(self, peers: Iterable[Contributor], message: AgentMessage, now: float) -> list[Effect]:
        """Return the message for each of these peers to which it was not said a moment ago.

        It is looked up once: that takes as long as the message is, so it may take as long as the mesh has devices.
        """
        said = self._said.setdefault(message, {})
        due = [peer.peer_id for peer in peers if now - said.get(peer.peer_id, -inf) >= self._retry_s]
        said.update(dict.fromkeys(due, now))
        return [Send(peer_id, cast(Said, message)) for peer_id in due]

    def clear(self) -> None:
        self._said.clear()


# A model of fewer values is small. An owner judges the direction of many values alone; a receiver of hops judges all.
_SMALL = 400_000
# A small model has few owners, each of which exchanges with all: with more devices hops are over sooner.
_MANY = 100
# Segments that are planned anew give up what is on its way, and begin once more.
_WORTH_IT = 1.15
# Looked up once: see peers/roles/agent/conductor.py.
_RECEIVING = Activity.RECEIVING


@dataclass(frozen=True)
class OpenRound:
    """The data that all parts of an open round share. opened: as announced. settings: as they are for this round."""

    ledger: RoundLedger
    opened: RoundOpened
    members: Members
    policy: Policy
    repeater: Repeater
    settings: AgentSettings
    judging: Judging
    attendance: Attendance


class Aggregation:
    """See the module. waiting_for: why nothing was ordered, in words.

    plan: the segments that the result comes about in; None: it is the last holder's. going: an earlier agent's order of
    segments, which may go on. is_whole: it goes by hops, since nobody may own a segment. why_hops: the reason why it
    goes by hops, in words; "": it does not, or nothing else was asked for.
    """

    def __init__(self, round_: OpenRound, going: BroadcastOrdered | None = None) -> None:
        self.going = going
        self.waiting_for = ""
        self.plan: SegmentPlan | None = None
        self.is_whole = False
        self.why_hops = ""
        self._ledger = round_.ledger
        self._opened = round_.opened
        self._members = round_.members
        self._policy = round_.policy
        self._repeater = round_.repeater
        self._settings = round_.settings
        self._judging = round_.judging
        self._taking_part = TakingPart(round_.ledger, round_.members, round_.settings.limit, round_.attendance)
        self._orders: dict[int, HopOrdered] = {}
        self._opinion = SecondOpinion(round_.ledger, self._judging.doubted, self._judging.unjudged)

    def hear(self, change: ReportChange, now: float) -> bool:
        """Take a member's report in; return True if its device gets on, or has decided a hop."""
        member, report, ledger = change.member, change.report, self._ledger
        peer = member.contributor
        is_first = peer not in ledger.reports
        ledger.note_busy(peer, member.is_busy, now)
        was_ready = peer in ledger.ready_at
        decided = ledger.hear(change, now)
        if not was_ready and peer in ledger.ready_at:
            told = report.training.seconds if report.training else 0.0  # work of a round before is ready at once
            member.device.learn_training(max(now - ledger.opened_at, told))
        for hop in decided:
            self._learn_from(hop, member, now)
        if change.holding and (holding := ledger.holding(peer)):
            self._check_theta(peer, holding)
        is_taken = ledger.reports.get(peer) is report
        return bool(decided) or (is_taken and (is_first or change.is_progress))

    def advance(self, now: float) -> tuple[Holding | None, list[Effect]]:
        """Return the last holder's partial sum, once everybody alive is in it, and the words to say until then.

        With a `plan`, return the mean that everybody's own delta is to become, once all hold one.
        """
        self.waiting_for = ""
        self._leave_out_the_paused()
        for peer, why in self._taking_part.leave_out(now).items():
            self._leave_out(peer, why)
        effects = self._announce(now) + self._mend(now)
        self.plan = None
        if self._is_inspected(now):
            if self._goes_in_segments(now):
                return self._plan_segments(now), effects
            if result := self._find_result():
                return result, effects
            self._pair_up(now)
        return None, effects + self._order_hops(now)

    def _order_hops(self, now: float) -> list[Effect]:
        term, round_id, limits = self._ledger.term, self._ledger.round_id, self._judging.limits
        effects: list[Effect] = []
        for hop in self._ledger.undecided():
            if hop.hop_id not in self._orders:  # by what is known now, for good
                held = self._ledger.holding(hop.sender)
                theta = held.theta if held else 0.0
                checksum = self._ledger.checksum(held.contributors, self._judging.is_on) if held else None
                order = HopOrdered(term, round_id, hop.hop_id, hop.sender, limits, hop.is_look, theta, checksum)
                self._orders[hop.hop_id] = order
            effects += self._repeater.say(hop.receiver, self._orders[hop.hop_id], now)
        return effects

    def _is_inspected(self, now: float) -> bool:
        """Return True if everybody's own delta was looked at, in a round that demands this before a merge.

        The looks end early if a device has merged already, for an agent before this one.
        """
        looks, ledger = self._judging.looks, self._ledger
        if looks is None or looks.is_over:
            return True
        view = chain_view(ledger, self._members, now)
        has_begun = any(len(holding.contributors) > 1 for holding in ledger.held().values())
        if not has_begun and not looks.order(_able(view), self._members.reach.apart(now), now):
            self.waiting_for = "devices to look at each other's work"
            return False
        for peer, reason in looks.end().items():
            ledger.lose(peer, reason)
            logger.warning("round %d goes on without %s: %s", ledger.round_id, peer.peer_id, reason)
        return True

    def _leave_out_the_paused(self) -> None:
        """Leave out paused devices with nothing to give: their later training goes into a later round, as below."""
        ledger = self._ledger
        for member in [member for member in self._members.everyone() if member.report.away]:
            peer, away = member.contributor, member.report.away
            if peer not in ledger.held() and peer in ledger.live():
                logger.info("round %d goes on without %s: paused: %s", ledger.round_id, peer.peer_id, away)
                ledger.lose(peer, f"{LEFT_OUT}paused: {away}")

    def _leave_out(self, peer: Contributor, why: str) -> None:
        logger.info("round %d goes on without %s: %s", self._ledger.round_id, peer.peer_id, why)
        self._ledger.lose(peer, f"{LEFT_OUT}{why}")

    def _announce(self, now: float) -> list[Effect]:
        """Announce the round, also to members that have it open from an earlier agent: all must know its members."""
        reports, term = self._ledger.reports, self._opened.term
        deaf = [peer for peer in self._ledger.live() if (report := reports.get(peer)) is None or report.open_as < term]
        if not deaf:
            return []
        opened = msgspec.structs.replace(self._opened, term=self._ledger.term)
        return self._repeater.say_to_all(deaf, opened, now)

    def _mend(self, now: float) -> list[Effect]:
        """Mend what a fault left behind: senders that must hold again, hops that their receiver has to decide."""
        term, round_id = self._ledger.term, self._ledger.round_id
        unable = dict.fromkeys(self._ledger.untold(), "it does not tell the checksum of its delta")
        if not self._judging.is_on:  # else sums may have been scaled down, and are not checked after a change of agents
            unable |= dict.fromkeys(self._ledger.unproven(), "its sum has work of a lost device without a checksum")
        for peer, reason in (unable | self._ledger.lose_the_unable() | self._opinion.condemn()).items():
            self._ledger.lose(peer, reason)
            logger.warning("round %d goes on without %s: %s", round_id, peer.peer_id, reason)
        effects: list[Effect] = []
        for hop in self._ledger.to_release():
            effects += self._repeater.say(hop.sender, HopReleased(term, round_id, hop.hop_id), now)
        stalled = [hop for hop in self._ledger.undecided() if self._is_stalled(hop.receiver, hop.ordered_at, now)]
        for hop in [*self._ledger.to_cancel(), *stalled]:
            cancelled = HopCancelled(term, round_id, hop.hop_id, hop.sender)
            effects += self._repeater.say(hop.receiver, cancelled, now)
        return effects

    def _is_stalled(self, receiver: Contributor, ordered_at: float, now: float) -> bool:
        """Return True if the receiver has shown no sign of this hop for long: neither progress nor a decision."""
        if now - ordered_at < self._settings.stall_s:
            return False
        report = self._ledger.reports.get(receiver)
        return report is None or report.activity is not _RECEIVING

    def _goes_in_segments(self, now: float) -> bool:
        """Return True if this round may go in segments: nothing is merged, and owners reach everybody."""
        if self._settings.exchange == "chain" or self._ledger.hops:
            return False
        self.why_hops = self._why_hops(now)
        return not self.why_hops

    def _why_hops(self, now: float) -> str:
        """Return the reason why nothing may go in segments as yet; "": it may."""
        live, reach = set(self._ledger.live()), self._members.reach
        if self._judging.doubted:
            return "whole deltas can be judged"
        if self.is_whole:
            return "nobody may own a segment, or one was poisoned"
        if not reach.may_try_segments(now):
            return "segments stood still lately"
        apart = [pair for pair in reach.apart(now) if live.issuperset(pair)]
        if len(live) < 2 or not live.difference(*apart):
            return "no device reaches all others"
        held = [holding for peer in live if (holding := self._ledger.holding(peer))]
        if any(len(holding.contributors) > 1 or holding.sent_hop is not None for holding in held):
            return "some deltas are merged already"
        sizes = (member.report.size for peer in live if (member := self._members.get(peer)))
        if self._settings.exchange == "auto" and max(sizes, default=0) < _SMALL:
            if self._judging.is_on:
                return "a small model's deltas are judged whole"
            if len(live) > _MANY:
                return f"more than {_MANY} devices, and a small model"
        return ""

    def _plan_segments(self, now: float) -> Holding | None:
        """Plan the segments; return the mean to be, as soon as everybody holds its own delta."""
        ledger = self._ledger
        if (going := self.going) and (result := self._find_who_goes_on(going)):
            told = "as an earlier agent has planned it"
            self.plan = SegmentPlan(_owned_by(going), going.segment_values, told, 0.0, coding_in(going.room))
            return result
        self.going = None
        holdings = {peer: ledger.holding(peer) for peer in ledger.live()}
        training = [peer.peer_id for peer, holding in holdings.items() if holding is None]
        if training:
            self.waiting_for = f"{first_few(training)} to train"
            return None
        size = next(report.size for peer, report in ledger.reports.items() if peer in holdings)
        view, settings = chain_view(ledger, self._members, now), self._settings
        plan = plan_segments(view, size, settings.segment_values, coding_in(ledger.room))
        if plan is None:
            self.is_whole = True  # each device's limit holds: the hops' own rules say which is left out
            return None
        self.plan = plan
        theta = sum(holding.theta for holding in holdings.values() if holding)
        return Holding(theta, tuple(sorted(holdings)))

    def is_better_anew(self, plan: SegmentPlan, elapsed_s: float, now: float) -> bool:
        """Return True if a plan by the links that are known by now is over sooner than the rest of this one.

        elapsed_s: of its exchange.
        """
        members = [member for peer in self._ledger.live() if (member := self._members.get(peer))]
        links = [member.device.link_mb_s for member in members]
        if not any(links):
            return False
        size, view = members[0].report.size, chain_view(self._ledger, self._members, now)
        anew = plan_segments(view, size, self._settings.segment_values, plan.coding)
        if anew is None or elapsed_s > anew.bound_s / 2:
            return False  # by then much of the values is there
        usual_mb_s = usual_link(links, 0.0)
        sent_mb = [plan.work_of(member.peer_id, size)[0] / 1e6 for member in members]
        takes_s = max(mb / (link or usual_mb_s) for mb, link in zip(sent_mb, links, strict=True))
        return takes_s - elapsed_s > _WORTH_IT * anew.bound_s

    def _find_who_goes_on(self, going: BroadcastOrdered) -> Holding | None:
        """Return the mean of those left of an exchange, if all have followed it as far as this device has.

        One may have been lost, with the agent: of several it is not known how much each had put in. An exchange of
        another attempt has no such mean: nobody holds its own delta of this attempt yet.
        """
        ledger, mark = self._ledger, exchanging(going)
        live = set(ledger.live())
        here = [peer for peer in going.contributors if peer in live]
        holdings, owns = [holding for peer in here if (holding := ledger.holding(peer))], _owned_by(going)
        following = [member for member in self._members.alive() if member.contributor in going.order]
        follow = all(member.report.exchange == mark for member in following)
        if not follow or len(holdings) < len(here) or len(here) + 1 < len(going.contributors):
            return None
        if not any(owns[peer.peer_id] for peer in here):
            return None
        return Holding(sum(holding.theta for holding in holdings), tuple(here))

    def _pair_up(self, now: float) -> None:
        """Ask the policy for pairs as long as it has any."""
        while len(self._ledger.free()) >= 2:
            view = chain_view(self._ledger, self._members, now)
            decision = go_around(view, self._policy.decide(view))
            if isinstance(decision, Wait) and self._ledger.is_settled():
                sender, receiver = self._ledger.free()[:2]
                reason = f"first two free devices, as no other will come ({decision.reason})"
                decision = go_around(view, Pair(sender.peer_id, receiver.peer_id, reason))
                if isinstance(decision, Wait):  # none of them may receive: each limit holds, and the round ends
                    self._leave_out(sender, f"{decision.reason}; no other device will come")
                    continue
            if isinstance(decision, Wait):
                self.waiting_for = decision.reason
                return
            by_id = {peer.peer_id: peer for peer in self._ledger.free()}
            sender, receiver, reason = by_id[decision.sender], by_id[decision.receiver], decision.reason
            if self._ledger.failures(sender, receiver):
                sender, receiver = self._ledger.next_try(_able(view))
                reason = (
                    f"{decision.sender} and {decision.receiver} could not aggregate: next the two that failed least"
                )
            if self._opinion.is_doubted(sender) or self._opinion.is_doubted(receiver):
                if pair := self._opinion.find_pair(sender, receiver, _able(view)):
                    sender, receiver = pair
                    reason = f"{sender.peer_id} is to be judged by {receiver.peer_id} ({reason})"
                elif not self._ledger.is_settled():
                    self.waiting_for = f"another device to judge {sender.peer_id} or {receiver.peer_id}"
                    return
            hop = self._ledger.order_hop(sender, receiver, reason, now)
            logger.info("hop %d: %s -> %s: %s", hop.hop_id, sender.peer_id, receiver.peer_id, reason)

    def _learn_from(self, hop: Hop, receiver: TrainerSeen, now: float) -> None:
        """Teach the devices' books: merged hops tell how fast links are, aborted ones what is out of reach."""
        decision, reach = hop.decision, self._members.reach
        logger.info("hop %d: %s -> %s %s", hop.hop_id, hop.sender.peer_id, hop.receiver.peer_id, hop.state.value)
        source = self._members.get(hop.sender)
        if hop.state is MERGED and decision and source:
            learn_from_hop(source.device, receiver.device, decision.size_bytes, decision.seconds)
            reach.succeed(hop.sender, hop.receiver)
        if hop.state is ABORTED and decision and decision.reason.startswith(NOTHING_CAME):
            holding = self._ledger.holding(hop.sender)  # if it has heard that it was asked, the way back is cut
            is_given = holding is not None and holding.sent_hop == hop.hop_id
            ways = (hop.sender, hop.receiver) if is_given else (hop.receiver, hop.sender)
            reach.fail(*ways, now)

    def _find_result(self) -> Holding | None:
        """Return the last holder's partial sum, None while there are several, or if its theta is wrong."""
        last = self._ledger.result()
        holding = self._ledger.holding(last) if last else None
        return holding if last and holding and self._check_theta(last, holding) else None

    def _check_theta(self, peer: Contributor, holding: Holding) -> bool:
        """Lose a holder if its theta is not the sum of its contributors' weights.

        The lie is its own: a holder refuses a delta with another theta than its sender has told.
        """
        if self._ledger.is_theta_right(holding):
            return True
        if peer not in self._ledger.lost:
            logger.error("%s: theta %g is not the sum of its contributors' weights", peer.peer_id, holding.theta)
        self._ledger.lose(peer, "wrong theta")
        return False


def _able(view: ChainView) -> set[str]:
    """Return the peer ids of the devices that may receive."""
    return {device.peer_id for device in view.devices if device.may_receive}


def _owned_by(order: BroadcastOrdered) -> dict[str, int]:
    """Return the number of segments that each device of an exchange owns."""
    return {peer.peer_id: owns for peer, owns in zip(order.order, order.owns, strict=True)}
