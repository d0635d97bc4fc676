"""Exchanges over links that have a speed and a length, in virtual time: near the links' bound, and over long ways."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pytest

from mdl.peers.roles.trainer.exchange import SegmentExchange, Uplink
from mdl.protocol.checksum import checksums_by_piece
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import room_for
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import BroadcastOrdered
from mdl.protocol.segments import count_segments, segment_values
from mdl.scheduler.policies.segment_plan import apportion, bandwidth_shares
from tests.peers.roles.at_once import sum_of
from tests.peers.roles.trainer.talk import hear

RETRY_S, TICK_S, MOST_S = 0.5, 0.1, 120.0
# What a message takes beside its values, and what frames and confirmations take of a link.
WORDS_BYTES, FRAMES = 300, 1.06


@dataclass(order=True)
class _Passing:
    """A message at the receiver's link; is_here: it has come through. sent_s: when the last byte of it is there."""

    at_s: float
    number: int
    is_here: bool = field(compare=False)
    sent_s: float = field(compare=False)
    places: tuple[int, int] = field(compare=False)
    send: Send = field(compare=False)


class Links:
    """Devices with a link each of so many MB/s both ways, and so many seconds from each to each.

    told: the speeds that orders name; none: the true ones. Each link takes messages as they come, one after the other.
    """

    def __init__(self, mb_s: Sequence[float], way_s: float, megabytes: float, told: Sequence[float] = ()) -> None:
        self.mb_s, self.way_s, self.size = mb_s, way_s, round(megabytes * 1e6 / 4)
        self.peers = tuple(Contributor(f"d{place}", 1) for place in range(len(mb_s)))
        self.uplinks = [Uplink(ways_s={peer.peer_id: 2 * way_s for peer in self.peers}) for _ in mb_s]
        self.told = tuple(told or mb_s)
        shares, _ = bandwidth_shares(self.told, [True] * len(mb_s))
        self.values = segment_values(self.size, median(self.told), sum(share > 0 for share in shares))
        self.owns = tuple(apportion(shares, count_segments(self.size, self.values)))
        self.bound_s = 4e-6 * self.size * bandwidth_shares(mb_s, [True] * len(mb_s))[1]

    def exchange(self) -> float:
        """One more: the seconds until the last device has all of the result."""
        order = BroadcastOrdered(
            7, 3, b"w2", 1, self.peers, float(len(self.peers)), self.peers,
            link_mb_s=self.told, owns=self.owns, segment_values=self.values, room=room_for(len(self.peers)),
        )  # fmt: skip
        self._exchanges = [
            SegmentExchange(
                order, peer, own, self.size, RETRY_S, uplink=uplink, checksums=checksums_by_piece(own.values)
            )
            for peer, uplink in zip(self.peers, self.uplinks, strict=True)
            for own in (self._own(peer, order.room),)
        ]
        self._up, self._down = [0.0] * len(self.peers), [0.0] * len(self.peers)
        self._passing: list[_Passing] = []
        self._number, tick_at, now = itertools.count(), TICK_S, 0.0
        for place, exchange in enumerate(self._exchanges):
            self._post(place, exchange.begin(), now)
        while not all(exchange.is_whole for exchange in self._exchanges):
            if self._passing and self._passing[0].at_s < tick_at:
                now = self._step()
                continue
            assert tick_at < MOST_S, "it does not end"
            for place, exchange in enumerate(self._exchanges):
                self._post(place, exchange.on_time(tick_at), tick_at)
            tick_at += TICK_S
        right = sum_of([1.0], self.peers, room=order.room).values[0]
        assert all((exchange.result.values == right).all() for exchange in self._exchanges)
        return now

    def _own(self, peer: Contributor, room: int) -> PartialSum:
        return sum_of(np.ones(self.size), [peer], room=room)

    def _post(self, sender: int, sends: list[Send], now: float) -> None:
        for send in sends:
            receiver = next(place for place, peer in enumerate(self.peers) if peer.peer_id == send.receiver)
            begins = max(now, self._up[sender])
            self._up[sender] = begins + _megabytes(send) / self.mb_s[sender]
            comes, sent_s = begins + self.way_s, self._up[sender] + self.way_s
            places = sender, receiver
            heapq.heappush(self._passing, _Passing(comes, next(self._number), False, sent_s, places, send))

    def _step(self) -> float:
        message = heapq.heappop(self._passing)
        (sender, receiver), now = message.places, message.at_s
        if message.is_here:
            exchange, send = self._exchanges[receiver], message.send
            self._post(receiver, hear(exchange, self.peers[sender], send.message, send.values, now), now)
            return now
        through_s = max(now, self._down[receiver]) + _megabytes(message.send) / self.mb_s[receiver]
        self._down[receiver] = message.at_s = max(through_s, message.sent_s)
        message.is_here = True
        heapq.heappush(self._passing, message)
        return now


def _megabytes(send: Send) -> float:
    return (WORDS_BYTES + (FRAMES * send.values.nbytes if isinstance(send.values, np.ndarray) else 0)) / 1e6


LAN = {
    "equal": ([5.0] * 4, 1.17),
    "eight": ([5.0] * 8, 1.18),
    "one slow": ([5.0] * 3 + [1.25], 1.12),
    "two slow": ([5.0] * 2 + [1.25] * 2, 1.12),
    "one of a tenth": ([5.0] * 3 + [0.5], 1.13),
    "all differ": ([3.0, 2.0, 1.5, 1.0, 0.5, 0.25], 1.17),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAN)
def test_on_a_lan_an_exchange_is_near_the_bound_of_the_links(name: str) -> None:
    """Frames and words alone are 1.07."""
    mb_s, most = LAN[name]
    links = Links(mb_s, 0.0005, 5.0)
    taken = [links.exchange() for _ in range(3)]
    assert max(taken) < most * links.bound_s


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("told_mb_s", [5.0, 0.05], ids=["known", "thought slow"])
def test_a_long_way_is_filled_whatever_its_speed_is_thought_to_be(count: int, told_mb_s: float) -> None:
    """0.3 s there and 0.3 s back: readiness, a piece and a result are 0.9 s. Segment by segment it is 10 to 37."""
    links = Links([5.0] * count, 0.3, 2.0, [told_mb_s] * count)
    first, *others = (links.exchange() for _ in range(4))
    assert first < 8.0
    assert max(others) < 1.0 + 2 * links.bound_s
