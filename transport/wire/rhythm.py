"""The rhythm of chunks from one peer: the usual pause, and the size of a chunk that its link carries in a moment.

Like TCP's measure of round trips (RFC 6298): a smoothed pause and its variation. A doubt doubles the patience until a
chunk comes that was not asked for twice (Karn's algorithm). TCP delivers what was once sent unless a connection breaks,
so asking again too early only doubles the load of a bad link. So the longest recent pause counts too. Pure.
"""

from __future__ import annotations

from mdl.transport.wire.codec import CHUNK_BYTES, MAX_STREAMS, SMALLEST_CHUNK_BYTES

# Before anything is known: a handshake and the first chunk took 3.9 s where a round trip takes 0.6 s.
FIRST_PATIENCE_S = 4.0
SHORTEST_PATIENCE_S = 1.0
# A chunk's time on the link: short enough to see progress, long enough to cost nothing.
CHUNK_S = 0.5
# The chunk of an unknown link: two seconds at 16 KB/s, about the slowest that is accepted (bulk.SLOWEST_BYTES_S).
FIRST_CHUNK_BYTES = 1 << 15
# A link that carries no larger chunks waits much, for losses or for a long way: several connections share it.
STREAMED_CHUNK_BYTES = 1 << 15
# RFC 6298: the weights of a new sample, and the number of deviations that are no accident.
_SHARE, _VARIATION_SHARE, _DEVIATIONS = 1 / 8, 1 / 4, 4
# TCP begins slowly again after each rest, and chunks come in bursts: wait for twice the longest recent pause, which
# fades within some transfers.
_PAUSES, _FADE = 2.0, 0.98


class Rhythm:
    """The measured pauses of one link; see the module."""

    def __init__(self) -> None:
        self._pause_s: float | None = None
        self._varies_s = 0.0
        self._longest_s = 0.0
        self._s_per_byte: float | None = None
        self._backoff = 1

    def hear(self, pause_s: float, size_bytes: int) -> None:
        """Note that a chunk that was asked for once came after this pause."""
        self._longest_s = max(pause_s, _FADE * self._longest_s)
        if self._pause_s is None or self._s_per_byte is None:
            self._pause_s, self._varies_s, self._s_per_byte = pause_s, pause_s / 2, pause_s / size_bytes
        else:
            self._varies_s += _VARIATION_SHARE * (abs(pause_s - self._pause_s) - self._varies_s)
            self._pause_s += _SHARE * (pause_s - self._pause_s)
            self._s_per_byte += _SHARE * (pause_s / size_bytes - self._s_per_byte)
        self._backoff = 1

    def doubt(self) -> None:
        """Double the patience: the chunk was asked for again."""
        self._backoff *= 2

    def patience_s(self, longest_s: float) -> float:
        """Return the pause after which chunks are asked for again, at most longest_s."""
        usual_s = FIRST_PATIENCE_S if self._pause_s is None else self._pause_s + _DEVIATIONS * self._varies_s
        return min(max(usual_s, _PAUSES * self._longest_s, SHORTEST_PATIENCE_S) * self._backoff, longest_s)

    def chunk_bytes(self) -> int:
        """Return a power of two that this link carries in about CHUNK_S."""
        if self._s_per_byte is None:
            return FIRST_CHUNK_BYTES
        size = CHUNK_BYTES
        while size > SMALLEST_CHUNK_BYTES and size * self._s_per_byte > CHUNK_S:
            size //= 2
        return size

    def streams(self) -> int:
        """Return the number of connections that chunks are to come by."""
        return 1 if self._s_per_byte is None or self.chunk_bytes() > STREAMED_CHUNK_BYTES else MAX_STREAMS
