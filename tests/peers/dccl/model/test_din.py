"""The backbone's attention against what it must be by hand."""

from __future__ import annotations

import pytest
import torch

from mdl.peers.dccl.model.din import Din, DinSettings


def _din(**settings: object) -> Din:
    torch.manual_seed(0)
    return Din(4, 20, DinSettings(embedding=8, hidden=8, history=5, **settings)).eval()  # type: ignore[arg-type]


def test_the_value_of_a_lone_item_is_what_answers() -> None:
    din, users = _din(), torch.tensor([1])
    history, candidates = torch.tensor([[0, 0, 0, 0, 7]]), torch.tensor([[3, 4]])
    features = din.features(users, history, candidates)
    value = din.value(din.items(torch.tensor(7)) + din.recency[-1])
    assert torch.allclose(features[0, :, 8:16], value.expand(2, -1), atol=1e-6)


def test_attention_is_a_softmax_of_query_and_keys() -> None:
    din = _din()
    history, candidates = torch.tensor([[0, 0, 5, 6, 7]]), torch.tensor([[3]])
    seen = din.items(history[0, 2:]) + din.recency[-3:]
    weights = torch.softmax(din.key(seen) @ din.query(din.items(torch.tensor(3))) / 8**0.5, dim=0)
    found = din.features(torch.tensor([0]), history, candidates)
    assert torch.allclose(found[0, 0, 8:16], weights @ din.value(seen), atol=1e-6)


@pytest.mark.parametrize("layers", [0, 2])
def test_an_empty_history_answers_and_padding_changes_nothing(layers: int) -> None:
    din, users, candidates = _din(encoder_layers=layers), torch.tensor([1]), torch.tensor([[3, 4]])
    assert din(users, torch.zeros(1, 5, dtype=torch.long), candidates).isfinite().all()
    short, long = torch.tensor([[6, 7]]), torch.tensor([[0, 0, 0, 6, 7]])
    assert torch.allclose(din(users, short, candidates), din(users, long, candidates), atol=1e-5)


def test_candidates_do_not_see_each_other() -> None:
    din, users, history = _din(), torch.tensor([1]), torch.tensor([[0, 1, 5, 6, 7]])
    both, one = din(users, history, torch.tensor([[3, 4]])), din(users, history, torch.tensor([[4]]))
    assert torch.allclose(both[:, 1:], one, atol=1e-6)


def test_without_a_users_embedding_all_users_are_alike() -> None:
    din, history, candidates = _din(has_user=False), torch.tensor([[1, 5], [1, 5]]), torch.tensor([[3], [3]])
    scores = din(torch.tensor([0, 3]), history, candidates)
    assert torch.allclose(scores[0], scores[1])
