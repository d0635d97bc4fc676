"""A node as a whole: whom it obeys, when it leads, and that its trainer and its agent need no network to talk."""

from __future__ import annotations

import sys
from collections import Counter, deque
from itertools import pairwise

import numpy as np
import pytest

from mdl.bounds import MAX_MEMBERS
from mdl.config import Config, FaultSection, RoundSection
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.build import build_machine, configured_start
from mdl.peers.roles.membership.succession import SuccessionSettings
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.trainer.trainer import TrainerSettings
from mdl.protocol.counts import no_evaluation
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    HeldUp,
    LocalDeltaReady,
    PeerFound,
    RecallDelta,
    Received,
    RecordRound,
    ResourcesSampled,
    SaveBallot,
    Send,
    StopRequested,
    Tick,
    TrainLocally,
)
from mdl.protocol.round_messages import (
    AgentMessage,
    AgentPresent,
    AgentResigned,
    DeltaMessage,
    GlobalMessage,
    HopOrdered,
    MemberRefused,
    MeshFinished,
    PeerReport,
    RoundOpened,
)
from mdl.protocol.status_messages import MeshStatus, StatusWanted
from mdl.protocol.vocabulary import Activity, Ballot, Fork, History, PeerInfo, ResourceState, Role, TrainingReport
from mdl.scheduler.policies.registry import make_policy
from tests.peers.roles.at_once import TrainerAtOnce

SUCCESSION = SuccessionSettings(heartbeat_s=0.5, lost_after_s=4.0, settle_s=0.8, step_s=0.5, start_s=3.0)
TRAIN_S = 1.0
ZEROS = np.zeros(4, np.float32)


def _peer(
    peer_id: str, incarnation: int = 1, dedicated: bool = False, now: float = 0.0, schema: str = "schema", **agent: int
) -> Peer:
    me = Contributor(peer_id, incarnation)
    trainer = None if dedicated else TrainerAtOnce(me, ZEROS, schema, "lenet", TrainerSettings())
    settings = AgentSettings(**{"rounds": 0, "min_peers": 2} | agent)  # type: ignore[arg-type]
    return Peer(me, trainer, lambda: make_policy("greedy"), settings, SUCCESSION, now)


class Room:
    """Peers that hear each other at once unless they are silent, and wake up at their deadlines. Nobody sleeps."""

    def __init__(self, *peers: Peer) -> None:
        self.peers: dict[str, Peer] = {}
        self.now = 0.0
        self.silent: set[str] = set()
        self.sent: list[tuple[float, str, Send]] = []
        self.recorded: list[tuple[str, int]] = []
        self.finished: dict[str, Finish] = {}
        self._work: list[tuple[float, str, Event]] = []
        for peer in peers:
            self.add(peer)

    def add(self, peer: Peer) -> None:
        """It finds everybody and everybody finds it, as through mDNS. Resources: who comes later has less memory."""
        me = peer.me.peer_id
        self.peers[me] = peer
        self.finished.pop(me, None)
        self.silent.discard(me)
        memory = (1 << 30) - len(self.peers)
        self.hand(me, ResourcesSampled(ResourceState(memory, 5.0)))
        for other in list(self.peers.values()):
            if other is not peer:
                self.hand(me, PeerFound(_info(other)))
                self.hand(other.me.peer_id, PeerFound(_info(peer)))

    def hand(self, peer_id: str, event: Event) -> None:
        events: deque[tuple[str, Event]] = deque([(peer_id, event)])
        while events:
            receiver, happened = events.popleft()
            if receiver in self.silent or receiver in self.finished:
                continue
            for effect in self.peers[receiver].handle(happened, self.now):
                self._do(receiver, effect, events)

    def run(self, seconds: float) -> None:
        """Everybody is woken up at its deadline; training takes a second, evaluation no time."""
        end = self.now + seconds
        while True:
            due = [(peer.deadline(), peer_id) for peer_id, peer in self.peers.items() if self._is_running(peer_id)]
            times = [(at, 1, peer_id) for at, peer_id in due if at is not None]
            times += [(at, 0, peer_id) for at, peer_id, _ in self._work if self._is_running(peer_id)]
            at, kind, peer_id = min(times, default=(end, 1, ""))
            if at >= end:
                self.now = end
                return
            self.now = max(self.now, at)
            if kind:
                self.hand(peer_id, Tick())
            else:
                done = next(work for work in self._work if (work[0], work[1]) == (at, peer_id))  # late if it was silent
                self._work.remove(done)
                self.hand(peer_id, done[2])

    def leaders(self) -> list[str]:
        return [peer_id for peer_id, peer in self.peers.items() if peer.agent and self._is_running(peer_id)]

    def rounds(self) -> dict[str, int]:
        return {peer_id: peer.trainer.round_id for peer_id, peer in self.peers.items() if peer.trainer}

    def said(self, kind: type, since: float = 0.0) -> list[tuple[str, str]]:
        """(sender, receiver) of each message of this kind."""
        return [(who, send.receiver) for at, who, send in self.sent if at >= since and isinstance(send.message, kind)]

    def _is_running(self, peer_id: str) -> bool:
        return peer_id not in self.silent and peer_id not in self.finished

    def _do(self, peer_id: str, effect: Effect, events: deque[tuple[str, Event]]) -> None:
        me = self.peers[peer_id].me
        match effect:
            case Send(receiver=receiver, message=message, values=values):
                self.sent.append((self.now, peer_id, effect))
                if receiver in self.peers:
                    copy = None if values is None else values.copy()
                    events.append((receiver, Received(me, message, copy)))
            case TrainLocally(round_id=round_id, parameters=parameters):
                delta = ModelDelta(np.full_like(parameters, len(peer_id)), 1.0, frozenset([me]))
                ready = LocalDeltaReady(round_id, delta, TrainingReport(0.5, 8, TRAIN_S))
                self._work.append((self.now + TRAIN_S, peer_id, ready))
            case RecallDelta(round_id=round_id, parameters=parameters):
                events.append((peer_id, DeltaRecalled(round_id, np.full_like(parameters, len(peer_id)))))
            case Evaluate(round_id=round_id):
                events.append((peer_id, Evaluated(round_id, no_evaluation(2))))
            case RecordRound(summary=summary):
                self.recorded.append((peer_id, summary.round))
            case Finish():
                self.finished[peer_id] = effect


