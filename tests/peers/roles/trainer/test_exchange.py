"""Exchanges that talk to each other: the result is the sum of all on all, whatever is lost, late or twice."""

from __future__ import annotations

from collections import Counter
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer import exchange as exchange_module
from mdl.peers.roles.trainer.exchange import MOST_AT_ONCE, SegmentExchange, Uplink
from mdl.protocol.checksum import checksum_of, checksums_by_piece, checksums_by_segment
from mdl.protocol.coding import Coding, part_of_bytes
from mdl.protocol.delta import Contributor, ModelDelta, PartialSum
from mdl.protocol.grid import Sums, Vector, room_for, share_of
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    Lost,
    PieceMessage,
    SegmentMessage,
    SegmentsReady,
    SegmentTaken,
)
from mdl.protocol.segments import mask_of, places_of
from mdl.protocol.vector_work import hold_own
from mdl.sim.mesh.search import copy_graph
from tests.peers.roles.at_once import mean_of, on_way, sum_of
from tests.peers.roles.trainer.talk import hear

SIZE, VALUES = 100, 8
RETRY_S = 0.5
# Of the grid, where three devices contribute.
ROOM = room_for(3.0)
# A segment of a sum, whatever its values are.
ONES = np.ones(VALUES, np.int32).view(np.float32)
_READY = SegmentsReady(3, 7, 1, checksums=(0,) * 13)


def _order(
    names: str, owns: tuple[int, ...], contributors: str = "", theta: float = 0.0, coding: Coding = "none"
) -> BroadcastOrdered:
    peers = tuple(Contributor(name, 1) for name in names)
    those = tuple(peer for peer in peers if peer.peer_id in (contributors or names))
    total = theta or float(len(those))
    room = room_for(total, coding=coding)
    return BroadcastOrdered(7, 3, b"w2", 1, peers, total, those, owns=owns, segment_values=VALUES, room=room)


def _own(order: BroadcastOrdered, peer: Contributor, value: float = 1.0, size: int = SIZE) -> PartialSum:
    """A device's own delta, with this value everywhere."""
    return sum_of(np.full(size, value), [peer], room=order.room)


def _sum_of_all(order: BroadcastOrdered, own: dict[Contributor, PartialSum]) -> bytes:
    return sum((own[peer].values for peer in order.contributors), np.zeros(SIZE, np.int32)).tobytes()


