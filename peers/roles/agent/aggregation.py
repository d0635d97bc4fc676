"""A round until one holder has everybody in it (MDLdroid 3.2.2): announce it, order pairs, mend what faults leave.

In segments it lasts until everybody holds its own delta, and a plan says in which segments they become the result. Then
no pair is ordered, and the round goes on with the broadcast at once. The next step follows from the ledger alone, and
is said again until a report shows that it was heard. Values never come here: theta and contributors are those of the
reports. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from mdl.bounds import first_few
from mdl.peers.roles.agent.attendance import Attendance
from mdl.peers.roles.agent.chain_view import chain_view
from mdl.peers.roles.agent.doubt.judged import Judging
from mdl.peers.roles.agent.doubt.second_opinion import SecondOpinion
from mdl.peers.roles.agent.ledger import ABORTED, MERGED, Hop, RoundLedger
from mdl.peers.roles.agent.repeater import Repeater
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.agent.taking_part import TakingPart
from mdl.peers.roles.membership.member import Change, Member
from mdl.peers.roles.membership.members import Members
from mdl.protocol.delta import Contributor
from mdl.protocol.hop_messages import NOTHING_CAME, HopCancelled, HopOrdered, HopReleased
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import BroadcastOrdered, RoundOpened, exchanging
from mdl.protocol.status_messages import LEFT_OUT
from mdl.protocol.vocabulary import Activity, Holding
from mdl.scheduler.plans.segment_plan import SegmentPlan, bandwidth_shares, plan_segments
from mdl.scheduler.policies.chain import ChainView, Pair, Policy, Wait
from mdl.scheduler.policies.detour import go_around
from mdl.scheduler.policies.device_book import learn_from_hop, usual_link

logger = logging.getLogger(__name__)

# If the values of a round take less at best, hops end soon, and the policy minds batteries and busy devices.
_SLOW_S = 0.05
# Assumed of links before the first one is measured: 400 Mbit/s. A model that is small there is soon through on others.
_ANY_MB_S = 50.0
# Looked up once: see peers/roles/agent/phase.py.
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
        self._orders: dict[tuple[int, int], HopOrdered] = {}
        self._opinion = SecondOpinion(round_.ledger, self._judging.doubted, self._judging.unjudged)

    def hear(self, change: Change, now: float) -> bool:
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
        if change.holdings and (holding := ledger.holding(peer)):
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
            key = hop.segment, hop.hop_id
            if key not in self._orders:  # by what is known now, for good
                held = self._ledger.holding(hop.sender, hop.segment)
                theta = held.theta if held else 0.0
                checksum = self._ledger.checksum(held.contributors, self._judging.is_on) if held else None
                order = HopOrdered(term, round_id, *key, hop.sender, limits, hop.is_look, theta, checksum)
                self._orders[key] = order
            effects += self._repeater.say(hop.receiver, self._orders[key], now)
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
        for peer, reason in (self._ledger.lose_the_unable() | self._opinion.condemn()).items():
            self._ledger.lose(peer, reason)
            logger.warning("round %d goes on without %s: %s", round_id, peer.peer_id, reason)
        effects: list[Effect] = []
        for hop in self._ledger.to_release():
            effects += self._repeater.say(hop.sender, HopReleased(term, round_id, hop.segment, hop.hop_id), now)
        stalled = [hop for hop in self._ledger.undecided() if self._is_stalled(hop.receiver, hop.ordered_at, now)]
        for hop in [*self._ledger.to_cancel(), *stalled]:
            cancelled = HopCancelled(term, round_id, hop.segment, hop.hop_id, hop.sender)
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
        if self._settings.exchange == "shares" or (self.going and self._find_who_goes_on(self.going)):
            return ""  # an exchange under way needs no plan, so no links either
        return self._why_fast(live)

    def _why_fast(self, live: Collection[Contributor]) -> str:
        """Return why hops end soon enough; "": they take a while even at best. Unknown links are like the others."""
        members = [member for peer in live if (member := self._members.get(peer))]
        if not members:
            return "nobody is here"
        told = [member.device.link_mb_s for member in members]
        usual_mb_s = usual_link(told, _ANY_MB_S)
        links = [link or usual_mb_s for link in told]
        size_mb = 4e-6 * members[0].report.size
        _, seconds_a_mb = bandwidth_shares(links, [True] * len(links))
        least_s = size_mb * seconds_a_mb
        of = "these links" if any(told) else f"links of {_ANY_MB_S:g} MB/s, as none is measured yet"
        return "" if least_s >= _SLOW_S else f"{least_s:.2g} s of {of}, where segments are for {_SLOW_S:g} s"

    def _plan_segments(self, now: float) -> Holding | None:
        """Plan the segments; return the mean to be, as soon as everybody holds its own delta."""
        ledger = self._ledger
        if (going := self.going) and (result := self._find_who_goes_on(going)):
            told = "as an earlier agent has planned it"
            self.plan = SegmentPlan(_owned_by(going), going.segment_values, told, 0.0, going.coding)
            return result
        self.going = None
        holdings = {peer: ledger.holding(peer) for peer in ledger.live()}
        training = [peer.peer_id for peer, holding in holdings.items() if holding is None]
        if training:
            self.waiting_for = f"{first_few(training)} to train"
            return None
        size = next(report.size for peer, report in ledger.reports.items() if peer in holdings)
        view, settings = chain_view(ledger, self._members, now), self._settings
        plan = plan_segments(view, size, settings.segment_values, settings.coding, self._judging.disputed)
        if plan is None:
            self.is_whole = True  # each device's limit holds: the hops' own rules say which is left out
            return None
        self.plan = plan
        theta = sum(holding.theta for holding in holdings.values() if holding)
        return Holding(0, theta, tuple(sorted(holdings)))

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
        return Holding(0, sum(holding.theta for holding in holdings), tuple(here))

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

    def _learn_from(self, hop: Hop, receiver: Member, now: float) -> None:
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
