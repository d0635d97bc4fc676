"""The M-RNN, its growing last layer, and what of it is uploaded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from benchmarks.next_place.costs import count_parameters
from mdl.data.readers.visits import NO_STAY, Stays, ask_next, feature_sizes
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.learning.flat import FlatModel
from mdl.peers.colla.model.distillation import DistillSettings, Examples, train_student
from mdl.peers.colla.model.model_kinds import RecurrentKind
from mdl.peers.colla.model.recurrent import (
    DEVICE_SIZE,
    SIZES,
    RecurrentModel,
    build_recurrent,
    count_neighbours,
    customize_classes,
    grow_classes,
    pretrain_places,
)
from mdl.peers.colla.model.update_codec import OtherOriginError, apply_update, changed_tensors, encode_update

PLACES = 20
# Bytes: far more than any of these updates has.
LONGEST = 1 << 20


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _model(*class_ids: int, seed: int = 0) -> RecurrentModel:
    return build_recurrent(DEVICE_SIZE, PLACES, class_ids or range(PLACES), seed)


def _codes(count: int = 12, steps: int = 3) -> Tensor:
    sizes = torch.tensor(feature_sizes(PLACES))[None, :, None]
    return (torch.rand(count, 6, steps, generator=_generator()) * sizes).floor()


def _count(size: str) -> int:
    return count_parameters(build_recurrent(size, 368, range(368), 0))


def test_3_2_the_printed_parameter_counts_follow_from_368_places() -> None:
    """4-16 is the small model. The count printed for the large one, 32-128, is that of 4-128."""
    assert (_count("4-16"), _count("4-128")) == (11_868, 128_796)


def test_the_four_sizes_of_5_4() -> None:
    assert [_count(size) for size in SIZES] == [11_868, 28_488, 77_088, 235_728]


def test_a_last_layer_of_fewer_classes_is_smaller_by_their_rows() -> None:
    assert count_parameters(_model()) - count_parameters(_model(1, 2, 3)) == (PLACES - 3) * (16 + 1)


def test_logits_follow_the_classes_and_the_seed_alone() -> None:
    state = torch.get_rng_state()
    a, b = _model(4, 7, 1), _model(4, 7, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert a(_codes()).shape == (12, 3)
    assert torch.equal(a(_codes()), b(_codes()))
    assert not torch.equal(a(_codes()), _model(4, 7, 1, seed=1)(_codes()))


def test_six_embeddings_are_joined_and_the_constant_input_is_the_gates_bias() -> None:
    model, codes = _model(), _codes()
    read = model.embed_steps(codes)
    assert read.shape == (12, 3, 6 * 4 + 1)
    assert torch.equal(read[..., 4:8], model.embed[1](codes[:, 1].long()))
    assert torch.equal(read[..., -1], torch.ones(12, 3))


def test_steps_that_a_sequence_does_not_have_are_not_read() -> None:
    model, codes = _model(), _codes(steps=2)
    longer = torch.cat([codes, torch.full((12, 6, 3), float(NO_STAY))], dim=2)
    assert torch.allclose(model(longer), model(codes))
    mixed = torch.cat([longer, _codes(steps=5)])
    assert torch.allclose(model(mixed)[:12], model(codes), atol=1e-6)


def test_the_moment_that_is_asked_about_changes_the_answer() -> None:
    stays = Stays(np.array([3]), np.array([48]), np.array([4]))
    model = _model()
    at_nine, at_noon = (model(torch.from_numpy(ask_next(stays, asked, 3))) for asked in (54, 72))
    assert not torch.allclose(at_nine, at_noon)


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


def test_a_frozen_body_stays_and_the_last_layer_learns() -> None:
    model = _model(0, 1)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    model.train_body(False)
    y = torch.tensor([0, 1] * 6)
    train_student(model, Examples(_codes(), y), None, DistillSettings(epochs=2, patience=0), _generator())
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, before[name]) != name.startswith("classify.")


def test_2_2_pretraining_moves_the_places_alone_and_lowers_the_loss() -> None:
    model, x = _model(), _codes(64, 2)
    y = x[:, 0, -1].long()
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    first = pretrain_places(model, x, y, 1, 0.05)
    assert pretrain_places(model, x, y, 100, 0.05) < first / 2
    assert all(torch.equal(p, before[n]) != (n == "embed.0.weight") for n, p in model.named_parameters())


def test_2_2_windows_of_ten_minutes_within_five_are_neighbours() -> None:
    """Three windows at 1, one of nowhere, then 2: lags 1 and 2 within the stay, and 2 to 5 across the hole."""
    x = torch.tensor([[1.0, 0, 0, 0, 2, 1]])[:, :, None]
    counts = count_neighbours(x, torch.tensor([2]), 4)
    assert counts[1, 1] == 2 * (2 + 1)
    assert counts[1, 2] == counts[2, 1] == 1 + 2 + 3 + 3
    assert counts.sum() == 6 + 2 * 9


def test_a_model_that_did_not_change_uploads_what_it_is_no_change_of() -> None:
    model = _model(3, 4)
    assert changed_tensors(model, model) == {}
    assert set(load(encode_update(model, model))) == {"origin"}


def test_only_changed_tensors_and_rows_are_uploaded() -> None:
    pulled = _model(3, 4)
    model = customize_classes(pulled, [3, 4], _generator())
    with torch.no_grad():
        model.embed[0].weight[5] += 1  # type: ignore[index,operator]
        model.lstm.weight_hh_l0 += 1
        model.classify.bias[1] += 1
    changed = changed_tensors(model, pulled)
    assert set(changed) == {"embed.0.weight@rows", "embed.0.weight@values", "lstm.weight_hh_l0", "classify.bias"}
    assert changed["embed.0.weight@rows"].tolist() == [5]
    payload = sum(tensor.numel() * tensor.element_size() for tensor in changed.values())
    assert payload == 4 + 4 * 4 + 4 * 16 * 16 * 4 + 2 * 4
    size = len(encode_update(model, pulled))
    assert payload < size < payload + 512


def test_an_applied_update_gives_the_devices_model_bit_for_bit() -> None:
    pulled = _model()
    model = grow_classes(customize_classes(pulled, [7, 3], _generator()), [11], _generator())
    model.train_body(False)
    y = torch.tensor([0, 1, 2] * 4)
    train_student(model, Examples(_codes(), y), None, DistillSettings(epochs=1, patience=0), _generator())
    decoded = apply_update(pulled, encode_update(model, pulled), LONGEST)
    assert decoded.class_ids.tolist() == [7, 3, 11]
    assert torch.equal(decoded(_codes()), model(_codes()))


def test_new_classes_travel_with_their_rows() -> None:
    pulled = _model(7, 3)
    grown = grow_classes(pulled, [11], _generator())
    changed = changed_tensors(grown, pulled)
    assert changed["class_ids"].tolist() == [7, 3, 11]
    assert changed["classify.weight@rows"].tolist() == [2]
    assert torch.equal(apply_update(pulled, encode_update(grown, pulled), LONGEST)(_codes()), grown(_codes()))


def test_a_change_of_another_model_is_told_apart_from_a_wrong_update() -> None:
    pulled, other = _model(3, 4), _model(3, 4, seed=1)
    grown = grow_classes(pulled, [11], _generator())
    with pytest.raises(OtherOriginError, match="another model"):
        apply_update(other, encode_update(grown, pulled), LONGEST)


def _broken() -> list[tuple[dict[str, Tensor], str]]:
    row = {"classify.weight@values": torch.zeros(1, 16)}
    return [
        ({"nobody.weight": torch.zeros(1)}, "no tensor of this model"),
        ({"lstm.weight_hh_l0": torch.zeros(2, 2)}, "does not fit"),
        ({"lstm.weight_hh_l0": torch.zeros(64, 16, dtype=torch.float64)}, "does not fit"),
        ({"lstm.weight_hh_l0": torch.full((64, 16), torch.nan)}, "NaN"),
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
        apply_update(_model(3, 4), save(tensors), LONGEST)


@pytest.mark.parametrize("update", [b"", b"garbage", b"\xff" * 64, b"\x08" + b"\0" * 7 + b"{}      "[:8] + b"x"])
def test_garbage_is_refused(update: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="safetensors"):
        apply_update(_model(3, 4), update, LONGEST)


def test_an_update_that_is_longer_than_a_whole_model_is_not_even_parsed() -> None:
    kind = RecurrentKind(["a", "b", "c"])
    pulled = kind.build_small(0)
    with pytest.raises(RemoteProtocolError, match=f"at most {kind.largest_bytes} can be one"):
        kind.apply_update(pulled, bytes(kind.largest_bytes + 1))


def test_an_update_is_readable_by_anyone() -> None:
    pulled = _model(7, 3)
    grown = grow_classes(pulled, [11], _generator())
    assert set(load(encode_update(grown, pulled))) == {"origin", *changed_tensors(grown, pulled)}
