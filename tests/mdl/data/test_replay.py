"""A bounded sample of a stream: fair to what came early and late, the same for a seed, never larger than it may be."""

import numpy as np
import pytest

from mdl.data.watch import Reservoir
from mdl.errors import DataError


def _filled(capacity: int, count: int, seed: int, part: int = 7) -> Reservoir:
    kept = Reservoir(capacity, seed)
    numbers = np.arange(count)
    for start in range(0, count, part):
        some = numbers[start : start + part]
        kept.add(np.repeat(some[:, None], 2, axis=1).astype(np.float32), some)
    return kept


def test_all_is_kept_while_there_is_room() -> None:
    kept = _filled(50, 30, seed=0)
    assert kept.y.tolist() == list(range(30))
    assert (len(kept), kept.seen) == (30, 30)


def test_each_window_is_as_likely_whenever_it_came() -> None:
    # 2,000 draws of 20 from 100: each window is there 400 times, with a deviation of 17.9; 5 of these.
    counts = np.bincount(np.concatenate([_filled(20, 100, seed).y for seed in range(2000)]), minlength=100)
    assert counts.sum() == 40_000
    assert np.abs(counts - 400).max() < 90


def test_windows_and_labels_stay_together_and_a_seed_gives_the_same_sample() -> None:
    one, again, other = _filled(20, 300, 3), _filled(20, 300, 3), _filled(20, 300, 4)
    assert (one.x[:, 0] == one.y).all()
    assert len(set(one.y.tolist())) == len(one) == 20
    assert one.y.tolist() == again.y.tolist() != other.y.tolist()
    assert one.x.base is not None
    assert one.x.base.shape == (20, 2)  # memory does not grow


def test_windows_of_another_shape_are_refused() -> None:
    kept = _filled(20, 10, 0)
    with pytest.raises(DataError, match=r"windows of shape \(3,\) with 1 labels, where \(2,\) are kept"):
        kept.add(np.zeros((1, 3), np.float32), np.zeros(1, np.int64))
