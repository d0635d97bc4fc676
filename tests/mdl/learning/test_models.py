from pathlib import Path

import pytest
import torch
from torch import nn

from mdl.errors import ConfigError
from mdl.learning.built_in import MODELS
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.own import Own, own_model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "time", "classes"), [(1, 16, 2), (3, 50, 5), (9, 128, 6)])
def test_every_model_maps_windows_to_logits(name: str, channels: int, time: int, classes: int) -> None:
    module = build_model(name, channels, time, classes, seed=0)
    assert module.training
    assert module(torch.zeros(3, channels, time)).shape == (3, classes)


@pytest.mark.parametrize("name", ["lenet", "alexnet"])
def test_the_seed_alone_fixes_the_parameters(name: str) -> None:
    one, again, other = (FlatModel(build_model(name, 3, 32, 4, seed)).values() for seed in (7, 7, 8))
    assert (one == again).all()
    assert (one != other).any()


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    build_model("lenet", 3, 32, 4, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_table_1_the_hybrid_has_11_6_million_parameters_and_46_4_megabytes() -> None:
    size = FlatModel(build_model("cnn-lstm", 9, 128, 6, seed=0)).size
    assert round(size / 1e6, 1) == 11.6
    assert round(size * 4 / 1e6, 1) == 46.4


def test_lenet_is_small() -> None:
    assert 2e4 < FlatModel(build_model("lenet", 9, 128, 6, seed=0)).size < 3e5


def test_fcn_is_smaller_and_as_large_for_windows_of_any_length() -> None:
    sizes = {FlatModel(build_model("fcn", 9, time, 6, seed=0)).size for time in (32, 128, 500)}
    assert sizes == {42_730}


def test_an_unknown_model_is_answered_with_the_closest_name() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown model 'lenett': did you mean 'lenet'\? valid are lenet, fcn, alexnet"
    ):
        build_model("lenett", 3, 32, 4, seed=0)


def test_windows_too_short_are_refused_with_the_least_length() -> None:
    with pytest.raises(ConfigError, match=r"at least 1 channel and 16 samples, and 2 classes: these have 3, 15 and 4"):
        build_model("lenet", 3, 15, 4, seed=0)


FACTORIES = """
import torch
from torch import nn
from torch import nn
def dense(channels, time, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * time, classes))
def lazy(classes, **others):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(96, 4))
def wrong_shape(classes):
    return nn.LazyLinear(classes)
def number():
    return 3
def broken(channels):
    raise ValueError("no\\nsuch thing")
constant = 5
"""


@pytest.fixture
def _factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories_of_this_test.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])


@pytest.mark.usefixtures("_factories")
@pytest.mark.parametrize("name", ["dense", "lazy", "fixed"])
def test_a_factory_in_the_current_directory_gets_what_it_accepts(name: str) -> None:
    module = build_model(own_model(f"factories_of_this_test:{name}"), 3, 32, 4, seed=0)
    assert module(torch.zeros(2, 3, 32)).shape == (2, 4)


@pytest.mark.usefixtures("_factories")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("factories_of_this_test:wrong_shape", r"returns \(2, 3, 4\) for 2 windows, not \(2, 4\) logits"),
        ("factories_of_this_test:number", r"returned int, not a torch.nn.Module"),
        ("factories_of_this_test:broken", r"its factory failed with ValueError: no such thing"),
        ("factories_of_this_test:constant", r"is a int, not a function or class"),
        ("factories_of_this_test:missing", r"cannot be imported: AttributeError"),
        ("no_such_package:factory", r"cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_factory_that_does_not_fit_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_model(own_model(name), 3, 32, 4, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_factories")
def test_a_factory_that_takes_other_windows_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"does not take windows of shape \(2, 3, 20\): RuntimeError"):
        build_model(own_model("factories_of_this_test:fixed"), 3, 20, 4, seed=0)


def _pooled(channels: int, height: int, width: int, classes: int) -> nn.Module:
    assert (height, width) == (6, 8)
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, classes))


def test_an_own_model_of_images_is_told_their_height_and_width() -> None:
    module = build_model(Own("m:f", _pooled), 3, 8, 2, seed=0, height=6)
    assert module(torch.zeros(5, 3, 6, 8)).shape == (5, 2)
    with pytest.raises(ConfigError, match=r"model 'lenet' takes windows .* these are images: bring your own"):
        build_model("lenet", 3, 8, 2, seed=0, height=6)
    with pytest.raises(ConfigError, match=r"does not take windows of shape \(2, 3, 6, 8\)"):
        build_model(Own("m:f", lambda channels, classes: nn.Linear(channels, classes)), 3, 8, 2, seed=0, height=6)
