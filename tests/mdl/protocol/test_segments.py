"""The table of a cut: every value is in one segment, every segment has one owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.bounds import MAX_SEGMENTS
from mdl.errors import RemoteProtocolError
from mdl.protocol.segments import (
    LARGEST_SEGMENT_BYTES,
    SMALLEST_SEGMENT_BYTES,
    SegmentCut,
    count_segments,
    segment_values,
)

_USUAL = 1 << 18


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9).filter(any), st.integers(1, 7), st.integers(0, 6))
def test_every_value_is_in_one_segment_and_every_segment_has_one_owner(
    owns: list[int], values: int, missing: int
) -> None:
    size = sum(owns) * values - min(missing, values - 1)
    cut = SegmentCut(size, values, tuple(owns))
    covered = [index for segment in range(cut.segments) for index in range(size)[cut.bounds(segment)]]
    assert covered == list(range(size))
    assert [place for place in range(len(owns)) for _ in cut.owned(place)] == [
        cut.owner(segment) for segment in range(cut.segments)
    ]
    assert [segment for place in range(len(owns)) for segment in cut.owned(place)] == list(range(cut.segments))


@pytest.mark.parametrize(
    ("size", "values", "owns"),
    [
        (10, 4, (1, 1)),
        (10, 4, (2, 2)),
        (10, 0, (1,)),
        (10, 4, ()),
        (0, 4, ()),
        (MAX_SEGMENTS + 1, 1, (MAX_SEGMENTS + 1,)),
    ],
)
def test_a_table_that_does_not_cover_the_model_is_refused(size: int, values: int, owns: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="where the model has"):
        SegmentCut(size, values, owns)


def test_a_segment_that_is_none_is_refused() -> None:
    cut = SegmentCut(10, 4, (1, 2))
    assert cut.bounds(2) == slice(8, 10)
    for segment in (-1, 3):
        with pytest.raises(RemoteProtocolError, match="of 3"):
            cut.bounds(segment)


def test_segments_of_links_that_nobody_has_measured_are_few() -> None:
    assert 4 * segment_values(62_500, owners=8) == 1 << 16
    assert 4 * segment_values(11_600_000) == _USUAL


def test_each_device_owns_a_part_of_a_small_model_where_that_keeps_its_link_busy() -> None:
    found = {mb_s: count_segments(62_500, segment_values(62_500, mb_s, owners=8)) for mb_s in (5.0, 60.0, 125.0)}
    assert found == {5.0: 8, 60.0: 4, 125.0: 2}


def test_only_links_on_which_messages_are_what_costs_have_the_largest_segments() -> None:
    """A slow one would keep what is more urgent waiting behind them."""
    found = {mb_s: 4 * segment_values(200_000_000, mb_s) for mb_s in (0.1, 5.0, 60.0, 100.0, 1000.0)}
    assert found == {0.1: _USUAL, 5.0: _USUAL, 60.0: _USUAL, 100.0: 2 * _USUAL, 1000.0: LARGEST_SEGMENT_BYTES}


@pytest.mark.parametrize("size", [1, 4_000, 62_500, 1_250_000, 11_600_000, 200_000_000])
def test_segments_are_some_and_fit_one_message(size: int) -> None:
    values = segment_values(size, mb_s=0.1)
    assert SMALLEST_SEGMENT_BYTES <= 4 * values <= LARGEST_SEGMENT_BYTES
    assert 1 <= count_segments(size, values) <= MAX_SEGMENTS
    if 160 * SMALLEST_SEGMENT_BYTES <= 4 * size <= 160 * _USUAL:
        assert 80 <= count_segments(size, values) <= 160
