"""A flow over a way that loses, delays, reorders and repeats: everything arrives once, in order, and soon."""

import random
import tracemalloc
from collections import deque
from math import inf

import pytest

from mdl.errors import RemoteProtocolError
from mdl.transport.wire.datagrams import (
    FRAGMENT_BYTES,
    MOST_AHEAD,
    MOST_WAITING,
    PROBES,
    SMALL,
    STAY_S,
    VALUES,
    Data,
    Probe,
    Receiving,
    Seal,
    read,
    write,
)
from tests.transport.datagrams.way import Way

DELTA = random.Random(1).randbytes(400_000)
CHUNK = 1 << 15


def send_delta(way):
    """Seconds that 400 KB take, as a transfer sends them."""
    begun, had = way.now, len(way.got[1])
    for start in range(0, len(DELTA), CHUNK):
        assert way.flows[0].put(b"chunk", memoryview(DELTA[start : start + CHUNK]), True)
    whole = -(-len(DELTA) // CHUNK)
    way.run(begun + 60.0, lambda: len(way.got[1]) == had + whole)
    assert b"".join(frames[1] for _, frames in way.got[1][had:]) == DELTA
    return way.now - begun


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("way", "at_most_s"),
    [
        ({}, 0.1),
        ({"loss": 0.2}, 0.6),
        ({"loss": 0.4}, 4.0),
        ({"delay_s": 0.3}, 1.0),
        ({"delay_s": 0.3, "loss": 0.2}, 5.0),
        ({"loss": 0.2, "jitter_s": 0.02}, 1.5),
        ({"bytes_s": 125_000}, 3.6),
    ],
    ids=str,
)
def test_a_delta_arrives_whole_and_soon(seed, way, at_most_s):
    net = Way(random.Random(seed), **way)
    net.run(0.5)
    assert all(send_delta(net) <= at_most_s for _ in range(3))


def test_a_way_without_faults_is_not_loaded_twice():
    way = Way(random.Random(0), bytes_s=125_000)
    send_delta(way)
    before = way.sent_bytes[0]
    send_delta(way)
    assert way.sent_bytes[0] - before <= 1.15 * len(DELTA)


@pytest.mark.parametrize("seed", range(10))
def test_small_messages_keep_their_order_and_pass_values(seed):
    way = Way(random.Random(seed), loss=0.2, jitter_s=0.01, bytes_s=500_000)
    way.flows[0].put(b"large", memoryview(DELTA), True)
    for number in range(50):
        way.flows[0].put(b"%d" % number, None, False)
    way.run(30.0, lambda: len(way.got[1]) == 51)
    assert [frames[0] for _, frames in way.got[1]] == [*(b"%d" % number for number in range(50)), b"large"]


@pytest.mark.slow
def test_a_way_that_is_good_is_left_to_tcp_and_a_bad_one_is_not():
    wanted = {}
    for name, faults in {"good": {}, "long": {"delay_s": 0.06}, "lossy": {"loss": 0.2}}.items():
        ways = [Way(random.Random(seed), **faults) for seed in range(100)]
        for way in ways:
            way.run(2.0)
        wanted[name] = sum(way.flows[0].is_wanted for way in ways)
    assert wanted == {"good": 0, "long": 100, "lossy": 100}


def test_a_way_that_becomes_bad_is_soon_known_and_what_is_hardly_bad_is_not_taken_for_it():
    """At one probe a second three of them are lost only in fifteen seconds, and what goes by TCP meanwhile hangs."""
    ways = [Way(random.Random(seed)) for seed in range(40)]
    for way in ways:
        way.run(5.0)
        way.loss = 0.2
        way.run(25.0)
    assert sum(way.flows[0].is_wanted for way in ways) >= 39
    ways = [Way(random.Random(seed), loss=0.005) for seed in range(40)]
    for way in ways:
        way.run(60.0)
    assert sum(way.flows[0].is_wanted for way in ways) <= 2


