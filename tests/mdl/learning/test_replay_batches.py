"""A stream as the batches of a loop of one's own."""

import numpy as np
import pytest
import torch

from mdl.errors import ConfigError, DataError
from mdl.learning.replay import Replay


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
