"""The pace to one peer: the bytes under way at a time, their rate, and the time after which a packet counts as lost.

Datagrams are used where frames are lost without a full queue, so a loss is no sign of congestion. TCP's Reno takes it
for one: it is down to a packet each 0.2 s and more where a fifth is lost. A queue is such a sign: the way takes longer
than it did when it was empty (Vegas, Brakmo and Peterson 1995). Losses reduce the pace only if they are more than any
way loses by itself. Measurements are kept between transfers. Round trips are measured by RFC 6298, but a packet's
number is never used again, so that an answer always tells which one it answers. The timeout is bounded by
LONGEST_TIMEOUT_S: after a link was away for ten seconds, another ten must not pass. Pure.
"""

from __future__ import annotations

from math import inf

from mdl.transport.datagrams.packets import FRAGMENT_BYTES

FIRST_WINDOW_BYTES, SMALLEST_WINDOW_BYTES, LARGEST_WINDOW_BYTES = 64 << 10, 6 << 10, 1 << 20
# The first rate on a way that probes have found long: a round trip's bytes at 4 Mbit/s may be under way.
FIRST_BYTES_S = 500_000
# The timeout before anything has been acknowledged; a way of 300 ms takes twice that.
FIRST_TIMEOUT_S = 0.8
SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S = 0.03, 1.0
# A queue as long as this plus a quarter of the empty way's time is more than chance: 25 ms are 125 KB at 40 Mbit/s.
_QUEUE_S, _QUEUE_SHARE = 0.025, 0.25
# No useful way loses so many by itself; fewer than _FEW packets tell nothing. At 40 % a way that loses 30 % was taken
# for a full one every sixth time.
_TOO_LOSSY, _FEW = 0.6, 16
_LESS_BY_QUEUE, _LESS_BY_LOSS, _MORE = 0.8, 0.7, 0.05
# The shortest round trip is remembered at least so long: a device that walks away has a longer way.
_REMEMBERED_S = 15.0
_EPOCH_S = 0.01
# Leave at once at any pace: as much as a switch's smallest buffer takes, and the share of one look of the loop.
_BURST_BYTES, _LOOK_S = 16 * FRAGMENT_BYTES, 0.004


class Shortest:
    """The least of recent measurements: of so many seconds at least, and at most twice as many."""

    def __init__(self, remembered_s: float, now: float) -> None:
        self._remembered_s, self._since = remembered_s, now
        self._now_s = self._before_s = inf

    @property
    def s(self) -> float:
        """The least value; inf before any."""
        return min(self._now_s, self._before_s)

    def note(self, seconds: float, now: float) -> None:
        if now - self._since >= self._remembered_s:
            self._before_s, self._now_s, self._since = self._now_s, inf, now
        self._now_s = min(self._now_s, seconds)


class SendingPace:
    """See the module. window_bytes: the bound on unacknowledged bytes. round_trip_s: smoothed, inf before any."""

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
        """The time after which a packet without an acknowledgement counts as lost."""
        usual_s = FIRST_TIMEOUT_S if self.round_trip_s == inf else self.round_trip_s + 4 * self._varies_s + 0.005
        return min(max(usual_s, SHORTEST_TIMEOUT_S) * (1 << min(self._timeouts, 8)), max(LONGEST_TIMEOUT_S, usual_s))

    @property
    def usual_s(self) -> float:
        """The usual time until an acknowledgement; a later one is late."""
        return 0.0 if self.round_trip_s == inf else self.round_trip_s + self._varies_s

    @property
    def is_silent(self) -> bool:
        """True if nothing has been acknowledged since the last timeout: little is tried until something is."""
        return self._timeouts > 0

    @property
    def shortest_s(self) -> float:
        """The quickest recent round trip, inf before any: the way without queues."""
        return self._shortest.s

    def measure(self, round_trip_s: float, now: float) -> None:
        """Note the round trip of the latest packet that has arrived."""
        if self.round_trip_s == inf:
            self.round_trip_s, self._varies_s = round_trip_s, round_trip_s / 2
            self.window_bytes = max(self.window_bytes, min(int(FIRST_BYTES_S * round_trip_s), LARGEST_WINDOW_BYTES))
        else:
            self._varies_s += (abs(round_trip_s - self.round_trip_s) - self._varies_s) / 4
            self.round_trip_s += (round_trip_s - self.round_trip_s) / 8
        self._shortest.note(round_trip_s, now)
        self._epoch_shortest_s = min(self._epoch_shortest_s, round_trip_s)

    def acknowledge(self, size_bytes: int, was_full: bool, now: float) -> None:
        """Note that a packet has arrived. was_full: as much was under way as allowed."""
        self._timeouts = 0
        self._acked += 1
        if self._grows_fast and was_full:
            self.window_bytes = min(self.window_bytes + size_bytes, LARGEST_WINDOW_BYTES)
        if now - self._epoch_at >= max(self.round_trip_s, _EPOCH_S):
            self._judge(was_full, now)

    def lose(self, count: int) -> None:
        """Note that so many packets seem to be lost."""
        self._lost += count

    def time_out(self) -> None:
        """Note that nothing at all came back within a timeout."""
        self._timeouts += 1

    def take(self, size_bytes: int, now: float) -> bool:
        """Return True if a packet may leave now; it counts as sent then."""
        if (rate := self._rate()) < inf:
            room = max(_BURST_BYTES, rate * _LOOK_S)
            self._allowance = min(self._allowance + (now - self._allowed_at) * rate, room)
            self._allowed_at = now
            if self._allowance < size_bytes:
                return False
            self._allowance -= size_bytes
        return True

    def ready_at(self, now: float) -> float:
        """Return the time at which the next packet may leave."""
        rate = self._rate()
        return now if rate == inf else now + max(0.0, FRAGMENT_BYTES - self._allowance) / rate

    def _rate(self) -> float:
        """Return bytes a second: a window each round trip, and some more, or acknowledgements would set the pace."""
        if self.round_trip_s == inf:
            return inf
        return (2.0 if self._grows_fast else 1.25) * self.window_bytes / max(self.round_trip_s, 0.001)

    def _judge(self, was_full: bool, now: float) -> None:
        """Adapt the window at the end of a round trip: less with a queue or with heavy losses, else more."""
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
