"""Who holds what: every split is a partition, never divides a group, and is the same for every peer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.data import Shard, Windows, make_windows, parse_shard, shard_test, split_windows
from mdl.errors import ConfigError


def make(subjects: int, groups_each: int, sizes: list[int], classes: int = 3) -> Windows:
    """Windows without content: groups of the given sizes (repeated), groups_each for each subject."""
    count = subjects * groups_each
    size = np.resize(np.array(sizes), count)
    group = np.repeat(np.arange(count), size)
    return make_windows(np.zeros((len(group), 1, 2)), group % classes, group // groups_each, group)


@given(
    st.integers(1, 8), st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 7),
    st.sampled_from(["subject", "iid", "dirichlet:0.1", "dirichlet:100"]), st.integers(0, 99),
)  # fmt: skip
def test_shares_are_disjoint_cover_all_rows_and_never_divide_a_group(
    subjects: int, groups_each: int, sizes: list[int], count: int, how: str, seed: int
) -> None:
    windows = make(subjects, groups_each, sizes)
    try:
        shares = split_windows(windows, how, count, seed)
    except ConfigError:
        return
    assert len(shares) == count
    assert all(len(rows) for rows in shares)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(windows)))
    key = windows.subject if how == "subject" else windows.group
    owners = [set(key[rows].tolist()) for rows in shares]
    assert sum(len(owner) for owner in owners) == len(set(key.tolist()))
    again = split_windows(windows, how, count, seed)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(shares, again, strict=True))


def test_subjects_are_dealt_evenly_and_the_seed_decides_to_whom() -> None:
    windows = make(21, 2, [3])
    held = [len(set(windows.subject[rows].tolist())) for rows in split_windows(windows, "subject", 6, 0)]
    assert sorted(held) == [3, 3, 3, 4, 4, 4]
    first, second = (split_windows(windows, "subject", 6, seed)[0] for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_iid_shares_differ_by_at_most_one_group() -> None:
    windows = make(5, 8, [1, 4, 9])
    sizes = [len(rows) for rows in split_windows(windows, "iid", 4, 3)]
    assert max(sizes) - min(sizes) <= 9


def test_a_small_alpha_is_more_one_sided_than_a_large_one() -> None:
    windows = make(40, 9, [2])

    def spread(how: str) -> float:
        shares = [np.bincount(windows.y[rows], minlength=3) for rows in split_windows(windows, how, 4, 1)]
        return float(np.mean([share.max() / share.sum() for share in shares]))

    assert spread("dirichlet:0.2") > spread("dirichlet:1000") + 0.1


def test_a_device_without_data_is_an_error_that_says_so() -> None:
    with pytest.raises(ConfigError, match=r"6 peers but 4 training subjects; take at most 4"):
        split_windows(make(4, 3, [2]), "subject", 6, 0)
    with pytest.raises(ConfigError, match=r"6 peers but 2 stretches"):
        split_windows(make(2, 1, [50]), "iid", 6, 0)
    with pytest.raises(ConfigError, match=r"device .* would hold no windows; .*larger ALPHA"):
        split_windows(make(2, 3, [2]), "dirichlet:0.01", 6, 0)


@pytest.mark.parametrize("how", ["subjects", "dirichlet", "dirichlet:0", "dirichlet:x", "dirichlet:inf", ""])
def test_an_unknown_split_lists_the_valid_ones(how: str) -> None:
    with pytest.raises(ConfigError, match=r"valid: subject, iid, dirichlet:ALPHA"):
        split_windows(make(4, 3, [2]), how, 2, 0)


def test_a_shard_counts_from_one() -> None:
    assert parse_shard("2/6") == Shard(2, 6)
    for text in ("0/6", "7/6", "2", "a/b", "2/", "-1/3", "1/0"):
        with pytest.raises(ConfigError, match="I/N"):
            parse_shard(text)


@given(st.integers(0, 50), st.integers(1, 9))
def test_each_test_window_is_evaluated_exactly_once(count: int, peers: int) -> None:
    shares = [shard_test(count, Shard(index, peers)) for index in range(1, peers + 1)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
