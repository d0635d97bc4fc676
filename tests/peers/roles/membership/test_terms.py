"""A term that no mesh can have come to is refused, is not saved, and a saved one is forgotten: elections go on."""

import msgspec
import numpy as np
import pytest

from mdl.bounds import MAX_TERM, ROUND_LEAP
from mdl.errors import RemoteProtocolError
from mdl.files.ballot import BallotFile
from mdl.files.checkpoint import ModelCache
from mdl.peers.edge.resume import Origin, describe_state, restore_state
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.majority import LAST_FIRST_TERM, LAST_TERM, TERM_LEAP, TERMS, TERMS_PER_S
from mdl.peers.roles.membership.succession import Succession, SuccessionSettings
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.peers.trials.run_plan import build_mesh
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Finish, Received, SaveModel, Send, Tick
from mdl.protocol.round_messages import AgentPresent, CatchUp
from mdl.protocol.vocabulary import Ballot, Fork
from mdl.scheduler.policies.registry import make_policy
from mdl.sim.plans.fault_plan import FaultPlan
from mdl.transport.wire.codec import encode

ME, BOB = Contributor("me", 1), Contributor("bob", 1)


def _started(saved_term: int = 0) -> Succession:
    return Succession(ME, SuccessionSettings(), False, 100.0, Ballot(saved_term))


def test_a_device_that_has_saved_a_term_believes_what_a_mesh_can_have_come_to_since():
    succession = _started(5 * TERMS)
    succession.check_term(5 * TERMS + TERM_LEAP, 100.0)
    with pytest.raises(RemoteProtocolError, match="too far above"):
        succession.check_term(5 * TERMS + TERM_LEAP + TERMS, 100.0)
    succession.check_term(5 * TERMS + TERM_LEAP + TERMS, 100.0 + TERMS / TERMS_PER_S)


def test_a_device_that_has_saved_none_leaps_once_to_the_mesh_it_meets():
    succession = _started()
    old_mesh = 9 * TERM_LEAP
    with pytest.raises(RemoteProtocolError):
        succession.check_term(LAST_FIRST_TERM + 1, 100.0)
    succession.check_term(old_mesh, 100.0)
    succession.check_term(old_mesh + TERMS, 100.0 + TERMS / TERMS_PER_S)
    with pytest.raises(RemoteProtocolError):
        succession.check_term(old_mesh + TERM_LEAP, 100.0)


def test_that_this_device_leads_under_a_high_term_lets_nobody_else_claim_it():
    """Else whoever repeats it, and is outranked each time, drives the terms up as fast as it can speak."""
    succession = _started(5 * TERMS)
    succession.check_term(5 * TERMS + TERM_LEAP, 100.0)
    term = succession.take_office(5 * TERMS + TERM_LEAP)
    with pytest.raises(RemoteProtocolError, match="too far above"):
        succession.check_term(term, 100.0)


def test_nobody_believes_the_last_terms_of_all():
    for succession in (_started(1), _started(LAST_TERM)):
        succession.check_term(LAST_TERM, 1e9)
        with pytest.raises(RemoteProtocolError):
            succession.check_term(LAST_TERM + 1, 1e9)


def test_to_use_up_all_terms_takes_months_of_forged_messages():
    for first in (TERM_LEAP, LAST_FIRST_TERM):
        assert (LAST_TERM - first) / TERMS_PER_S > 45 * 24 * 3600


def _run_mesh(until_s: float):
    mesh, _ = build_mesh(FaultPlan(seed=3, peers=4, rounds=20))
    mesh.run(until_s)
    return mesh


@pytest.mark.parametrize("term", [MAX_TERM, LAST_TERM, LAST_FIRST_TERM, 4 * TERM_LEAP, TERM_LEAP])
def test_a_member_that_claims_a_high_term_stops_nobody_for_long(term):
    """Who believes it follows the claim, and leads above it as soon as the claimant is silent."""
    mesh = _run_mesh(3.0)
    rounds = len(mesh.rounds)
    names = sorted(mesh.nodes)
    liar = mesh.nodes[names[0]].contributor
    for name in names[1:]:
        machine = mesh.nodes[name].machine
        lineage = machine.trainer.model_state.lineage
        claim = AgentPresent(term, 1, lineage, True, ())
        encode(liar, claim)
        try:
            effects = machine.handle(Received(liar, claim), mesh.now)
        except RemoteProtocolError:
            continue
        for effect in effects:
            if isinstance(effect, Send):
                encode(machine.me, effect.message)
    mesh.crash(names[0])
    mesh.run(60.0, lambda: len(mesh.rounds) > rounds + 3)
    assert len(mesh.rounds) > rounds + 3
    assert not any(node.finished for node in mesh.nodes.values())
    assert all(node.machine.succession.term <= LAST_TERM for node in mesh.nodes.values())


def test_a_mesh_that_has_used_up_its_terms_says_what_to_do():
    mesh = _run_mesh(1.0)
    peer = next(iter(mesh.nodes.values())).machine
    peer.succession.term = LAST_TERM + 1
    peer.succession.give_up(0.0)
    finished = []
    now = mesh.now
    for _ in range(200):
        now += 0.25
        finished += [effect for effect in peer.handle(Tick(), now) if isinstance(effect, Finish)]
    assert [(finish.exit_code, "start them again" in finish.problem) for finish in finished] == [(4, True)]


@pytest.mark.parametrize("saved", [LAST_TERM + 1, MAX_TERM])
def test_a_saved_term_that_nobody_believes_is_forgotten(saved, caplog):
    trainer = Trainer(ME, np.zeros(3, np.float32), "schema", "model", TrainerSettings(), ballot=Ballot(saved))
    peer = Peer(ME, trainer, lambda: make_policy("greedy"), AgentSettings(), SuccessionSettings(), 0.0)
    assert peer.authority() == (0, "")
    assert "saved term" in caplog.text


@pytest.mark.parametrize("saved", [MAX_TERM + 1, -1])
def test_a_ballot_with_an_impossible_term_is_none(tmp_path, saved):
    file = BallotFile(tmp_path / "ballot")
    file.save(msgspec.structs.replace(Ballot(1), term=saved))
    assert BallotFile(tmp_path / "ballot").load() is None


def test_a_saved_history_that_cannot_be_read_is_no_state(tmp_path, caplog):
    cache = ModelCache(tmp_path)
    kept = describe_state(SaveModel(4, np.ones(3, np.float32), b""), Origin("home", "schema"))
    for history in ("{", '{"base": [""]}', "[" * 100_000, '{"lineage": [{"round_id": -1, "size": 1, "name": "a"}]}'):
        cache.save(msgspec.structs.replace(kept, extra={"history": history, "term": "7"}))
        assert restore_state(cache, Origin("home", "schema")) is None
    assert "history cannot be read" in caplog.text


def test_a_device_goes_no_further_ahead_than_a_mesh_can_have_come():
    trainer = Trainer(ME, np.zeros(3, np.float32), "schema", "model", TrainerSettings(), round_id=7)
    ahead = CatchUp(1, 7 + ROUND_LEAP + 1, b"x", BOB, (Fork(0, 2, "a"),))
    with pytest.raises(RemoteProtocolError, match="stands at 7"):
        trainer.handle(Received(BOB, ahead), 1.0)
    assert trainer.handle(Received(BOB, msgspec.structs.replace(ahead, round_id=7 + ROUND_LEAP)), 1.0)
