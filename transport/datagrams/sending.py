"""The sending half of a flow: messages leave in pieces, and a piece leaves again until its arrival is acknowledged.

A piece that is sent again is another packet, with another number. It counts as lost when three later packets have
arrived and it is late (RFC 9002, 6.1; RFC 8985), or after a timeout. Small messages go before values. Pure: `now` is an
argument.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from math import inf

from mdl.transport.datagrams.pace import Pace
from mdl.transport.datagrams.packets import ACKED_BEFORE, CHANNELS, FRAGMENT_BYTES, Ack, Data, Probe

SMALL, VALUES = range(CHANNELS)
# Pieces of a channel that may be under way; a receiver keeps them until the first of them is there.
MOST_AHEAD = 1_024
# Messages that may wait, as in the queues of sockets (mdl.transport.links.sockets).
MOST_WAITING = (128, 160)
LENGTHS = struct.Struct("!II")
_LATER_ARRIVED = 3
# Packets sent per timeout while nothing comes back.
_TRIES = 2
_QUICKEST_S = 1e-4
# The longest interval between probes; a silence too long for chance: several are lost by then.
PROBE_EVERY_S, AWAY_S = 1.0, 1.5


@dataclass
class _Message:
    """A message to send. parts: those that are left, the first of them from `begun` on."""

    parts: tuple[memoryview, ...]
    begun: int = 0
    is_begun: bool = False

    def is_sent(self) -> bool:
        return not self.parts

    def next_body(self) -> bytes:
        """Return the next FRAGMENT_BYTES of it, copied."""
        body, self.is_begun = bytearray(), True
        while self.parts and len(body) < FRAGMENT_BYTES:
            first = self.parts[0]
            taken = first[self.begun : self.begun + FRAGMENT_BYTES - len(body)]
            body += taken
            self.begun += len(taken)
            if self.begun == len(first):
                self.parts, self.begun = self.parts[1:], 0
        return bytes(body)


@dataclass
class _Sent:
    frame: Data | Probe
    size_bytes: int
    sent_at: float


@dataclass(frozen=True)
class Outcome:
    """The probes of an acknowledgement or timeout: how many arrived, and how many are lost."""

    arrived: int = 0
    lost: int = 0


class Sending:
    """Takes messages, gives packets. pace: of this flow.

    heard_at: the last acknowledgement of something under way. spoke_at: the last one of all, perhaps too late.
    """

    def __init__(self, now: float) -> None:
        self.pace = Pace(now)
        self.heard_at = self.spoke_at = -inf
        self._waiting: tuple[deque[_Message], ...] = tuple(deque() for _ in range(CHANNELS))
        self._again: tuple[deque[Data], ...] = tuple(deque() for _ in range(CHANNELS))
        self._places = [0] * CHANNELS
        self._open: tuple[dict[int, None], ...] = tuple({} for _ in range(CHANNELS))  # not acknowledged, in order
        self._sent: dict[int, _Sent] = {}
        self._under_way_bytes = 0
        self._number = 0
        self._tries, self._tries_until = 0, -inf
        self._unheard: set[int] = set()  # probes that timed out before anything was heard: lost, or the peer is away

    def put(self, header: bytes, payload: memoryview | None, channel: int) -> bool:
        """Queue a message; return False if too many wait."""
        waiting = self._waiting[channel]
        if len(waiting) >= MOST_WAITING[channel]:
            return False
        lengths = LENGTHS.pack(len(header), 0 if payload is None else len(payload))
        parts = (memoryview(lengths), memoryview(header), *(() if payload is None else (payload,)))
        waiting.append(_Message(tuple(part for part in parts if len(part))))
        return True

    def next_packet(self, now: float) -> tuple[int, Data] | None:
        """Return a packet that may leave now; None if there is none."""
        for channel in range(CHANNELS):
            if not (self._again[channel] or self._has_new(channel)):
                continue
            if not self._has_room() or not self.pace.take(FRAGMENT_BYTES, now):
                return None
            frame = self._again[channel].popleft() if self._again[channel] else self._next_piece(channel)
            self._tries += 1
            return self._send(frame, len(frame.body), now), frame
        return None

    def forget_waiting(self) -> None:
        """Drop messages that have not begun: they pin memory, and nobody waits for them any more."""
        for waiting in self._waiting:
            begun = waiting[0] if waiting and waiting[0].is_begun else None
            waiting.clear()
            if begun is not None:
                waiting.append(begun)

    def probe(self, now: float) -> tuple[int, Probe]:
        return self._send(Probe(), 0, now), Probe()

    def next_number(self) -> int:
        """Return a packet number for an acknowledgement, which is not kept."""
        number, self._number = self._number, self._number + 1
        return number

    def take(self, ack: Ack, now: float) -> Outcome:
        """Take an acknowledgement; return the outcome of probes. Numbers that were never sent change nothing."""
        numbers, was_away = _numbers(ack), self._is_away(now)
        self.spoke_at, arrived, lost = now, 0, 0
        self._unheard.difference_update(numbers)
        was_full = 2 * self._under_way_bytes >= self.pace.window_bytes
        for number in numbers:
            if (sent := self._sent.pop(number, None)) is None:
                continue
            self.heard_at, self._tries = now, 0
            self._under_way_bytes -= sent.size_bytes
            if number == ack.largest:  # those before it may have been acknowledged before, in vain
                self.pace.measure(max(now - sent.sent_at - ack.waited_us / 1e6, _QUICKEST_S), now)
            self.pace.acknowledge(sent.size_bytes, was_full, now)
            if isinstance(sent.frame, Data):
                self._open[sent.frame.channel].pop(sent.frame.place, None)
            else:
                arrived += 1
        for number in list(self._sent):
            if number > ack.largest - _LATER_ARRIVED or now - self._sent[number].sent_at < self.pace.usual_s:
                break
            lost += self._lose(number)
        lost += 0 if was_away else sum(number < ack.largest for number in self._unheard)
        self._unheard.clear()
        return Outcome(arrived, lost)

    def on_time(self, now: float) -> Outcome:
        """Count packets without an answer after a timeout as lost; return the outcome of probes.

        A lost probe counts only if something is heard soon: silence says nothing about frames that get lost.
        """
        sent_before, lost, is_silent = now - self.pace.timeout_s, 0, False
        for number, sent in list(self._sent.items()):
            if sent.sent_at > sent_before:
                break
            was_heard = sent.sent_at < self.heard_at
            is_silent = is_silent or not was_heard
            if not self._lose(number):
                continue
            if was_heard:
                lost += 1
            else:
                self._unheard.add(number)
        if self._is_away(now):
            self._unheard.clear()  # they will not count, and may go on for days
        if is_silent and now >= self._tries_until:
            self.pace.time_out()
            self._tries, self._tries_until = 0, now + self.pace.timeout_s
        return Outcome(0, lost)

    def deadline(self, now: float) -> float | None:
        """Return the time at which a packet is to leave, or counts as lost."""
        times = [next(iter(self._sent.values())).sent_at + self.pace.timeout_s] if self._sent else []
        if self._has_room() and any(self._again[c] or self._has_new(c) for c in range(CHANNELS)):
            times.append(self.pace.ready_at(now))
        return min(times, default=None)

    def _is_away(self, now: float) -> bool:
        return now - self.spoke_at >= AWAY_S + PROBE_EVERY_S

    def _has_new(self, channel: int) -> bool:
        if not self._waiting[channel]:
            return False
        opened = self._open[channel]
        return not opened or self._places[channel] - next(iter(opened)) < MOST_AHEAD

    def _has_room(self) -> bool:
        if self.pace.is_silent:
            return self._tries < _TRIES
        return self._under_way_bytes + FRAGMENT_BYTES <= self.pace.window_bytes

    def _next_piece(self, channel: int) -> Data:
        message, place = self._waiting[channel][0], self._places[channel]
        body = message.next_body()
        if message.is_sent():
            self._waiting[channel].popleft()
        self._places[channel] += 1
        self._open[channel][place] = None
        return Data(channel, place, message.is_sent(), body)

    def _send(self, frame: Data | Probe, size_bytes: int, now: float) -> int:
        number, self._number = self._number, self._number + 1
        self._sent[number] = _Sent(frame, size_bytes, now)
        self._under_way_bytes += size_bytes
        return number

    def _lose(self, number: int) -> int:
        """Count a packet as lost; return 1 if it was a probe, else 0."""
        sent = self._sent.pop(number)
        self._under_way_bytes -= sent.size_bytes
        self.pace.lose(1)
        if isinstance(sent.frame, Probe):
            return 1
        if sent.frame.place in self._open[sent.frame.channel]:
            self._again[sent.frame.channel].append(sent.frame)
        return 0


def _numbers(ack: Ack) -> list[int]:
    """Return the packets that it tells of, the latest first."""
    before, numbers = ack.before & ((1 << ACKED_BEFORE) - 1), [ack.largest]
    while before:
        lowest = before & -before
        numbers.append(ack.largest - lowest.bit_length())
        before ^= lowest
    return numbers
