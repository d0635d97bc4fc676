"""What a device finds again after a restart: its model, how that came about, and the highest term it has heard."""

import numpy as np
import pytest

from mdl.checkpoint import CachedModel, ModelCache
from mdl.delta import Contributor, ModelDelta, digest_of
from mdl.machine import LocalDeltaReady, SaveModel, Tick, TrainLocally
from mdl.messages import Counted, Fork, History, TrainingReport
from peers.agent import AgentSettings
from peers.device import describe_state, restore_state
from peers.peer import Peer
from peers.succession import SuccessionSettings
from peers.trainer import Trainer, TrainerSettings
from scheduler.policies import make_policy

ME = Contributor("me", 2)
HISTORY = History((Fork(0, 1, "start"),), ("me",), (Counted(ME, 7),))


def _peer(term=0):
    trainer = Trainer(ME, np.zeros(3, np.float32), "schema", "model", TrainerSettings(), 7, HISTORY, term)
    settings = AgentSettings(min_peers=1)
    return Peer(ME, trainer, lambda: make_policy("greedy"), settings, SuccessionSettings(start_s=1.0), 0.0)


def test_a_state_is_found_again_as_it_was(tmp_path):
    cache = ModelCache(tmp_path)
    values = np.arange(3, dtype=np.float32)
    saved = SaveModel(7, values, digest_of(values), HISTORY, 131_077)
    cache.save(describe_state(saved, "schema", "home"))
    state = restore_state(ModelCache(tmp_path), "schema", "home")
    assert state is not None
    assert (state.round_id, state.history, state.term) == (7, HISTORY, 131_077)
    assert state.parameters.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("schema", "mesh"), [("other", "home"), ("schema", "other")])
def test_a_state_of_another_model_or_mesh_is_none(tmp_path, schema, mesh):
    ModelCache(tmp_path).save(CachedModel(np.zeros(3, np.float32), 1, "schema", "home"))
    assert restore_state(ModelCache(tmp_path), schema, mesh) is None


def test_a_cache_without_history_and_term_is_read(tmp_path):
    ModelCache(tmp_path).save(CachedModel(np.zeros(3, np.float32), 4, "schema", "home"))
    state = restore_state(ModelCache(tmp_path), "schema", "home")
    assert state is not None
    assert (state.round_id, state.history, state.term) == (4, History(), 0)


def test_the_term_survives_a_restart():
    """Rule 6: a device that is started anew speaks above everything it obeyed before."""
    peer = _peer(term=5_000_000)
    for step in range(20):
        peer.handle(Tick(), 0.1 * step)
    assert peer.agent is not None
    assert peer.agent.term > 5_000_000


def test_what_is_saved_holds_the_term():
    peer = _peer(term=5_000_000)
    waiting, saved = [Tick()], []
    for step in range(200):
        event = waiting.pop(0) if waiting else Tick()
        for effect in peer.handle(event, 0.1 * step):
            if isinstance(effect, TrainLocally):
                delta = ModelDelta(np.ones(3, np.float32), 1.0, frozenset([ME]))
                waiting.append(LocalDeltaReady(effect.round_id, delta, TrainingReport(1.0, 1, 0.1)))
            elif isinstance(effect, SaveModel):
                saved.append(effect.term)
    assert saved
    assert all(term > 5_000_000 for term in saved)
