"""The state of optimizers and schedules comes back as it was, and nothing else does."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from mdl.errors import ConfigError
from mdl.files import state_file
from mdl.files.state_file import STATE_FILES, StateFile, load_kept

lr = torch.optim.lr_scheduler


def _trained(kind=torch.optim.AdamW, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        _step(model, optimizer)
    return model, optimizer


def _step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_training_goes_on_as_if_nothing_had_happened(tmp_path: Path, kind, options) -> None:
    model, optimizer = _trained(kind, **options)
    StateFile(tmp_path, "s").save(3, {"optimizer": optimizer.state_dict()})
    again = copy.deepcopy(model)
    other = kind(again.parameters(), lr=0.5)
    load_kept(other, StateFile(tmp_path, "s").load(3)["optimizer"])
    _step(model, optimizer)
    _step(again, other)
    assert torch.equal(model.weight, again.weight)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr.CosineAnnealingLR(o, 10),
        lambda o: lr.MultiStepLR(o, [2, 2, 5]),
        lambda o: lr.OneCycleLR(o, 0.5, total_steps=20),
        lambda o: lr.ReduceLROnPlateau(o),
        lambda o: lr.SequentialLR(o, [lr.LinearLR(o), lr.ExponentialLR(o, 0.5)], [3]),
        lambda o: lr.LambdaLR(o, lambda step: 1 / (step + 1)),
    ],
)
def test_a_schedule_goes_on_where_it_was(tmp_path: Path, make) -> None:
    def advance(optimizer, schedule):
        optimizer.step()
        schedule.step(*([1.0] if isinstance(schedule, lr.ReduceLROnPlateau) else []))

    parts = [_trained()[1] for _ in range(2)]
    schedules = [make(optimizer) for optimizer in parts]
    for _ in range(4):
        advance(parts[0], schedules[0])
    state = {"optimizer": parts[0].state_dict(), "scheduler": schedules[0].state_dict()}
    StateFile(tmp_path, "s").save(4, state)
    kept = StateFile(tmp_path, "s").load(4)
    load_kept(parts[1], kept["optimizer"])
    load_kept(schedules[1], kept["scheduler"])
    for _ in range(4):
        rates = []
        for optimizer, schedule in zip(parts, schedules, strict=True):
            advance(optimizer, schedule)
            rates.append(optimizer.param_groups[0]["lr"])
        assert rates[0] == rates[1]


def test_the_state_of_the_round_that_the_mesh_closed_is_found(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "s")
    for round_id in (1, 2, 3):
        file.save(round_id, {"steps": round_id})
    assert [StateFile(tmp_path, "s").load(round_id) for round_id in (1, 2, 3, 9)] == [
        None,
        {"steps": 2},
        {"steps": 3},
        {"steps": 3},
    ]
    again = StateFile(tmp_path, "s")
    again.save(3, {"steps": 33})
    assert again.load(2) == {"steps": 2}


def test_a_state_of_another_model_or_a_broken_file_is_not_used(tmp_path: Path, caplog) -> None:
    StateFile(tmp_path, "s").save(1, {"values": torch.ones(100)})
    assert StateFile(tmp_path, "other").load(1) is None
    path = tmp_path / STATE_FILES[0]
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    assert StateFile(tmp_path, "s").load(1) is None
    assert "its checksum is wrong" in caplog.text
    path.write_bytes(raw[:50])
    assert StateFile(tmp_path, "s").load(1) is None


def test_a_state_that_is_not_whole_does_not_take_the_place_of_the_one_before(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "s")
    for round_id in (1, 2):
        file.save(round_id, {"values": torch.full((3,), float(round_id))})
    path = tmp_path / STATE_FILES[0]
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    again = StateFile(tmp_path, "s")
    again.save(3, {})  # of a round that the mesh has not closed
    found = again.load(2)
    assert found is not None
    assert found["values"].tolist() == [1.0] * 3
    again.save(4, {})
    assert again.load(3) == {}, "what is whole is kept again"


def test_what_was_loaded_is_not_read_again_to_be_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StateFile(tmp_path, "schema").save(3, {"a": torch.ones(3)})
    file = StateFile(tmp_path, "schema")
    assert file.load(3)
    monkeypatch.setattr(state_file, "read_safetensors", pytest.fail)
    file.save(4, {"a": torch.zeros(3)})
    monkeypatch.undo()
    assert [StateFile(tmp_path, "schema").load(number)["a"].tolist() for number in (3, 4)] == [[1] * 3, [0] * 3]


def test_values_of_every_kind_come_back(tmp_path: Path) -> None:
    state = {
        "a": [1, 2.5, None, True, "text", float("inf")],
        0: (torch.tensor(3.0), torch.ones(2, dtype=torch.bfloat16), torch.zeros(0)),
        "deep": {"er": {1: torch.tensor([True, False])}},
    }
    StateFile(tmp_path, "s").save(1, state)
    found = StateFile(tmp_path, "s").load(1)
    assert found["a"] == state["a"]
    assert [tensor.dtype for tensor in found[0]] == [torch.float32, torch.bfloat16, torch.float32]
    assert [tensor.tolist() for tensor in found[0]] == [3.0, [1.0, 1.0], []]
    assert found["deep"]["er"][1].tolist() == [True, False]


def test_what_is_no_plain_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"state\.optimizer\.rule cannot be kept: it is a function"):
        StateFile(tmp_path, "s").save(1, {"optimizer": {"rule": test_what_is_no_plain_state_is_named}})


def test_moments_of_another_shape_are_refused() -> None:
    _, optimizer = _trained()
    other = torch.optim.AdamW(nn.Linear(4, 2).parameters())
    with pytest.raises(ValueError, match=r"exp_avg of parameter 0 is \[2, 3\], not \[2, 4\]"):
        load_kept(other, optimizer.state_dict())
