"""The agent's office: which agent this device obeys, when it gives up a silent one, and when it leads itself.

An agent says again and again that it is there. If it falls silent, every device reports to everybody it knows. After a
moment in which the others can be heard, the first of the successors takes the office under a higher term. The agent had
named them; without names it is the device with most resources. A dedicated agent (`mdl agent`) comes first. So an
election costs no messages but reports: N (N - 1) each report interval, until a device says that it leads. Two may do so
at the same time, in a network that loses messages: the higher term is obeyed, the other steps down. One agent makes
rounds quick; that they have one result does not depend on it (`peers/roles/membership/majority.py`). Pure.
"""

from __future__ import annotations

import logging
from math import inf

import msgspec

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.membership.majority import LAST_FIRST_TERM, LAST_TERM, TERM_LEAP, TERMS_PER_S, is_senior, next_term
from mdl.peers.roles.membership.members import Arrivals, TrainerSeen, poverty
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import AgentMessage, AgentPresent, MemberRefused, MeshFinished, RoundOpened
from mdl.protocol.vocabulary import Ballot

# This process ends after these.
LAST_WORDS = frozenset((MeshFinished, MemberRefused))
# In multiples of the longest silence: for the first, an agent is obeyed that leads another mesh, or none yet, and does
# not name this device; for the second, it is ignored then, unless it does.
_UNNAMED, _IGNORED = 2, 4

logger = logging.getLogger(__name__)


class SuccessionSettings(msgspec.Struct, frozen=True):
    """heartbeat_s: interval of the agent's words that it is there. lost_after_s: the longest silence that is borne.

    settle_s: time for which successors listen to each other before the first of them takes over; each further one waits
    step_s longer. start_s: as settle_s, for a device that never heard an agent. If it hears others, and none of them
    knows one, it waits meet_s from the moment on that the last one came. A dedicated agent waits a third.
    """

    heartbeat_s: float = 0.5
    lost_after_s: float = 4.0
    settle_s: float = 0.8
    step_s: float = 0.5
    start_s: float = 3.0
    meet_s: float = 0.8

    @property
    def takeover_s(self) -> float:
        """The longest time from an agent's last word until the first successor leads, if it lives and is heard."""
        return self.lost_after_s + self.settle_s


