"""Datagrams between this node and one peer, and when they are the better way.

32 probes, one a second from then on, and 24 more where one is lost, tell how long the way is and how many frames get
lost on it, for 60 bytes each. Where TCP would wait for that, messages go as datagrams: where the way is long (LONG_S)
and not only full, which it would not be for STAY_S; where frames are lost (SO_MANY_LOST), until it has been good for
STAY_S; and when the peer was out of reach and is back (AWAY_S), since TCP waits another time as long. Who has not been
heard by datagrams for SURE_S may be out of reach for them alone (a firewall that lets only TCP in): what is small goes
both ways then, values by TCP. Every machine takes a message that comes twice. Pure.
"""

from __future__ import annotations

from collections import deque
from math import inf

from mdl.transport.datagrams.pace import Shortest
from mdl.transport.datagrams.packets import Ack, Data, Frame, Seal
from mdl.transport.datagrams.receiving import Receiving
from mdl.transport.datagrams.sending import AWAY_S, PROBE_EVERY_S, SMALL, VALUES, Outcome, Sending

PROBES, PROBE_PAUSE_S = 32, 0.01
# Where a probe is lost: at one a second it takes half a minute to see what a way is like, and TCP would hang till then.
CLOSER_LOOK = 24
# While nothing comes back: that the peer is there again is to be known at once.
RETURN_PROBE_S = 0.3
# A way on which TCP's slow start and its repetitions take seconds; and so many of the last PROBES without an answer:
# where a fifth of the frames is lost that is what 97 of 100 looks find, where a fiftieth is, 3 of 100.
LONG_S, SO_MANY_LOST = 0.1, 3
_SHORT_SHARE, _FEW_LOST = 0.8, 1
STAY_S = 60.0
# Times as long as the peer was away, until TCP has surely repeated what it had lost.
_TCP_WAITS = 2.0
SURE_S = 2.0
# A transfer is given up after as long a silence (mdl.transport.wire.bulk.EXPIRY_S).
GONE_S = 10.0
# Packets that leave in one look of the loop.
TURN = 64


class _Probes:
    """When probes leave: PROBES of them at first, quickly. left_at: when the last one did."""

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
    """own: what the peer seals with. `connect` says how this node seals, and makes it able to send."""

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
        """When the peer acknowledged something last, -inf if it never did."""
        return self._sending.heard_at

    def connect(self, peer: Seal, now: float) -> None:
        self._peer, self._probes = peer, _Probes(now)

    def is_sure(self, now: float) -> bool:
        return now - self.heard_at < SURE_S

    def put(self, header: bytes, payload: memoryview | None, has_values: bool) -> bool:
        """A message to send; False if too many wait. has_values: nothing small waits behind it."""
        return self._sending.put(header, payload, VALUES if has_values else SMALL)

    def take(self, datagram: bytes, now: float) -> list[list[bytes]]:
        """The messages that are whole with this one. Raises RemoteProtocolError."""
        number, frame = self.own.open(datagram)
        is_new = self._receiving.is_new(number, now)
        if isinstance(frame, Ack):
            if is_new:
                self._note(self._sending.take(frame, now), now)
            return []
        self._receiving.owe()
        return self._receiving.take(frame) if is_new and isinstance(frame, Data) else []

    def packets(self, now: float) -> list[bytes]:
        """What is to leave by now, sealed."""
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
            self._probes.look_closer(now, PROBES)  # those before may have left when the peer could not answer yet
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