def test_a_way_that_became_good_is_left_to_tcp_again():
    way = Way(random.Random(0), loss=0.3)
    way.run(2.0)
    assert way.flows[0].is_wanted
    way.loss = 0.0
    way.run(STAY_S)
    assert way.flows[0].is_wanted
    way.run(2 * STAY_S + 2 * PROBES)
    assert not way.flows[0].is_wanted


def test_a_peer_that_never_answers_by_datagrams_takes_no_memory():
    for silent_from in (0.0, 5.0):
        way = Way(random.Random(0), down=lambda now, begun=silent_from: now >= begun)
        way.run(silent_from + 600.0)
        assert not way.flows[0]._sending._unheard
        assert len(way.flows[0]._sending._sent) < 10


def test_a_link_that_is_full_is_left_to_tcp_which_fills_it():
    """Other packets wait in its queue for seconds; the probes do, too, and come too late for their timeout."""
    for full_s in (3.0, 25.0):
        way = Way(random.Random(0))
        way.run(5.5)
        way.delay_s = 0.08
        for at in range(1, int(full_s / 0.1)):
            way.run(5.5 + 0.1 * at)
            assert not way.flows[0].is_wanted, at
        way.delay_s = 0.001
        way.run(60.0)
        assert not way.flows[0].is_wanted


def test_a_way_that_became_long_is_not_left_to_tcp_and_one_that_was_only_full_at_first_is():
    way = Way(random.Random(0))
    way.run(5.0)
    way.delay_s = 0.08
    way.run(5.0 + STAY_S + 40.0)
    assert way.flows[0].is_wanted
    way = Way(random.Random(0), delay_s=0.08)
    way.run(5.0)
    assert way.flows[0].is_wanted
    way.delay_s = 0.001
    way.run(7.0)
    assert not way.flows[0].is_wanted


def test_a_flow_knows_how_long_its_way_is_and_a_full_link_is_no_long_one():
    """In a round that takes half a minute on a slow link each probe waits behind values."""
    near, far = Way(random.Random(0), bytes_s=125_000, queue_s=0.4), Way(random.Random(0), delay_s=0.3)
    for way in (near, far):
        assert way.flows[0].way_s == inf
        way.run(3.0)
    assert far.flows[0].way_s == pytest.approx(0.6, rel=0.1)
    assert near.flows[0].way_s < 0.02
    while near.now < 40.0:
        near.free_at = [max(each, near.now + 0.2) for each in near.free_at]
        near.run(near.now + 0.1)
    assert near.flows[0].way_s < 0.02
    far.delay_s = 0.001
    far.run(30.0)
    assert far.flows[0].way_s < 0.02


def test_who_was_away_is_heard_within_half_a_second_of_its_return():
    """TCP doubles its pauses meanwhile: after ten seconds it waits for ten more."""
    way = Way(random.Random(0), down=lambda now: 3.0 <= now < 13.0)
    way.run(10.0)
    way.flows[0].put(b"while away", None, False)
    way.run(60.0, lambda: way.got[1])
    assert way.now < 13.5
    way.run(way.now + 0.1)
    assert way.flows[0].is_wanted


def test_who_was_only_busy_is_left_to_tcp_as_soon_as_that_has_repeated_what_waited():
    """A process that starts, or saves, holds its loop for two seconds: its link is as good as before."""
    way = Way(random.Random(0), busy=lambda now: 3.0 <= now < 5.0)
    way.run(5.5)
    assert way.flows[0].is_wanted
    way.run(11.0)
    assert not way.flows[0].is_wanted


def test_nothing_is_flooded_where_nobody_answers():
    way = Way(random.Random(0), down=lambda now: now >= 1.0)
    way.run(2.0)
    way.flows[0].put(b"values", memoryview(DELTA), True)
    before = way.sent_bytes[0]
    way.run(32.0)
    assert way.sent_bytes[0] - before < 64_000 + 30 * 3 * FRAGMENT_BYTES


def test_what_waits_for_somebody_who_is_gone_is_forgotten():
    way = Way(random.Random(0), down=lambda now: now >= 1.0)
    way.run(1.5)
    for _ in range(MOST_WAITING[VALUES]):
        way.flows[0].put(b"values", memoryview(DELTA), True)
    way.run(20.0)
    assert all(way.flows[0].put(b"values", memoryview(DELTA), True) for _ in range(MOST_WAITING[VALUES] - 1))