class Succession:
    """See the module. term: the highest heard. agent: the one this device obeys, "" if none. successors: as it said.

    holder: the agent with its incarnation. spoken_by: alone may speak under `term`, "" if nobody may any more.
    lacking_since: since then the agents, one after the other, have lacked a majority; None if the last one had it.
    saved: the promises of an earlier process of this device.
    """

    def __init__(
        self,
        me: Contributor,
        settings: SuccessionSettings,
        is_dedicated: bool,
        now: float = 0.0,
        saved: Ballot = Ballot(),  # noqa: B008 (frozen)
    ) -> None:
        if saved.term > LAST_TERM:
            logger.warning("the saved term is impossible in a mesh: it is forgotten")
            saved = Ballot()
        self.me = me
        self.term = saved.term
        self.agent = ""
        self.holder: Contributor | None = None
        self.successors: tuple[str, ...] = ()
        self.spoken_by = saved.agent
        self.lacking_since: float | None = None
        self._settings = settings
        self._is_dedicated = is_dedicated
        self._arrivals = self._listen(now)
        self._claim: AgentPresent | None = None
        self._alone_since = now
        self._knew_one = False
        self._met: tuple[Contributor, ...] = ()  # before the first agent: those that are here, and know none
        self._met_at = inf
        self._started_at = now
        self._measured_from = saved.term
        self._may_leap = not saved.term
        self._believed = 0  # the highest term that was ever found possible: it stays so
        self._named_at = now  # by the agent as a follower of it; or it began to be obeyed
        self._unheard_by, self._unheard_until = "", -inf

    def check_term(self, term: int, now: float) -> None:
        """Raise RemoteProtocolError for a term that no honest mesh can have come to.

        A process that has saved no term takes one larger leap: the mesh that it meets first may be old.
        """
        if term <= self._believed:
            return
        credit = int(TERMS_PER_S * (now - self._started_at))
        if term <= min(self._measured_from + TERM_LEAP + credit, LAST_TERM):
            self._believed = term
            return
        if not self._may_leap or term > LAST_FIRST_TERM:
            raise RemoteProtocolError(f"term {term} is too far above {self.term}, the highest known here")
        self._measured_from, self._started_at, self._may_leap = term - TERM_LEAP, now, False

    def is_worn_out(self) -> bool:
        """Return True if this device has come to the last terms, which nobody else believes."""
        return self.term > LAST_TERM

    def hear_claim(self, sender: Contributor, claim: AgentPresent, now: float, goes_on: bool = True) -> bool:
        """Hear a claim to lead; return True if this device obeys the sender from now on.

        goes_on: this device's mesh goes on with the sender. Else the sender must hear this device, or is given up.
        """
        is_agent = sender.peer_id == self.agent
        if is_agent and (goes_on or self._is_dedicated or self.me.peer_id in claim.successors):
            self._named_at = now
        elif is_agent and now - self._named_at >= _UNNAMED * self._settings.lost_after_s:
            logger.warning("%s leads, but does not hear this device: it is not obeyed for a while", sender.peer_id)
            self._unheard_by, self._unheard_until = sender.peer_id, now + _IGNORED * self._settings.lost_after_s
            self.give_up(now)
            return False
        if is_agent and claim.term >= self.term and not self._is_outdated(sender):
            self._arrivals.hear(now)
        elif not self._is_newer(sender, claim):
            return False
        else:
            self._arrivals, self._named_at = self._listen(now), now
        self.agent, self.spoken_by, self.holder = sender.peer_id, sender.peer_id, sender
        self.term, self._claim, self._knew_one = claim.term, claim, True
        if claim.quorum:
            self.lacking_since = None
        elif self.lacking_since is None:
            self.lacking_since = now
        if claim.successors:
            self.successors = claim.successors
        return True

    def is_unheard_by(self, sender: Contributor, claim: AgentPresent, now: float) -> bool:
        """Return True if it was given up lately since it does not hear this device, and still does not."""
        is_known = sender.peer_id == self._unheard_by and now < self._unheard_until
        return is_known and self.me.peer_id not in claim.successors

    def admits(self, sender: Contributor, message: AgentMessage, now: float) -> bool:
        """Return True if this order is to be obeyed: only the agent's, and none of an older term.

        An order that ends this process must be of the very term that the agent has claimed: nothing is urgent about it.
        """
        if not self.agent or sender != self.holder or message.term < self.term:
            return False
        if type(message) in LAST_WORDS and message.term != self.term:
            return False
        self.term = message.term
        self._arrivals.hear(now)
        if type(message) is RoundOpened and message.successors:
            self.successors = message.successors
        return True

    def watch(self, now: float) -> bool:
        """Give a silent agent up; return True if that was just now."""
        if not self.agent or self.agent == self.me.peer_id or not self._arrivals.is_silent(now):
            return False
        self.give_up(now)
        return True

    def give_up(self, now: float) -> None:
        """Obey nobody: no agent leads, as far as this device knows."""
        self.agent, self.holder, self._claim, self._alone_since = "", None, None, now

    def part_with(self, peer_id: str, now: float) -> None:
        """Give up a device that is out of the mesh: it leads nobody."""
        if self.agent == peer_id:
            self.give_up(now)

    def forgive(self, seconds: float) -> None:
        """Discount a suspension of this process for so many seconds."""
        self._arrivals.forgive(seconds)
        self._alone_since += seconds
        self._met_at += seconds
        self._named_at += seconds
        if self.lacking_since is not None:
            self.lacking_since += seconds

    def deadline(self, now: float) -> float:
        """Return the time at which `watch` or `wants_office` may have something to say."""
        if self.agent:
            return self._arrivals.silent_at
        return max(now + self._settings.step_s / 2, self._patient_until())

    def is_patient_no_more(self, now: float) -> bool:
        """Return True if it may be this device's turn to lead: nobody has led for long enough."""
        return now >= self._patient_until()

    def meet(self, here: list[TrainerSeen], now: float) -> None:
        """Note the devices that are heard before the first agent: where none of several knows one, one may lead."""
        if self._knew_one:
            return
        met = tuple(member.contributor for member in here)
        if not set(met) - {self.me} or any(member.report.agent for member in here):
            self._met, self._met_at = (), inf
        elif met != self._met:
            self._met, self._met_at = met, now

    def wants_office(self, candidates: list[TrainerSeen], now: float) -> bool:
        """Return True if it is this device's turn to lead. candidates: heard lately; this device need not be one."""
        if self.agent or not self.is_patient_no_more(now):
            return False
        return now >= self._patient_until() + self._rank(candidates) * self._settings.step_s

    def take_office(self, heard_term: int) -> int:
        """Lead; return the term to speak under. heard_term: the highest that any device has reported."""
        self.term = next_term(max(self.term, heard_term), self.me)
        self.agent, self.spoken_by, self.holder = self.me.peer_id, self.me.peer_id, self.me
        self._claim, self._knew_one = None, True
        return self.term

    def _is_outdated(self, sender: Contributor) -> bool:
        """Return True for an earlier start of the agent's process (docs/protocol-hops.md, fault rule 4)."""
        return self.holder is not None and sender.incarnation < self.holder.incarnation

    def _is_newer(self, sender: Contributor, claim: AgentPresent) -> bool:
        if claim.term < self.term or (claim.term == self.term and sender.peer_id != self.spoken_by):
            return False
        return not self.agent or self._claim is None or outranks(claim, sender, self._claim, self.agent)

    def _patient_until(self) -> float:
        share, settings = 1 / 3 if self._is_dedicated else 1.0, self._settings
        if self._knew_one:
            return self._alone_since + share * settings.settle_s
        return min(self._alone_since + share * settings.start_s, self._met_at + share * settings.meet_s)

    def _rank(self, candidates: list[TrainerSeen]) -> int:
        """Return how many go before this device: the named ones in their order, then the others by their resources."""
        if self._is_dedicated:
            return 0
        places = {peer_id: place for place, peer_id in enumerate(self.successors)}
        order = sorted(candidates, key=lambda member: (places.get(member.peer_id, len(places)), poverty(member)))
        return next((rank for rank, member in enumerate(order) if member.peer_id == self.me.peer_id), len(order))

    def _listen(self, now: float) -> Arrivals:
        shortest_s = min(self._settings.lost_after_s, 3 * self._settings.heartbeat_s)
        return Arrivals(now, shortest_s, self._settings.lost_after_s)


def outranks(claim: AgentPresent, claimant: Contributor, other: AgentPresent, holder: str) -> bool:
    """Return True if this claim goes on against the other.

    On one lineage the higher term does; else the agent with a majority, then the senior lineage.
    """
    if claim.lineage == other.lineage:
        return (claim.term, claimant.peer_id) > (other.term, holder)
    if claim.quorum != other.quorum:
        return claim.quorum
    rounds, workers = (claim.round_id, other.round_id), (claim.workers, other.workers)
    return is_senior(claim.lineage, other.lineage, *rounds, *workers)
