"""2: the network's sizes are the paper's."""

from __future__ import annotations

import pytest
import torch

from mdl.peers.deeptype.model.next_word import NextWordModel, NextWordSize, build_next_word, size_of


def _megabytes(size: NextWordSize) -> float:
    with torch.device("meta"):
        return sum(4 * parameter.numel() for parameter in NextWordModel(size).parameters()) / 1e6


@pytest.mark.parametrize(
    ("size", "megabytes"),
    [
        (NextWordSize(20_000, 20_100), 74.5),
        (NextWordSize(20_000, 20_100, rank=40), 17.0),  # layer compression
        (NextWordSize(10_000, 10_100), 42.4),  # vocabulary compression
        (NextWordSize(10_000, 10_100, rank=40), 13.8),  # both
    ],
)
def test_table_2_model_sizes(size: NextWordSize, megabytes: float) -> None:
    assert _megabytes(size) == pytest.approx(megabytes, abs=0.2)


def test_the_seed_alone_decides_and_the_shape_can_be_read_off() -> None:
    for size in (NextWordSize(30, 40, 8), NextWordSize(30, 40, 8, rank=3, layers=1)):
        once, again, other = (build_next_word(size, seed) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(once.parameters(), again.parameters(), strict=True))
        assert not torch.equal(next(once.parameters()), next(other.parameters()))
        assert size_of(once) == size
        assert once(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 30)
