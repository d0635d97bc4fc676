"""4: incremental training, pausable after any batch and resumed bit for bit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.deeptype import BASELINE, COMBINED
from mdl.errors import ConfigError, DataError
from mdl.peers.deeptype.model.personalise import Techniques, TextTask, begin_study
from mdl.peers.deeptype.model.study import Study, StudyProgress, StudySettings, load_study, save_study, tune_all
from tests.peers.deeptype.model.examples import invented_text, small_model

SETTINGS = StudySettings(epochs=2, batch=16, learning_rate=2.0)
ADAM = StudySettings(epochs=2, batch=16, optimizer="adam", learning_rate=0.01)


def _begin(settings: StudySettings = SETTINGS, techniques: Techniques = COMBINED) -> Study:
    table, text = invented_text(12)
    return begin_study(small_model(table), text, techniques, settings)


def _learned(study: Study) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in study.state().items()}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SETTINGS, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize(
    "techniques", [COMBINED, Techniques(fine_tune=False, batching="shared"), Techniques(cache=True)]
)
def test_a_study_saved_after_any_batch_ends_bit_for_bit_the_same(
    tmp_path: Path, settings: StudySettings, techniques: Techniques
) -> None:
    whole = _begin(settings, techniques)
    assert whole.run()
    stops = np.random.default_rng(3).integers(1, whole.progress.steps, 4)
    for stop in stops.tolist():
        first = _begin(settings, techniques)
        for _ in range(stop):
            first.step()
        save_study(tmp_path / "study.safetensors", first, "mine")
        again = _begin(settings, techniques)
        assert load_study(tmp_path / "study.safetensors", again, "mine")
        assert again.progress == first.progress
        assert again.run()
        for name, tensor in _learned(whole).items():
            assert torch.equal(tensor, again.state()[name]), (stop, name)


def test_a_pause_is_asked_for_before_each_batch() -> None:
    study = _begin()
    asked = iter([False, False, True])
    assert not study.run(lambda: next(asked))
    assert study.progress.steps == 2
    assert study.run()
    assert study.progress == StudyProgress(2, 0, 2 * study.batches)


def test_all_techniques_learn() -> None:
    for techniques in (BASELINE, COMBINED, Techniques(batching="shared"), Techniques(batching="longest")):
        study = _begin(StudySettings(epochs=6, batch=16, learning_rate=4.0), techniques)
        losses = []
        while not study.is_done:
            losses.append(study.step())
        assert np.mean(losses[-study.batches :]) < np.mean(losses[: study.batches]) - 0.05


def test_bfloat16_learns_nearly_the_same_and_keeps_single_precision() -> None:
    losses = []
    for settings in (ADAM, msgspec.structs.replace(ADAM, bfloat16=True)):
        study = _begin(settings, Techniques(fine_tune=False, batching="shared"))
        losses.append([study.step() for _ in range(2 * study.batches)])
        assert {tensor.dtype for tensor in study.state().values()} == {torch.float32}
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.01)


@pytest.mark.parametrize("once", [False, True])
def test_cached_features_learn_what_the_task_without_them_learns(once: bool) -> None:
    """The same rows and weights: over all of a text both have the same loss."""
    table, text = invented_text(12)
    model = small_model(table)
    settings = StudySettings(epochs=1, batch=10_000)
    cached = begin_study(model, text, Techniques(cache=True, once=once), settings)
    usual = begin_study(model, text, Techniques(batching="shared", once=once), settings)
    assert (cached.batches, usual.batches) == (1, 1)
    before = model.output.state_dict()["weight"].clone()
    loss = cached.step()
    with torch.no_grad():
        model.output.weight.copy_(before)  # type: ignore[operator,union-attr]
        model.output.bias.copy_(small_model(table).output.bias)  # type: ignore[operator,union-attr,arg-type]
    assert usual.step() == pytest.approx(loss, rel=1e-3)  # kept in half precision


def test_a_saved_study_of_something_else_or_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "study.safetensors"
    assert not load_study(path, _begin(), "mine")
    study = _begin()
    study.step()
    save_study(path, study, "mine")
    with pytest.raises(ConfigError, match="--fresh"):
        load_study(path, _begin(), "another text")
    with pytest.raises(DataError, match="other layers"):
        load_study(path, _begin(techniques=BASELINE), "mine")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        load_study(path, _begin(), "mine")
    path.write_bytes(b"{}")
    with pytest.raises(DataError, match="not a whole safetensors file"):
        load_study(path, _begin(), "mine")


def test_a_loss_that_is_not_finite_is_told() -> None:
    table, text = invented_text(12)
    model = small_model(table)
    with torch.no_grad():
        next(model.parameters()).fill_(float("inf"))  # as after steps that were far too long
    study = Study(tune_all(model), TextTask(model, text, "exact", 16), StudySettings())
    with pytest.raises(DataError, match="lower learning rate"):
        study.run()


def test_a_text_without_words_is_done() -> None:
    table, text = invented_text(12)
    for techniques in (COMBINED, Techniques(cache=True), Techniques(batching="shared")):
        study = begin_study(small_model(table), text.first(0), techniques, SETTINGS)
        assert study.is_done
        assert study.run()
