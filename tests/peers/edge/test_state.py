"""What a device finds again after a restart: its model, how that came about, and what it has promised."""

import msgspec
import numpy as np
import pytest

from mdl.errors import ConfigError
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.peers.edge.resume import DEVICE_FILES, Origin, describe_state, restore_state, set_aside
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.succession import SuccessionSettings
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.peers.trials.run_plan import build_mesh
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.machine import LocalDeltaReady, Received, SaveBallot, SaveModel, Send, Tick, TrainLocally
from mdl.protocol.round_messages import AgentPresent, BroadcastOrdered, GlobalMessage
from mdl.protocol.vector_work import VECTOR_WORK, Outer
from mdl.protocol.vocabulary import Ballot, Counted, Fork, History, LineagePoint, TrainingReport
from mdl.scheduler.policies.registry import make_policy
from mdl.sim.plans.fault_plan import FaultPlan, Restart

ME = Contributor("me", 2)
HERE = Origin("home", "schema", "lenet 3x128 -> run", 0)
HISTORY = History((Fork(0, 1, "start"),), ("me",), (Counted(ME, 7),))
KNOWN = Ballot(1, (LineagePoint("start", 7),))


def _peer(ballot=None):
    trainer = Trainer(ME, np.zeros(3, np.float32), "schema", "model", TrainerSettings(), 7, HISTORY, ballot)
    settings = AgentSettings(min_peers=1)
    return Peer(ME, trainer, lambda: make_policy("greedy"), settings, SuccessionSettings(start_s=1.0), 0.0)


def test_a_state_is_found_again_as_it_was(tmp_path):
    cache = ModelCache(tmp_path)
    values = np.arange(3, dtype=np.float32)
    saved = SaveModel(7, values, digest_of(values), HISTORY, link_mb_s=0.25)
    cache.save(describe_state(saved, HERE))
    state = restore_state(ModelCache(tmp_path), HERE)
    assert state is not None
    assert (state.round_id, state.history) == (7, HISTORY)
    assert state.parameters.tolist() == [0.0, 1.0, 2.0]
    assert state.start("", "", None, Outer()).settings.link_mb_s == 0.25


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"schema_hash": "other", "model": "alexnet 3x128 -> run"}, "lenet 3x128 -> run, and this is alexnet 3x128"),
        ({"mesh": "attic"}, "of mesh 'home', and this is mesh 'attic'"),
        ({"seed": 5}, "of seed 0, and this is seed 5"),
    ],
)
def test_a_trained_state_of_another_model_mesh_or_seed_is_refused_naming_both(tmp_path, change, both):
    """`mdl peer --model alexnet` took a mesh's lenet of many rounds for nothing, and wrote over it."""
    cache = ModelCache(tmp_path)
    cache.save(describe_state(SaveModel(7, np.ones(3, np.float32), b"", HISTORY), HERE))
    with pytest.raises(ConfigError) as caught:
        restore_state(ModelCache(tmp_path), msgspec.structs.replace(HERE, **change))
    assert f"{tmp_path} has round 7 of " in str(caught.value)
    assert both in str(caught.value)
    assert "--fresh sets that aside" in str(caught.value)
    assert caught.value.exit_code == 2
    assert restore_state(ModelCache(tmp_path), HERE).round_id == 7


def test_a_state_that_nothing_was_trained_into_is_no_reason_to_refuse(tmp_path):
    ModelCache(tmp_path).save(describe_state(SaveModel(0, np.ones(3, np.float32), b""), HERE))
    assert restore_state(ModelCache(tmp_path), msgspec.structs.replace(HERE, seed=5)) is None


def test_going_on_is_told(tmp_path, caplog):
    caplog.set_level("INFO")
    ModelCache(tmp_path).save(describe_state(SaveModel(7, np.ones(3, np.float32), b"", HISTORY), HERE))
    restore_state(ModelCache(tmp_path), HERE)
    assert "continuing at round 7" in caplog.text


def test_what_is_set_aside_is_kept_as_often_as_it_is_asked_for(tmp_path):
    for number in (1, 2):
        cache = ModelCache(tmp_path)
        for round_id in (6, 7):
            cache.save(describe_state(SaveModel(round_id, np.full(3, number, np.float32), b""), HERE))
        (tmp_path / "metrics.jsonl").write_text("{}")
        assert set_aside(tmp_path, DEVICE_FILES) == tmp_path / f"before-{number}"
        assert restore_state(ModelCache(tmp_path), msgspec.structs.replace(HERE, seed=5)) is None
    for number in (1, 2):
        state = restore_state(ModelCache(tmp_path / f"before-{number}"), HERE)
        assert (state.round_id, state.parameters[0]) == (7, number)
        assert (tmp_path / f"before-{number}" / "metrics.jsonl").exists()
    assert set_aside(tmp_path, DEVICE_FILES) is None


def test_a_cache_without_history_is_read(tmp_path):
    ModelCache(tmp_path).save(CachedModel(np.zeros(3, np.float32), 4, "schema", "home"))
    state = restore_state(ModelCache(tmp_path), HERE)
    assert state is not None
    assert (state.round_id, state.history) == (4, History())


