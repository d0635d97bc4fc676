"""Stage 3: a device's own model goes on, taught by its group's large one, in the ways of 5.4."""

from __future__ import annotations

import functools
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from benchmarks.next_place.costs import count_parameters
from mdl.errors import ConfigError, DataError, TrainingCancelledError
from mdl.peers.colla.model.classroom import accuracy_of, draw_held, hold_examples, update_client
from mdl.peers.colla.model.distillation import DistillSettings, Examples, train_student
from mdl.peers.colla.model.model_kinds import UPDATE_MODES, RecurrentKind, WindowKind, find_mode
from mdl.peers.colla.model.recurrent import RecurrentModel
from mdl.peers.colla.model.update_codec import changed_tensors

WINDOWS = WindowKind("lenet", "lenet", 1, 16, ("left", "middle", "right"))
PLACES = RecurrentKind([f"cell {number}" for number in range(8)], "4-16", "8-16")
WHOLE = UPDATE_MODES["same-whole"]
MODES = pytest.mark.parametrize("mode", UPDATE_MODES.values(), ids=UPDATE_MODES)
LONG = DistillSettings(epochs=40, learning_rate=0.05, batch_size=16, label_weight=1.0, patience=0)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _windows(count: int = 60) -> tuple[Tensor, Tensor]:
    """A bump whose place is the class."""
    y = torch.arange(count) % 3
    x = torch.randn((count, 1, 16), generator=_generator()) * 0.2
    for row, label in enumerate(y.tolist()):
        x[row, 0, 5 * label : 5 * label + 5] += 2
    return x, y


def _places(*starts: int, count: int = 60) -> tuple[Tensor, Tensor]:
    """After place p comes p + 1."""
    codes = torch.zeros(count, 6, 2)
    here = torch.tensor(starts)[torch.arange(count) % len(starts)]
    codes[:, 0, -1] = here
    return codes, (here + 1) % 8


@MODES
def test_every_mode_learns_and_leaves_the_start_alone(mode) -> None:  # type: ignore[no-untyped-def]
    x, y = _places(1, 4)
    pulled = PLACES.build_small(0)
    before = PLACES.pack(pulled)
    model = update_client(PLACES, pulled, None, x, y, LONG, mode, _generator()).model
    assert accuracy_of(PLACES, model, x, y) == 1.0
    assert PLACES.class_ids(model).tolist() == ([2, 5] if mode.own_classes else list(range(8)))
    assert PLACES.pack(pulled) == before


@pytest.mark.parametrize("name", ["same-fc", "customisation"])
def test_5_4_only_the_last_layer_learns_and_travels(name: str) -> None:
    x, y = _places(1, 4)
    pulled = PLACES.build_small(0)
    first = update_client(PLACES, pulled, None, x, y, LONG, UPDATE_MODES[name], _generator()).model
    second = update_client(PLACES, first, None, *_places(6), LONG, UPDATE_MODES[name], _generator()).model
    for model in (first, second):
        changed = changed_tensors(model, pulled)  # type: ignore[arg-type]
        assert {key.partition("@")[0] for key in changed} <= {"classify.weight", "classify.bias", "class_ids"}


def test_5_4_same_whole_sends_the_whole_model() -> None:
    x, y = _places(1, 4)
    pulled = PLACES.build_small(0)
    model = update_client(PLACES, pulled, None, x, y, LONG, WHOLE, _generator()).model
    assert {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "classify.weight"} <= set(changed_tensors(model, pulled))  # type: ignore[arg-type]


def test_2_2_a_device_goes_on_from_its_own_model_and_its_last_layer_grows() -> None:
    """25 places, and 5 new ones, make 30: here 2 and 1."""
    mode, pulled = UPDATE_MODES["customisation"], PLACES.build_small(0)
    first = update_client(PLACES, pulled, None, *_places(1, 4), LONG, mode, _generator()).model
    idle = DistillSettings(epochs=1, learning_rate=1e-9, label_weight=1.0, patience=0)
    second = update_client(PLACES, first, None, *_places(6), idle, mode, _generator()).model
    assert PLACES.class_ids(second).tolist() == [2, 5, 7]
    assert accuracy_of(PLACES, second, *_places(1, 4)) == 1.0
    assert count_parameters(second) - count_parameters(first) == 16 + 1


