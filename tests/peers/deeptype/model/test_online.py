"""5.5: a step that reuses the inference is the step of backpropagation, at no forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mdl.errors import ConfigError
from mdl.peers.deeptype.model.compression import factor_linear
from mdl.peers.deeptype.model.keyboard import OnlineLearner

RATE = 0.3


def _layer(factored: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(6, 9)
    return factor_linear(layer, 3) if factored else layer


def _features(count: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("factored", [False, True])
def test_5_5_the_step_is_that_of_backpropagation(factored: bool) -> None:
    reused, usual = _layer(factored), _layer(factored)
    features, targets = _features(4), torch.tensor([2, 0, 8, 2])
    learner = OnlineLearner(reused, RATE, samples=4)
    made = [learner.learn([learner.infer(row)], int(target)) for row, target in zip(features, targets, strict=True)]
    assert made == [False, False, False, True]
    nn.functional.cross_entropy(usual(features), targets).backward()
    with torch.no_grad():
        for parameter in usual.parameters():
            assert parameter.grad is not None
            parameter -= RATE * parameter.grad
    for one, other in zip(reused.parameters(), usual.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_step_runs_no_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = OnlineLearner(layer := _layer(), RATE, samples=2)
    inferred = [learner.infer(row) for row in _features(2)]

    def refuse(*_: object) -> Tensor:
        raise AssertionError("the layer was run")

    monkeypatch.setattr(nn.Linear, "forward", refuse)
    before = [parameter.clone() for parameter in layer.parameters()]
    assert not learner.learn(inferred[:1], 1)
    assert learner.learn(inferred[1:], 1)
    assert not torch.equal(before[0], next(layer.parameters()))


def test_a_buffer_of_16_words_and_the_rest_at_the_end() -> None:
    learner = OnlineLearner(_layer(), RATE)
    steps = [learner.learn([learner.infer(row)], 1) for row in _features(40)]
    assert [at for at, step in enumerate(steps, 1) if step] == [16, 32]
    assert learner.flush()
    assert not learner.flush()
    assert learner.steps == 3


@pytest.mark.parametrize(("stale", "dropped"), [("drop", 1), ("recompute", 0)])
def test_what_an_update_made_stale_is_dropped_or_computed_again(stale: str, dropped: int) -> None:
    layer, features = _layer(), _features(3)
    learner = OnlineLearner(layer, RATE, samples=1, stale=stale)  # type: ignore[arg-type]
    early = learner.infer(features[0])
    learner.learn([learner.infer(features[1])], 3)
    between = [parameter.clone() for parameter in layer.parameters()]
    made = learner.learn([early], 4)
    assert (made, learner.dropped) == (not dropped, dropped)
    if stale == "recompute":
        usual = _layer()
        usual.load_state_dict(dict(zip(("weight", "bias"), between, strict=True)))
        nn.functional.cross_entropy(usual(features[:1]), torch.tensor([4])).backward()
        for one, before, other in zip(layer.parameters(), between, usual.parameters(), strict=True):
            assert other.grad is not None
            torch.testing.assert_close(one, before - RATE * other.grad)


def test_only_the_first_suggestions_of_a_sample_are_kept() -> None:
    kept = []
    for given in (3, 10):
        learner = OnlineLearner(layer := _layer(), RATE, samples=1, kept=3)
        learner.learn([learner.infer(row) for row in _features(10)[:given]], 1)
        kept.append(next(layer.parameters()).clone())
    assert torch.equal(*kept)


def test_a_layer_that_cannot_learn_this_way_is_refused() -> None:
    with pytest.raises(ConfigError, match="ReLU"):
        OnlineLearner(nn.ReLU(), RATE)
