"""5.4: only the last layer learns; the rest is a fixed feature extractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.personal_motion import cache_features, find_output_layer
from mdl.errors import ConfigError
from mdl.learning.built_in import MODELS
from mdl.learning.models import build_model
from mdl.peers.deeptype.model.study import FeatureTask, Study, StudySettings, tune_all, tune_only
from tests.peers.deeptype.model.examples import invented_text, small_model


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_last_layer_of_each_built_in_model_is_found(name: str) -> None:
    module = build_model(name, 3, 64, 5, seed=0)
    assert module.get_submodule(find_output_layer(module)).out_features == 5


def test_a_factored_last_layer_is_found_whole() -> None:
    table, _ = invented_text()
    assert find_output_layer(small_model(table, rank=3)) == "output"


@pytest.mark.parametrize("module", [nn.Linear(3, 2), nn.Sequential(nn.ReLU())])
def test_a_model_without_features_is_refused(module: nn.Module) -> None:
    with pytest.raises(ConfigError, match="nothing to tune"):
        find_output_layer(module)


def test_fine_tuning_changes_the_last_layer_alone_and_cached_features_say_the_same() -> None:
    """A classifier of motion windows: personalised by its last layer, from features that are computed once."""
    module = build_model("cnn-lstm", 3, 64, 5, seed=0)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 3, 64, generator=generator), torch.randint(5, (40,), generator=generator)
    name = find_output_layer(module)
    features = cache_features(module, name, x.split(16))
    layer = module.get_submodule(name)
    with torch.no_grad():
        torch.testing.assert_close(layer(features), module.eval()(x))
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    task = FeatureTask(layer, features, y, torch.ones(40), np.arange(40), 16)
    study = Study(tune_only(module, name), task, StudySettings(epochs=20, learning_rate=0.5))
    first = study.step()
    assert study.run()
    with torch.no_grad():
        after = float(nn.functional.cross_entropy(layer(features), y))
    assert after < first
    changed = {key for key, tensor in module.state_dict().items() if not torch.equal(tensor, before[key])}
    assert changed == {f"{name}.weight", f"{name}.bias"}
    assert len(tune_all(module)) == len(list(module.parameters()))
