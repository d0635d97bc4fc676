"""A pass of an own model: accumulation, precision, schedules, where batches go, and a stream as its batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mdl.errors import ConfigError, DataError
from mdl.learning.loop import Loop, Replay


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


X = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


def _pass(size: int, **options: object) -> tuple[nn.Module, float, int]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = list(zip(X.split(size), Y.split(size), strict=True))
    loop = Loop(optimizer, batches, nn.functional.cross_entropy, **options)  # type: ignore[arg-type]
    loop.prepare(model)
    return model, *loop.train(model)


def test_batches_that_add_up_step_as_one_large_batch() -> None:
    large, loss, samples = _pass(12)
    small, small_loss, small_samples = _pass(4, accumulate=3)
    assert (samples, small_samples) == (24, 24)
    assert small_loss == pytest.approx(loss)
    for one, other in zip(large.parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_lower_precision_learns_and_leaves_parameters_in_float32(precision: str) -> None:
    seen: set[torch.dtype] = set()
    model = _model()
    model[2].register_forward_hook(lambda _, __, result: seen.add(result.dtype))  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loop = Loop(optimizer, [(X, Y)] * 20, nn.functional.cross_entropy, precision=precision)  # type: ignore[arg-type]
    loop.prepare(model)
    first, _ = Loop(optimizer, [(X, Y)], nn.functional.cross_entropy).train(_model())
    assert loop.train(model)[0] < first
    assert seen == {getattr(torch, precision)}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert ("scaler" in loop.stateful()) == (precision == "float16")


def test_the_schedule_steps_once_a_pass() -> None:
    optimizer = torch.optim.SGD(_model().parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    model = _model()
    loop = Loop(optimizer, [(X, Y), (X, Y)], nn.functional.cross_entropy, scheduler)
    loop.train(model)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert loop.stateful().keys() == {"optimizer", "scheduler"}


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_proximal_term_holds_a_pass_near_where_it_began(precision: str) -> None:
    # With one batch a step, the second step's gradient is that of the loss and mu (w - w0): both by hand.
    start = _model()
    near, _, _ = _pass(12, proximal=0.8, precision=precision)
    first, second = (_model(), _model())
    optimizer = torch.optim.SGD(first.parameters(), lr=0.5)
    nn.functional.cross_entropy(first(X[:12]), Y[:12]).backward()
    optimizer.step()
    optimizer.zero_grad()
    nn.functional.cross_entropy(first(X[12:]), Y[12:]).backward()
    for parameter, origin in zip(first.parameters(), second.parameters(), strict=True):
        parameter.grad += 0.8 * (parameter.detach() - origin.detach())
    optimizer.step()
    for one, other, origin in zip(near.parameters(), first.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=5e-3 if precision == "float16" else 1e-6, rtol=1e-3)
        assert not torch.equal(one, origin)


def test_a_loss_that_is_not_finite_is_told() -> None:
    loop = Loop(torch.optim.SGD(_model().parameters(), lr=1.0), [(X * float("nan"), Y)], nn.functional.cross_entropy)
    with pytest.raises(DataError, match="the training loss is nan after 0 samples"):
        loop.train(_model())


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="accumulate is 0: it must be at least 1"):
        Loop(accumulate=0)
    with pytest.raises(ConfigError, match="proximal is -1: it must be at least 0"):
        Loop(proximal=-1)
    with pytest.raises(ConfigError, match="precision is 'half': expected one of float32, bfloat16, float16"):
        Loop(precision="half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"run\(\) needs optimizer, data and loss"):
        Loop().prepare(_model())


def _part(number: int, count: int = 10) -> tuple[np.ndarray, np.ndarray]:
    return np.full((count, 2), number, np.float32), np.full(count, number)


def _labels(replay: Replay) -> list[int]:
    return torch.cat([y for _, y in replay]).tolist()


def test_a_pass_takes_what_has_come_and_goes_over_all_that_is_kept() -> None:
    replay = Replay(iter([_part(0), None, _part(1), _part(2)]), capacity=100, batch_size=8)
    assert sorted(_labels(replay)) == [0] * 10
    replay.add(torch.full((5, 2), 7.0), torch.full((5,), 7))
    assert sorted(_labels(replay)) == [0] * 10 + [1] * 10 + [2] * 10 + [7] * 5
    assert len(replay) == 35
    batches = list(replay)
    assert [len(y) for _, y in batches] == [7] * 5
    assert all(x.dtype == torch.float32 and (x[:, 0] == y).all() for x, y in batches)
    assert _labels(replay) != _labels(replay)  # an order of its own each time


def test_what_is_kept_is_bounded_also_of_a_source_without_an_end() -> None:
    def stream():  # type: ignore[no-untyped-def]
        while True:
            yield _part(1)

    replay = Replay(stream(), capacity=50)
    assert len(_labels(replay)) == 50


def test_nothing_so_far_and_wrong_sizes_are_told() -> None:
    with pytest.raises(DataError, match="the stream has given no window so far"):
        next(iter(Replay(iter([None]), capacity=5)))
    with pytest.raises(ConfigError, match="capacity is 0"):
        Replay(capacity=0)
