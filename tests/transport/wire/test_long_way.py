"""Transfers over simulated TCP connections, in virtual time: a long way, and one that loses much.

What counts is how long a value takes, and that it is carried once: TCP delivers what it has, only late.
"""

import heapq
import itertools
import random
import statistics
from math import inf

import numpy as np
import pytest

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Received
from mdl.protocol.round_messages import DeltaMessage
from mdl.transport.wire.bulk import LONG_S, Outgoing, OutgoingTransfers
from mdl.transport.wire.codec import (
    MAX_STREAMS,
    ChunkSent,
    ChunksWanted,
    TransferDropped,
    TransferEnded,
    TransferOffered,
)
from mdl.transport.wire.incoming import IncomingTransfers

SENDER, RECEIVER = Contributor("sender", 1), Contributor("receiver", 1)
VALUES = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
SEGMENT_BYTES, FIRST_WINDOW, SHORTEST_TIMEOUT_S, REST_S = 1448, 10, 0.2, 1.0


class Tcp:
    """One connection: slow start after each rest; a lost flight waits for a timeout, which doubles."""

    def __init__(self, delay_s, loss, rng):
        self.delay_s, self.loss, self.rng = delay_s, loss, rng
        self.flight_at, self.window, self.room = -inf, FIRST_WINDOW, 0

    def carry(self, size, now):
        """When a message of so many bytes, sent now behind all others, is there."""
        if now > self.flight_at + REST_S:
            self.flight_at, self.window, self.room = now, FIRST_WINDOW, FIRST_WINDOW * SEGMENT_BYTES
        while size > self.room:
            size -= self.room
            self.flight_at = max(now, self.flight_at + 2 * self.delay_s)
            self.window *= 2
            timeout_s = max(SHORTEST_TIMEOUT_S, 2 * self.delay_s)
            while self.rng.random() < self.loss:
                self.flight_at, timeout_s, self.window = self.flight_at + timeout_s, 2 * timeout_s, 2
            self.room = self.window * SEGMENT_BYTES
        self.room -= size
        return max(now, self.flight_at) + self.delay_s


class Way:
    """A sender and a receiver, and the connections between them."""

    def __init__(self, delay_s, loss=0.0, seed=0, is_ahead=True):
        self.outgoing, self.incoming = OutgoingTransfers(is_ahead), IncomingTransfers(VALUES.nbytes)
        self.connections, self.rng, self.delay_s, self.loss = {}, random.Random(seed), delay_s, loss
        self.now, self.coming, self.count, self.arrived, self.carried = 0.0, [], itertools.count(), [], 0

    def send(self, steps, by):
        for step in steps:
            if not isinstance(step, Outgoing):
                self.arrived += [self.now] if isinstance(step, Received) else []
                continue
            key = by, step.stream
            tcp = self.connections.setdefault(key, Tcp(self.delay_s, self.loss, self.rng))
            size = len(step.payload or b"")
            self.carried += size
            heapq.heappush(self.coming, (tcp.carry(200 + size, self.now), next(self.count), step))

    def take(self, step):
        match step.body:
            case TransferOffered() as body:
                self.send(self.incoming.on_offered(SENDER, body, self.now), "receiver")
            case ChunkSent() as body:
                self.send(self.incoming.on_chunk(SENDER, body, step.payload, self.now), "receiver")
            case ChunksWanted() as body:
                self.send(self.outgoing.on_wanted(RECEIVER, body, self.now), "sender")
            case TransferEnded() as body:
                self.outgoing.on_ended(RECEIVER, body)
            case TransferDropped() as body:
                self.incoming.on_dropped(SENDER, body)

    def transfer(self, number):
        """Seconds until one value is there, and how often it was carried."""
        begun, carried, count = self.now, self.carried, len(self.arrived)
        self.send(self.outgoing.offer("receiver", DeltaMessage(number, 1, 1.0, (SENDER,)), VALUES, self.now), "sender")
        while len(self.outgoing) or self.coming:
            due = [time for time in (self.outgoing.deadline(), self.incoming.deadline()) if time is not None]
            self.now = max(self.now, min([*due, *(time for time, _, _ in self.coming[:1])]) + 1e-6)
            if self.coming and self.coming[0][0] <= self.now:
                self.take(heapq.heappop(self.coming)[2])
            self.send(self.outgoing.on_time(self.now), "sender")
            self.send(self.incoming.on_time(self.now), "receiver")
        took = self.arrived[-1] - begun if len(self.arrived) > count else inf
        self.now += 5.0
        return took, (self.carried - carried) / VALUES.nbytes


def test_over_a_long_way_each_value_is_carried_once_and_the_second_by_connections_that_begin_together():
    way = Way(0.3)
    times, copies = zip(*(way.transfer(number) for number in range(4)), strict=True)
    assert set(copies) == {1.0}
    assert times[0] == pytest.approx(0.3 + 4 * 0.6, abs=0.1), "10, 20, 40, 80, 160 segments"
    assert max(times[1:]) == pytest.approx(0.3 + 2 * 0.6, abs=0.1), "8 times 10, 20, 40 segments"
    assert {stream for by, stream in way.connections if by == "sender"} == {None, *range(MAX_STREAMS)}


def test_what_goes_with_the_offer_saves_a_round_trip():
    ahead, asked = Way(0.3).transfer(0)[0], Way(0.3, is_ahead=False).transfer(0)[0]
    assert asked - ahead == pytest.approx(0.6, abs=0.05)


def test_on_a_short_way_one_connection_is_enough():
    way = Way(LONG_S / 4)
    assert [way.transfer(number)[1] for number in range(3)] == [1.0] * 3
    assert {stream for by, stream in way.connections if by == "sender"} == {0}


def test_a_way_that_loses_much_delivers_every_value_and_carries_little_twice():
    took, copies = [], []
    for seed in range(20):
        way = Way(0.002, loss=0.36, seed=seed)  # a fifth of the frames each way: what is acknowledged is 0.64
        for number in range(5):
            seconds, carried = way.transfer(number)
            took.append(seconds)
            copies.append(carried)
    assert max(took) < inf, "a connection that waits longer than a transfer may be silent is gone around"
    assert statistics.median(took) < 4.0
    assert statistics.mean(copies) < 1.7
