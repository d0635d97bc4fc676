"""The best model is found in the file cache a round or two later, and another start does not replace a better one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from torch import nn

from mdl.files.checkpoint import CachedModel, ModelCache, read_safetensors
from mdl.files.export import ModelDescription, export_state
from mdl.learning.flat import FlatModel
from mdl.peers.edge.best import BEST, BestModel, known_by, read_best
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.run_end import UNKNOWN
from mdl.protocol.counts import Course, ModelJudgement
from mdl.protocol.delta import digest_of

MODEL = FlatModel(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))


class Run:
    """A device that saves w(1), w(2), ... and hears which of them is the best."""

    def __init__(self, out: Path) -> None:
        self.course: Course | None = None
        self.path, self.round_id = out / BEST, 0
        self.cache = ModelCache(out)
        self.best = BestModel(out, self.cache, lambda: self.course, self._write)
        self.digests = [""]

    def _write(self, path: Path, model: CachedModel, told: dict[str, str]) -> None:
        described = ModelDescription("lenet", 2, 16, ("a", "b"), "motion", round_id=model.round_id)
        export_state(path, MODEL.named(model.values), described, told)

    def close_round(self) -> None:
        self.best.look()
        self.round_id += 1
        values = np.full(MODEL.size, self.round_id, np.float32)
        self.digests.append(digest_of(values).hex())
        self.cache.save(CachedModel(values, self.round_id, "schema", "mesh"))

    def hear(self, number: int, accuracy: float | None = None, loss: float | None = None, of: str = "a") -> None:
        judged = tuple(ModelJudgement(name, 10, accuracy, loss=loss if accuracy is None else None) for name in of)
        self.course = Course(1.0, number, accuracy, loss, self.digests[number], best=judged)

    def kept(self) -> tuple[int, float] | None:
        self.best.look()
        if not self.path.exists():
            return None
        arrays, _ = read_safetensors(self.path)
        assert arrays.keys() == MODEL.module.state_dict().keys()
        return self.best.round_id, float(arrays["1.weight"][0, 0])


def test_a_verdict_that_comes_when_the_next_round_is_saved_already_still_finds_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.close_round()
    assert run.kept() is None
    run.close_round()
    run.hear(1, 0.5)
    run.close_round()  # w(3) takes the place of w(1), after the look
    assert run.kept() == (1, 1.0)
    run.hear(3, 0.6)
    assert run.kept() == (3, 3.0)
    run.close_round()
    run.close_round()
    run.hear(3, 0.6)
    assert run.kept() == (3, 3.0)


def test_a_start_that_counts_anew_does_not_replace_what_is_better(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.close_round()
    first.hear(1, 0.9)
    assert first.kept() == (1, 1.0)
    again = Run(tmp_path)
    again.close_round()
    again.close_round()
    again.hear(2, 0.7)
    assert again.kept() == (1, 1.0)
    again.hear(2, 0.95)
    assert again.kept() == (1, 1.0)  # the same round's verdict does not change
    again.close_round()
    again.hear(3, 0.95)
    assert again.kept() == (3, 3.0)
    assert read_best(tmp_path / BEST) == again.course


def test_a_run_decides_on_its_best_model_also_where_a_device_that_joins_finds_it_worse(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.close_round()
    run.hear(1, 0.9)
    assert run.kept() == (1, 1.0)
    run.close_round()
    run.hear(2, 0.7, of="ab")
    assert run.kept() == (2, 2.0)
    again = Run(tmp_path)
    again.close_round()
    again.hear(1, 0.6, of="abc")  # c has never tried what the earlier start has kept
    assert again.kept() == (1, 1.0)


def test_a_lost_or_changed_file_is_no_best_model(tmp_path: Path) -> None:
    assert read_best(tmp_path / BEST) is None
    (tmp_path / BEST).write_bytes(b"torn")
    assert read_best(tmp_path / BEST) is None
    run = Run(tmp_path)
    run.close_round()
    run.hear(1, None, 0.25)
    assert run.kept() == (1, 1.0)


def test_an_agent_that_steps_down_meanwhile_ends_no_thread() -> None:
    """The loop takes the agent away at any moment; another thread asks what is known of the run."""
    leading = SimpleNamespace(ending=SimpleNamespace(course=None, reason="as far as it was asked for"))

    class SteppingDown:
        trainer, agents = None, iter([leading])

        @property
        def agent(self) -> object:
            return next(self.agents, None)

    machine = cast(Peer, SteppingDown())
    assert known_by(machine).ended_by == "as far as it was asked for"
    assert known_by(machine) == UNKNOWN


def test_the_named_state_is_that_of_the_vector_and_not_of_the_module() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    module.add_module("tied", nn.Linear(2, 2))
    module.tied.weight = module[1].weight  # type: ignore[union-attr]
    flat = FlatModel(module)
    state = flat.named(np.arange(flat.size, dtype=np.float32))
    assert state.keys() == module.state_dict().keys()
    assert torch.equal(state["tied.weight"], state["1.weight"])
    assert not torch.equal(state["1.weight"], module[1].weight)
    assert int(state["0.num_batches_tracked"]) == 0
    flat.load(np.arange(flat.size, dtype=np.float32))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name]), name
