"""Datagrams between this node and one peer, and the decision when they are the better way.

A datagram is sealed by a key that only its receiver and its sender have. Outside, in clear: the flow's id, by which the
receiver finds the key, and the packet's number. Then ChaCha20-Poly1305 over the kind and its content (RFC 8439). A
number is used once for a key, so that it is the nonce. The receiver draws a key for one sender. Keys travel by the link
that they are for, which is encrypted (CURVE). For any bytes, `Seal.open` and `read` return a member's frame or raise
RemoteProtocolError.

Probes of 60 bytes measure the length of the way and the share of lost frames: 32 at first, then one a second, and 24
more when one is lost. Messages go as datagrams where TCP would wait:
- The way is long (LONG_S) and was not short within STAY_S, so that it is not merely full.
- Frames are lost (SO_MANY_LOST), until the way has been good for STAY_S.
- The peer was out of reach and is back (AWAY_S), since TCP waits another time as long.
A peer that acknowledged no datagram for SURE_S may be out of reach for datagrams alone (a firewall that lets only TCP
in). Small messages go both ways then, values by TCP. Every machine accepts a message that comes twice.

The sending half: messages leave in pieces, and a piece leaves again until its arrival is acknowledged. A piece that is
sent again is another packet, with another number. It counts as lost when three later packets have arrived and it is
late (RFC 9002, 6.1; RFC 8985), or after a timeout. Small messages go before values.

The pace is the bytes under way at a time, and their rate. Datagrams are used where frames are lost without a full
queue, so a loss is no sign of congestion. TCP's Reno takes it for one: it is down to a packet each 0.2 s and more where
a fifth is lost. A queue is such a sign: the way takes longer than it did when it was empty (Vegas, Brakmo and Peterson
1995). Losses reduce the pace only if they are more than any way loses by itself. Measurements are kept between
transfers. Round trips are measured by RFC 6298, but a packet's number is never used again, so that an answer always
tells which one it answers. The timeout is bounded by LONGEST_TIMEOUT_S: after a link was away for ten seconds, another
ten must not pass.

The receiving half orders pieces, joins them to messages, and acknowledges packets. It is bounded for anything that a
member sends: MOST_AHEAD pieces of a channel, and one message with a header of MAX_HEADER_BYTES and a payload of
MAX_FRAME_BYTES. A message is put together in one piece of memory, so that the bound counts all the memory held.
Pure: `now` is an argument.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from mdl.bounds import MAX_HEADER_BYTES
from mdl.errors import RemoteProtocolError
from mdl.transport.wire.codec import MAX_FRAME_BYTES

KEY_BYTES, FLOW_ID_BYTES = 32, 8
# With all headers it stays below 1,280 bytes, which every IPv6 link carries; IPv4's smallest are rare (RFC 8200).
FRAGMENT_BYTES = 1_168
# An acknowledgement tells of the last packet and so many before it.
ACKED_BEFORE = 256
# The size of our largest packet.
LARGEST_BYTES = 1_280
CHANNELS = 2
_OUTSIDE = struct.Struct("!8sQ")
_DATA = struct.Struct("!BBBI")
_ACK = struct.Struct("!BQI")
_DATA_KIND, _ACK_KIND, _PROBE_KIND = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a message, FRAGMENT_BYTES long but for the last one.

    place: among all pieces of its channel. is_last: of its message.
    """

    channel: int
    place: int
    is_last: bool
    body: bytes


@dataclass(frozen=True)
class Ack:
    """Packet `largest` is here; bit i of `before`: so is largest - 1 - i. waited_us: since `largest` came."""

    largest: int
    before: int
    waited_us: int


@dataclass(frozen=True)
class Probe:
    """Asks for an acknowledgement, and nothing else."""


Frame: TypeAlias = Data | Ack | Probe


