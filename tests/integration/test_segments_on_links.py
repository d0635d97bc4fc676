"""Segments between nodes on loopback: encrypted and not, beside control messages, and from whoever means harm."""

import gc
import os
import time

import numpy as np
import pytest
import zmq

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import PeerFound, Received
from mdl.protocol.round_messages import PieceMessage, SegmentMessage, SegmentTaken
from mdl.protocol.segments import LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES
from mdl.protocol.status_messages import StatusWanted
from mdl.transport.wire.codec import encode

MODEL = np.random.default_rng(2).standard_normal(5_000_003).astype(np.float32)  # 20 MB
SHORT_S = 0.7


def pair(mesh, keys):
    for peer_id, join in (("a", []), ("b", ["a"])):
        mesh.add(peer_id, keys, join=join, insecure=keys is None)
    assert mesh.until(lambda: all(mesh.of(peer_id, PeerFound) for peer_id in "ab"))


def send(mesh, sender, receiver, message, values=None):
    mesh.links[sender].send(receiver, message, values, time.monotonic())


def segments_of(values_each):
    return [MODEL[start : start + values_each] for start in range(0, MODEL.size, values_each)]


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [True, False])
@pytest.mark.parametrize("size_bytes", [LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES])
def test_a_model_in_segments_arrives_bit_for_bit_and_costs_hardly_more(mesh, keys, is_encrypted, size_bytes):
    pair(mesh, keys if is_encrypted else None)
    before = [mesh.links["a"].counts.sent_bytes, mesh.links["b"].counts.received_bytes]
    segments = segments_of(size_bytes // 4)
    for number, values in enumerate(segments):  # a window of 16, as its receiver would let them come
        send(mesh, "a", "b", SegmentMessage(1, 1, 0, number), values)
        arrived = max(0, number - 15)
        assert mesh.until(lambda least=arrived: len(mesh.of("b", Received)) >= least)
    assert mesh.until(lambda: len(mesh.of("b", Received)) == len(segments))
    received = mesh.of("b", Received)
    gc.collect()
    assert [event.message.segment for event in received] == list(range(len(segments))), "one connection keeps the order"
    assert all(event.sender == Contributor("a", 1) and not event.values.flags.writeable for event in received)
    assert b"".join(event.values.tobytes() for event in received) == MODEL.tobytes()
    for was, now in zip(
        before, (mesh.links["a"].counts.sent_bytes, mesh.links["b"].counts.received_bytes), strict=True
    ):
        assert MODEL.nbytes < now - was < 1.015 * MODEL.nbytes


def test_small_messages_pass_segments_that_wait(mesh, keys):
    pair(mesh, keys)
    segments = segments_of(LARGEST_SEGMENT_BYTES // 4)
    for number, values in enumerate(segments):
        send(mesh, "a", "b", PieceMessage(1, 1, 0, number, 1.0), values)
    send(mesh, "a", "b", SegmentTaken(1, 1, 0, 7))
    assert mesh.until(lambda: len(mesh.of("b", Received)) == len(segments) + 1)
    kinds = [type(event.message) for event in mesh.of("b", Received)]
    assert kinds.index(SegmentTaken) < len(segments) / 2


def test_what_the_model_is_changed_to_after_it_arrived_changes_nothing_there(mesh, keys):
    pair(mesh, keys)
    values = MODEL[:30_000].copy()
    send(mesh, "a", "b", PieceMessage(1, 1, 0, 0, 1.0), values)
    assert mesh.until(lambda: mesh.of("b", Received))
    values[:] = 0
    assert mesh.of("b", Received)[0].values.tobytes() == MODEL[:30_000].tobytes()


def test_the_last_segments_of_a_node_that_ends_get_out(mesh, keys):
    pair(mesh, keys)
    segments = segments_of(LARGEST_SEGMENT_BYTES // 4)[:30]
    send(mesh, "a", "b", SegmentMessage(1, 1, 0, 0), segments[0])
    assert mesh.until(
        lambda: mesh.of("b", Received)
    )  # b lets the connection in while it runs, and not during the close
    for number, values in enumerate(segments[1:], 1):
        send(mesh, "a", "b", SegmentMessage(1, 1, 0, number), values)
    mesh.links.pop("a").close(linger_ms=2000)
    assert mesh.until(lambda: len(mesh.of("b", Received)) == len(segments))


def test_segments_to_a_peer_that_is_away_are_dropped_and_counted(mesh, keys):
    pair(mesh, keys)
    mesh.kill("b")
    values = MODEL[: SMALLEST_SEGMENT_BYTES // 4]
    for number in range(1000):
        send(mesh, "a", "b", SegmentMessage(1, 1, 0, number), values)
    mesh.until(lambda: False, SHORT_S)
    assert mesh.links["a"].counts.dropped > 500


def test_frames_that_hold_no_segment_are_refused_and_the_link_goes_on(mesh):
    mesh.add("a", None, insecure=True)
    dealer = mesh.links["a"].context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(f"tcp://127.0.0.1:{mesh.links['a'].me.port}")
    me = Contributor("x", 1)
    piece, taken = encode(me, PieceMessage(1, 1, 0, 0, 1.0)), encode(me, SegmentTaken(1, 1, 0, 0))
    hostile = [
        [piece],
        [piece, b""],
        [piece, os.urandom(7)],
        [piece, bytes(LARGEST_SEGMENT_BYTES + 4)],
        [piece, bytes(4), bytes(4)],
        [taken, bytes(4)],
        [encode(me, StatusWanted()), bytes(4)],
    ]
    for frames in hostile:
        dealer.send_multipart(frames)
    for size in (
        4,
        12,
        40,
        4_000,
        9_000,
        LARGEST_SEGMENT_BYTES,
    ):  # libzmq keeps them in its ways, some at odd addresses
        dealer.send_multipart([piece, os.urandom(size)])
    assert mesh.until(lambda: len(mesh.of("a", Received)) == 6)
    assert mesh.links["a"].counts.refused == len(hostile)
    assert [event.values.nbytes for event in mesh.of("a", Received)] == [4, 12, 40, 4_000, 9_000, LARGEST_SEGMENT_BYTES]
    assert all(event.values.flags.aligned for event in mesh.of("a", Received))
