"""Transfers as two machines with a bad network between them: whole or not at all; their rhythm; one segment."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.bounds import MAX_HEADER_BYTES
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.protocol.cloud_messages import LessonMessage, UpdateMessage
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import Received, TransferProgressed
from mdl.protocol.round_messages import DeltaMessage, GlobalMessage, ModelMessage
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES
from mdl.protocol.vocabulary import Packed
from mdl.transport.links.sockets import BULK_QUEUE, RECEIVE_QUEUE
from mdl.transport.wire.bulk import (
    CHUNK_S,
    EXPIRY_S,
    FIRST_CHUNK_BYTES,
    FIRST_PATIENCE_S,
    MAX_OUTGOING,
    MAX_TO_ONE,
    RETRY_S,
    SHORTEST_PATIENCE_S,
    SLOWEST_BYTES_S,
    STALL_S,
    WINDOW_BYTES,
    WINDOW_CHUNKS,
    Outgoing,
    OutgoingTransfers,
    Rhythm,
    pack_segment,
    read_segment,
    window_bytes,
)
from mdl.transport.wire.codec import (
    CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_STREAMS,
    SMALLEST_CHUNK_BYTES,
    ChunkSent,
    ChunksWanted,
    TransferDropped,
    TransferEnded,
    TransferOffered,
)
from mdl.transport.wire.incoming import ASKED_S, MAX_INCOMING, HashThread, IncomingTransfers

SENDER, RECEIVER = Contributor("sender", 1), Contributor("receiver", 1)
MODEL = ModelMessage(1, b"digest")
VALUES_A_CHUNK = CHUNK_BYTES // 4
LONGEST_S = 5.0
LARGEST = np.zeros(LARGEST_SEGMENT_BYTES // 4, np.float32)


def vector(chunks, extra=5):
    return np.random.default_rng(chunks).standard_normal(chunks * VALUES_A_CHUNK + extra).astype(np.float32)


@pytest.fixture
def hashes():
    thread = HashThread()
    yield thread
    thread.close()


class Pair:
    """A sender and a receiver; what one says waits in `wire` until the test lets it through."""

    def __init__(self, max_bytes=1 << 26):
        self.outgoing, self.incoming = OutgoingTransfers(), IncomingTransfers(max_bytes)
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


@pytest.mark.parametrize("values", [vector(0), vector(1, 0), vector(40)], ids=len)
def test_values_that_are_compared_with_a_digest_come_with_it_and_others_are_not_hashed(values, hashes):
    hashed = (MODEL, GlobalMessage(1, 1.0, (SENDER,), 1, 1))
    for message in (*hashed, DeltaMessage(1, 1, 1.0, (SENDER,))):
        pair = Pair()
        pair.incoming = IncomingTransfers(1 << 24, hashes.new)
        pair.offer(values, message)
        pair.run()
        (received,) = pair.received()
        assert received.digest == (digest_of(values) if message in hashed else b"")


@pytest.mark.parametrize("poison", [np.nan, np.inf, 2e6])
@pytest.mark.parametrize("chunks", [0, 40], ids=["in the loop", "beside it"])
def test_a_model_that_would_poison_everything_is_refused_when_it_is_here(poison, chunks, hashes):
    values, pair = vector(chunks or 1), Pair()
    values[len(values) // 2] = poison
    pair.incoming = IncomingTransfers(1 << 24, hashes.new)
    pair.offer(values)
    with pytest.raises(RemoteProtocolError, match="not finite or beyond"):
        pair.run()
    assert pair.received() == []


def test_a_digest_is_of_what_arrived_whatever_was_lost_and_came_twice(hashes):
    values, pair = vector(12), Pair()
    pair.incoming = IncomingTransfers(1 << 24, hashes.new)
    pair.offer(values)
    pair.deliver()
    pair.deliver()
    pair.wire = [pair.wire[0], pair.wire[0], *pair.wire[2:]]  # the first comes twice, the second never
    while not pair.received():
        pair.run()
        pair.pass_time(1.5)
    assert pair.received()[0].digest == digest_of(values)


def test_a_window_goes_with_the_offer_by_the_same_connection_and_no_more_before_the_receiver_asks():
    pair = Pair()
    pair.offer(vector(40))
    assert [type(step.body) for step in pair.wire] == [TransferOffered] + [ChunkSent] * WINDOW_CHUNKS
    assert {step.stream for step in pair.wire} == {0}
    assert sum(len(step.payload) for step in pair.wire[1:]) == window_bytes(FIRST_CHUNK_BYTES)
    for _ in range(9):
        pair.pass_time(RETRY_S)
    assert {type(step.body) for step in pair.wire[1 + WINDOW_CHUNKS :]} == {TransferOffered}


def test_of_two_transfers_to_one_receiver_and_at_a_cloud_nothing_is_sent_before_it_is_asked_for():
    pair, values = Pair(), vector(40)
    pair.offer(values)
    pair.wire.clear()
    pair.offer(values, ModelMessage(2, b""))
    assert [(type(step.body), step.stream) for step in pair.wire] == [(TransferOffered, None)]
    (offered,) = OutgoingTransfers(is_ahead=False).offer("receiver", MODEL, values, 0.0)
    assert (type(offered.body), offered.stream) == (TransferOffered, None)


def test_what_came_before_there_was_a_place_for_it_is_asked_for_again():
    crowd = Crowd(chunks=4)
    assert [crowd.offer(name, 0.0) for name in "abc"] == [True, True, False]
    for index in range(4):
        assert not crowd.chunk("c", index, 0.1)
        crowd.chunk("a", index, 0.2)
    assert crowd.received() == ["a"]
    assert crowd.offer("c", 1.0)
    assert crowd.events[-1].body.again, "or its sender would wait for credit, and it for chunks"
    assert not crowd.events[0].body.again


def test_chunks_that_nobody_offered_leave_a_few_ids_and_nothing_else():
    crowd = Crowd()
    for transfer_id in range(1000):
        assert not crowd.chunk("a", 0, 0.0, transfer_id)
    assert (len(crowd.incoming), len(crowd.incoming._missed)) == (0, 64)
    assert crowd.incoming.deadline() is None


def test_a_greedy_receiver_gets_no_more_than_a_window_at_once():
    pair = Pair()
    pair.outgoing = OutgoingTransfers(is_ahead=False)
    pair.offer(vector(40))
    steps = pair.outgoing.on_wanted(RECEIVER, ChunksWanted(1, 0, 1 << 60), 0.0)
    assert sum(len(step.payload) for step in steps) == WINDOW_BYTES


def test_chunks_are_views_of_the_senders_array():
    values = vector(2)
    pair = Pair()
    pair.offer(values)
    del pair.wire[0]
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
    del pair.wire[0]
    for _ in range(WINDOW_CHUNKS - 1):
        pair.deliver()
    assert [step.body.again for step in pair.wire] == [False, True]


def test_the_same_message_is_not_sent_twice_at_once_but_may_be_sent_again_later():
    pair, values = Pair(), vector(5)
    pair.offer(values)
    pair.offer(values)
    assert len(pair.outgoing) == 1
    pair.offer(values, ModelMessage(2, b""))
    assert len(pair.outgoing) == 2
    pair.run()
    assert len(pair.received()) == 1, "one after the other"
    pair.pass_time(RETRY_S)
    pair.run()
    pair.offer(values)
    pair.run()
    assert len(pair.received()) == 3


def test_a_larger_vector_than_the_model_is_refused_before_anything_is_allocated():
    pair = Pair(max_bytes=1000)
    pair.emit(pair.incoming.on_offered(SENDER, TransferOffered(1, 1 << 35, MODEL), 0.0))
    assert len(pair.incoming) == 0
    assert "at most 1000" in pair.wire[0].body.reason


@pytest.mark.parametrize("size", [1, 2, 3, CHUNK_BYTES - 1, 3 * CHUNK_BYTES + 7])
@pytest.mark.parametrize("message", [LessonMessage("ann", 4, 1), UpdateMessage("ann", "schema", 1, b"digest")])
def test_packed_bytes_of_any_length_arrive_as_bytes(message, size):
    pair, model = Pair(max_bytes=size), Packed(random.Random(size).randbytes(size))
    pair.offer(model, message)
    pair.run()
    (received,) = pair.received()
    assert (received.message, received.values) == (message, model)
    assert type(received.values) is Packed


def test_values_that_end_in_the_middle_of_one_are_refused_before_anything_is_allocated():
    pair = Pair()
    pair.emit(pair.incoming.on_offered(SENDER, TransferOffered(1, 4001, MODEL), 0.0))
    assert len(pair.incoming) == 0
    assert "no whole number of float32" in pair.wire[0].body.reason


def test_an_empty_packed_model_is_a_fault_of_ours():
    with pytest.raises(LocalProtocolError, match="empty"):
        Pair().offer(Packed(b""), LessonMessage("ann", 4, 1))


class Crowd:
    """A receiver, and senders of which each says what a test likes."""

    def __init__(self, chunks=4):
        self.incoming, self.values = IncomingTransfers(1 << 26), vector(chunks, 0)
        self.data, self.events = self.values.data.cast("B"), []

    def offer(self, name, now, transfer_id=1, incarnation=1):
        """What the receiver says to an offer; True if it asks for chunks."""
        sender = Contributor(name, incarnation)
        steps = self.incoming.on_offered(sender, TransferOffered(transfer_id, self.values.nbytes, MODEL), now)
        self.events += steps
        return any(isinstance(step, Outgoing) and isinstance(step.body, ChunksWanted) for step in steps)

    def chunk(self, name, index, now, transfer_id=1):
        start = index * CHUNK_BYTES
        steps = self.incoming.on_chunk(
            Contributor(name, 1), ChunkSent(transfer_id, start), self.data[start : start + CHUNK_BYTES], now
        )
        self.events += steps
        return steps

    def tiny(self, name, now, offset=0):
        with pytest.raises(RemoteProtocolError):
            self.incoming.on_chunk(Contributor(name, 1), ChunkSent(1, offset), memoryview(b"1234"), now)

    def on_time(self, now):
        self.events += self.incoming.on_time(now)

    def received(self):
        return [event.sender.peer_id for event in self.events if isinstance(event, Received)]


def test_no_more_than_two_vectors_come_in_at_once_and_a_later_offer_has_its_turn():
    crowd = Crowd(chunks=1)
    assert [crowd.offer(name, 0.0) for name in "abc"] == [True] * MAX_INCOMING + [False]
    crowd.chunk("a", 0, 0.1)
    assert crowd.offer("c", 1.0)
    for name in "bc":
        crowd.chunk(name, 0, 1.1)
    assert crowd.received() == ["a", "b", "c"]


def test_one_transfer_a_sender():
    crowd = Crowd()
    assert crowd.offer("a", 0.0, transfer_id=1)
    assert not crowd.offer("a", 0.1, transfer_id=2)
    assert len(crowd.incoming) == 1
    assert crowd.offer("b", 0.2), "so that one sender never has both places"


def test_a_sender_that_has_given_its_transfer_up_may_begin_another():
    """Its word that it did was lost."""
    crowd = Crowd()
    assert crowd.offer("a", 0.0, transfer_id=1)
    assert crowd.offer("a", 2 * FIRST_PATIENCE_S, transfer_id=2)
    assert len(crowd.incoming) == 1


def test_tiny_messages_do_not_hold_a_place():
    """Four a second once held both, and no round closed."""
    crowd, now, got = Crowd(), 0.0, []
    for name in "ab":
        assert crowd.offer(name, now)
    while now < 2 * EXPIRY_S and not got:
        now += 0.25
        for name in "ab":
            crowd.tiny(name, now, offset=0 if now < EXPIRY_S else CHUNK_BYTES)
        crowd.on_time(now)
        got += [name for name in "c" if crowd.offer(name, now)]
    assert got == ["c"]
    assert now <= EXPIRY_S + 0.5


def test_chunks_that_are_here_already_hold_a_place_no_longer_than_a_slow_link_needs():
    crowd, now = Crowd(), 0.0
    crowd.offer("a", now)
    crowd.chunk("a", 0, now)
    while len(crowd.incoming):
        now += 1.0
        crowd.chunk("a", 0, now)
        crowd.on_time(now)
    assert now == STALL_S


def test_a_transfer_that_is_slower_than_any_link_ends():
    crowd, now, sent = Crowd(chunks=64), 0.0, 0
    crowd.offer("a", now)
    while len(crowd.incoming) and sent < 64:
        now += 29.0  # each time just before it would be given up
        for second in range(4):
            if sent:
                crowd.chunk("a", 0, now - 28.0 + 9.0 * second)
        crowd.chunk("a", sent, now)
        crowd.on_time(now)
        sent += 1
    assert sent < 8
    assert crowd.received() == []


def test_a_place_goes_to_whoever_has_waited_longest_and_never_to_who_just_had_one():
    crowd = Crowd()
    for name in "abcd":
        crowd.offer(name, 0.0 if name in "ab" else ord(name) / 1000)
    turns, now = [], 0.0
    while len(turns) < 6:
        now += 1.0
        crowd.on_time(now)
        for name in "abdc":  # a, b never send a byte, and ask first
            before = {sender.peer_id for sender, _ in crowd.incoming._receiving}
            if crowd.offer(name, now, transfer_id=int(now)) and name not in before:
                turns.append(name)
    assert sorted(turns[:2]) == ["c", "d"]
    assert sorted(turns[2:4]) == ["a", "b"]


def test_whoever_this_node_asked_goes_before_those_who_only_offer():
    crowd = Crowd()
    for name in "ab":
        assert crowd.offer(name, 0.0)
    assert not crowd.offer("c", 0.1)
    crowd.incoming.ask("c", 0.2)
    assert crowd.offer("c", 0.3), "it has the place of one that nobody asked for"
    ended = [step for step in crowd.events if isinstance(step, Outgoing) and isinstance(step.body, TransferEnded)]
    assert [(step.receiver, step.body.reason) for step in ended] == [("a", "another one was asked")]
    crowd.incoming.ask("d", 0.4)
    assert crowd.offer("d", 0.5)
    crowd.incoming.ask("e", 0.6)
    assert not crowd.offer("e", 0.7), "those that were asked wait for each other"
    assert not crowd.offer("f", 0.8)
    crowd.incoming.on_dropped(Contributor("c", 1), TransferDropped(1))
    assert not crowd.offer("f", 0.9)
    assert crowd.offer("e", 1.0)


def test_who_was_asked_long_ago_waits_like_others():
    crowd = Crowd()
    crowd.incoming.ask("c", 0.0)
    for name in "ab":
        assert crowd.offer(name, ASKED_S)
    assert not crowd.offer("c", ASKED_S + 0.1)


def test_a_sender_does_not_offer_without_bound():
    """The oldest offer that nobody has answered gives way; what is under way does not."""
    outgoing = OutgoingTransfers()
    for number in range(MAX_OUTGOING + 4):
        assert outgoing.offer(f"p{number}", MODEL, vector(0), 0.0)
        assert len(outgoing) <= MAX_OUTGOING
    for number in range(4, MAX_OUTGOING + 4):
        wanted = ChunksWanted(number + 1, 0, WINDOW_BYTES, again=True)
        (step,) = outgoing.on_wanted(Contributor(f"p{number}", 1), wanted, 0.1)
        assert isinstance(step.body, ChunkSent)
    assert outgoing.offer("one more", MODEL, vector(0), 0.2) == []


def asked(outgoing, offset, now, again=False):
    """Bytes that a request brings."""
    steps = outgoing.on_wanted(RECEIVER, ChunksWanted(1, offset, 1 << 60, again), now)
    return sum(len(step.payload) for step in steps)


def test_small_requests_do_not_bring_megabytes_each():
    outgoing = OutgoingTransfers()
    outgoing.offer("receiver", MODEL, vector(40), 0.0)
    sent = asked(outgoing, 0, 0.0)
    for number in range(1, 1000):
        sent += asked(outgoing, 0, number / 1000, again=True)
    assert sent <= 3 * WINDOW_BYTES
    assert asked(outgoing, CHUNK_BYTES, 1.0, again=True) == WINDOW_BYTES
    assert asked(outgoing, 0, 1.1, again=True) == 0, "it said that it has this"


def test_requests_without_progress_do_not_hold_a_transfer():
    outgoing, now = OutgoingTransfers(), 0.0
    outgoing.offer("receiver", MODEL, vector(40), now)
    while len(outgoing):
        asked(outgoing, 0, now, again=True)
        now += 1.0
        outgoing.on_time(now)
    assert now <= STALL_S + 1.0


def test_a_receiver_cannot_have_what_was_not_sent():
    outgoing = OutgoingTransfers()
    outgoing.offer("receiver", MODEL, vector(40), 0.0)
    asked(outgoing, 0, 0.0)
    with pytest.raises(RemoteProtocolError, match="were sent"):
        asked(outgoing, WINDOW_BYTES + CHUNK_BYTES, 0.1)


def test_both_sides_let_go_of_a_transfer_that_does_not_move():
    pair = Pair()
    pair.offer(vector(20))
    pair.deliver()
    for _ in range(round(EXPIRY_S / RETRY_S)):
        pair.wire.clear()
        pair.pass_time(RETRY_S)
    assert len(pair.outgoing) == len(pair.incoming) == 0
    assert not pair.received()


@pytest.mark.parametrize("bytes_s", [1e6, 240e3, 80e3, 20e3])
def test_a_slow_link_is_not_burdened_with_repetition(bytes_s):
    """Twice as much at most, on the slowest and only until it is known to be slow."""
    pair, carried = Pair(), 0
    values = vector(40) if bytes_s > SLOWEST_BYTES_S * 4 else vector(4)
    pair.offer(values)
    while pair.wire:
        chunks = [step for step in pair.wire if isinstance(step.body, ChunkSent)]
        if not chunks:
            pair.deliver()
            continue
        for _ in range(10):  # what is small passes by
            pair.pass_time(len(chunks[0].payload) / bytes_s / 10)
            for small in [step for step in pair.wire if not isinstance(step.body, ChunkSent)]:
                pair.deliver(pair.wire.index(small))
        pair.deliver(pair.wire.index(chunks[0]))
        carried += len(chunks[0].payload)
    assert len(pair.received()) == 1
    assert carried <= values.nbytes * (1 if bytes_s > 22e3 else 2)


def test_chunks_follow_the_link_and_what_is_known_of_it_serves_the_next_transfer():
    pair, sizes = Pair(), []
    for number in range(2):
        pair.offer(vector(3), ModelMessage(number, b"digest"))
        while pair.wire:
            step = next((step for step in pair.wire if not isinstance(step.body, ChunkSent)), pair.wire[0])
            if isinstance(step.body, ChunkSent):
                sizes.append((number, len(step.payload)))
                pair.pass_time(len(step.payload) / 30e3)
            pair.deliver(pair.wire.index(step))
    assert len(pair.received()) == 2
    assert sizes[0] == (0, FIRST_CHUNK_BYTES)
    assert {size for number, size in sizes if number == 1} <= {SMALLEST_CHUNK_BYTES, 20}


def test_over_several_connections_chunks_come_in_any_order_and_each_once():
    pair = Pair()
    pair.outgoing = OutgoingTransfers(is_ahead=False)
    values = vector(3)
    pair.offer(values)
    for _ in range(20):  # this link is known to be slow
        pair.incoming._rhythm_of("sender").hear(1.0, SMALLEST_CHUNK_BYTES)
    shuffle, carried, streams = random.Random(1), 0, set()
    while pair.wire:
        index = next((i for i, step in enumerate(pair.wire) if not isinstance(step.body, ChunkSent)), None)
        if index is None:
            index = shuffle.randrange(len(pair.wire))
            carried += len(pair.wire[index].payload)
            streams.add(pair.wire[index].stream)
            pair.pass_time(len(pair.wire[index].payload) / 30e3)
        pair.deliver(index)
    (received,) = pair.received()
    assert received.values.tobytes() == values.tobytes()
    assert carried == values.nbytes
    assert streams == set(range(MAX_STREAMS))


def test_a_fast_link_keeps_one_connection():
    pair = Pair()
    pair.outgoing = OutgoingTransfers(is_ahead=False)
    pair.offer(vector(12))
    for _ in range(20):
        pair.incoming._rhythm_of("sender").hear(0.01, CHUNK_BYTES)
    sizes = []
    while pair.wire:
        if isinstance(pair.wire[0].body, ChunkSent):
            assert pair.wire[0].stream == 0
            sizes.append(len(pair.wire[0].payload))
        pair.deliver()
    assert sizes[:-1] == [CHUNK_BYTES] * 12


def test_a_chunk_beyond_what_was_asked_for_is_refused():
    crowd = Crowd(chunks=64)
    crowd.offer("a", 0.0)
    with pytest.raises(RemoteProtocolError, match="were asked for"):
        crowd.chunk("a", 9, 0.1)
    assert not crowd.chunk("a", 7, 0.1)[0].body.offset_bytes


def test_a_restarted_sender_takes_the_place_of_its_predecessor():
    pair = Pair()
    pair.emit(pair.incoming.on_offered(SENDER, TransferOffered(1, 4000, MODEL), 0.0))
    pair.emit(pair.incoming.on_offered(Contributor("sender", 2), TransferOffered(1, 4000, MODEL), 0.0))
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


def test_who_asks_for_one_part_after_the_other_takes_no_more_than_its_places():
    sender = OutgoingTransfers()
    for number in range(100):
        sender.offer("mallory", GlobalMessage(1, 1.0, (SENDER,), 1, 1, (), number, number + 1), vector(1), 0.0)
    assert len(sender) == MAX_TO_ONE
    assert sender.offer("ann", ModelMessage(1, b"d"), vector(1), 0.0)
    assert len(sender) == MAX_TO_ONE + 1


def after(*pauses, size=SMALLEST_CHUNK_BYTES):
    rhythm = Rhythm()
    for pause_s in pauses:
        rhythm.hear(pause_s, size)
    return rhythm


def test_an_unknown_link_gets_time_for_a_handshake_and_middling_chunks():
    assert (Rhythm().patience_s(LONGEST_S), Rhythm().chunk_bytes()) == (FIRST_PATIENCE_S, FIRST_CHUNK_BYTES)


def test_patience_follows_the_pauses_and_how_much_they_vary():
    assert after(*[0.01] * 20).patience_s(LONGEST_S) == SHORTEST_PATIENCE_S
    steady = after(*[1.0] * 40).patience_s(LONGEST_S)
    varying = after(*[0.2, 1.8] * 20).patience_s(LONGEST_S)
    assert steady == pytest.approx(2.0, abs=0.05), "twice the longest"
    assert 3.0 < varying <= LONGEST_S


def test_patience_outlasts_the_bursts_in_which_a_long_way_brings_chunks():
    """A round trip of 0.6 s, as measured: what came is in bursts, and each rest ends with three slow ones."""
    bursts = [2.1, 0.6, 0.0, 0.6, 0.0, 0.0, 0.0]
    assert after(*bursts).patience_s(LONGEST_S) > 2.1 + 0.6
    assert after(*bursts, *[0.01] * 100).patience_s(LONGEST_S) == SHORTEST_PATIENCE_S, "it has become better"


def test_doubt_doubles_the_patience_until_a_chunk_comes_that_was_asked_for_once():
    rhythm = after(*[0.5] * 40)
    for times in (1, 2, 4):
        assert rhythm.patience_s(100.0) == pytest.approx(times, abs=0.01)
        rhythm.doubt()
    assert rhythm.patience_s(LONGEST_S) == LONGEST_S
    rhythm.hear(0.5, SMALLEST_CHUNK_BYTES)
    assert rhythm.patience_s(100.0) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("bytes_s", "size"), [(5e6, CHUNK_BYTES), (240e3, 1 << 16), (100e3, 1 << 15), (40e3, 1 << 14), (5e3, 1 << 14)]
)
def test_a_chunk_takes_half_a_second_at_most_where_that_can_be(bytes_s, size):
    rhythm = after(*[FIRST_CHUNK_BYTES / bytes_s] * 3, size=FIRST_CHUNK_BYTES)
    assert rhythm.chunk_bytes() == size
    assert size == SMALLEST_CHUNK_BYTES or size / bytes_s <= CHUNK_S


def test_what_is_packed_is_a_view_of_the_array():
    model = np.arange(100, dtype=np.float32)
    packed = pack_segment(model[10:20])
    model[10] = -7
    assert packed.readonly
    assert np.frombuffer(packed, "<f4").tolist() == [-7, *range(11, 20)]


def test_what_is_read_is_a_read_only_view_of_the_frame():
    frame = bytearray(np.arange(5, dtype="<f4").tobytes())
    values = read_segment(memoryview(frame))
    frame[:4] = np.float32(9).tobytes()
    assert values.tolist() == [9, 1, 2, 3, 4]
    assert not values.flags.writeable


def test_a_frame_at_an_odd_address_is_read_all_the_same():
    frame = bytes(1) + np.arange(5, dtype="<f4").tobytes()
    values = read_segment(memoryview(frame)[1:])
    assert values.flags.aligned
    assert values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [0, 1, 3, 6, LARGEST_SEGMENT_BYTES + 4])
def test_a_frame_that_holds_no_segment_is_refused(size):
    with pytest.raises(RemoteProtocolError, match=rf"^a segment of {size} bytes"):
        read_segment(memoryview(bytes(size)))


@pytest.mark.parametrize(
    "values",
    [
        None,
        Packed(b"1234"),
        LARGEST[:0],
        np.zeros(LARGEST.size + 1, np.float32),
        LARGEST.astype(np.float64),
        LARGEST[:4].reshape(2, 2),
    ],
)
def test_what_is_no_segment_is_not_sent(values):
    with pytest.raises(LocalProtocolError):
        pack_segment(values)


def test_the_largest_segment_takes_the_room_of_two_chunks_and_no_more_than_a_header_may():
    assert len(pack_segment(LARGEST)) == 2 * CHUNK_BYTES <= MAX_HEADER_BYTES < MAX_FRAME_BYTES
    assert read_segment(memoryview(bytes(2 * CHUNK_BYTES))).size == LARGEST.size


def test_queues_hold_a_megabyte_of_the_smallest_segments():
    assert min(BULK_QUEUE, RECEIVE_QUEUE) * SMALLEST_SEGMENT_BYTES >= 1 << 20