@MODES
def test_a_device_that_is_held_up_runs_no_batch_of_anything(mode, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Not of the teacher's pass, of the body that is read once, of training, validation, or the test at the end."""
    done: list[str] = []
    read = RecurrentModel.read_sequences

    def asked(stops_at: int = 1_000_000) -> bool:
        done.append("asked")
        return done.count("asked") > stops_at

    def noted(model: RecurrentModel, x: Tensor) -> Tensor:
        done.append("read")
        assert len(x) <= 512
        return read(model, x)

    monkeypatch.setattr(RecurrentModel, "read_sequences", noted)
    x, y = _places(1, 4, count=1200)
    pulled, teacher = PLACES.build_small(0), PLACES.build_large(0)
    taught = DistillSettings(epochs=2, batch_size=256, patience=1)
    model = update_client(PLACES, pulled, teacher, x, y, taught, mode, _generator(), asked).model
    accuracy_of(PLACES, model, x, y, asked)
    assert all(before == "asked" for before, after in pairwise(["", *done]) if after == "read")
    for stops_at in range(done.count("asked") - 3):
        done.clear()
        with pytest.raises(TrainingCancelledError):
            update_client(PLACES, pulled, teacher, x, y, taught, mode, _generator(), functools.partial(asked, stops_at))
        assert done[-1] == "asked"


def test_eq_3_a_device_that_only_listens_learns_what_the_large_model_says() -> None:
    x, y = _windows()
    teacher = WINDOWS.build_large(1)
    train_student(teacher, Examples(x, y), None, DistillSettings(epochs=4, batch_size=16, patience=0), _generator())
    wrong = (y + 1) % 3
    start: nn.Module = WINDOWS.build_small(2)
    listens = DistillSettings(epochs=10, learning_rate=0.005, label_weight=0.0, patience=0)
    assert accuracy_of(WINDOWS, _update(start, teacher, x, wrong, listens), x, y) > 0.9
    deaf = DistillSettings(epochs=10, learning_rate=0.005, label_weight=1.0, patience=0)
    assert accuracy_of(WINDOWS, _update(start, teacher, x, wrong, deaf), x, wrong) > 0.9


def _update(start: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor, settings: DistillSettings) -> nn.Module:
    return update_client(WINDOWS, start, teacher, x, y, settings, WHOLE, _generator()).model


def test_4_2_training_and_validation_are_16_to_4_and_patience_ends_it() -> None:
    x, y = _places(1, 4)
    stops = DistillSettings(epochs=500, learning_rate=0.1, batch_size=32, label_weight=1.0, patience=20)
    train, held = hold_examples(Examples(x, y), stops, draw_held(len(y), _generator()))
    assert held is not None
    assert (len(train.y), len(held.y)) == (48, 12)
    assert not draw_held(19, _generator()).any()
    never = DistillSettings(epochs=500, learning_rate=1e-12, label_weight=1.0, patience=20)
    training = update_client(PLACES, PLACES.build_small(0), None, x, y, never, WHOLE, _generator()).training
    assert training.epochs < 60


def test_a_student_is_asked_before_each_batch_whether_it_may_go_on() -> None:
    x, y = _windows()
    once = DistillSettings(epochs=2, batch_size=10, label_weight=1.0, patience=0)
    asked: list[int] = []
    update_client(WINDOWS, WINDOWS.build_small(0), None, x, y, once, WHOLE, _generator(), lambda: bool(asked.append(1)))
    assert len(asked) == 2 * -(-len(y) // 10)
    left = iter([False] * (len(asked) // 2) + [True])
    with pytest.raises(TrainingCancelledError, match="epoch 2 of 2"):
        update_client(WINDOWS, WINDOWS.build_small(0), None, x, y, once, WHOLE, _generator(), lambda: next(left))


def test_models_of_windows_learn_as_a_whole() -> None:
    x, y = _windows()
    with pytest.raises(ConfigError, match="only be same-whole"):
        update_client(WINDOWS, WINDOWS.build_small(0), None, x, y, LONG, UPDATE_MODES["same-fc"], _generator())


def test_an_unknown_mode_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"cloud.update is 'some': expected one of same-whole, same-fc"):
        find_mode("some")


def test_a_device_without_examples_has_nothing_to_learn() -> None:
    x, y = _windows()
    with pytest.raises(DataError, match="nothing to learn"):
        update_client(WINDOWS, WINDOWS.build_small(0), None, x[:0], y[:0], LONG, WHOLE, _generator())