def _info(peer: Peer) -> PeerInfo:
    role = Role.AGENT if peer.trainer is None else Role.TRAINER
    return PeerInfo(peer.me.peer_id, peer.me.incarnation, role, "192.0.2.1", 1)


# -- one node ---------------------------------------------------------------------------------------------------------


def test_a_device_that_hears_no_agent_takes_the_office_itself() -> None:
    peer = _peer("ann")
    peer.handle(Tick(), 0.0)
    for now in (1.0, 2.0, 2.9):
        peer.handle(Tick(), now)
    assert peer.agent is None
    peer.handle(Tick(), 3.0)
    assert peer.agent is not None
    assert peer.authority() == (peer.agent.term, "ann")


def test_a_dedicated_agent_is_quicker_and_needs_no_trainer() -> None:
    agent = _peer("agent", dedicated=True)
    agent.handle(Tick(), 0.9)
    assert agent.agent is None
    agent.handle(Tick(), 1.0)
    assert agent.agent is not None
    assert agent.handle(Received(Contributor("x", 1), HopOrdered(9, 1, 1, Contributor("y", 1))), 1.1) == []


def test_what_a_node_says_to_itself_never_reaches_the_network() -> None:
    room = Room(_peer("ann"), _peer("bob"))
    room.run(20.0)
    assert room.leaders() == ["ann"]
    assert min(room.rounds().values()) >= 3
    assert [(who, send.receiver) for _, who, send in room.sent if who == send.receiver] == []
    assert ("ann", "ann") not in room.said(PeerReport)
    assert room.said(PeerReport, since=6.0) != []
    assert {who for who, _ in room.said(PeerReport, since=6.0)} == {"bob"}


def test_one_device_alone_with_itself_trains_if_that_is_enough() -> None:
    room = Room(_peer("ann", min_peers=1))
    room.run(10.0)
    assert room.rounds()["ann"] >= 3
    assert room.sent == []