def test_a_queue_that_is_full_says_so():
    way = Way(random.Random(0), down=lambda now: True)
    taken = [way.flows[0].put(b"x", None, False) for _ in range(2 * MOST_WAITING[SMALL])]
    assert sum(taken) == MOST_WAITING[SMALL]


def test_what_was_recorded_is_not_heard_twice():
    way = Way(random.Random(0))
    way.flows[0].put(b"once", None, False)
    (datagrams,) = [packets for packets in [way.flows[0].packets(0.0)] if packets]
    heard = [way.flows[1].take(datagram, 0.1 * place) for place, datagram in enumerate(2 * datagrams)]
    assert [frames for messages in heard for frames in messages] == [[b"once"]]


@pytest.mark.parametrize("place", [0, 8, 20, -1])
def test_a_datagram_that_somebody_has_changed_is_refused(place):
    way = Way(random.Random(0))
    way.flows[0].put(b"hello", None, False)
    datagram = bytearray(way.flows[0].packets(0.0)[-1])
    datagram[place] ^= 1
    with pytest.raises(RemoteProtocolError):
        way.flows[1].take(bytes(datagram), 0.0)


def test_no_two_packets_of_a_flow_have_one_number():
    """It is the nonce: used twice it would give the key away."""
    way = Way(random.Random(0), loss=0.3)
    numbers = []
    closing = Seal.close

    class Noting(Seal):
        def close(self, number, frame):
            numbers.append(number)
            return closing(self, number, frame)

    way.flows[0].connect(Noting(bytes([2]) * 8, bytes([2]) * 32), 0.0)
    send_delta(way)
    assert len(numbers) > 400
    assert len(set(numbers)) == len(numbers)


def test_a_member_that_never_ends_its_message_is_refused_in_time():
    receiving = Receiving()
    pieces = (Data(0, place, False, bytes(FRAGMENT_BYTES)) for place in range(5 * MOST_AHEAD))
    with pytest.raises(RemoteProtocolError, match="does not end"):
        deque(map(receiving.take, pieces), maxlen=0)


def test_a_message_in_pieces_of_two_bytes_takes_no_more_memory_than_is_counted():
    """A list of them held 59 MB where 2 MB were counted."""
    receiving, many = Receiving(), 100_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for place in range(many):
            receiving.take(Data(1, place, False, place.to_bytes(3, "big")[1:]))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held <= 1.3 * 2 * many


def test_a_piece_that_is_short_and_not_the_last_is_refused():
    for size, is_last, is_right in ((2, True, True), (2, False, False), (FRAGMENT_BYTES, False, True)):
        inside = write(Data(0, 7, is_last, bytes(size)))
        if is_right:
            assert read(inside) == Data(0, 7, is_last, bytes(size))
        else:
            with pytest.raises(RemoteProtocolError, match="a packet of kind 1"):
                read(inside)


def test_pieces_that_are_far_ahead_are_not_kept():
    receiving = Receiving()
    for place in range(1, 3 * MOST_AHEAD):
        receiving.take(Data(1, place, False, b"x"))
    assert len(receiving._channels[1].ahead) == MOST_AHEAD - 1


@pytest.mark.parametrize("body", [b"", b"1234567", b"\0\0\0\1\0\0\0\0", b"\xff" * 8])
def test_lengths_that_do_not_fit_are_refused(body):
    with pytest.raises(RemoteProtocolError):
        Receiving().take(Data(0, 0, True, body))


def test_whatever_comes_is_a_frame_or_refused():
    rng, frames = random.Random(7), 0
    for _ in range(20_000):
        inside = bytes([rng.randrange(5)]) + rng.randbytes(rng.choice([0, 1, 6, 7, 12, 44, 45, 1300]))
        try:
            frame = read(inside)
        except RemoteProtocolError:
            continue
        frames += 1
        assert isinstance(frame, Probe) or read(write(frame)) == frame
    assert frames > 1000
