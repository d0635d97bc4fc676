"""How chunks come from one peer: how long a pause is usual, and how large a chunk its link carries in a moment.

As TCP measures round trips (RFC 6298): a smoothed pause and how much it varies; doubt doubles the patience until a
chunk comes that was not asked for twice (Karn's algorithm). TCP delivers what was once sent unless a connection breaks,
so asking again too early only doubles what a bad link has to carry: the longest pause of late counts too. Pure.
"""

from __future__ import annotations

from mdl.transport.wire.codec import CHUNK_BYTES, MAX_STREAMS, SMALLEST_CHUNK_BYTES

# Before anything is known: a handshake and the first chunk took 3.9 s where a round trip takes 0.6 s.
FIRST_PATIENCE_S = 4.0
SHORTEST_PATIENCE_S = 1.0
# Of a chunk's time on the link: often enough to see that it gets on, seldom enough to cost nothing.
CHUNK_S = 0.5
# What an unknown link gets: two seconds of 16 KB/s, about the slowest that is accepted (bulk.SLOWEST_BYTES_S).
FIRST_CHUNK_BYTES = 1 << 15
# A link that carries no larger chunks waits much, for what was lost or for a long way: several connections share it.
STREAMED_CHUNK_BYTES = 1 << 15
# RFC 6298: what a new sample counts, and how many deviations are no accident.
_SHARE, _VARIATION_SHARE, _DEVIATIONS = 1 / 8, 1 / 4, 4
# TCP begins slowly again after each rest, and chunks come in bursts: after twice the longest pause of late, which fades
# within some transfers.
_PAUSES, _FADE = 2.0, 0.98


class Rhythm:
    """See the module."""

    def __init__(self) -> None:
        self._pause_s: float | None = None
        self._varies_s = 0.0
        self._longest_s = 0.0
        self._s_per_byte: float | None = None
        self._backoff = 1

    def hear(self, pause_s: float, size_bytes: int) -> None:
        """A chunk that was asked for once came after this pause."""
        self._longest_s = max(pause_s, _FADE * self._longest_s)
        if self._pause_s is None or self._s_per_byte is None:
            self._pause_s, self._varies_s, self._s_per_byte = pause_s, pause_s / 2, pause_s / size_bytes
        else:
            self._varies_s += _VARIATION_SHARE * (abs(pause_s - self._pause_s) - self._varies_s)
            self._pause_s += _SHARE * (pause_s - self._pause_s)
            self._s_per_byte += _SHARE * (pause_s / size_bytes - self._s_per_byte)
        self._backoff = 1

    def doubt(self) -> None:
        """It was asked for again: twice as much patience from here on."""
        self._backoff *= 2

    def patience_s(self, longest_s: float) -> float:
        """How long a pause is before chunks are asked for again."""
        usual_s = FIRST_PATIENCE_S if self._pause_s is None else self._pause_s + _DEVIATIONS * self._varies_s
        return min(max(usual_s, _PAUSES * self._longest_s, SHORTEST_PATIENCE_S) * self._backoff, longest_s)

    def chunk_bytes(self) -> int:
        """A power of two that this link carries in about CHUNK_S."""
        if self._s_per_byte is None:
            return FIRST_CHUNK_BYTES
        size = CHUNK_BYTES
        while size > SMALLEST_CHUNK_BYTES and size * self._s_per_byte > CHUNK_S:
            size //= 2
        return size

    def streams(self) -> int:
        """Over how many connections chunks are to come."""
        return 1 if self._s_per_byte is None or self.chunk_bytes() > STREAMED_CHUNK_BYTES else MAX_STREAMS
