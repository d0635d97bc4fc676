"""Transfers as two machines with a bad network between them: whole or not at all."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.delta import Contributor
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.machine import Received, TransferProgressed
from mdl.messages import ModelMessage
from transport.bulk import (
    EXPIRY_S,
    MAX_INCOMING,
    MAX_OUTGOING,
    RETRY_S,
    WINDOW_BYTES,
    IncomingTransfers,
    Outgoing,
    OutgoingTransfers,
)
from transport.wire import (
    CHUNK_BYTES,
    ChunkSent,
    ChunksWanted,
    TransferDropped,
    TransferEnded,
    TransferOffered,
)

SENDER, RECEIVER = Contributor("sender", 1), Contributor("receiver", 1)
MODEL = ModelMessage(1, b"digest")
VALUES_A_CHUNK = CHUNK_BYTES // 4


def vector(chunks, extra=5):
    return np.random.default_rng(chunks).standard_normal(chunks * VALUES_A_CHUNK + extra).astype(np.float32)


class Pair:
    """A sender and a receiver; what one says waits in `wire` until the test lets it through."""

    def __init__(self, max_values=1 << 24):
        self.outgoing, self.incoming = OutgoingTransfers(), IncomingTransfers(max_values)
        self.now, self.wire, self.events, self.offers = 0.0, [], [], 0

    def offer(self, values, message=MODEL):
        self.emit(self.outgoing.offer("receiver", message, values, self.now))

    def emit(self, steps):
        self.wire += [step for step in steps if isinstance(step, Outgoing)]
        self.events += [step for step in steps if not isinstance(step, Outgoing)]

    def deliver(self, index=0, keep=False):
        outgoing = self.wire[index] if keep else self.wire.pop(index)
        match outgoing.body:
            case TransferOffered() as body:
                self.emit(self.incoming.on_offered(SENDER, body, self.now))
            case ChunkSent() as body:
                self.emit(self.incoming.on_chunk(SENDER, body, outgoing.payload, self.now))
            case ChunksWanted() as body:
                self.emit(self.outgoing.on_wanted(RECEIVER, body, self.now))
            case TransferEnded() as body:
                self.outgoing.on_ended(RECEIVER, body)
            case TransferDropped() as body:
                self.incoming.on_dropped(SENDER, body)

    def pass_time(self, seconds):
        self.now += seconds
        self.emit(self.outgoing.on_time(self.now))
        self.emit(self.incoming.on_time(self.now))

    def run(self):
        while self.wire:
            self.deliver()

    def received(self):
        return [event for event in self.events if isinstance(event, Received)]


@pytest.mark.parametrize("values", [vector(0), vector(1, 0), vector(3), vector(40)], ids=len)
def test_a_vector_arrives_bit_for_bit_and_both_sides_forget_it(values):
    pair = Pair()
    pair.offer(values)
    pair.run()
    (received,) = pair.received()
    assert (received.sender, received.message) == (SENDER, MODEL)
    assert received.values.tobytes() == values.tobytes()
    assert received.values.dtype == np.float32
    assert len(pair.outgoing) == len(pair.incoming) == 0
    assert pair.outgoing.deadline() is None
    assert pair.incoming.deadline() is None


def test_nothing_is_sent_before_the_receiver_asks_and_then_at_most_a_window():
    pair = Pair()
    pair.offer(vector(40))
    assert [type(step.body) for step in pair.wire] == [TransferOffered]
    pair.deliver()
    pair.deliver()
    assert sum(len(step.payload) for step in pair.wire) == WINDOW_BYTES


def test_a_greedy_receiver_gets_no_more_than_a_window_at_once():
    pair = Pair()
    pair.offer(vector(40))
    steps = pair.outgoing.on_wanted(RECEIVER, ChunksWanted(1, 0, 1 << 60), 0.0)
    assert sum(len(step.payload) for step in steps) == WINDOW_BYTES


def test_chunks_are_views_of_the_senders_array():
    values = vector(2)
    pair = Pair()
    pair.offer(values)
    pair.deliver()
    pair.deliver()
    assert all(np.shares_memory(np.frombuffer(step.payload, np.uint8), values) for step in pair.wire)
    assert all(step.payload.readonly for step in pair.wire)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 24), st.floats(0, 0.4))
def test_loss_repetition_and_reordering_never_deliver_a_wrong_or_a_second_vector(seed, chunks, loss):
    chance, pair, values = random.Random(seed), Pair(), vector(chunks)
    pair.offer(values)
    for _ in range(3000):
        if pair.wire:
            index = chance.randrange(min(len(pair.wire), 3))
            if chance.random() < loss:
                pair.wire.pop(index)
            else:
                pair.deliver(index, keep=chance.random() < 0.1)
        elif pair.outgoing.deadline() is None and pair.incoming.deadline() is None:
            break
        else:
            pair.pass_time(RETRY_S / 2)
    assert len(pair.outgoing) == len(pair.incoming) == 0
    assert len(pair.received()) <= 1
    for received in pair.received():
        assert received.values.tobytes() == values.tobytes()


def test_a_transfer_gets_through_a_tenth_of_loss():
    for seed in range(40):
        chance, pair, values = random.Random(seed), Pair(), vector(12)
        pair.offer(values)
        while not pair.received() and pair.now < 300:
            if not pair.wire:
                pair.pass_time(RETRY_S / 2)
            elif chance.random() < 0.1:
                pair.wire.pop(0)
            else:
                pair.deliver()
        assert [received.values.tobytes() for received in pair.received()] == [values.tobytes()], seed


def test_after_a_broken_connection_it_goes_on_where_it_stood():
    pair = Pair()
    pair.offer(vector(20))
    for _ in range(20):
        pair.deliver()
    (here,) = [r.offset for r in pair.incoming._receiving.values()]
    assert here > 0
    pair.wire.clear()  # the connection broke: all that was under way is lost
    pair.pass_time(RETRY_S)
    asked = [step.body for step in pair.wire if isinstance(step.body, ChunksWanted)]
    assert [(wanted.offset_bytes, wanted.again) for wanted in asked] == [(here, True)]
    pair.run()
    assert len(pair.received()) == 1


def test_a_lost_chunk_is_asked_for_once_not_for_each_that_follows():
    pair = Pair()
    pair.offer(vector(40))
    pair.deliver()
    pair.deliver()
    del pair.wire[0]
    for _ in range(7):
        pair.deliver()
    assert [step.body.again for step in pair.wire] == [True]


def test_the_same_message_is_not_sent_twice_at_once_but_may_be_sent_again_later():
    pair, values = Pair(), vector(1)
    pair.offer(values)
    pair.offer(values)
    assert len(pair.outgoing) == 1
    pair.offer(values, ModelMessage(2, b""))
    assert len(pair.outgoing) == 2
    pair.run()
    pair.offer(values)
    pair.run()
    assert len(pair.received()) == 3


def test_a_larger_vector_than_the_model_is_refused_before_anything_is_allocated():
    pair = Pair(max_values=1000)
    pair.emit(pair.incoming.on_offered(SENDER, TransferOffered(1, 1 << 33, MODEL), 0.0))
    assert len(pair.incoming) == 0
    assert "at most 1000" in pair.wire[0].body.reason


def test_no_more_than_two_vectors_come_in_at_once_and_a_later_offer_has_its_turn():
    pair = Pair()
    for round_id in range(MAX_INCOMING + 1):
        pair.offer(vector(1), ModelMessage(round_id, b""))
    for _ in range(MAX_INCOMING + 1):
        pair.deliver()
    assert len(pair.incoming) == MAX_INCOMING
    pair.run()
    assert len(pair.received()) == MAX_INCOMING
    pair.pass_time(RETRY_S)
    pair.run()
    assert len(pair.received()) == MAX_INCOMING + 1


def test_a_sender_does_not_offer_without_bound():
    outgoing = OutgoingTransfers()
    offers = [outgoing.offer(f"p{i}", MODEL, vector(0), 0.0) for i in range(MAX_OUTGOING + 4)]
    assert [len(steps) for steps in offers] == [1] * MAX_OUTGOING + [0] * 4


def test_both_sides_let_go_of_a_transfer_that_does_not_move():
    pair = Pair()
    pair.offer(vector(20))
    pair.deliver()
    for _ in range(round(EXPIRY_S / RETRY_S)):
        pair.wire.clear()
        pair.pass_time(RETRY_S)
    assert len(pair.outgoing) == len(pair.incoming) == 0
    assert not pair.received()


@pytest.mark.parametrize(("seconds_a_chunk", "copies"), [(0.3, 0), (1.1, 0), (2.0, 0), (3.3, 2)])
def test_a_slow_link_is_not_burdened_with_repetition(seconds_a_chunk, copies):
    pair, carried = Pair(), 0
    pair.offer(vector(40))
    while pair.wire:
        chunks = [step for step in pair.wire if isinstance(step.body, ChunkSent)]
        if not chunks:
            pair.deliver()
            continue
        for _ in range(10):  # what is small passes by
            pair.pass_time(seconds_a_chunk / 10)
            for small in [step for step in pair.wire if not isinstance(step.body, ChunkSent)]:
                pair.deliver(pair.wire.index(small))
        pair.deliver(pair.wire.index(chunks[0]))
        carried += 1
    assert len(pair.received()) == 1
    assert carried <= 41 * (1 + copies)


def test_a_restarted_sender_takes_the_place_of_its_predecessor():
    pair = Pair()
    pair.emit(pair.incoming.on_offered(SENDER, TransferOffered(1, 1000, MODEL), 0.0))
    pair.emit(pair.incoming.on_offered(Contributor("sender", 2), TransferOffered(1, 1000, MODEL), 0.0))
    assert len(pair.incoming) == 1


def test_what_was_promised_to_a_restarted_receiver_is_void():
    pair = Pair()
    pair.offer(vector(1))
    pair.outgoing.forget("receiver")
    assert len(pair.outgoing) == 0
    pair.run()
    assert len(pair.incoming) == 0, "the receiver is told that nothing will come"


def test_a_stranger_cannot_have_another_peers_chunks():
    pair = Pair()
    pair.offer(vector(1))
    steps = pair.outgoing.on_wanted(Contributor("stranger", 1), ChunksWanted(1, 0, WINDOW_BYTES), 0.0)
    assert [step.body for step in steps] == [TransferDropped(1)]


def test_chunks_that_do_not_fit_are_refused():
    pair = Pair()
    pair.offer(vector(2))
    pair.deliver()
    for payload in (b"", bytes(CHUNK_BYTES - 4), bytes(CHUNK_BYTES + 4)):
        with pytest.raises(RemoteProtocolError):
            pair.incoming.on_chunk(SENDER, ChunkSent(1, 0), memoryview(payload), 0.0)
    for offset in (3, 1 << 40):
        with pytest.raises(RemoteProtocolError):
            pair.outgoing.on_wanted(RECEIVER, ChunksWanted(1, offset, offset), 0.0)


def test_progress_is_told_about_once_a_second():
    pair = Pair()
    pair.offer(vector(40))
    while pair.wire:
        pair.now += 0.05
        pair.deliver()
    progress = [event for event in pair.events if isinstance(event, TransferProgressed)]
    assert 2 <= len(progress) <= pair.now + 1
    assert all(event.size_bytes == len(vector(40)) * 4 for event in progress)


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(0, np.float32)])
def test_only_float32_vectors_are_sent(values):
    with pytest.raises(LocalProtocolError):
        OutgoingTransfers().offer("receiver", MODEL, values, 0.0)
