"""Datagrams between this node and one peer, and the decision when they are the better way.

Probes of 60 bytes measure the length of the way and the share of lost frames: 32 at first, then one a second, and 24
more when one is lost. Messages go as datagrams where TCP would wait:
- The way is long (LONG_S) and was not short within STAY_S, so that it is not merely full.
- Frames are lost (SO_MANY_LOST), until the way has been good for STAY_S.
- The peer was out of reach and is back (AWAY_S), since TCP waits another time as long.
A peer that acknowledged no datagram for SURE_S may be out of reach for datagrams alone (a firewall that lets only TCP
in). Small messages go both ways then, values by TCP. Every machine accepts a message that comes twice. Pure.
"""

from __future__ import annotations

from collections import deque
from math import inf

from mdl.transport.datagrams.pace import Shortest
from mdl.transport.datagrams.packets import Ack, Data, Frame, Seal
from mdl.transport.datagrams.receiving import Receiving
from mdl.transport.datagrams.sending import AWAY_S, PROBE_EVERY_S, SMALL, VALUES, Outcome, Sending

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

    def _note(self, outcome: Outcome, now: float) -> None:
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
