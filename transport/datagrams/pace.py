"""How much may be under way to one peer at a time, how quickly it leaves, and when it counts as lost.

Datagrams are used where frames are lost that no queue is to blame for, so a loss is no sign of too much (as it is to
TCP's Reno, which is down to a packet each 0.2 s and more where a fifth is lost). A queue is: the way takes longer than
it did when it was empty (Vegas, Brakmo and Peterson 1995). Only if more is lost than any way loses by itself, less is
sent. What was learned stays between transfers. Round trips as RFC 6298 measures them, but a packet's number is never
used again, so that an answer always tells which one it answers; the timeout is bounded by LONGEST_TIMEOUT_S, since a
link that was away for ten seconds must not be waited for another ten. Pure.
"""

from __future__ import annotations

from math import inf

from mdl.transport.datagrams.packets import FRAGMENT_BYTES

FIRST_WINDOW_BYTES, SMALLEST_WINDOW_BYTES, LARGEST_WINDOW_BYTES = 64 << 10, 6 << 10, 1 << 20
# Of a way that is long, as the probes have told: so much may be under way in its round trip at first, 4 Mbit/s.
FIRST_BYTES_S = 500_000
# Before anything has been acknowledged; a way of 300 ms takes twice that.
FIRST_TIMEOUT_S = 0.8
SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S = 0.03, 1.0
# A queue as long as this, and a quarter of the empty way's time, is more than chance: 25 ms are 125 KB at 40 Mbit/s.
_QUEUE_S, _QUEUE_SHARE = 0.025, 0.25
# No way that is of any use loses so many by itself; of fewer than _FEW nothing can be said. At 40 % a way that loses
# 30 % was taken for a full one every sixth time.
_TOO_LOSSY, _FEW = 0.6, 16
_LESS_BY_QUEUE, _LESS_BY_LOSS, _MORE = 0.8, 0.7, 0.05
# For so long the shortest round trip is remembered at least: a device that walks away has a longer way.
_REMEMBERED_S = 15.0
_EPOCH_S = 0.01
# Leave at once, whatever the pace: what a switch's smallest buffer takes, and what passes between two looks of a loop.
_BURST_BYTES, _LOOK_S = 16 * FRAGMENT_BYTES, 0.004


class Shortest:
    """The least of what was measured lately: for so many seconds, and at most twice as many."""

    def __init__(self, remembered_s: float, now: float) -> None:
        self._remembered_s, self._since = remembered_s, now
        self._now_s = self._before_s = inf

    @property
    def s(self) -> float:
        """inf before any."""
        return min(self._now_s, self._before_s)

    def note(self, seconds: float, now: float) -> None:
        if now - self._since >= self._remembered_s:
            self._before_s, self._now_s, self._since = self._now_s, inf, now
        self._now_s = min(self._now_s, seconds)


class Pace:
    """See the module. window_bytes: what may be unacknowledged. round_trip_s: the smoothed one, inf before any."""

    def __init__(self, now: float) -> None:
        self.window_bytes = FIRST_WINDOW_BYTES
        self.round_trip_s = inf
        self._varies_s = 0.0
        self._timeouts = 0
        self._shortest = Shortest(_REMEMBERED_S, now)
        self._grows_fast = True
        self._epoch_at, self._epoch_shortest_s = now, inf
        self._acked, self._lost = 0, 0
        self._allowance, self._allowed_at = float(_BURST_BYTES), now

    @property
    def timeout_s(self) -> float:
        """When a packet counts as lost of which nothing was heard."""
        usual_s = FIRST_TIMEOUT_S if self.round_trip_s == inf else self.round_trip_s + 4 * self._varies_s + 0.005
        return min(max(usual_s, SHORTEST_TIMEOUT_S) * (1 << min(self._timeouts, 8)), max(LONGEST_TIMEOUT_S, usual_s))

    @property
    def usual_s(self) -> float:
        """Whoever has not arrived by then is late."""
        return 0.0 if self.round_trip_s == inf else self.round_trip_s + self._varies_s

    @property
    def is_silent(self) -> bool:
        """Nothing has been acknowledged since the last timeout: little is tried until something is."""
        return self._timeouts > 0

    @property
    def shortest_s(self) -> float:
        """The quickest round trip of late, inf before any: the way without queues."""
        return self._shortest.s

    def measure(self, round_trip_s: float, now: float) -> None:
        """The latest packet that has arrived took this long."""
        if self.round_trip_s == inf:
            self.round_trip_s, self._varies_s = round_trip_s, round_trip_s / 2
            self.window_bytes = max(self.window_bytes, min(int(FIRST_BYTES_S * round_trip_s), LARGEST_WINDOW_BYTES))
        else:
            self._varies_s += (abs(round_trip_s - self.round_trip_s) - self._varies_s) / 4
            self.round_trip_s += (round_trip_s - self.round_trip_s) / 8
        self._shortest.note(round_trip_s, now)
        self._epoch_shortest_s = min(self._epoch_shortest_s, round_trip_s)

    def acknowledge(self, size_bytes: int, was_full: bool, now: float) -> None:
        """A packet has arrived. was_full: as much was under way as might be."""
        self._timeouts = 0
        self._acked += 1
        if self._grows_fast and was_full:
            self.window_bytes = min(self.window_bytes + size_bytes, LARGEST_WINDOW_BYTES)
        if now - self._epoch_at >= max(self.round_trip_s, _EPOCH_S):
            self._judge(was_full, now)

    def lose(self, count: int) -> None:
        """So many packets have been lost, as far as one can tell."""
        self._lost += count

    def time_out(self) -> None:
        """Nothing at all was heard for a timeout."""
        self._timeouts += 1

    def take(self, size_bytes: int, now: float) -> bool:
        """Whether a packet may leave now; it counts as left."""
        if (rate := self._rate()) < inf:
            room = max(_BURST_BYTES, rate * _LOOK_S)
            self._allowance = min(self._allowance + (now - self._allowed_at) * rate, room)
            self._allowed_at = now
            if self._allowance < size_bytes:
                return False
            self._allowance -= size_bytes
        return True

    def ready_at(self, now: float) -> float:
        """When the next packet may leave."""
        rate = self._rate()
        return now if rate == inf else now + max(0.0, FRAGMENT_BYTES - self._allowance) / rate

    def _rate(self) -> float:
        """Bytes a second: a window each round trip, and some more, or acknowledgements would set the pace."""
        if self.round_trip_s == inf:
            return inf
        return (2.0 if self._grows_fast else 1.25) * self.window_bytes / max(self.round_trip_s, 0.001)

    def _judge(self, was_full: bool, now: float) -> None:
        """A round trip is over: is there a queue, is too much lost, may it be more?"""
        packets = self._acked + self._lost
        has_queue = self._epoch_shortest_s > (1 + _QUEUE_SHARE) * self.shortest_s + _QUEUE_S
        if has_queue or (packets >= _FEW and self._lost > _TOO_LOSSY * packets):
            self._grows_fast = False
            less = _LESS_BY_QUEUE if has_queue else _LESS_BY_LOSS
            self.window_bytes = max(int(self.window_bytes * less), SMALLEST_WINDOW_BYTES)
        elif was_full and not self._grows_fast:
            self.window_bytes = min(int(self.window_bytes * (1 + _MORE)), LARGEST_WINDOW_BYTES)
        self._acked, self._lost = 0, 0
        self._epoch_at, self._epoch_shortest_s = now, inf