def test_the_term_survives_a_restart():
    """Rule 6: a device that is started anew speaks above everything it obeyed before."""
    peer = _peer(Ballot(5_000_000))
    for step in range(20):
        peer.handle(Tick(), 0.1 * step)
    assert peer.agent is not None
    assert peer.agent.term > 5_000_000


def test_a_promise_is_on_the_disk_before_anybody_hears_of_it():
    peer = _peer()
    effects = peer.handle(Received(Contributor("ann", 1), AgentPresent(70_000, 7, HISTORY.lineage, True)), 0.1)
    assert [type(effect) for effect in effects] == [SaveBallot, Send]
    assert (effects[0].ballot.term, effects[1].message.term) == (70_000, 70_000)
    assert peer.handle(Received(Contributor("ann", 1), AgentPresent(70_000, 7, HISTORY.lineage, True)), 0.2) == []


def test_a_restarted_device_follows_its_agent_under_the_same_term():
    ann, bob = Contributor("ann", 1), Contributor("bob", 1)
    claim = AgentPresent(70_000, 7, HISTORY.lineage, True)
    saved = _peer(KNOWN).handle(Received(ann, claim), 0.1)[0]
    for sender, agent in ((ann, "ann"), (bob, "")):
        peer = _peer(saved.ballot)
        peer.handle(Received(sender, claim), 0.1)
        assert peer.authority() == (70_000, agent)


def test_nobody_is_followed_again_under_a_term_in_which_a_result_was_staged():
    """An older order of that term may come again, of a result that was lost since."""
    ann, claim = Contributor("ann", 1), AgentPresent(70_000, 7, HISTORY.lineage, True)
    peer = _peer(KNOWN)
    peer.handle(Received(ann, claim), 0.1)
    peer.trainer.model_state.note_further(8)
    peer.trainer._staging.staged_term = 70_000
    saved = peer.handle(Tick(), 0.2)[0]
    again = _peer(saved.ballot)
    again.handle(Received(ann, claim), 0.3)
    assert again.authority() == (70_000, "")
    again.handle(Received(ann, AgentPresent(135_536, 7, HISTORY.lineage, True)), 0.4)
    assert again.authority() == (135_536, "ann")


def test_a_term_in_which_the_same_round_was_staged_again_is_over_too():
    """The result of round 8 is staged under ann's term, then bob, under a later one, orders it anew."""
    ann, bob, saved = Contributor("ann", 1), Contributor("bob", 1), []
    peer = _peer(KNOWN)
    for sender, term in ((ann, 70_000), (bob, 135_536)):
        claim = AgentPresent(term, 7, HISTORY.lineage, True)
        order = BroadcastOrdered(term, 8, peer.trainer.digest, 1, (ann, ME), 1.0, (ann,), lineage=HISTORY.lineage)
        values = np.ones(3, np.float32)
        result = Received(ann, GlobalMessage(8, 1.0, (ann,), term, 1), values, digest_of(values))
        for event in (Received(sender, claim), Received(sender, order), result):
            saved += [effect.ballot for effect in peer.handle(event, 0.1) if type(effect) is SaveBallot]
    assert peer.trainer.report(0, "", 0.2).staged.term == 135_536
    assert [(ballot.term, ballot.agent) for ballot in saved] == [
        (70_000, "ann"), (70_000, ""), (135_536, "bob"), (135_536, "bob"), (135_536, "")
    ]  # fmt: skip
    assert [ballot.reached[-1].round_id for ballot in saved] == [7, 8, 8, 7, 8]  # bob's proposal frees the vote
    again = _peer(saved[-1])
    again.handle(Received(bob, claim), 0.3)
    assert again.authority() == (135_536, "")


def test_a_device_that_is_started_anew_is_back_within_a_second():
    mesh, _ = build_mesh(FaultPlan(5, 3, 5, has_agent=False, jitter_s=0.02, faults=(Restart(at_s=3.3, peer="p2"),)))
    mesh.run(4.3)
    assert mesh.nodes["p2"].info.incarnation == 2
    assert mesh.nodes["p2"].machine.authority()[1] == "p0"
    assert mesh.nodes["p2"].holder.round_id > 0


def test_what_has_been_staged_is_on_the_disk_with_the_term():
    peer = _peer(Ballot(5_000_000))
    waiting, saved = [Tick()], []
    for step in range(200):
        event = waiting.pop(0) if waiting else Tick()
        for effect in peer.handle(event, 0.1 * step):
            if isinstance(effect, TrainLocally):
                delta = ModelDelta(np.ones(3, np.float32), 1.0, frozenset([ME]))
                waiting.append(LocalDeltaReady(effect.round_id, delta, TrainingReport(1.0, 1, 0.1)))
            elif type(effect) in VECTOR_WORK:
                waiting.append(VECTOR_WORK[type(effect)](effect))
            elif isinstance(effect, SaveBallot):
                saved.append(effect.ballot)
            elif isinstance(effect, SaveModel):
                assert LineagePoint("start", effect.round_id) in saved[-1].reached
    assert len(saved) > 4
    assert saved[-1].term > saved[0].term >= 5_000_000
