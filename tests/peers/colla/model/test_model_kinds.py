"""What a cloud and its clients send one another: whole models and updates, for places and for windows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from mdl.data.windows import DataSet, make_windows
from mdl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from mdl.learning.flat import FlatModel, hash_schema
from mdl.learning.models import build_model
from mdl.peers.colla.model.model_kinds import UPDATE_MODES, ModelKind, RecurrentKind, WindowKind, kind_of

PLACES = tuple(f"cell {number}" for number in range(12))
ACTIVITIES = ("walk", "sit", "lie")


def _places(small: str = "4-16") -> RecurrentKind:
    return RecurrentKind(PLACES, small, "8-16")


def _windows(small: str = "lenet", classes: tuple[str, ...] = ACTIVITIES) -> WindowKind:
    return WindowKind(small, "lenet", 2, 16, classes, seed=3)


KINDS = pytest.mark.parametrize("make", [_places, _windows], ids=["places", "windows"])


def _x(kind: ModelKind) -> Tensor:
    shape = (5, 6, 3) if isinstance(kind, RecurrentKind) else (5, 2, 16)
    return torch.rand(shape, generator=_generator()) * 5


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _answers(model: nn.Module, kind: ModelKind) -> Tensor:
    logits: Tensor = model.eval()(_x(kind))
    return logits.detach()


def _trained(kind: ModelKind, pulled: nn.Module) -> nn.Module:
    """A client's model, every trainable parameter and float buffer of it moved."""
    mode = UPDATE_MODES["customisation" if isinstance(kind, RecurrentKind) else "same-whole"]
    model = kind.customize(pulled, [2, 0], mode, _generator())
    with torch.no_grad():
        for tensor in [p for p in model.parameters() if p.requires_grad] + list(model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=_generator()))
    return model


@KINDS
@pytest.mark.parametrize("large", [False, True])
def test_an_unpacked_model_answers_as_the_packed_one(make: Callable[[], ModelKind], large: bool) -> None:
    kind = make()
    model = kind.build_large(1) if large else kind.build_small(1)
    data = kind.pack(model)
    assert len(data) % 4 == 0
    assert torch.equal(_answers(kind.unpack(data, large=large), kind), _answers(model, kind))


@KINDS
def test_an_applied_update_gives_the_clients_model_bit_for_bit(make: Callable[[], ModelKind]) -> None:
    kind = make()
    pulled = kind.build_small(1)
    before = _answers(pulled, kind)
    model = _trained(kind, pulled)
    update = kind.encode_update(model, pulled)
    made = kind.apply_update(pulled, update)
    assert len(update) % 4 == 0
    assert torch.equal(_answers(made, kind), _answers(model, kind))
    assert kind.class_ids(made).tolist() == kind.class_ids(model).tolist()
    assert torch.equal(_answers(pulled, kind), before)


def test_a_device_has_the_classes_it_has_seen_and_uploads_no_embedding() -> None:
    kind = _places()
    pulled = kind.build_small(1)
    model = _trained(kind, pulled)
    assert kind.class_ids(model).tolist() == [2, 0]
    assert not any(name.startswith("embed") for name in load(kind.encode_update(model, pulled)))


def test_a_windows_model_keeps_all_classes() -> None:
    kind = _windows()
    assert kind.class_ids(
        kind.customize(kind.build_small(0), [2], UPDATE_MODES["same-whole"], _generator())
    ).tolist() == [0, 1, 2]


def test_a_packed_windows_model_is_the_flat_vector_that_peers_load() -> None:
    kind = _windows()
    model = kind.build_small(1)
    tensors = load(kind.pack(model))
    flat = FlatModel(build_model("lenet", 2, 16, 3, 9))
    flat.load(tensors.pop("values").numpy())
    assert tensors == {}
    assert torch.equal(_answers(flat.module, kind), _answers(model, kind))


@KINDS
@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"\xff" * 64, b"{}" * (1 << 20)], ids=["empty", "text", "ff", "long"]
)
def test_garbage_is_no_model_and_no_update(make: Callable[[], ModelKind], data: bytes) -> None:
    kind = make()
    for read in (kind.unpack, lambda update: kind.apply_update(kind.build_small(0), update)):
        with pytest.raises(RemoteProtocolError) as refused:
            read(data)
        assert "\n" not in str(refused.value)


@KINDS
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -1e7])
def test_values_that_are_no_parameters_are_refused(make: Callable[[], ModelKind], bad: float) -> None:
    kind = make()
    pulled = kind.build_small(0)
    model = _trained(kind, pulled)
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).view(-1)[0] = bad
    with pytest.raises(RemoteProtocolError, match=r"not finite|NaN, infinity"):
        kind.apply_update(pulled, kind.encode_update(model, pulled))
    with pytest.raises(RemoteProtocolError, match="not finite"):
        kind.unpack(kind.pack(model))


def test_a_model_of_another_task_is_refused_and_the_difference_named() -> None:
    places, windows, smaller = _places(), _windows(), _places("2-8")
    model = windows.build_small(0)
    with pytest.raises(RemoteProtocolError, match=r"at most \d+ can be one"):
        places.unpack(windows.pack(model))
    with pytest.raises(RemoteProtocolError, match="is no tensor of this model"):
        windows.unpack(places.pack(places.build_small(0)))
    with pytest.raises(RemoteProtocolError, match=r"embed\.0\.weight is .* not float32 \(12, 2\)"):
        smaller.unpack(places.pack(places.build_small(0)))
    with pytest.raises(RemoteProtocolError, match="where this model has"):
        windows.apply_update(model, windows.encode_update(build_model("lenet", 2, 16, 4, 0), model))


@pytest.mark.parametrize("class_ids", [[0, 0], [-1], [12], []])
def test_class_numbers_that_are_none_are_refused(class_ids: list[int]) -> None:
    kind = _places()
    tensors = load(kind.pack(kind.build_small(0))) | {"class_ids": torch.tensor(class_ids, dtype=torch.int64)}
    with pytest.raises(RemoteProtocolError, match="class_ids"):
        kind.unpack(save(tensors))


def test_the_hash_tells_models_and_classes_apart() -> None:
    schema = FlatModel(build_model("lenet", 2, 16, 3, 0)).schema
    assert _windows().schema_hash == hash_schema([*schema, *((f"class {name}", ()) for name in ACTIVITIES)])
    hashes = {kind.schema_hash for kind in (_windows(), _windows(classes=("walk", "sit", "run")), _places())}
    assert len(hashes | {_places("2-8").schema_hash, RecurrentKind(PLACES[::-1]).schema_hash}) == 5
    assert _places().schema_hash == _places().schema_hash


def test_the_data_tell_the_kind() -> None:
    def data(name: str, channels: int, time: int) -> DataSet:
        rows = np.zeros(4, np.int64)
        windows = make_windows(np.zeros((4, channels, time)), rows, rows, rows)
        return DataSet(name, windows, windows, ACTIVITIES, "time")

    assert kind_of(data("places", 6, 8), "", "", 0).summary.startswith("M-RNN 4-16 of 32-128")
    assert kind_of(data("motion", 2, 16), "", "lenet", 0).summary == "lenet of lenet 2x16 -> walk, sit, lie"
    with pytest.raises(ConfigError, match="4x16"):
        kind_of(data("places", 6, 8), "4x16", "", 0)


def test_a_kind_takes_only_its_own_models() -> None:
    with pytest.raises(LocalProtocolError, match="M-RNN"):
        _places().class_ids(_windows().build_small(0))