def test_values_go_from_trainer_to_trainer_and_not_through_the_agent() -> None:
    room = Room(_peer("agent", dedicated=True), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(20.0)
    assert room.leaders() == ["agent"]
    carried = room.said(DeltaMessage) + room.said(GlobalMessage)
    assert len(carried) >= 4
    assert all("agent" not in pair for pair in carried)


def test_a_finish_is_the_last_of_what_a_node_does() -> None:
    room = Room(_peer("ann"), _peer("bob"))
    room.run(6.0)
    effects = room.peers["bob"].handle(StopRequested(), room.now)
    assert isinstance(effects[-1], Finish)
    assert any(isinstance(effect, Send) for effect in effects[:-1])
    assert room.peers["bob"].deadline() is None


def test_a_status_is_given_by_the_agent_alone() -> None:
    room = Room(_peer("ann"), _peer("bob"))
    room.run(6.0)
    asked = Received(Contributor("eye", 1), StatusWanted())
    (answer,) = _statuses(room.peers["ann"].handle(asked, room.now))
    assert isinstance(answer.message, MeshStatus)
    assert (answer.message.agent, answer.receiver) == ("ann", "eye")
    assert _statuses(room.peers["bob"].handle(asked, room.now)) == []


def _statuses(effects: list[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, MeshStatus)]


def test_an_observer_is_never_told_who_leads_nor_reported_to() -> None:
    peer = _peer("ann")
    peer.handle(PeerFound(PeerInfo("eye", 1, Role.OBSERVER, "192.0.2.1", 1)), 0.0)
    effects = [effect for now in range(8) for effect in peer.handle(Tick(), now / 2)]
    assert peer.agent is not None
    assert not any(isinstance(effect, Send) for effect in effects)


# -- who leads --------------------------------------------------------------------------------------------------------


def test_of_several_devices_the_one_with_most_resources_leads_and_the_others_obey_it() -> None:
    room = Room(*(_peer(name) for name in ("dan", "ann", "bob", "cat")))
    room.run(5.0)
    assert room.leaders() == ["dan"]
    assert {peer.authority()[1] for peer in room.peers.values()} == {"dan"}


def test_a_dedicated_agent_leads_if_there_is_one() -> None:
    room = Room(_peer("ann"), _peer("bob"), _peer("agent", dedicated=True))
    room.run(5.0)
    assert room.leaders() == ["agent"]


@pytest.mark.parametrize("dedicated", [False, True])
def test_rule_6_a_silent_agent_is_succeeded_in_time_and_its_round_is_finished(dedicated: bool) -> None:
    room = Room(_peer("boss", dedicated=dedicated), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(10.5)
    assert room.leaders() == ["boss"]
    before = room.rounds()["ann"]
    room.silent.add("boss")
    room.run(SUCCESSION.takeover_s)
    (leader,) = room.leaders()
    assert leader == "ann"  # the richest of those it had named
    room.run(15.0)
    assert {room.rounds()[name] for name in ("ann", "bob", "cat")} == {room.rounds()["ann"]}
    assert room.rounds()["ann"] >= before + 3


@pytest.mark.parametrize("tenth", range(0, 40, 3))
def test_rule_6_whenever_the_agent_dies_the_mesh_goes_on_and_agrees(tenth: int) -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(6.0 + tenth / 20)
    before = max(room.rounds().values())
    room.silent.add("boss")
    room.run(14.0)
    trainers = [peer.trainer for peer in room.peers.values() if peer.trainer]
    assert len(room.leaders()) == 1
    assert min(room.rounds().values()) >= before + 2
    stands = {(trainer.round_id, trainer.digest) for trainer in trainers}
    assert len({round_id for round_id, _ in stands}) == len(stands)
    assert len({trainer.lineage for trainer in trainers}) == 1


def test_a_successors_agent_goes_on_with_the_attempt_it_finds() -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(10.0)
    while not all(peer.trainer is None or peer.trainer.attempt()[0] for peer in room.peers.values()):
        room.run(0.05)
    attempts = {peer.trainer.attempt() for peer in room.peers.values() if peer.trainer}
    assert len(attempts) == 1
    room.silent.add("boss")
    since = room.now
    room.run(SUCCESSION.takeover_s + 0.5)
    opened = [send.message for at, _, send in room.sent if at > since and isinstance(send.message, RoundOpened)]
    assert opened != []
    assert (opened[0].round_id, opened[0].attempt) == attempts.pop()


def test_an_agent_that_comes_back_steps_down_and_does_not_disturb_the_round() -> None:
    room = Room(_peer("boss"), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(8.0)
    room.silent.add("boss")
    room.run(8.0)
    assert room.leaders() == ["ann"]
    room.silent.discard("boss")
    room.run(2.0)
    assert room.leaders() == ["ann"]
    assert room.peers["boss"].agent is None
    room.run(10.0)
    assert len(set(room.rounds().values())) == 1


def test_a_dedicated_agent_that_is_started_anew_stands_by_while_another_one_leads() -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"))
    room.run(8.0)
    room.silent.add("boss")
    room.run(8.0)
    assert room.leaders() == ["ann"]
    room.add(_peer("boss", incarnation=2, dedicated=True, now=room.now))
    room.run(10.0)
    assert len(room.leaders()) == 1
    assert {peer.authority()[1] for peer in room.peers.values()} == set(room.leaders())


def test_a_dedicated_agent_that_is_started_anew_speaks_under_no_term_of_its_former_start() -> None:
    """It accepts nothing, so it needs no ballot: each start has terms of its own, and rises above others."""
    terms = set[int]()
    for incarnation in range(1, 30):
        peer = _peer("boss", incarnation, dedicated=True)
        for now in (0.0, 1.5):
            peer.handle(Tick(), now)  # it leads before it has heard what its former start was promised
        assert peer.agent is not None
        former = peer.agent.term + 5
        report = PeerReport(1, former, 0, b"w0", "schema", "lenet", 4, Activity.WAITING, 0, agent="boss")
        terms.add(peer.agent.term)
        peer.handle(Received(Contributor("ann", 1), report), 1.6)
        assert peer.agent.term > former
    assert len(terms) == 29


def test_two_that_lead_at_the_same_time_become_one() -> None:
    room = Room(_peer("ann"), _peer("bob"), _peer("cat"))
    room.silent |= {"bob", "cat"}
    room.run(4.0)
    assert room.leaders() == ["ann"]
    room.silent = {"ann", "cat"}
    room.run(5.0)
    assert room.leaders() == ["bob"]
    room.silent = set()
    room.run(3.0)
    assert len(room.leaders()) == 1
    assert len({peer.authority() for peer in room.peers.values()}) == 1


def test_a_claim_of_a_higher_term_makes_an_agent_step_down_at_once() -> None:
    peer = _peer("ann")
    for now in (0.0, 1.5, 3.0):
        peer.handle(Tick(), now)
    assert peer.agent is not None
    lower = AgentPresent(peer.agent.term - 1, 0)
    peer.handle(Received(Contributor("bob", 1), lower), 3.1)
    assert peer.agent is not None
    peer.handle(Received(Contributor("bob", 1), AgentPresent(peer.agent.term + 1, 0)), 3.2)
    assert (peer.agent, peer.authority()[1]) == (None, "bob")


@pytest.mark.parametrize("yields_to", ["", "cat", "ann"])
def test_an_agent_speaks_above_a_higher_term_of_a_junior_lineage_that_yields_to_it(yields_to: str) -> None:
    """One that does not hear this agent goes on by itself; so does this one, undisturbed."""
    lineage = (Fork(0, 3, "ann.1.1"),)
    trainer = TrainerAtOnce(
        Contributor("ann", 1), ZEROS, "schema", "lenet", TrainerSettings(), 4, History(lineage, ("ann", "bob"))
    )
    peer = Peer(trainer.me, trainer, lambda: make_policy("greedy"), AgentSettings(), SUCCESSION)
    peer.handle(PeerFound(PeerInfo("bob", 1, Role.TRAINER, "192.0.2.1", 1)), 0.0)
    for now in (0.0, 1.5, 3.0):
        peer.handle(Tick(), now)
    assert peer.agent is not None
    higher = peer.agent.term + 1_000_000
    junior = AgentPresent(higher, 9, (*lineage, Fork(2, 1, "bob.1.9")), yields_to=yields_to)
    effects = peer.handle(Received(Contributor("bob", 1), junior), 3.1)
    (claim,) = (effect.message for effect in effects if isinstance(effect, Send))
    assert isinstance(claim, AgentPresent)
    assert (claim.term > higher, claim.lineage) == (yields_to == "ann", lineage)
    assert peer.agent is not None


def test_an_agent_stays_in_office_until_who_outranks_it_speaks_under_a_term_that_it_can_obey() -> None:
    """If it stepped down before, it would obey nobody, and take the office again under a term that is higher still."""
    peer, bob = _peer("ann"), Contributor("bob", 1)
    peer.handle(PeerFound(PeerInfo("bob", 1, Role.TRAINER, "192.0.2.1", 1)), 0.0)
    for now in (0.0, 1.5, 3.0):
        peer.handle(Tick(), now)
    assert peer.agent is not None
    term, lineage = peer.agent.term, (Fork(0, 2, "bob.1.1"),)
    effects = peer.handle(Received(bob, AgentPresent(term - 1, 4, lineage, quorum=True)), 3.1)
    claims = [effect.message for effect in effects if isinstance(effect, Send)]
    told = [(claim.term, claim.yields_to) for claim in claims if isinstance(claim, AgentPresent)]
    assert told == [(term, "bob")]
    peer.handle(Received(bob, AgentPresent(term + 1, 4, lineage, quorum=True)), 3.2)
    assert (peer.agent, peer.authority()) == (None, (term + 1, "bob"))


def test_an_agent_that_is_outranked_opens_no_round_for_a_while_so_that_the_other_can_rise_above() -> None:
    """Alone it opens rounds, each under a higher term, faster than messages pass: the senior would never be obeyed."""
    room = Room(_peer("ann", min_peers=1))
    room.hand("ann", PeerFound(PeerInfo("bob", 1, Role.TRAINER, "192.0.2.1", 1)))
    room.run(8.0)
    agent, opened = room.peers["ann"].agent, list[float]()
    assert agent is not None
    lower, lineage = agent.term - 1, (Fork(0, 2, "bob.1.1"),)
    for _ in range(100):  # of a senior that is deaf to ann
        room.hand("ann", Received(Contributor("bob", 1), AgentPresent(lower, 500, lineage, quorum=True, workers=2)))
        before = agent.term
        room.run(0.25)
        opened += [room.now - 8.0] if agent.term != before else []
    paused = [(before, after - before) for before, after in pairwise([0.0, *opened]) if after - before > 2 * TRAIN_S]
    (first, pause_s), (again, _) = paused
    assert (first, 4.0 <= pause_s <= 5.5) == (0.0, True), "as long as it takes to be taken for lost"
    assert 13.0 <= again <= 16.0, "not again before partition_s"


def test_who_hears_nobody_does_not_keep_the_others_from_following_somebody_else() -> None:
    """Its inbound firewall is shut: it takes the office, since it hears no agent, but claims nothing."""
    peer, bob = _peer("ann"), Contributor("bob", 1)
    peer.handle(PeerFound(PeerInfo("bob", 1, Role.TRAINER, "192.0.2.1", 1)), 0.0)
    said = [effect for tenth in range(100) for effect in peer.handle(Tick(), tenth / 10)]
    assert peer.agent is not None
    assert not any(isinstance(effect, Send) and isinstance(effect.message, AgentPresent) for effect in said)
    said = peer.handle(Received(Contributor("watch", 1), StatusWanted()), 10.0)  # on the same machine
    assert not any(isinstance(effect, Send) and isinstance(effect.message, AgentPresent) for effect in said)
    said = peer.handle(Received(bob, AgentResigned(1, 0)), 10.0)
    assert any(isinstance(effect, Send) and isinstance(effect.message, AgentPresent) for effect in said)
    said = [effect for tenth in range(140, 200) for effect in peer.handle(Tick(), tenth / 10)]
    assert not any(isinstance(effect, Send) and isinstance(effect.message, AgentPresent) for effect in said)


def test_who_hears_nobody_calls_the_others_also_while_it_trains_faster_than_it_reports() -> None:
    """Of two that lead, each alone and deaf, one has to speak; the report of each round would put that off for ever."""
    peer = _peer("ann", min_peers=1)
    peer.handle(PeerFound(PeerInfo("bob", 1, Role.TRAINER, "192.0.2.1", 1)), 0.0)
    called_at, trained = list[float](), list[int]()
    for step in range(150):
        event: Event = Tick()
        if trained:
            delta = ModelDelta(ZEROS, 1.0, frozenset([peer.me]))
            event = LocalDeltaReady(trained.pop(), delta, TrainingReport(0.5, 8, 0.1))
        for effect in peer.handle(event, step / 10):
            if isinstance(effect, Send):
                called_at.append(step / 10)
            elif isinstance(effect, TrainLocally):
                trained.append(effect.round_id)
    assert peer.trainer is not None
    assert peer.trainer.round_id > 60
    pauses = [after - before for before, after in pairwise(at for at in called_at if at >= 5.0)]
    assert 0.4 <= min(pauses) <= max(pauses) <= 0.7


def test_a_new_agent_is_told_at_once_where_the_device_stands() -> None:
    peer = _peer("ann")
    peer.handle(Received(Contributor("bob", 1), AgentPresent(7, 0)), 0.0)
    peer.handle(Tick(), 0.6)
    assert peer.handle(Received(Contributor("bob", 1), AgentPresent(7, 0)), 0.7) == []
    ballot, report = peer.handle(Received(Contributor("cat", 1), AgentPresent(9, 0)), 0.8)
    assert ballot == SaveBallot(Ballot(9, agent="cat", starts=(1,)))
    assert isinstance(report, Send)
    assert isinstance(report.message, PeerReport)
    assert (report.receiver, report.message.agent, report.message.term) == ("cat", "cat", 9)


def test_a_device_that_leads_hands_over_when_it_is_stopped() -> None:
    room = Room(_peer("boss"), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(8.0)
    since = room.now
    room.hand("boss", StopRequested())
    assert sorted(room.said(AgentResigned, since)) == [("boss", "ann"), ("boss", "bob"), ("boss", "cat")]
    assert room.finished["boss"].exit_code == 130
    room.run(SUCCESSION.settle_s + 0.3)
    assert room.leaders() == ["ann"]
    before = room.rounds()["ann"]
    room.run(8.0)
    assert room.rounds()["ann"] > before


def test_a_dedicated_agent_that_leads_ends_the_run_when_it_is_stopped() -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"))
    room.run(6.0)
    room.hand("boss", StopRequested())
    room.run(3.0)
    assert {name: end.exit_code for name, end in room.finished.items()} == {"boss": 130, "ann": 0, "bob": 0}


def test_a_dedicated_agent_that_stands_by_just_leaves_when_it_is_stopped() -> None:
    room = Room(_peer("ann"), _peer("bob"))
    room.run(6.0)
    room.add(_peer("boss", dedicated=True, now=room.now))
    room.run(2.0)
    assert room.leaders() == ["ann"]
    room.hand("boss", StopRequested())
    assert set(room.finished) == {"boss"}


def _last_words_under_a_claim(room: Room) -> set[tuple[str, type]]:
    """Who was told which, each right after the claim of its term."""
    last: dict[tuple[str, str], AgentMessage] = {}
    told = set[tuple[str, type]]()
    for _, sender, send in room.sent:
        message, way = send.message, (sender, send.receiver)
        if isinstance(message, MemberRefused | MeshFinished):
            before = last[way]
            assert isinstance(before, AgentPresent)
            assert before.term == message.term
            told.add((send.receiver, type(message)))
        last[way] = message  # type: ignore[assignment]
    return told


def test_last_words_come_right_after_the_claim_of_their_term() -> None:
    """They are heeded under no other term, and where rounds are shorter than heartbeats each has one of its own."""
    room = Room(_peer("ann", rounds=40), _peer("bob", rounds=40))
    room.run(6.0)
    for name in ("ann", "bob"):  # the refusal at first sight is lost
        report = _peer("zoe", now=room.now, schema="another").trainer.report(0, "", room.now)  # type: ignore[union-attr]
        room.hand(name, Received(Contributor("zoe", 1), report))
    room.run(60.0)
    assert set(room.finished) == {"ann", "bob"}
    assert _last_words_under_a_claim(room) == {("zoe", MemberRefused), ("bob", MeshFinished)}


@pytest.mark.parametrize("is_led_by_a_device", [True, False])
def test_a_dedicated_agent_that_stands_by_ends_with_the_run(is_led_by_a_device: bool) -> None:
    room = Room(_peer("boss", dedicated=True, rounds=12), *(_peer(name, rounds=12) for name in ("ann", "bob")))
    if not is_led_by_a_device:
        room.add(_peer("deputy", dedicated=True, rounds=12))
    room.run(6.0)
    room.silent.add("boss")
    room.run(6.0)
    room.silent.discard("boss")
    room.run(1.0)
    assert room.leaders() == ["ann" if is_led_by_a_device else "deputy"]
    room.run(30.0)
    assert set(room.finished) == set(room.peers)
    assert {end.exit_code for end in room.finished.values()} == {0}


@pytest.mark.parametrize("planned", [60, 61, 62, 63])
def test_it_ends_with_the_run_also_where_rounds_are_shorter_than_heartbeats(
    planned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TRAIN_S", 0.03)
    room = Room(_peer("ann", rounds=planned), _peer("bob", rounds=planned))
    room.run(1.8)
    room.add(_peer("boss", dedicated=True, rounds=planned, now=room.now))
    room.run(10.0)
    assert set(room.finished) == set(room.peers)
    assert ("boss", MeshFinished) in _last_words_under_a_claim(room)


def test_a_planned_run_ends_at_its_goal_also_under_a_successor() -> None:
    room = Room(*(_peer(name, rounds=6) for name in ("boss", "ann", "bob", "cat")))
    room.run(7.0)
    assert 0 < room.rounds()["ann"] < 6
    room.silent.add("boss")
    room.run(40.0)
    assert {name: room.rounds()[name] for name in ("ann", "bob", "cat")} == {"ann": 6, "bob": 6, "cat": 6}
    assert {name: end.exit_code for name, end in room.finished.items()} == {"ann": 0, "bob": 0, "cat": 0}


def test_a_device_counts_the_rounds_it_has_led_over_all_its_times_in_office() -> None:
    room = Room(_peer("ann"), _peer("bob"))
    room.run(9.0)
    led = room.peers["ann"].rounds_closed()
    assert led == room.rounds()["ann"] > 0
    room.silent.add("ann")
    room.run(8.0)
    room.silent.clear()
    room.run(3.0)
    assert room.peers["ann"].rounds_closed() >= led


# -- no election storms -----------------------------------------------------------------------------------------------


def test_without_an_agent_everybody_reports_to_everybody_and_no_more_than_that() -> None:
    """The bound: N (N - 1) reports each interval, from the silence until somebody leads."""
    names = [f"p{number}" for number in range(8)]
    room = Room(_peer("boss", dedicated=True), *(_peer(name) for name in names))
    room.run(8.0)
    room.silent.add("boss")
    since = room.now
    while any(peer.authority()[1] for name, peer in room.peers.items() if name != "boss"):
        room.run(0.1)
    leaderless = room.now
    while not room.leaders():
        room.run(0.1)
    seconds = room.now - leaderless
    reports = [pair for pair in room.said(PeerReport, leaderless) if pair[1] != "boss"]
    intervals = seconds / TrainerSettings().report_s + 2
    assert len(reports) <= len(names) * (len(names) - 1) * intervals
    assert room.now - since <= SUCCESSION.takeover_s
    assert len(room.leaders()) == 1


def test_without_an_agent_news_wait_for_the_report_interval() -> None:
    """Else everything that happens to anybody would be told to everybody at once."""
    peer = _peer("ann")
    peer.handle(PeerFound(PeerInfo("bob", 1, Role.TRAINER, "192.0.2.1", 1)), 0.0)
    reports = [0]
    for tenth in range(25):
        effects = peer.handle(Evaluated(tenth, no_evaluation(2)), tenth / 10)
        reports.append(sum(isinstance(effect, Send) for effect in effects))
    assert sum(reports) == 4  # at 0.5, 1.0, 1.5 and 2.0


def test_an_election_makes_one_agent_whatever_the_number_of_devices() -> None:
    for count in (2, 3, 5, 9, 16):
        room = Room(_peer("boss", dedicated=True), *(_peer(f"p{number:02d}") for number in range(count)))
        room.run(6.0)
        since = room.now
        room.silent.add("boss")
        room.run(SUCCESSION.takeover_s + 1.0)
        claims = Counter(who for who, _ in room.said(AgentPresent, since))
        assert list(claims) == ["p00"]


def test_reports_go_to_the_agent_alone_while_there_is_one() -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(6.0)
    since = room.now
    room.run(6.0)
    assert {receiver for _, receiver in room.said(PeerReport, since)} == {"boss"}


def test_orders_come_from_one_agent_at_a_time() -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(8.0)
    room.silent.add("boss")
    since = room.now
    room.run(12.0)
    assert {who for who, _ in room.said(AgentMessage, since)} == {"ann"}


def test_peers_that_are_mentioned_without_end_push_out_none_that_has_spoken() -> None:
    room = Room(_peer("ann"), _peer("bob"), _peer("cat"))
    room.run(6.0)
    ann = room.peers["ann"]
    for number in range(3 * MAX_MEMBERS):
        ann.handle(PeerFound(PeerInfo(f"x{number}", 1, Role.TRAINER, "192.0.2.1", 9)), room.now)
    assert len(ann.known) == MAX_MEMBERS
    assert {"bob", "cat"} <= set(ann.known)


# -- a suspended process ----------------------------------------------------------------------------------------------


def test_a_suspension_of_this_process_is_noticed_and_nobody_else_is_taken_for_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = Room(_peer("ann"), _peer("bob"), _peer("cat"))
    room.run(6.0)
    ann = room.peers["ann"]
    assert ann.agent is not None
    late = room.now + 60.0
    ann.handle(Tick(), late)
    assert "was suspended for 60 s" in caplog.text
    assert [member.peer_id for member in ann.agent.members.alive()] == ["ann", "bob", "cat"]


@pytest.mark.parametrize(
    ("disk_s", "told"),
    [(24.9, "stood still for 25 s: its disk took so long to write"), (0.1, "in the middle of its work")],
)
def test_a_pause_that_the_driver_explains_is_named_and_not_called_a_suspension(
    disk_s: float, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    room = Room(_peer("ann"), _peer("bob"), _peer("cat"))
    room.run(6.0)
    ann = room.peers["ann"]
    assert ann.agent is not None
    ann.handle(HeldUp(25.0, disk_s), room.now + 25.0)
    assert told in caplog.text
    assert "was suspended" not in caplog.text
    assert [member.peer_id for member in ann.agent.members.alive()] == ["ann", "bob", "cat"]


def test_a_suspended_device_does_not_take_its_agents_silence_for_the_agents_end() -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"))
    room.run(6.0)
    bob = room.peers["bob"]
    bob.handle(Tick(), room.now + 60.0)
    assert bob.authority()[1] == "boss"
    bob.handle(Tick(), room.now + 60.0 + 2.9)
    assert bob.agent is None


def test_a_device_that_was_suspended_through_some_rounds_takes_part_again() -> None:
    room = Room(_peer("boss", dedicated=True), _peer("ann"), _peer("bob"), _peer("cat"))
    room.run(6.0)
    room.silent.add("cat")
    room.run(12.0)
    behind = room.rounds()["cat"]
    assert room.rounds()["ann"] > behind
    room.silent.discard("cat")
    room.run(8.0)
    assert len(set(room.rounds().values())) == 1
    cat = room.peers["cat"].trainer
    assert cat is not None
    assert "cat" in cat.model_state.base


# -- from a configuration ---------------------------------------------------------------------------------------------


def test_a_node_is_built_as_its_configuration_wants_it() -> None:
    faults = FaultSection(lost_after_s=1.0, partition_s=0.0, on_partition="wait")
    config = Config(round=RoundSection(rounds=4, min_peers=3, policy="fifo"), faults=faults)
    peer = build_machine(configured_start(config, Contributor("agent", 1), None, 100.0))
    assert peer.deadline() == 101.0
    peer.handle(Tick(), 101.0)
    assert peer.agent is not None
    told = ("", "2 more of 3 devices: nobody else is found", "1 more of 3 devices: nobody else is found")
    for number, name in enumerate(("ann", "bob", "cat")):
        report = TrainerAtOnce(Contributor(name, 1), ZEROS, "s", "m", TrainerSettings()).report(
            peer.agent.term, "agent", 0.0
        )
        assert peer.agent.waiting_for == told[number]
        effects = peer.handle(Received(Contributor(name, 1), report), 101.1)
    opened = [effect.message for effect in effects if isinstance(effect, Send)]
    assert isinstance(opened[0], RoundOpened)
    assert opened[0].planned_rounds == 4
    (answer,) = _statuses(peer.handle(Received(Contributor("eye", 1), StatusWanted()), 101.2))
    assert isinstance(answer.message, MeshStatus)
    assert (answer.message.policy, answer.message.rounds) == ("fifo", 4)
    peer.handle(Tick(), 102.1)
    assert [member.peer_id for member in peer.agent.members.alive()] == []


# -- other models -----------------------------------------------------------------------------------------------------


def _trained(peer_id: str, model: str, rounds: int, together: int, now: float = 0.0, **agent: int) -> Peer:
    """A device that comes back with the rounds it has had with `together` devices, itself among them, if any."""
    me = Contributor(peer_id, 1)
    base = tuple(sorted({peer_id, *(f"{model}-{number}" for number in range(1, together + 1))})[:together])
    lineage = (Fork(0, together, f"start of {model}"),) if rounds else ()
    values = np.full(4, float(rounds), np.float32)
    history = History(lineage, base if rounds else ())
    trainer = TrainerAtOnce(me, values, f"schema of {model}", model, TrainerSettings(), rounds, history, Ballot())
    settings = AgentSettings(**{"rounds": 0, "min_peers": 2} | agent)  # type: ignore[arg-type]
    return Peer(me, trainer, lambda: make_policy("greedy"), settings, SUCCESSION, now)


def test_a_fresh_device_that_was_there_first_gives_way_to_a_trained_model_of_another_kind() -> None:
    room = Room(_trained("alex-1", "alex", 0, 0))
    room.run(8.0)
    assert room.leaders() == ["alex-1"]
    for number in (1, 2):
        room.add(_trained(f"lenet-{number}", "lenet", 7, 2, room.now))
        room.run(8.0)
    assert room.finished["alex-1"].exit_code == 2
    assert "your model (alex, 4 values) differs from the mesh's (lenet" in room.finished["alex-1"].problem
    assert list(room.finished) == ["alex-1"]
    assert room.rounds()["lenet-1"] > 7


def test_a_device_that_has_trained_alone_gives_way_to_a_mesh_that_has_trained_together() -> None:
    room = Room(_trained("alex-1", "alex", 0, 0, min_peers=1))
    room.run(8.0)
    assert room.rounds()["alex-1"] > 2
    for number in (1, 2):
        room.add(_trained(f"lenet-{number}", "lenet", 7, 2, room.now))
        room.run(8.0)
    assert list(room.finished) == ["alex-1"]
    assert room.rounds()["lenet-1"] > 7
    assert room.rounds()["alex-1"] > 2, "and keeps what it has"


def test_a_mesh_that_is_running_is_not_ended_by_more_devices_of_another_one() -> None:
    room = Room(*(_trained(f"alex-{number}", "alex", 0, 0) for number in (1, 2)))
    room.run(8.0)
    reached = room.rounds()["alex-1"]
    assert reached > 1
    for number in (1, 2, 3):
        room.add(_trained(f"lenet-{number}", "lenet", 50, 3, room.now))
    room.run(8.0)
    assert sorted(room.finished) == ["lenet-1", "lenet-2", "lenet-3"]
    assert room.rounds()["alex-1"] > reached
    assert room.rounds()["lenet-1"] == 50, "nothing is lost"


def test_a_trained_device_that_waits_for_its_mesh_is_not_driven_out_by_two_of_another_one() -> None:
    room = Room(_trained("lenet-1", "lenet", 7, 3))
    room.run(5.0)
    for number in (1, 2):
        room.add(_trained(f"alex-{number}", "alex", 9, 2, room.now))
    room.run(8.0)
    assert sorted(room.finished) == ["alex-1", "alex-2"]


def test_who_leads_and_is_refused_hands_the_office_over() -> None:
    room = Room(_trained("alex-1", "alex", 0, 0))
    room.run(8.0)
    room.add(_trained("lenet-1", "lenet", 7, 2, room.now))
    room.run(1.0)
    assert list(room.finished) == ["alex-1"]
    assert ("alex-1", "lenet-1") in room.said(AgentResigned)
    room.run(2.0)
    assert room.leaders() == ["lenet-1"]