class Net:
    """Exchanges of one order, and what is under way between them; loss and doubling drawn from a seed.

    in_place: results take the place of own deltas, and what is under way is read where it lies when it arrives.
    """

    def __init__(
        self,
        order: BroadcastOrdered,
        seed: int = 0,
        loss: float = 0.0,
        twice: float = 0.0,
        in_place: bool = False,
        own: list[PartialSum] | None = None,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.loss, self.twice, self.now = loss, twice, 0.0
        self.order = order
        values = self.rng.normal(size=(len(order.order), SIZE)).astype(np.float32)
        theta = order.theta / len(order.contributors)
        self.own = {
            peer: own[place] if own else sum_of(values[place], [peer], theta, room=order.room)
            for place, peer in enumerate(order.order)
        }
        self.in_place = in_place
        self.at = {
            peer: SegmentExchange(order, peer, mine, SIZE, RETRY_S, is_in_place=in_place, checksums=checksums)
            for peer in order.order
            for mine in (self.again(peer),)
            for checksums in (checksums_by_piece(mine.values),)
        }
        self.by_id = {peer.peer_id: peer for peer in order.order}
        self.queue: list[tuple[Contributor, Contributor, object, Vector | None]] = []
        self.said: Counter[str] = Counter()
        for peer, exchange in self.at.items():
            self.post(peer, exchange.begin())

    def again(self, peer: Contributor) -> PartialSum:
        """Its own delta, as its trained model gives it."""
        return msgspec.structs.replace(self.own[peer], values=self.own[peer].values.copy())

    def mean(self) -> Vector:
        """That of the result."""
        (exchange, *_) = self.at.values()
        contributors = frozenset(self.order.contributors)
        return mean_of(PartialSum(exchange.result.values, self.order.theta, contributors, self.order.room))

    def post(self, sender: Contributor, sends: list[Send]) -> None:
        for send in sends:
            assert send.values is None or isinstance(send.values, np.ndarray)
            copies = int(self.rng.random() >= self.loss) + int(self.rng.random() < self.twice)
            values = send.values if send.values is None or self.in_place else send.values.copy()
            self.said[type(send.message).__name__] += 1
            self.queue += [(sender, self.by_id[send.receiver], send.message, values)] * copies

    def step(self) -> None:
        """One message, of those under way any."""
        sender, receiver, message, values = self.queue.pop(int(self.rng.integers(len(self.queue))))
        self.now += 0.001
        self.post(receiver, hear(self.at[receiver], sender, message, values, self.now))

    def run(self, most: int = 20_000) -> None:
        for _ in range(most):
            if self.queue:
                self.step()
            elif all(exchange.is_over() for exchange in self.at.values()):
                return
            else:
                self.pass_time()
        raise AssertionError("it does not end")

    def pass_time(self) -> None:
        self.now += RETRY_S
        for peer, exchange in self.at.items():
            self.post(peer, [] if exchange.result.follow() else exchange.on_time(self.now))


@pytest.mark.parametrize(
    ("names", "owns"),
    [("ab", (7, 6)), ("abc", (13, 0, 0)), ("abcd", (3, 4, 3, 3)), ("abcdef", (5, 4, 2, 1, 1, 0))],
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("loss", "twice"), [(0.0, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize("in_place", [False, True])
def test_all_have_the_same_bytes_and_they_are_the_sum_of_all(
    names: str, owns: tuple[int, ...], seed: int, loss: float, twice: float, in_place: bool
) -> None:
    net = Net(_order(names, owns), seed, loss, twice, in_place=in_place)
    net.run()
    results = [exchange.result.values for exchange in net.at.values()]
    assert all(exchange.is_whole for exchange in net.at.values())
    assert {result.tobytes() for result in results} == {_sum_of_all(net.order, net.own)}
    for peer, own in net.own.items():  # nobody's own delta was touched: it can be brought in again
        assert own.contributors == {peer}


@pytest.mark.parametrize("kind", [PieceMessage, SegmentMessage])
@pytest.mark.parametrize("seed", range(4))
def test_who_alters_what_it_gives_is_accused_by_each_device_that_gets_it(
    kind: type[PieceMessage | SegmentMessage], seed: int
) -> None:
    net = Net(_order("abcd", (4, 3, 3, 3)), seed)
    liar, accused = net.by_id["b"], Counter[str]()
    guards = {peer: Mock(judges=False) for peer in net.order.order}
    for peer, exchange in net.at.items():
        exchange._guard = guards[peer]
    for _ in range(20_000):
        if not net.queue:
            break
        sender, receiver, message, values = net.queue.pop(0)
        if sender == liar and isinstance(message, kind) and isinstance(values, np.ndarray):
            (changed := values.view(np.int32).copy())[-1] += 1
            values = changed.view(np.float32)
            with pytest.raises(RemoteProtocolError, match="not the sum of its deltas"):
                hear(net.at[receiver], sender, message, values, net.now)
            accused[receiver.peer_id] += 1
        else:
            net.post(receiver, hear(net.at[receiver], sender, message, values, net.now))
    assert set(accused) == {"a", "c", "d"}
    for peer, guard in guards.items():
        assert {call.args[0][0] for call in guard.accuse.call_args_list} == ({liar} if peer != liar else set())


def test_a_result_is_taken_unchecked_while_a_contributor_has_told_no_checksums() -> None:
    net = Net(_order("abc", (7, 6, 0)))
    one, other, leaf = net.order.order
    exchange = net.at[one]
    exchange.hear_ready(other, SegmentsReady(3, 7, 1, b"", net.at[other]._checksums), 0.1)
    wrong = SegmentMessage(3, 7, 1, 7, (), 7 * VALUES)
    assert exchange.take_result(other, wrong, ONES, 0.1, checksum_of(np.ones(VALUES, np.int32), 7 * VALUES))
    exchange.hear_ready(leaf, SegmentsReady(3, 7, 1, b"", net.at[leaf]._checksums), 0.1)
    with pytest.raises(RemoteProtocolError, match="not the sum of its deltas"):
        exchange.take_result(other, SegmentMessage(3, 7, 1, 8, (), 8 * VALUES), ONES, 0.1, 5)


def test_checksums_of_other_segments_are_refused() -> None:
    net = Net(_order("ab", (7, 6)))
    with pytest.raises(RemoteProtocolError, match="2 checksums of 13 segments"):
        net.at[net.by_id["a"]].hear_ready(net.by_id["b"], SegmentsReady(3, 7, 1, b"", (1, 2)), 0.1)


def test_each_value_travels_as_often_as_the_bound_says() -> None:
    net = Net(_order("abcd", (4, 3, 3, 3)))
    net.run()
    segments, peers = 13, 4
    assert net.said["PieceMessage"] == net.said["SegmentMessage"] == segments * (peers - 1)
    assert net.said["SegmentTaken"] == 2 * segments * (peers - 1)


def test_a_device_without_a_share_sends_and_receives_the_model_once() -> None:
    net = Net(_order("abc", (7, 6, 0)))
    leaf = net.by_id["c"]
    sent = 0
    while net.queue:
        for sender, _, message, _ in net.queue[-1:]:
            sent += sender == leaf and isinstance(message, PieceMessage | SegmentMessage)
        net.step()
    net.run()
    assert not net.at[leaf]._owned
    assert net.at[leaf].is_whole


def test_who_contributes_nothing_gets_the_result_all_the_same() -> None:
    net = Net(_order("abc", (7, 6, 0), contributors="ab"))
    net.run()
    assert net.at[net.by_id["c"]].result.values.tobytes() == _sum_of_all(net.order, net.own)


def test_nothing_is_sent_before_the_receiver_says_that_it_is_ready() -> None:
    order = _order("ab", (7, 6))
    me, other = order.order
    exchange = SegmentExchange(order, me, _own(order, me), SIZE, RETRY_S)
    assert exchange.begin() == [Send("b", SegmentsReady(3, 7, 1))]
    assert exchange.on_time(1.0) == [Send("b", SegmentsReady(3, 7, 1))]
    first, *pieces = exchange.hear_ready(other, _READY, 1.1)
    assert first == Send("b", SegmentsReady(3, 7, 1))  # it has begun only now, and may have missed the others
    assert [type(send.message) for send in pieces] == [PieceMessage] * 6
    assert exchange.hear_ready(other, _READY, 1.2) == []


def test_a_piece_that_comes_twice_counts_once_and_is_confirmed_again() -> None:
    order = _order("abc", (13, 0, 0))
    me, bob, _ = order.order
    exchange = SegmentExchange(order, me, _own(order, me, 0.0), SIZE, RETRY_S)
    exchange.begin()
    piece, values = PieceMessage(3, 7, 1, 0, 1.0), on_way(np.full(VALUES, 2.0), room=order.room)
    first = exchange.take_piece(bob, piece, values, 0.1)
    again = exchange.take_piece(bob, piece, values, 0.2)
    assert first[0] == again[0] == Send("b", SegmentTaken(3, 7, 1, 0))
    assert exchange.result.values[:VALUES].tolist() == values.view(np.int32).tolist()  # 0 + 2, not 0 + 2 + 2


@pytest.mark.parametrize(
    ("values", "theta", "segment", "sender", "says"),
    [
        (np.full(VALUES, share_of(1.0, ROOM) + 2, np.int32), 1.0, 0, "b", "beyond the share of a weight of 1"),
        (np.full(VALUES, -share_of(1.0, ROOM) - 2, np.int32), 1.0, 0, "b", "beyond the share of a weight of 1"),
        (np.ones(VALUES - 1, np.int32), 1.0, 0, "b", "7 values"),
        (np.ones(VALUES, np.int32), 0.0, 0, "b", "theta 0"),
        (np.ones(VALUES, np.int32), 1.0, 12, "b", "not this device's"),
        (np.ones(VALUES, np.int32), 1.0, 0, "d", "not this device's"),
        (np.ones(VALUES, np.int32), 1.0, 0, "x", "not this device's"),
    ],
)
def test_a_piece_that_is_not_as_it_should_be_is_refused(
    values: Sums, theta: float, segment: int, sender: str, says: str
) -> None:
    order = _order("abcd", (7, 6, 0, 0), contributors="abc")
    assert order.room == ROOM
    me = order.order[0]
    exchange = SegmentExchange(order, me, _own(order, me, 0.0), SIZE, RETRY_S)
    exchange.begin()
    with pytest.raises(RemoteProtocolError, match=says):
        exchange.take_piece(Contributor(sender, 1), PieceMessage(3, 7, 1, segment, theta), values.view(np.float32), 0.1)
    assert exchange.result.lacking == set(range(13))


def test_a_segment_whose_theta_is_not_the_rounds_never_becomes_a_result() -> None:
    order = _order("ab", (13, 0))
    me, bob = order.order
    exchange = SegmentExchange(order, me, _own(order, me, 0.0), SIZE, RETRY_S)
    exchange.begin()
    with pytest.raises(RemoteProtocolError, match=r"theta 6\.0, not 2\.0"):
        exchange.take_piece(bob, PieceMessage(3, 7, 1, 0, 5.0), ONES, 0.1)
    assert 0 in exchange.result.lacking


def test_a_piece_of_another_weight_than_its_device_has_told_names_that_device() -> None:
    order = msgspec.structs.replace(_order("abc", (13, 0, 0)), thetas=(1.0, 1.0, 1.0))
    me, bob, cat = order.order
    exchange = SegmentExchange(order, me, _own(order, me, 0.0), SIZE, RETRY_S)
    exchange.begin()
    exchange.take_piece(cat, PieceMessage(3, 7, 1, 0, 1.0), ONES, 0.1)
    with pytest.raises(RemoteProtocolError, match=r"a piece of b has theta 5, where it had told 1"):
        exchange.take_piece(bob, PieceMessage(3, 7, 1, 0, 5.0), ONES, 0.2)
    exchange.take_piece(bob, PieceMessage(3, 7, 1, 0, 1.0), ONES, 0.3)
    assert 0 not in exchange.result.lacking


def test_a_result_counts_from_its_owner_alone() -> None:
    order = _order("abc", (7, 6, 0))
    me, bob, cleo = order.order[2], order.order[1], order.order[0]
    exchange = SegmentExchange(order, me, None, SIZE, RETRY_S)
    values = ONES
    beyond = np.full(VALUES, share_of(order.theta, order.room) + 2, np.int32).view(np.float32)
    with pytest.raises(RemoteProtocolError, match="beyond the share of a weight of 3"):
        exchange.take_result(cleo, SegmentMessage(3, 7, 1, 0), beyond, 0.0)
    with pytest.raises(RemoteProtocolError, match="does not own it"):
        exchange.take_result(bob, SegmentMessage(3, 7, 1, 0), values, 0.0)
    assert exchange.take_result(cleo, SegmentMessage(3, 7, 1, 0), values, 0.0) == [
        Send("a", SegmentTaken(3, 7, 1, 0, True))
    ]
    with pytest.raises(RemoteProtocolError, match="segment 13 of 13"):
        exchange.take_result(bob, SegmentMessage(3, 7, 1, 13), values, 0.0)


def test_an_order_that_does_not_fit_the_model_is_refused() -> None:
    order = _order("ab", (7, 7))
    with pytest.raises(RemoteProtocolError, match="where the model has 100"):
        SegmentExchange(order, order.order[0], None, SIZE, RETRY_S)
    with pytest.raises(RemoteProtocolError, match="1 shares for 2 devices"):
        SegmentExchange(_order("ab", (13,)), order.order[0], None, SIZE, RETRY_S)


def test_a_slow_way_gets_a_small_window_and_waits_longer_before_it_says_something_again() -> None:
    peers = tuple(Contributor(name, 1) for name in "ab")
    order = BroadcastOrdered(
        7, 3, b"w2", 1, peers, 2.0, peers, link_mb_s=(1.0, 0.001), owns=(0, 13), segment_values=VALUES
    )
    exchange = SegmentExchange(order, peers[0], _own(order, peers[0]), SIZE, 0.5)
    exchange.begin()
    _, first = exchange.hear_ready(peers[1], _READY, 0.0)
    assert isinstance(first.message, PieceMessage)  # one segment, more than 20 ms of this link
    assert len(exchange.hear_taken(peers[1], SegmentTaken(3, 7, 1, 0), 2.0)) == 1
    assert [send.message for send in exchange.on_time(5.0)] == [SegmentsReady(3, 7, 1)]  # a confirmation took 2 s
    assert PieceMessage(3, 7, 1, 1, 1.0, VALUES) in [send.message for send in exchange.on_time(10.1)]
    assert PieceMessage(3, 7, 1, 1, 1.0, VALUES) not in [send.message for send in exchange.on_time(18.0)]


def test_on_a_crowded_link_what_one_device_does_not_use_is_for_the_others() -> None:
    """Also where its result confirms what it was given, since the confirmation was lost."""
    order = msgspec.structs.replace(_order("abcde", (0, 1, 1, 1, 10)), link_mb_s=(1e-4,) * 5)
    me, *others = order.order
    exchange = SegmentExchange(order, me, _own(order, me), SIZE, RETRY_S)
    exchange.begin()
    first = [send for peer in others for send in exchange.hear_ready(peer, _READY, 0.0)]
    assert [send.receiver for send in first if isinstance(send.message, PieceMessage)] == ["b", "c", "d"]
    sends = exchange.take_result(others[0], SegmentMessage(3, 7, 1, 0), ONES, 0.1)
    assert [send.receiver for send in sends if isinstance(send.message, PieceMessage)] == ["e"]


@pytest.mark.parametrize("seed", range(5))
def test_crowded_links_that_lose_and_repeat_give_the_mean(seed: int) -> None:
    net = Net(msgspec.structs.replace(_order("abcde", (5, 4, 4, 0, 0)), link_mb_s=(1e-4,) * 5), seed, 0.3, 0.1)
    assert all(exchange.uplink.is_crowded for exchange in net.at.values())
    net.run()
    for exchange in net.at.values():
        assert exchange.result.values.tobytes() == _sum_of_all(net.order, net.own)


@pytest.mark.parametrize("coding", ["int8", "int4"])
def test_coded_own_deltas_give_all_their_very_sum(coding: Coding) -> None:
    deltas = [np.random.default_rng(place).normal(size=SIZE).astype(np.float32) for place in range(4)]
    order, zeros = _order("abcd", (3, 4, 3, 3), coding=coding), np.zeros(SIZE, np.float32)
    held = [
        hold_own(zeros, ModelDelta(delta, 1.0, frozenset([peer])), order.room).sum
        for peer, delta in zip(order.order, deltas, strict=True)
    ]
    net = Net(order, 1, 0.2, 0.2, own=held)
    net.run()
    for exchange in net.at.values():
        assert exchange.result.values.tobytes() == _sum_of_all(order, net.own)


def test_a_device_whose_readiness_was_lost_gets_its_results_when_it_says_so_again() -> None:
    order = _order("ab", (7, 6))
    me, bob = order.order
    exchange = SegmentExchange(order, me, _own(order, me), SIZE, RETRY_S)
    exchange.begin()
    exchange.take_result(bob, SegmentMessage(3, 7, 1, 12), ONES[:4], 0.0)  # so it follows the order
    assert [type(send.message) for send in exchange.hear_ready(bob, _READY, 1.0)] == [PieceMessage] * 6
    assert exchange.hear_ready(bob, _READY, 1.1) == []


def test_windows_and_the_speed_of_a_link_are_of_bytes_that_travel() -> None:
    """int8 takes a quarter: counted as float32, a link would look four times as fast as it is."""
    size, values = 40 * 8192, 8192
    peers = tuple(Contributor(name, 1) for name in "ab")
    seen, under_way = {}, {}
    codings: tuple[Coding, ...] = ("none", "int8")
    for coding in codings:
        room = room_for(2.0, coding=coding)
        order = BroadcastOrdered(
            7, 3, b"w2", 1, peers, 2.0, peers, link_mb_s=(5.0, 5.0), owns=(0, 40), segment_values=values, room=room
        )
        exchange = SegmentExchange(order, peers[0], _own(order, peers[0], 1.0, size), size, RETRY_S)
        exchange.begin()
        _, *sends = exchange.hear_ready(peers[1], SegmentsReady(3, 7, 1, checksums=(0,) * 40), 0.0)
        assert {send.message.is_packed for send in sends if isinstance(send.message, PieceMessage)} == {
            coding != "none"
        }
        travels = sum(send.values.nbytes for send in sends if isinstance(send.values, np.ndarray))
        under_way[coding] = travels * part_of_bytes(coding)
        for segment in range(40):
            exchange.hear_taken(peers[1], SegmentTaken(3, 7, 1, segment), 0.05 * segment)
        seen[coding] = exchange.uplink.mb_s
    assert 60_000 < under_way["none"] <= 100_000  # 20 ms at 5 MB/s
    assert 60_000 < under_way["int8"] <= 100_000
    assert seen["none"] == pytest.approx(4 * values / 1e6 / 0.05, rel=0.01)
    assert seen["int8"] == pytest.approx(seen["none"] * part_of_bytes("int8"), rel=0.01)


def _seen(round_s: float, rounds: int, segments: int = 6) -> list[float]:
    """The speed that each round of a model of so many segments of 16 KB shows."""
    uplink, seen = Uplink(), []
    for number in range(rounds):
        uplink.begin()
        for segment in range(segments + 1):
            uplink.note(1 << 14, 10.0 * number + round_s * segment / segments)
        seen.append(uplink.mb_s)
    return seen


def test_a_small_models_rounds_show_the_speed_of_a_link_together() -> None:
    """96 KB in 0.2 s: no round takes half a second, and none has 256 KB, but three have both."""
    assert _seen(0.2, 6) == [0.0, 0.0, pytest.approx(0.49, rel=0.01), 0.0, 0.0, pytest.approx(0.49, rel=0.01)]


def test_a_round_that_is_over_in_an_instant_tells_nothing_of_a_link_however_many_there_are() -> None:
    assert set(_seen(0.04, 100)) == {0.0}


def test_a_round_that_tells_by_itself_leaves_nothing_for_the_next() -> None:
    """Its end, in which the device waits for the others, would make the link look slower than it is."""
    first, second = _seen(0.9, 2, 40)
    assert [first, second] == pytest.approx([0.73, 0.73], rel=0.01)


class LossyNet(Net):
    """As Net; devices are lost in the middle, and the others hear so one after the other.

    behind: who has not heard of it yet, or lacks its own delta since.
    """

    behind: tuple[Contributor, ...] = ()

    def tell_checksums(self, *names: str) -> None:
        """Let what they say first arrive everywhere."""
        for name in names:
            peer = self.by_id[name]
            pieces = checksums_by_segment(checksums_by_piece(self.own[peer].values), SIZE, VALUES)
            ready = SegmentsReady(self.order.round_id, self.order.term, self.order.version, checksums=pieces)
            for other in self.at.keys() - {peer}:
                self.post(other, self.at[other].hear_ready(peer, ready, self.now))

    def lose(self, *names: str) -> None:
        """They are gone; what they have said may still arrive."""
        gone = [peer for peer in self.order.order if peer.peer_id in names]
        places = [peer for peer, _ in places_of(self.order)]
        owns = dict(zip(self.order.order, self.order.owns, strict=True))
        lost = tuple(Lost(peer, self.own[peer].theta, places.index(peer), owns[peer]) for peer in gone)
        alive = tuple(peer for peer in self.order.order if peer not in gone)
        contributors = tuple(peer for peer in self.order.contributors if peer not in gone)
        self.order = msgspec.structs.replace(
            self.order,
            version=self.order.version + 1,
            began=self.order.began or self.order.version,
            order=alive,
            owns=tuple(owns[peer] for peer in alive),
            contributors=contributors,
            theta=sum(self.own[peer].theta for peer in contributors),
            lost=self.order.lost + lost,
        )
        self.queue = [said for said in self.queue if said[1] not in gone]
        for peer in gone:
            del self.at[peer]
        self.behind = alive

    def step(self) -> None:
        if self.behind and (not self.queue or self.rng.random() < 0.1):
            peer = self.behind[int(self.rng.integers(len(self.behind)))]
            self.behind = tuple(other for other in self.behind if other != peer)
            if self.at[peer].order == self.order:
                self.post(peer, self.at[peer].take_own(self.again(peer)))
                return
            self.post(peer, self.at[peer].go_on(self.order))
            self.behind += (peer,) * self.at[peer].lacks_own
            return
        sender, receiver, message, values = self.queue.pop(int(self.rng.integers(len(self.queue))))
        if receiver in self.at and message.version == self.at[receiver].order.version:  # type: ignore[attr-defined]
            self.queue.append((sender, receiver, message, values))
            rng, self.rng = self.rng, _Last()  # type: ignore[assignment]
            super().step()
            self.rng = rng


class _Last:
    """Whatever is drawn is the last."""

    def integers(self, count: int) -> int:
        return count - 1

    def random(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("names", "owns", "lost"),
    [
        ("abc", (7, 6, 0), "c"),
        ("abc", (5, 4, 4), "c"),
        ("abcd", (3, 4, 3, 3), "b"),
        ("abcd", (4, 4, 5, 0), "dc"),
        ("abcdef", (5, 4, 2, 1, 1, 0), "af"),
    ],
)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("most_at_once", [MOST_AT_ONCE, 1], ids=["small", "large"])
def test_if_devices_are_lost_the_others_agree_on_who_is_in_which_segment(
    names: str,
    owns: tuple[int, ...],
    lost: str,
    seed: int,
    in_place: bool,
    most_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange_module, "MOST_AT_ONCE", most_at_once)
    net = LossyNet(_order(names, owns), seed, in_place=in_place)
    own = dict(net.own)
    for name in lost:
        for _ in range(int(net.rng.integers(1, 160))):
            if net.queue or net.behind:
                net.step()
        net.tell_checksums(name)
        net.lose(name)
    while net.behind or net.queue or not all(exchange.is_over() for exchange in net.at.values()):
        if net.behind or net.queue:
            net.step()
            continue
        net.pass_time()
        assert net.now < 100.0
    results = [exchange.result.values for exchange in net.at.values()]
    partials = {exchange.partial for exchange in net.at.values()}
    assert len({result.tobytes() for result in results}) == len(partials) == 1
    (partial,) = partials
    total = np.frombuffer(_sum_of_all(net.order, own), np.int32).copy()
    for each in partial:
        assert each.theta == own[each.contributor].theta
        total += np.where(mask_of(each.lacks, VALUES, SIZE), 0, own[each.contributor].values)
    assert results[0].tobytes() == total.tobytes()
    for exchange in net.at.values():
        assert exchange.order == net.order


@pytest.mark.parametrize("is_told", [True, False])
def test_a_sum_with_pieces_of_a_lost_device_counts_where_its_checksums_are_known(is_told: bool) -> None:
    """Else its owner could have altered it."""
    net = LossyNet(_order("abc", (5, 4, 4)), seed=3)
    if is_told:
        net.tell_checksums("c")
    while not net.said["SegmentTaken"]:
        sender, receiver, message, values = net.queue.pop(0)
        if is_told or (sender.peer_id, receiver.peer_id, type(message)) != ("c", "b", SegmentsReady):
            net.post(receiver, hear(net.at[receiver], sender, message, values, net.now))
    net.lose("c")
    for _ in range(2_000):
        if net.behind or net.queue:
            net.step()
    ann, bob = net.at[net.by_id["a"]], net.at[net.by_id["b"]]
    assert (ann.is_whole, bob.is_whole, ann.is_checked) == (True, True, True)
    assert (bob.is_checked, bob.lacking()) == (is_told, () if is_told else ("c",))


@pytest.mark.parametrize(
    ("names", "owns", "contributors", "mb_s", "gone"),
    [
        ("abcdef", (5, 4, 4, 0, 0, 0), "abc", 1e-4, "def"),
        ("abcdefghijklmnopqrst", (5, 4, 4, *[0] * 17), "abcdefghijklmnopqrs", 1 / 512, "t"),  # 60 ms are three segments
    ],
    ids=["three", "one of twenty"],
)
def test_on_a_crowded_link_who_only_receives_and_is_gone_does_not_hold_up_the_others(
    names: str, owns: tuple[int, ...], contributors: str, mb_s: float, gone: str
) -> None:
    """Nobody goes on without it: it has no part in the result."""
    net = LossyNet(msgspec.structs.replace(_order(names, owns, contributors), link_mb_s=(mb_s,) * len(names)))
    assert all(exchange.uplink.is_crowded for exchange in net.at.values())
    while not net.said["SegmentMessage"]:
        net.step()
    for name in gone:  # what it is given was said to a device that was ready
        del net.at[net.by_id[name]]
    while not all(exchange.is_whole for exchange in net.at.values()):
        if net.queue:
            net.step()
            continue
        net.now += RETRY_S
        assert net.now < 60.0, "they wait"
        for peer, exchange in net.at.items():
            net.post(peer, exchange.on_time(net.now))


def test_a_result_takes_the_place_of_the_own_delta() -> None:
    net = Net(_order("abc", (5, 4, 4)), in_place=True)
    places = {peer: exchange.result.values for peer, exchange in net.at.items()}
    net.run()
    for peer, exchange in net.at.items():
        assert exchange.result.values is places[peer]  # that of its own delta
        assert exchange.result.values.tobytes() == net.at[net.order.order[0]].result.values.tobytes()


def test_an_exchange_that_has_taken_the_own_deltas_place_goes_on_once_that_is_here_again() -> None:
    net = LossyNet(_order("abc", (5, 4, 4)), in_place=True)
    while net.said["SegmentMessage"] < 6:
        net.step()
    net.lose("c")
    bob = net.by_id["b"]
    before = net.at[bob].result.values
    assert net.at[bob].go_on(net.order) == []
    assert net.at[bob].result.values is not before  # pieces of it are on their way to c, which may wake up
    assert net.at[bob].result.values.tobytes() == before.tobytes()
    for said in net.queue:
        if isinstance(said[2], SegmentsReady):
            assert net.at[bob].hear_ready(said[0], said[2], net.now) == []
    assert net.at[bob].on_time(net.now + 10 * RETRY_S) == []
    begun = net.at[bob].take_own(net.again(bob))
    assert [type(send.message) for send in begun] == [SegmentsReady]
    assert net.at[bob].take_own(net.again(bob)) == []


def test_a_large_result_comes_about_in_other_memory_a_few_segments_at_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied at once, 800 MB would hold up the device's heartbeats."""
    monkeypatch.setattr(exchange_module, "MOST_AT_ONCE", 2 * VALUES)
    net = LossyNet(_order("abc", (5, 4, 4)), in_place=True)
    while net.said["SegmentMessage"] < 6:
        net.step()
    net.lose("c")
    result = net.at[net.by_id["b"]].result
    before = result.values
    was_there = before.tobytes()
    net.at[net.by_id["b"]].go_on(net.order)
    assert len(result.behind) == 11
    last = result.part(12)  # what is touched is there
    assert last.tobytes() == before[-last.size :].tobytes()
    last[:] = 7
    steps = 1
    while result.follow():
        steps += 1
    assert steps == 5
    assert result.values[-last.size :].tolist() == [7] * last.size
    assert result.values[: -last.size].tobytes() == before[: -last.size].tobytes()
    assert before.tobytes() == was_there


def test_a_copy_of_an_exchange_whose_result_is_moving_changes_nothing_in_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange_module, "MOST_AT_ONCE", 1)
    net = LossyNet(_order("abc", (5, 4, 4)), in_place=True)
    while net.said["SegmentMessage"] < 6:
        net.step()
    net.lose("c")
    exchange = net.at[net.by_id["b"]]
    before = exchange.result.values.copy()
    exchange.go_on(net.order)
    twin = copy_graph(exchange)
    for one, value in (twin, 7), (exchange, 9):
        one.result.part(3)[:] = value
        while one.result.follow():
            pass
    for one, value in (twin, 7), (exchange, 9):
        bounds = one.bounds(3)
        assert (one.result.values[bounds] == value).all()
        rest = np.delete(np.arange(SIZE), np.r_[bounds])
        assert np.array_equal(one.result.values[rest], before[rest])


@pytest.mark.parametrize("is_early", [False, True], ids=["in order", "a result comes before the word"])
def test_what_the_other_has_said_to_have_does_not_go_there_again(is_early: bool) -> None:
    net = LossyNet(_order("abc", (7, 6, 0)))
    while net.said["PieceMessage"] < 18 or not any(isinstance(said[2], SegmentMessage) for said in net.queue):
        net.step()
    net.lose("c")
    ann, bob = net.by_id["a"], net.by_id["b"]
    begun = [send for send in net.at[bob].go_on(net.order) if isinstance(send.message, SegmentsReady)]
    net.at[ann].go_on(net.order)
    if is_early:
        segment = next(segment for segment in net.at[bob]._owned if segment not in net.at[bob].result.lacking)
        result = SegmentMessage(7, 3, net.order.version, segment, ())
        values = net.at[bob].result.values[net.at[bob].bounds(segment)].view(np.float32)
        net.at[ann].take_result(bob, result, values, net.now)
    pieces = [
        send.message.segment
        for send in net.at[ann].hear_ready(bob, begun[0].message, net.now)  # type: ignore[arg-type]
        if isinstance(send.message, PieceMessage)
    ]
    assert not any(net.at[bob]._has_piece(ann, segment) for segment in [*pieces, *net.at[ann]._lanes[bob].pieces])


def test_pieces_that_a_lost_device_gave_are_not_asked_for_again() -> None:
    """Nothing but what it owned, and what was under way, travels twice."""
    net = LossyNet(_order("abcd", (4, 3, 3, 3)))
    while net.said["PieceMessage"] < 30:
        net.step()
    net.queue.clear()
    said = net.said["PieceMessage"]
    merged = sum(len(part.contributors) - 1 for at in net.at.values() for part in at._merging.values())
    merged += sum(3 for at in net.at.values() for segment in at._owned if segment not in at.result.lacking)
    net.lose("d")
    net.run()
    assert net.said["PieceMessage"] - said <= 2 * 13 - merged * 2 / 3 + 2 * 3


def test_an_exchange_on_another_grid_than_the_own_deltas_is_refused() -> None:
    order = _order("abc", (5, 4, 4))
    me = order.order[0]
    with pytest.raises(RemoteProtocolError, match=f"a grid with room {ROOM + 1}, not {ROOM}"):
        SegmentExchange(msgspec.structs.replace(order, room=ROOM + 1), me, _own(order, me), SIZE, 1.0)


def test_what_goes_on_must_be_the_same_exchange() -> None:
    net = LossyNet(_order("abc", (5, 4, 4)))
    first = net.order
    net.lose("c")
    (exchange, *_) = net.at.values()
    with pytest.raises(RemoteProtocolError, match="other shares"):
        exchange.go_on(msgspec.structs.replace(net.order, owns=(4, 5)))
    exchange.go_on(net.order)
    with pytest.raises(RemoteProtocolError, match="that it has lost"):
        exchange.go_on(first)
    for lost in (net.order.lost * 2, (msgspec.structs.replace(net.order.lost[0], place=7),)):
        with pytest.raises(RemoteProtocolError):
            places_of(msgspec.structs.replace(net.order, lost=lost))
