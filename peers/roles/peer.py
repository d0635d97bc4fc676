"""One node of a mesh: a trainer (or none: `mdl agent`), and the mobile agent as long as this node is in office.

Every device can lead. `peers/roles/membership/succession.py` decides which agent it obeys, and when it leads itself;
its work then is the agent's. The node's own trainer and agent talk to each other as if through the network, without it.

`Introduced` has the peers that discovery introduced: the receivers of everything that all are to hear. `Promises` knows
the promises of this device (docs/protocol-disk.md, rule 5), and whether its disk has them yet. `tell_waits` puts the
node's waits in words: the agent it obeys, what is missing, and when each of its timers is due. They help to see from
outside why a mesh does not get on: `mdl sim run` tells them of each device of a stuck one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from mdl.bounds import MAX_MEMBERS
from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.agent.conductor import Phase
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.members import Members, TrainerSeen
from mdl.peers.roles.membership.succession import LAST_WORDS, Succession, SuccessionSettings, outranks
from mdl.peers.roles.run_end import UNKNOWN
from mdl.peers.roles.trainer.trainer import ORDERS, Trainer
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    Effect,
    Event,
    Finish,
    HeldUp,
    NameTaken,
    PeerFound,
    PeerRevoked,
    PolicyLearned,
    Received,
    SaveBallot,
    Send,
    StopRequested,
    Tick,
    WorkFailed,
)
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import AgentPresent, AgentResigned, MemberRefused, MeshFinished, PeerReport
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import Ballot, Lineage, PeerInfo, Role
from mdl.scheduler.policies.chain import Policy

logger = logging.getLogger(__name__)


class Introduced:
    """See the module. known: at most MAX_MEMBERS by their ids.

    If there are more, one that has never spoken is forgotten, else the one that has not spoken for longest.
    """

    def __init__(self, own_id: str) -> None:
        self.known: dict[str, PeerInfo] = {}
        self._own_id = own_id
        self._spoken: dict[str, None] = {}  # those that have spoken, the latest last

    def add(self, info: PeerInfo) -> None:
        self.known[info.peer_id] = info
        if len(self.known) > MAX_MEMBERS:  # somebody mentions ever new ones
            others = (peer_id for peer_id in self.known if peer_id not in self._spoken and peer_id != info.peer_id)
            self.forget(next(others, None) or next(iter(self._spoken)))

    def forget(self, peer_id: str) -> None:
        """Forget a peer: it is in the mesh no more."""
        self.known.pop(peer_id, None)
        self._spoken.pop(peer_id, None)

    def note_spoken(self, peer_id: str) -> None:
        """Note that a message of its own has come."""
        if peer_id in self.known:
            self._spoken.pop(peer_id, None)
            self._spoken[peer_id] = None

    def tell(self, message: Said) -> list[Effect]:
        return [Send(peer_id, message) for peer_id in self.known if peer_id != self._own_id]

    def tell_agents(self, *messages: Said) -> list[Effect]:
        """Tell dedicated agents that stand by: they report to nobody, so no agent knows them as members."""
        return [
            Send(peer_id, message)
            for peer_id, info in self.known.items()
            if info.role is Role.AGENT and peer_id != self._own_id
            for message in messages
        ]


class Promises:
    """See the module. saved: the ballot that is on the disk."""

    def __init__(self, saved: Ballot) -> None:
        self._saved = saved
        self._saved_reached = {entry.fork: entry.round_id for entry in saved.reached}
        self._is_refused = False

    def save_first(self, event: Event, effects: list[Effect], trainer: Trainer, succession: Succession) -> list[Effect]:
        """Return the effects with the ballot that their messages tell of first; no message once a disk refused one.

        The device leaves then; if it has a round to apply, after that.
        """
        if type(event) is WorkFailed and event.effect == SaveBallot.__name__:
            self._is_refused = True
        if self._is_refused:
            return [effect for effect in effects if type(effect) is not Send]
        ballot = self._unsaved(trainer, succession)
        return [SaveBallot(ballot), *effects] if ballot else effects

    def _unsaved(self, trainer: Trainer, succession: Succession) -> Ballot | None:
        """Return the ballot, if the disk does not know it yet; it counts as saved from here on."""
        saved, model_state, term = self._saved, trainer.model_state, succession.term
        agent = "" if trainer.staged_term == term else succession.spoken_by
        said = term, agent, model_state.starts, model_state.begun, model_state.accepted
        before = saved.term, saved.agent, saved.starts, saved.begun, saved.accepted
        if said == before and model_state.reached == self._saved_reached:
            return None
        self._saved, self._saved_reached = model_state.ballot(term, agent), dict(model_state.reached)
        return self._saved


# A pause in our own events that no deadline explains: a driver that was held up says so, else this process was
# suspended (SIGSTOP, a closed lid).
_SUSPENDED_S = 3.0
# Messages that are said under a term.
_TERMED = ORDERS | {PeerReport}


class Peer:
    """See the module. trainer: None on a dedicated agent. agent: there while this node leads.

    make_policy: a fresh policy for each time in office.
    """

    def __init__(
        self,
        me: Contributor,
        trainer: Trainer | None,
        make_policy: Callable[[], Policy],
        agent_settings: AgentSettings,
        settings: SuccessionSettings,
        now: float = 0.0,
    ) -> None:
        self.me = me
        self.trainer = trainer
        saved = (trainer.ballot if trainer else None) or Ballot()
        self.agent: MobileAgent | None = None
        self.succession = Succession(me, settings, trainer is None, now, saved)
        self._promises = Promises(saved)
        self._introduced = Introduced(me.peer_id)
        self.agent_settings = agent_settings
        self.settings = settings
        self._make_policy = make_policy
        self._members = Members(agent_settings.lost_after_s, busy=agent_settings.busy, avoid_s=agent_settings.avoid_s)
        self._members.found = self._introduced.known
        self._claim_at = 0.0
        self._call_at = 0.0  # for an agent that hears nobody
        self._heard_at = -inf  # anything from another node that may follow it
        self._yields_to = ""  # to be said in the next claim
        self._handled_at: float | None = None
        self._rounds_led = 0
        self._finished = False

    @property
    def known(self) -> dict[str, PeerInfo]:
        """The peers that were introduced, by peer id."""
        return self._introduced.known

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._handled_at is not None and now - self._handled_at >= _SUSPENDED_S:
            self._notice_pause(now - self._handled_at, event)
        self._handled_at = now
        effects: list[Effect] = []
        last: list[Effect] = []
        events = [event]
        for each in events:  # grows by what this node says to itself
            for effect in self._step(each, now):
                if type(effect) is Send and effect.receiver == self.me.peer_id:
                    events.append(Received(self.me, effect.message, effect.values))
                elif type(effect) is Send:
                    if type(effect.message) in LAST_WORDS and self.agent:  # heeded under the term that is claimed
                        effects.append(Send(effect.receiver, self._claim()))
                    effects.append(effect)
                elif type(effect) is Finish:
                    if self.agent and self.agent.phase is Phase.FINISHED:
                        end = MeshFinished(self.agent.term, self.agent.round_id, self.agent.ending.reason)
                        effects += self._introduced.tell_agents(self._claim(), end)
                    last.append(effect)
                    self._finished = True
                else:
                    effects.append(effect)
            if each is events[-1]:
                self._lead(now, effects)
                trainer = self.trainer
                if trainer is not None and trainer.voice.has_news(now):
                    events += self._report(trainer, now, effects)
        if self.trainer is not None:
            effects = self._promises.save_first(event, effects, self.trainer, self.succession)
        return effects + last if last else effects

    def deadline(self) -> float | None:
        if self._finished:
            return None
        if self.agent is None:
            due = self.succession.deadline(self._handled_at or 0.0)
        else:
            due, later = self._claim_at, self.agent.deadline()
            due = due if later is None else min(due, later)
        return due if self.trainer is None else min(due, self.trainer.voice.deadline())

    def authority(self) -> tuple[int, str]:
        """Return the term and the id of the agent that this device obeys; "" if it knows none."""
        return self.succession.term, self.succession.agent

    def rounds_closed(self) -> int:
        """Return the number of rounds that this node has led."""
        return self._rounds_led + (self.agent.rounds_closed() if self.agent else 0)

    # -- events -------------------------------------------------------------------------------------------------------

    def _step(self, event: Event, now: float) -> list[Effect]:
        if type(event) is Received:
            return self._hear(event, now)
        if type(event) is Tick:
            return self._tick(event, now)
        match event:
            case PeerFound(info=info):
                return self._meet(info)
            case PolicyLearned():
                if self.agent:
                    self.agent.use_policy(self._make_policy())
            case NameTaken():
                return self._meet_namesake(event, now)
            case PeerRevoked():
                return self._part_with(event, now)
            case StopRequested():
                return self._stop(event, now)
        return self.trainer.handle(event, now) if self.trainer else []

    def _hear(self, event: Received, now: float) -> list[Effect]:
        message, kind = event.message, type(event.message)
        if event.sender.peer_id != self.me.peer_id:
            if kind in _TERMED:
                self.succession.check_term(message.term, now)  # type: ignore[union-attr]
            if self.agent is not None and self._is_deaf(now):
                self._claim_at = now
            self._heard_at = self._heard_at if kind is StatusWanted else now
            self._introduced.note_spoken(event.sender.peer_id)
        if kind is PeerReport or kind is StatusWanted:
            return self._hear_as_agent(event, now)
        if type(message) is AgentPresent:
            return self._hear_claim(event.sender, message, now)
        if type(message) is AgentResigned:
            if self.succession.admits(event.sender, message, now):
                self.succession.give_up(now)
            return []
        if kind in ORDERS and not self.succession.admits(event.sender, message, now):  # type: ignore[arg-type]
            return []
        if self.trainer is None:
            return [Finish()] if kind is MeshFinished else []
        effects = self._resign(now) if kind is MemberRefused else []  # the others need not wait for its silence
        return effects + self.trainer.handle(event, now)

    def _meet(self, info: PeerInfo) -> list[Effect]:
        if info.role is Role.OBSERVER:
            return []
        self._introduced.add(info)
        return [Send(info.peer_id, self._claim())] if self.agent else []

    def _part_with(self, out: PeerRevoked, now: float) -> list[Effect]:
        """Part with a device that is out: its silence is not waited for. Its work in a decided round stays."""
        peer_id = out.peer_id
        if peer_id == self.me.peer_id:
            return [Finish(out.reason, 2)]
        self._introduced.forget(peer_id)
        self._members.silence(peer_id, now)
        self.succession.part_with(peer_id, now)
        return []

    def _meet_namesake(self, taken: NameTaken, now: float) -> list[Effect]:
        """Leave, if of two processes with one name this one was started later, and tell its user what to do."""
        at = f" at {taken.address}" if taken.address else ""
        copied = "was its data directory copied?"
        if taken.other.incarnation > self.me.incarnation:
            logger.warning("another device%s, started later, is called %r too (%s)", at, self.me.peer_id, copied)
            return []
        problem = (
            f"another device of this mesh{at} is called {self.me.peer_id!r} too ({copied}): "
            f"give this one its own --name and --out"
        )
        effects = self._resign(now)
        if self.trainer is None:
            return [*effects, Finish(problem, 2)]
        refused = MemberRefused(self.succession.term, self.trainer.round_id, problem)
        return effects + self.trainer.handle(Received(self.me, refused), now)

    def _stop(self, event: StopRequested, now: float) -> list[Effect]:
        """End the mesh's run as a dedicated agent; as a device, hand over if it leads, and leave."""
        if self.trainer is None:
            return self.agent.handle(event, now) if self.agent else [Finish(exit_code=130)]
        return self._resign(now) + self.trainer.handle(event, now)

    def _resign(self, now: float) -> list[Effect]:
        """Hand the office over, if this node has it."""
        if self.agent is None:
            return []
        effects = self._introduced.tell(AgentResigned(self.agent.term, self.agent.attempt()[0]))
        self._step_down(now)
        return effects

    def _hear_claim(self, sender: Contributor, claim: AgentPresent, now: float) -> list[Effect]:
        if self.succession.is_unheard_by(sender, claim, now):
            return []
        if self.agent and sender.peer_id != self.me.peer_id:
            if not outranks(claim, sender, self._claim(), self.me.peer_id):
                if claim.yields_to == self.me.peer_id and claim.term >= self.agent.term:
                    self._rise_above(claim.term, now)
                return []
            if claim.term < self.succession.term:
                self._claim_at, self._yields_to = now, sender.peer_id  # it has to rise above our term first
                self.agent.make_way(now)
                return []
            self._step_down(now)
        before, trainer = self.succession.agent, self.trainer
        goes_on = claim.quorum and trainer is not None and claim.lineage == trainer.model_state.lineage
        if self.succession.hear_claim(sender, claim, now, goes_on) and before != sender.peer_id:
            logger.info("%s leads now, under term %d", sender.peer_id, claim.term)
            if trainer:
                trainer.voice.say_again()
        return []

    def _hear_as_agent(self, event: Received, now: float) -> list[Effect]:
        """Hand reports and questions to the agent; without one, note from reports which devices could lead."""
        if self.agent:
            effects = self.agent.handle(event, now)
            if self.agent.resigned:
                self._step_down(now)
            return effects
        if type(event.message) is PeerReport:
            self._members.expire(now)
            self._members.hear(event.sender, event.message, now)
        return []

    def _tick(self, event: Tick, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.trainer:
            effects += self.trainer.handle(event, now)
        if self.agent and (due := self.agent.deadline()) is not None and now >= due:
            effects += self.agent.handle(event, now)
        return effects

    # -- leading ------------------------------------------------------------------------------------------------------

    def _lead(self, now: float, effects: list[Effect]) -> None:
        """Watch the agent, take the office, and say so: after each event."""
        succession = self.succession
        if self.agent is None and succession.watch(now):
            logger.warning("the agent is silent")
        if not succession.agent and not (self.trainer and self.trainer.left):
            succession.meet(self._members.alive(), now)
            if succession.is_patient_no_more(now):
                self._members.expire(now)
                if succession.wants_office(self._members.alive(), now):
                    self._take_office(now)
        if self.agent is not None:
            succession.term = max(succession.term, self.agent.term)
            if succession.is_worn_out() and not self._finished:
                self._finished = True
                problem = "this mesh has used up its elections: stop all its devices, then start them again"
                effects.append(Finish(problem, 4))
            if now >= self._claim_at:
                self._claim_at = now + self.settings.heartbeat_s
                if not self._is_deaf(now):
                    effects += self._introduced.tell(self._claim())
                    self._yields_to = ""

    def _report(self, trainer: Trainer, now: float, effects: list[Effect]) -> list[Event]:
        """Send the trainer's report to the agent, or to everybody if there is none. Return what is for this node."""
        agent = self.succession.agent
        if not agent and not trainer.voice.is_due(now) and not trainer.left:
            return []  # to everybody, so at its interval only
        report = trainer.report(self.succession.term, agent, now)
        if agent not in ("", self.me.peer_id):
            effects.append(Send(agent, report))
            return []
        if not agent or (now >= self._call_at and self._is_deaf(now)):
            self._call_at = now + self.settings.heartbeat_s
            effects += self._introduced.tell(report)  # they may be as deaf as this one, for want of a speaker
        return [Received(self.me, report)]

    def _take_office(self, now: float) -> None:
        reports = [member.report for member in self._members.alive()]
        term = self.succession.take_office(max((report.term for report in reports), default=0))
        lineage = self.trainer.model_state.lineage if self.trainer else ()
        mesh = (self.agent_settings, self._members, term, self.trainer.taken if self.trainer else UNKNOWN, lineage)
        exchange = self.trainer.exchange if self.trainer else None
        self.agent = MobileAgent(self.me, self._make_policy(), *mesh, now, self.succession.lacking_since, exchange)
        self._claim_at = now
        if self.trainer:
            self.trainer.voice.say_again()
        logger.info("%s is the agent now, under term %d", self.me.peer_id, term)

    def _step_down(self, now: float) -> None:
        if self.agent:
            self._rounds_led += self.agent.rounds_closed()
            self._members = self.agent.members
            self.succession.lacking_since = self.agent.lacking_since
            self.succession.term = max(self.succession.term, self.agent.term)
        self.agent = None
        self.succession.give_up(now)

    def _rise_above(self, term: int, now: float) -> None:
        assert self.agent is not None
        self.agent.rise_above(term, now)
        self.succession.term = self.agent.term
        self._claim_at = 0.0

    def _claim(self) -> AgentPresent:
        agent = self.agent
        assert agent is not None
        mesh = agent.round_id, agent.lineage, agent.quorum
        return AgentPresent(agent.term, *mesh, agent.successors(), self._yields_to, agent.workers)

    def _is_deaf(self, now: float) -> bool:
        """Return True if nothing comes in: a deaf agent must not keep the others from following another one."""
        return now - self._heard_at >= self.settings.lost_after_s

    def _notice_pause(self, away_s: float, event: Event) -> None:
        """Forgive everybody a silence in which this node could hear nobody, and log its cause."""
        if type(event) is not HeldUp:
            why = "SIGSTOP, a closed lid, or no processor time?"
            logger.warning("this device was suspended for %.0f s (%s)", away_s, why)
        elif 2 * event.disk_s >= event.seconds:
            why = "is the card worn, or does another program write much?"
            logger.warning(
                "this device stood still for %.0f s: its disk took so long to write (%s)", event.seconds, why
            )
        else:
            why = "no processor time, or suspended?"
            logger.warning("this device stood still for %.0f s in the middle of its work (%s)", event.seconds, why)
        self._members.forgive(away_s)
        self.succession.forgive(away_s)
        if self.agent:
            self.agent.forgive(away_s)


# Members that are named of each agent; a mesh of more is told by these.
_MOST_TOLD = 16


def tell_waits(peer: Peer, now: float) -> str:
    """Return one line on a node at this moment of its own clock."""
    term, agent = peer.authority()
    told = [_tell_trainer(peer.trainer, now)] if peer.trainer else ["no trainer"]
    if peer.agent:
        told.append(_tell_agent(peer.agent, now))
    elif agent:
        told.append(f"obeys {agent} under term {term}, gives it up in {_left(peer.succession.deadline(now), now)}")
    else:
        told.append(f"obeys nobody, last term {term}, may lead in {_left(peer.succession.deadline(now), now)}")
    return f"{peer.me.peer_id}/{peer.me.incarnation}: {'; '.join(told)}"


def _tell_trainer(trainer: Trainer, now: float) -> str:
    part, model_state = trainer.part, trainer.model_state
    told = [f"at {model_state.round_id} of {_name(model_state.lineage)}"]
    if part is None:
        told.append("in no round")
    else:
        told.append(f"{part.activity().value} in round {part.round_id}")
        told += [f"hop {order.hop_id} from {order.sender.peer_id} comes in"] if (order := part.incoming) else []
    if not model_state.votes(part is not None and part.broadcast.staged is not None):
        told.append("has no vote")
    if wish := _tell_wish(trainer):
        told.append(f"asks for {wish}")
    return ", ".join([*told, f"reports or asks again in {_left(trainer.voice.deadline(), now)}"])


def _tell_wish(trainer: Trainer) -> str:
    """Return what it asks another device for again and again; "" if nothing."""
    part, wanted = trainer.part, trainer.catching_up_to
    if wanted:
        return f"the model of round {wanted.round_id} from {wanted.source.peer_id}"
    if part and part.incoming:
        return f"the delta of hop {part.incoming.hop_id} from {part.incoming.sender.peer_id}"
    if part and part.broadcast.parent and part.broadcast.staged is None:
        return f"the result of round {part.round_id} from {part.broadcast.parent.peer_id}"
    return ""


def _tell_agent(agent: MobileAgent, now: float) -> str:
    conducted = agent.round
    told = [f"leads under term {agent.term}: {agent.phase.value}"]
    if conducted:
        base = " ".join(conducted.base)
        told.append(
            f"round {conducted.ledger.round_id} of base {base}, moved {now - conducted.progressed_at:.1f} s ago"
        )
        told += [
            f"hop {hop.hop_id} {hop.sender.peer_id} -> {hop.receiver.peer_id} undecided"
            for hop in conducted.ledger.undecided()
        ]
    if agent.waiting_for:
        told.append(f"waits for {agent.waiting_for}")
    members = agent.members.everyone()[:_MOST_TOLD]
    told += [_tell_member(member, agent, now) for member in members if member.peer_id != agent.me.peer_id]
    return ", ".join([*told, f"acts in {_left(agent.deadline(), now)}"])


def _tell_member(member: TrainerSeen, agent: MobileAgent, now: float) -> str:
    report = member.report
    told = [f"heard {now - member.heard_at:.1f} s ago" + ("" if member.alive else ", taken for lost")]
    if report.agent != agent.me.peer_id:
        told.append(f"obeys {report.agent or 'nobody'}")
    elif report.term < agent.term:
        told.append("has not promised this term")
    told.append(f"at {report.round_id} {report.activity.value}")
    if report.staged:
        told.append(f"staged under term {report.staged.term}")
    if not report.votes:
        told.append("no vote")
    return f"{member.peer_id} ({', '.join(told)})"


def _name(lineage: Lineage) -> str:
    return lineage[-1].name if lineage else "no mesh"


def _left(due: float | None, now: float) -> str:
    return "no time" if due is None else f"{max(0.0, due - now):.1f} s"
