"""The M-RNN, its growing last layer, and what of it is uploaded."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from mdl.cloud.distillation import DistillSettings, Examples, train_student
from mdl.cloud.recurrent import (
    CLOUD_SIZE,
    DEVICE_SIZE,
    RecurrentModel,
    build_recurrent,
    copy_embeddings,
    count_parameters,
    customize_classes,
    grow_classes,
    pretrain_embeddings,
)
from mdl.cloud.update_codec import LARGEST_UPDATE_BYTES, apply_update, changed_tensors, encode_update
from mdl.data.readers.visits import feature_sizes
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.learning.flat import FlatModel

PLACES = 20


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _model(*class_ids: int, seed: int = 0) -> RecurrentModel:
    return build_recurrent(DEVICE_SIZE, PLACES, class_ids or range(PLACES), seed)


def _codes(count: int = 12, steps: int = 3) -> Tensor:
    sizes = torch.tensor(feature_sizes(PLACES))[None, :, None]
    return (torch.rand(count, 6, steps, generator=_generator()) * sizes).floor()


def test_the_sizes_have_the_papers_parameter_counts_for_308_places() -> None:
    counts = [count_parameters(build_recurrent(size, 308, range(308), 0)) for size in (CLOUD_SIZE, DEVICE_SIZE)]
    assert counts == [128_796, 11_868]


def test_a_last_layer_of_fewer_classes_is_smaller_by_their_rows() -> None:
    assert count_parameters(_model()) - count_parameters(_model(1, 2, 3)) == (PLACES - 3) * (16 + 1)


def test_logits_follow_the_classes_and_the_seed_alone() -> None:
    state = torch.get_rng_state()
    a, b = _model(4, 7, 1), _model(4, 7, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert a(_codes()).shape == (12, 3)
    assert torch.equal(a(_codes()), b(_codes()))
    assert not torch.equal(a(_codes()), _model(4, 7, 1, seed=1)(_codes()))


def test_the_constant_input_is_the_gates_bias() -> None:
    read = _model().read_stays(_codes())
    assert read.shape == (12, 3, 5)
    assert torch.equal(read[..., -1], torch.ones(12, 3))


def test_the_flat_model_of_the_mesh_takes_it() -> None:
    model = _model()
    assert FlatModel(model).size == count_parameters(model)


@pytest.mark.parametrize("size", ["", "32", "32x128", "0-4", "-4-16", "99999-1"])
def test_a_malformed_size_is_refused(size: str) -> None:
    with pytest.raises(ConfigError, match="EMBEDDING-HIDDEN"):
        build_recurrent(size, PLACES, [0], 0)


@pytest.mark.parametrize("class_ids", [[1, 1], [-1], [PLACES], []])
def test_class_numbers_that_are_none_are_refused(class_ids: list[int]) -> None:
    with pytest.raises(ConfigError):
        build_recurrent(DEVICE_SIZE, PLACES, class_ids, 0)


def test_a_picked_class_keeps_its_logit() -> None:
    whole = _model()
    picked = customize_classes(whole, [7, 3], _generator())
    assert torch.allclose(picked(_codes()), whole(_codes())[:, [7, 3]])
    assert picked.class_ids.tolist() == [7, 3]


def test_growing_keeps_the_old_rows_and_appends_the_new_by_number() -> None:
    model = _model(9, 2)
    grown = grow_classes(model, [5, 2, 0], _generator())
    assert grown.class_ids.tolist() == [9, 2, 0, 5]
    assert torch.allclose(grown(_codes())[:, :2], model(_codes()))
    assert model.class_ids.tolist() == [9, 2]
    assert grown.classify.bias[2:].tolist() == [model.classify.bias.min().item()] * 2


def test_a_grown_class_can_be_learned() -> None:
    grown = grow_classes(_model(9, 2), [5], _generator())
    x, y = _codes(), torch.full((12,), 2)
    settings = DistillSettings(epochs=30, learning_rate=0.05, patience=0)
    train_student(grown, Examples(x, y), None, settings, _generator())
    assert (grown(x).argmax(1) == 2).all()


def test_frozen_embeddings_stay_and_the_rest_learns() -> None:
    model = _model(0, 1)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    model.train_embeddings(False)
    y = torch.tensor([0, 1] * 6)
    train_student(model, Examples(_codes(), y), None, DistillSettings(epochs=2, patience=0), _generator())
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, before[name]) == name.startswith("embed.")


def test_pretraining_moves_only_the_embeddings_and_lowers_the_loss() -> None:
    model, x = _model(), _codes(64, 2)
    y = (x[:, 0, -1].long() - 2).clamp_min(0)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    first = pretrain_embeddings(model, x, y, 1, 0.05, _generator())
    assert pretrain_embeddings(model, x, y, 20, 0.05, _generator()) < first / 2
    assert all(torch.equal(p, before[n]) != n.startswith("embed.") for n, p in model.named_parameters())


def test_a_small_model_starts_from_the_large_ones_embeddings() -> None:
    large, small = build_recurrent(CLOUD_SIZE, PLACES, range(PLACES), 1), _model()
    copy_embeddings(large, small)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(large.embed, small.embed, strict=True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="places"):
        copy_embeddings(build_recurrent(CLOUD_SIZE, 5, [0], 0), small)


def test_a_model_that_did_not_change_uploads_a_header_alone() -> None:
    model = _model(3, 4)
    assert changed_tensors(model, model) == {}
    assert len(encode_update(model, model)) < 32


def test_only_changed_tensors_and_rows_are_uploaded() -> None:
    pulled = _model(3, 4)
    model = customize_classes(pulled, [3, 4], _generator())
    with torch.no_grad():
        model.embed[0].weight[5] += 1  # type: ignore[index,operator]
        model.project.weight += 1
        model.classify.bias[1] += 1
    changed = changed_tensors(model, pulled)
    assert set(changed) == {"embed.0.weight@rows", "embed.0.weight@values", "project.weight", "classify.bias"}
    assert changed["embed.0.weight@rows"].tolist() == [5]
    payload = sum(tensor.numel() * tensor.element_size() for tensor in changed.values())
    assert payload == 4 + 8 * 4 + 4 * 48 * 4 + 2 * 4
    size = len(encode_update(model, pulled))
    assert payload < size < payload + 512


def test_an_applied_update_gives_the_devices_model_bit_for_bit() -> None:
    pulled = _model()
    model = grow_classes(customize_classes(pulled, [7, 3], _generator()), [11], _generator())
    model.train_embeddings(False)
    y = torch.tensor([0, 1, 2] * 4)
    train_student(model, Examples(_codes(), y), None, DistillSettings(epochs=1, patience=0), _generator())
    decoded = apply_update(pulled, encode_update(model, pulled))
    assert decoded.class_ids.tolist() == [7, 3, 11]
    assert torch.equal(decoded(_codes()), model(_codes()))


def test_new_classes_travel_with_their_rows() -> None:
    pulled = _model(7, 3)
    grown = grow_classes(pulled, [11], _generator())
    changed = changed_tensors(grown, pulled)
    assert changed["class_ids"].tolist() == [7, 3, 11]
    assert changed["classify.weight@rows"].tolist() == [2]
    assert torch.equal(apply_update(pulled, encode_update(grown, pulled))(_codes()), grown(_codes()))


def _broken() -> list[tuple[dict[str, Tensor], str]]:
    row = {"classify.weight@values": torch.zeros(1, 16)}
    return [
        ({"nobody.weight": torch.zeros(1)}, "no tensor of this model"),
        ({"project.weight": torch.zeros(2, 2)}, "does not fit"),
        ({"project.weight": torch.zeros(4, 48, dtype=torch.float64)}, "does not fit"),
        ({"project.weight": torch.full((4, 48), torch.nan)}, "NaN"),
        (row, "does not fit"),
        ({**row, "classify.weight@rows": torch.tensor([2], dtype=torch.int32)}, "does not fit"),
        ({**row, "classify.weight@rows": torch.tensor([-1], dtype=torch.int32)}, "does not fit"),
        ({**row, "classify.weight@rows": torch.tensor([0.0])}, "does not fit"),
        ({"class_ids": torch.tensor([1, 1], dtype=torch.int32)}, "class_ids"),
        ({"class_ids": torch.tensor([PLACES], dtype=torch.int32)}, "class_ids"),
        ({"class_ids": torch.tensor([3, 4, 5], dtype=torch.int32)}, "adds class 5"),
    ]


@pytest.mark.parametrize(("tensors", "reason"), _broken())
def test_an_update_that_does_not_fit_is_refused_and_named(tensors: dict[str, Tensor], reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        apply_update(_model(3, 4), save(tensors))


@pytest.mark.parametrize("update", [b"", b"garbage", b"\xff" * 64, b"\x08" + b"\0" * 7 + b"{}      "[:8] + b"x"])
def test_garbage_is_refused(update: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="safetensors"):
        apply_update(_model(3, 4), update)


def test_an_update_beyond_all_bounds_is_not_even_parsed() -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        apply_update(_model(3, 4), bytes(LARGEST_UPDATE_BYTES + 1))


def test_an_update_is_readable_by_anyone() -> None:
    pulled = _model(7, 3)
    grown = grow_classes(pulled, [11], _generator())
    assert set(load(encode_update(grown, pulled))) == set(changed_tensors(grown, pulled))
