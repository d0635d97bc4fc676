from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import write_safetensors
from mdl.files.export import ModelDescription, export_model, import_model, read_description
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model

LENET = ModelDescription("lenet", 3, 32, ("sit", "stand"), "motion:people=24", "home", 5)


def _trained() -> nn.Module:
    module = build_model("lenet", 3, 32, 2, seed=9)
    module(torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(0)))
    FlatModel(module)
    return module


def test_an_exported_model_comes_back_with_its_description_and_outputs(tmp_path: Path) -> None:
    module = _trained()
    export_model(tmp_path / "global.safetensors", module, LENET)
    again, description = import_model(tmp_path / "global.safetensors")
    assert description == LENET == read_description(tmp_path / "global.safetensors")
    assert not again.training
    x = torch.ones(2, 3, 32)
    assert torch.equal(again(x), module.eval()(x))


def test_plain_safetensors_users_load_the_state_dict(tmp_path: Path) -> None:
    module = _trained()
    export_model(tmp_path / "global.safetensors", module, LENET)
    state = load_file(tmp_path / "global.safetensors")
    assert state["0.num_batches_tracked"].item() == 1
    build_model("lenet", 3, 32, 2, seed=0).load_state_dict(state)


def test_tied_parameters_are_exported_under_both_names(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    export_model(tmp_path / "tied", module, LENET)
    assert torch.equal(load_file(tmp_path / "tied")["1.weight"], module[0].weight)


def test_loading_into_a_flat_model_keeps_its_views(tmp_path: Path) -> None:
    export_model(tmp_path / "global.safetensors", _trained(), LENET)
    flat = FlatModel(build_model("lenet", 3, 32, 2, seed=0))
    flat.module.load_state_dict(load_file(tmp_path / "global.safetensors"))
    assert np.array_equal(flat.values(), FlatModel(_trained()).values())


def test_a_file_without_description_is_named(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x", {"a": np.zeros(1, np.float32)}, {})
    with pytest.raises(DataError, match="x has no model description"):
        import_model(tmp_path / "x")


def test_a_file_with_other_tensors_is_named(tmp_path: Path) -> None:
    export_model(tmp_path / "x", nn.Linear(2, 2), LENET)
    with pytest.raises(DataError, match=r"x does not fit model 'lenet': .*Missing key") as caught:
        import_model(tmp_path / "x")
    assert "\n" not in str(caught.value)


def test_a_model_unknown_here_is_named(tmp_path: Path) -> None:
    export_model(tmp_path / "x", nn.Linear(2, 2), ModelDescription("resnet", 3, 32, ("a", "b"), ""))
    with pytest.raises(ConfigError, match="unknown model 'resnet'"):
        import_model(tmp_path / "x")
