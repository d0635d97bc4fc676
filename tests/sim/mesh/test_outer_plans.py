"""An outer optimizer under faults: its momentum follows from the results alone, and travels with the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import run_guarded
from mdl.protocol.delta import digest_of
from mdl.protocol.grid import Vector
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import draw_wide

_SEEDS = 40


def _run(seed: int, exchange: Exchange = "shares") -> RunVerdict:
    with silent_machines():
        return run_guarded(replace(draw_wide(seed, "hard", exchange=exchange), outer_momentum=0.9), 10.0)


@pytest.mark.parametrize("exchange", ["chain", "shares"])
@pytest.mark.parametrize("seed", [22, 45, 61])
def test_a_mesh_with_momentum_lives_through_a_hard_plan(seed: int, exchange: Exchange) -> None:
    assert not _run(seed, exchange).kind


@pytest.mark.slow
def test_a_device_that_forgets_its_momentum_when_it_catches_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices at one w go apart in the next round, if only one of them has what led to it."""
    move_to = ModelState.move_to

    def forgets(self: ModelState, round_id: int, state: Vector, digest: bytes, history: Any) -> None:
        parameters, _ = self.outer.split(state)
        move_to(self, round_id, self.outer.begin(parameters), digest, history)

    monkeypatch.setattr(ModelState, "move_to", forgets)
    caught = [verdict.kind for seed in range(_SEEDS) if (verdict := _run(seed)).kind]
    assert caught
    assert set(caught) <= {"digest", "model", "stuck", "ballot"}


def test_the_digest_tells_two_momenta_of_one_model_apart() -> None:
    w = np.ones(4, np.float32)
    assert digest_of(np.concatenate([w, w])) != digest_of(np.concatenate([w, 0 * w]))