class Seal:
    """One direction of a flow."""

    def __init__(self, flow_id: bytes, key: bytes) -> None:
        self.flow_id = flow_id
        self._cipher = ChaCha20Poly1305(key)

    def close(self, number: int, frame: Frame) -> bytes:
        outside = _OUTSIDE.pack(self.flow_id, number)
        return outside + self._cipher.encrypt(_nonce(number), write(frame), outside)

    def open(self, datagram: bytes) -> tuple[int, Frame]:
        """Return the packet's number and its frame. Raises RemoteProtocolError."""
        _, number = _OUTSIDE.unpack_from(datagram)
        try:
            inside = self._cipher.decrypt(_nonce(number), datagram[_OUTSIDE.size :], datagram[: _OUTSIDE.size])
        except InvalidTag:
            raise RemoteProtocolError("a datagram that its flow's key does not open") from None
        return number, read(inside)


def flow_id_of(datagram: bytes) -> bytes | None:
    """Return the flow id in clear; None if the datagram is too short or too long for any."""
    return datagram[:FLOW_ID_BYTES] if _OUTSIDE.size < len(datagram) <= LARGEST_BYTES else None


def write(frame: Frame) -> bytes:
    match frame:
        case Data():
            return _DATA.pack(_DATA_KIND, frame.channel, frame.is_last, frame.place) + frame.body
        case Ack():
            head = _ACK.pack(_ACK_KIND, frame.largest, min(frame.waited_us, 0xFFFFFFFF))
            return head + frame.before.to_bytes(ACKED_BEFORE // 8, "little").rstrip(b"\0")
        case Probe():
            return bytes([_PROBE_KIND])


def read(inside: bytes) -> Frame:
    """Return the frame in these bytes. Raises RemoteProtocolError if they are none of the three kinds."""
    kind = inside[0] if inside else 0
    if kind == _DATA_KIND and _DATA.size < len(inside) <= _DATA.size + FRAGMENT_BYTES:
        _, channel, is_last, place = _DATA.unpack_from(inside)
        is_whole = (
            is_last or len(inside) == _DATA.size + FRAGMENT_BYTES
        )  # many small ones would cost more than they hold
        if channel < CHANNELS and is_last in (0, 1) and is_whole:
            return Data(channel, place, bool(is_last), inside[_DATA.size :])
    elif kind == _ACK_KIND and _ACK.size <= len(inside) <= _ACK.size + ACKED_BEFORE // 8:
        _, largest, waited_us = _ACK.unpack_from(inside)
        return Ack(largest, int.from_bytes(inside[_ACK.size :], "little"), waited_us)
    elif kind == _PROBE_KIND and len(inside) == 1:
        return Probe()
    raise RemoteProtocolError(f"a packet of kind {kind} with {len(inside)} bytes")


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


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


PROBES, PROBE_PAUSE_S = 32, 0.01
# More probes after a lost one: at one a second it takes half a minute to measure a way, and TCP would hang till then.
CLOSER_LOOK = 24
# The interval while nothing comes back: a peer's return should be known at once.
RETURN_PROBE_S = 0.3
# LONG_S: a way on which TCP's slow start and its repetitions take seconds. SO_MANY_LOST: of the last PROBES; 97 of 100
# looks find as many on a way that loses a fifth of the frames, 3 of 100 on one that loses a fiftieth.
LONG_S, SO_MANY_LOST = 0.1, 3
_SHORT_SHARE, _FEW_LOST = 0.8, 1
STAY_S = 60.0
# Multiples of the peer's absence, until TCP has surely repeated its lost data.
_TCP_WAITS = 2.0
SURE_S = 2.0
# A transfer is given up after a silence of the same length (mdl.transport.wire.bulk.EXPIRY_S).
GONE_S = 10.0
# Packets that leave in one look of the loop.
TURN = 64
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
# Packets that are remembered, so that a recorded and repeated one is not accepted again.
_REMEMBERED = 2_048


class _Probes:
    """The schedule of probes: PROBES of them at first, quickly. left_at: the time of the last one."""

    def __init__(self, now: float) -> None:
        self.due_at, self.left_at = now, -inf
        self._at_first = PROBES

    def look_closer(self, now: float, count: int = CLOSER_LOOK) -> None:
        self._at_first = max(self._at_first, count)
        self.due_at = min(self.due_at, now + PROBE_PAUSE_S)

    def leave(self, now: float) -> None:
        self.left_at = now
        self._at_first = max(0, self._at_first - 1)
        self.due_at = now + (PROBE_PAUSE_S if self._at_first else PROBE_EVERY_S)


class Flow:
    """A flow with one peer. own: the peer seals with it. `connect` tells how this node seals, so that it can send."""

    def __init__(self, own: Seal, now: float) -> None:
        self.own = own
        self.begun_at = now
        self.is_wanted = False
        self._peer: Seal | None = None
        self._sending, self._receiving = Sending(now), Receiving()
        self._outcomes: deque[bool] = deque(maxlen=PROBES)
        self._probes = _Probes(now)
        self._away_s = 0.0
        self._is_long, self._short_at = False, -inf
        self._bad_until = -inf
        self._way = Shortest(STAY_S, now)

    @property
    def way_s(self) -> float:
        """The quickest round trip of a minute or two: a link that was full for a while is not long. inf: none."""
        return self._way.s

    @property
    def is_connected(self) -> bool:
        return self._peer is not None

    @property
    def heard_at(self) -> float:
        """The time of the peer's last acknowledgement of something under way, -inf if there was none."""
        return self._sending.heard_at

    def connect(self, peer: Seal, now: float) -> None:
        self._peer, self._probes = peer, _Probes(now)

    def is_sure(self, now: float) -> bool:
        return now - self.heard_at < SURE_S

    def put(self, header: bytes, payload: memoryview | None, has_values: bool) -> bool:
        """Queue a message; return False if too many wait. has_values: no small message waits behind it."""
        return self._sending.put(header, payload, VALUES if has_values else SMALL)

    def take(self, datagram: bytes, now: float) -> list[list[bytes]]:
        """Return the messages that this datagram completes. Raises RemoteProtocolError."""
        number, frame = self.own.open(datagram)
        is_new = self._receiving.is_new(number, now)
        if isinstance(frame, Ack):
            if is_new:
                self._note(self._sending.take(frame, now), now)
            return []
        self._receiving.owe()
        return self._receiving.take(frame) if is_new and isinstance(frame, Data) else []

    def packets(self, now: float) -> list[bytes]:
        """Return the packets that are due by now, sealed."""
        if self._peer is None:
            return []
        self._note(self._sending.on_time(now), now)
        if self._sending.pace.is_silent and AWAY_S <= now - self._sending.spoke_at < inf:
            self._away_s = now - self._sending.spoke_at
            if self._away_s >= GONE_S:
                self._sending.forget_waiting()
        frames: list[tuple[int, Frame]] = []
        if (ack := self._receiving.ack(now)) is not None:
            frames.append((self._sending.next_number(), ack))
        if now >= self._probe_at():
            frames.append(self._sending.probe(now))
            self._probes.leave(now)
        while len(frames) < TURN and (packet := self._sending.next_packet(now)) is not None:
            frames.append(packet)
        return [self._peer.close(number, frame) for number, frame in frames]

    def deadline(self, now: float) -> float:
        if self._peer is None:
            return inf
        times = (self._probe_at(), self._sending.deadline(now))
        return min(time for time in times if time is not None)

    def _probe_at(self) -> float:
        is_silent = self._sending.pace.is_silent and self.heard_at > -inf
        return min(self._probes.due_at, self._probes.left_at + RETURN_PROBE_S) if is_silent else self._probes.due_at

    def _note(self, outcome: ProbeOutcome, now: float) -> None:
        if outcome.arrived and not self._outcomes:
            self._probes.look_closer(now, PROBES)  # the first may have left before the peer could answer
        self._outcomes.extend([True] * outcome.lost + [False] * outcome.arrived)
        if not (outcome.lost or outcome.arrived):
            return
        shortest_s, lost = self._sending.pace.shortest_s, sum(self._outcomes)
        self._way.note(shortest_s, now)
        if shortest_s <= _SHORT_SHARE * LONG_S:
            self._is_long, self._short_at = False, now
        elif LONG_S <= shortest_s < inf and now - self._short_at >= STAY_S:
            self._is_long = True
        if lost >= SO_MANY_LOST or (self.is_wanted and lost > _FEW_LOST):
            self._bad_until = now + STAY_S
        elif outcome.arrived and self._away_s:
            self._bad_until = max(self._bad_until, now + _TCP_WAITS * self._away_s)
        self.is_wanted = self._is_long or now < self._bad_until
        if outcome.lost and not self.is_wanted:
            self._probes.look_closer(now)
        if outcome.arrived:
            self._away_s = 0.0


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
class ProbeOutcome:
    """The probes of an acknowledgement or timeout: how many arrived, and how many are lost."""

    arrived: int = 0
    lost: int = 0


class Sending:
    """Takes messages, gives packets. pace: of this flow.

    heard_at: the last acknowledgement of something under way. spoke_at: the last one of all, perhaps too late.
    """

    def __init__(self, now: float) -> None:
        self.pace = SendingPace(now)
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

    def take(self, ack: Ack, now: float) -> ProbeOutcome:
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
        return ProbeOutcome(arrived, lost)

    def on_time(self, now: float) -> ProbeOutcome:
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
        return ProbeOutcome(0, lost)

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


class _Channel:
    """The pieces of one channel.

    next: place of the missing piece. ahead: pieces that came before it. begun: the bytes of an unfinished message.
    """

    def __init__(self) -> None:
        self.next = 0
        self.ahead: dict[int, Data] = {}
        self.begun = bytearray()

    def take(self, data: Data) -> list[list[bytes]]:
        """Return the messages that this piece completes: each a header, and the payload if there is one."""
        if not self.next <= data.place < self.next + MOST_AHEAD:
            return []
        self.ahead[data.place] = data
        messages = []
        while (piece := self.ahead.pop(self.next, None)) is not None:
            self.next += 1
            self.begun += piece.body
            if len(self.begun) > LENGTHS.size + MAX_HEADER_BYTES + MAX_FRAME_BYTES:
                raise RemoteProtocolError("a message in datagrams that does not end")
            if piece.is_last:
                whole, self.begun = self.begun, bytearray()
                messages.append(_take_apart(memoryview(whole)))
        return messages


class Receiving:
    """Takes packets, gives messages and acknowledgements."""

    def __init__(self) -> None:
        self._channels = [_Channel() for _ in range(CHANNELS)]
        self._largest, self._before, self._came_at = -1, 0, -inf
        self._owes = False

    def is_new(self, number: int, now: float) -> bool:
        """Note a packet; return False if it was here before, or is too old to tell."""
        if number > self._largest:
            shift = number - self._largest
            known = (self._before << 1 | 1) if self._largest >= 0 else 0
            self._before = (known << (shift - 1)) & ((1 << _REMEMBERED) - 1) if shift <= _REMEMBERED else 0
            self._largest, self._came_at = number, now
            return True
        place = self._largest - number - 1
        if not 0 <= place < _REMEMBERED or self._before >> place & 1:
            return False
        self._before |= 1 << place
        return True

    def owe(self) -> None:
        """Note that a packet wants an acknowledgement, even a repeated one: the earlier answer may be lost."""
        self._owes = True

    def take(self, data: Data) -> list[list[bytes]]:
        """Return the messages that this piece completes. Raises RemoteProtocolError for an invalid message."""
        return self._channels[data.channel].take(data)

    def ack(self, now: float) -> Ack | None:
        """Return what there is to acknowledge, once."""
        if not self._owes:
            return None
        self._owes = False
        waited_us = int(1e6 * max(0.0, now - self._came_at))
        return Ack(self._largest, self._before & ((1 << ACKED_BEFORE) - 1), waited_us)


def _take_apart(message: memoryview) -> list[bytes]:
    if len(message) < LENGTHS.size:
        raise RemoteProtocolError(f"a message in datagrams of {len(message)} bytes")
    header_bytes, payload_bytes = LENGTHS.unpack_from(message)
    if LENGTHS.size + header_bytes + payload_bytes != len(message):
        raise RemoteProtocolError("a message in datagrams with lengths that do not fit")
    header = bytes(message[LENGTHS.size : LENGTHS.size + header_bytes])
    return [header, bytes(message[LENGTHS.size + header_bytes :])] if payload_bytes else [header]
