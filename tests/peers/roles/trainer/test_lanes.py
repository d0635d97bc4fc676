"""How much of what one device gives another is under way: on long ways, on slow ones, and where it was lost."""

from __future__ import annotations

import heapq
from collections import deque

import pytest

from mdl.peers.roles.trainer.exchange import Lane, Parcel, Uplink, window_of
from mdl.protocol.delta import Contributor

PEER = Contributor("b", 1)
SEGMENT, SEGMENTS = 1 << 14, 256
RETRY_S = 0.5


class Way:
    """A link of so many MB/s, with a way of so many seconds there and back, in virtual time."""

    def __init__(self, mb_s: float, round_trip_s: float) -> None:
        self.now, self.mb_s, self.round_trip_s, self._free_at = 0.0, mb_s, round_trip_s, 0.0

    def give(self, lane: Lane) -> tuple[float, int]:
        """Until all is confirmed: the seconds that this takes, and the most bytes that stood in the link's queue."""
        began, most = self.now, 0
        confirmations: list[tuple[float, Parcel]] = []
        while not lane.is_done():
            while Uplink().has_room(lane, SEGMENT):
                if (parcel := lane.next()) is None:
                    break
                lane.under_way[parcel] = self.now
                lane.bytes_under_way += SEGMENT
                most = max(most, int((self._free_at - self.now) * self.mb_s * 1e6))
                self._free_at = max(self._free_at, self.now) + SEGMENT / 1e6 / self.mb_s
                heapq.heappush(confirmations, (self._free_at + self.round_trip_s, parcel))
            self.now, parcel = heapq.heappop(confirmations)
            assert lane.confirm(parcel, SEGMENT, self.now)
        return self.now - began, most


def _lane(uplink: Uplink, mb_s: float, way_s: float = 0.6) -> Lane:
    """Of the next exchange; its first window is that of a link of so many MB/s."""
    uplink.begin()
    uplink.ways_s = {PEER.peer_id: way_s}
    lane = Lane(PEER, window_of(mb_s, False, 1 << 17), False, pieces=deque(range(SEGMENTS)))
    uplink.open(mb_s, [lane], SEGMENT)
    return lane


def test_a_long_way_is_filled_and_the_next_exchange_begins_so() -> None:
    """4 MB at 5 MB/s need 0.8 s, and 0.6 s for the way. A link is thought slow whose windows were too small."""
    uplink, way = Uplink(), Way(5.0, 0.6)
    first_s, _ = way.give(_lane(uplink, 0.16))
    second_s, most = way.give(_lane(uplink, 0.16))
    assert first_s < 9 * 0.6 + 0.8  # a segment, two, four ...; one at a time takes 154 s
    assert second_s < 1.6 * (0.6 + 0.8)
    assert most <= 5e6 * 0.6  # no more waits than the way holds


@pytest.mark.parametrize("mb_s", [0.05, 0.3, 5.0])
@pytest.mark.parametrize("way_s", [0.0, 0.005])
def test_a_slow_link_without_a_long_way_is_left_as_it_is(mb_s: float, way_s: float) -> None:
    """A confirmation takes long there because of what waits: more would wait longer, and others' values with it."""
    lane = _lane(Uplink(), mb_s, way_s)
    first = lane.window_bytes
    Way(mb_s, 0.005).give(lane)
    assert lane.window_bytes == first


@pytest.mark.parametrize("mb_s", [0.05, 0.3])
def test_a_slow_link_with_a_long_way_has_little_more_than_the_way_holds(mb_s: float) -> None:
    uplink, way = Uplink(), Way(mb_s, 0.1)
    for _ in range(3):
        lane = _lane(uplink, mb_s, 0.1)
        way.give(lane)
        assert lane.window_bytes <= 2 * mb_s * 1e6 * 0.1 + 2 * SEGMENT


def test_a_way_that_became_short_needs_no_window_of_a_long_one() -> None:
    uplink = Uplink()
    Way(5.0, 0.6).give(_lane(uplink, 0.16))
    assert _lane(uplink, 0.16).window_bytes > window_of(0.16, False, 1 << 17)
    assert _lane(uplink, 0.16, 0.002).window_bytes == window_of(0.16, False, 1 << 17)


def test_where_something_was_lost_it_begins_anew() -> None:
    lane = _lane(Uplink(), 0.16)
    Way(5.0, 0.6).give(lane)
    grown, parcel = lane.window_bytes, (True, 0)
    lane.under_way[parcel], lane.bytes_under_way = 100.0, SEGMENT
    assert lane.take_late(RETRY_S, 100.1) == []
    assert lane.take_late(RETRY_S, 110.0) == [parcel]
    assert lane.window_bytes == window_of(0.16, False, 1 << 17) < grown


def test_what_was_said_again_tells_nothing_of_the_way() -> None:
    """Its confirmation may be that of the first time."""
    lane = _lane(Uplink(), 0.16)
    Way(5.0, 0.6).give(lane)
    parcel, quickest_s = (True, 0), lane.quickest_s
    lane.under_way[parcel], lane.bytes_under_way = 100.0, SEGMENT
    lane.take_late(RETRY_S, 110.0)
    assert lane.confirm(parcel, SEGMENT, 110.001)
    assert lane.quickest_s == quickest_s


def _lanes(uplink: Uplink, own_mb_s: float, count: int) -> list[Lane]:
    """To devices with quicker links, and to one with a slower one."""
    uplink.begin()
    lanes = [Lane(Contributor(f"d{n}", 1), 2 * SEGMENT, False, n > 0, deque(range(SEGMENTS))) for n in range(count + 1)]
    uplink.open(own_mb_s, lanes, SEGMENT)
    return lanes


def _take(lane: Lane) -> None:
    parcel = lane.next()
    assert parcel is not None
    lane.under_way[parcel] = 0.0
    lane.bytes_under_way += SEGMENT


def test_the_lanes_of_a_crowded_link_share_three_segments() -> None:
    """0.1 MB/s take 0.8 s for a segment to each of five; what goes to one with a slower link does not wait for that."""
    uplink = Uplink()
    slower, *lanes = _lanes(uplink, 0.1, 5)
    for lane in lanes[:3]:
        assert uplink.has_room(lane, SEGMENT)
        _take(lane)
    assert not any(uplink.has_room(lane, SEGMENT) for lane in lanes)
    assert uplink.has_room(slower, SEGMENT)
    lanes[0].confirm((False, 0), SEGMENT, 0.2)
    assert all(uplink.has_room(lane, SEGMENT) for lane in lanes)


def test_what_had_to_be_said_again_takes_no_room_on_a_crowded_link_until_it_is_confirmed() -> None:
    uplink = Uplink()
    _, *lanes = _lanes(uplink, 0.1, 5)
    for lane in lanes[:3]:
        _take(lane)
    assert lanes[0].take_late(RETRY_S, 10.0) == [(False, 0)]
    assert uplink.has_room(lanes[4], SEGMENT)
    _take(lanes[4])
    assert not uplink.has_room(lanes[3], SEGMENT)
    lanes[0].confirm((False, 0), SEGMENT, 10.1)
    assert not uplink.has_room(lanes[4], SEGMENT)


@pytest.mark.parametrize("own_mb_s", [0.0, 1.0], ids=["unknown", "quick"])
def test_another_link_has_a_window_for_each(own_mb_s: float) -> None:
    uplink = Uplink()
    for lane in _lanes(uplink, own_mb_s, 5):
        for _ in range(2):
            assert uplink.has_room(lane, SEGMENT)
            _take(lane)
        assert not uplink.has_room(lane, SEGMENT)
