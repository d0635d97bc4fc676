"""Two nodes agree on a flow and speak by it: real sockets on this machine, times that the test chooses."""

import random
import select
import socket

import pytest

from mdl.protocol.delta import Contributor
from mdl.transport.discovery.directory import Address
from mdl.transport.links.doors import shown_key
from mdl.transport.links.flows import ANEW_S, GIVEN_UP_S, MOST_FLOWS, DatagramPort
from mdl.transport.wire.datagrams import SURE_S

KEYS = bytes([1]) * 32, bytes([2]) * 32
A, B = Contributor("a", 1), Contributor("b", 1)
WAIT_S = 5.0


@pytest.fixture
def ports():
    made = [
        DatagramPort(peer.peer_id, "127.0.0.1", 0, random.Random(seed).randbytes) for seed, peer in enumerate((A, B))
    ]
    yield made
    for port in made:
        port.close()


def agree(ports, now=0.0):
    offer = ports[0].begin(B, now)
    ports[0].take_answer(B, ports[1].take_offer(A, offer, KEYS[0], now), KEYS[1], now)


def let_out(ports, now):
    return [port.send(lambda peer_id: Address("127.0.0.1", 1), now) for port in ports]


def come(port, now):
    """What has come, once something is there."""
    assert select.select([port.socket], [], [], WAIT_S)[0]
    return port.receive(now)


def make_wanted(ports, now=0.0):
    """As if the way were bad: the round trips that are measured are long."""
    for step in range(4):
        let_out(ports, now + 0.01 * step)
    for _ in range(2):
        for port in ports:
            port.receive(now + 0.3)
        let_out(ports, now + 0.3)


def test_a_node_that_listens_elsewhere_speaks_from_there_by_the_flows_that_it_has(ports):
    hosts = {"a": "127.0.0.1", "b": "127.0.0.1"}
    agree(ports)
    before, number = ports[1].socket, ports[1].number
    ports[1].move("127.0.0.1")
    assert ports[1].socket is before, "nothing has changed"
    ports[1].move("127.0.0.9")
    assert before.fileno() == -1
    assert ports[1].socket.getsockname() == ("127.0.0.9", number)
    hosts["b"] = "127.0.0.9"
    for now in (0.0, 0.3):
        ports[0].send(lambda peer_id: Address(hosts[peer_id], 1), now)
        come(ports[1], now)
        ports[1].send(lambda peer_id: Address(hosts[peer_id], 1), now)
        come(ports[0], now)
    assert ports[0]._partners["b"].was_heard()


def test_a_node_whose_number_is_taken_at_its_new_address_begins_its_flows_anew(ports):
    agree(ports)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.9", ports[0].number))
        ports[0].move("127.0.0.9")
    assert ports[0].begin(B, 0.1).port == ports[0].number != other


def test_an_address_that_is_none_of_this_machine_leaves_the_datagrams_where_they_are(ports):
    before = ports[0].socket
    with pytest.raises(OSError, match="assign requested address"):
        ports[0].move("192.0.2.1")
    assert ports[0].socket is before
    assert before.fileno() >= 0


def test_a_peer_is_heard_once_datagrams_got_there_and_back(ports):
    assert ports[0].is_heard("b") is None
    agree(ports)
    assert ports[0].is_heard("b") is False
    let_out(ports, 0.0)
    come(ports[1], 0.1)
    let_out(ports, 0.1)
    come(ports[0], 0.2)
    assert ports[0].is_heard("b") is True


def test_messages_go_to_and_fro_by_a_flow_that_both_agree_on(ports):
    agree(ports)
    assert ports[0].flow_with("b") is None, "nothing is known of the way yet"
    make_wanted(ports)
    for me, (other, there) in enumerate([(B, 1), (A, 0)]):
        flow = ports[me].flow_with(other.peer_id)
        assert flow.put(b"header", memoryview(b"values"), True)
        let_out(ports, 0.4)
        messages, problems = come(ports[there], 0.4)
        assert ([[frame.bytes for frame in frames[1:]] for frames in messages], problems) == (
            [[b"header", b"values"]],
            [],
        )
        assert {shown_key(frame) for frame in messages[0]} == {KEYS[me]}


def test_the_one_with_the_smaller_name_begins_and_not_again_while_it_is_heard(ports):
    assert ports[1].begin(A, 0.0) is None
    agree(ports)
    assert ports[0].begin(B, ANEW_S - 0.1) is None
    make_wanted(ports)
    assert ports[0].begin(B, GIVEN_UP_S) is None
    assert ports[0].begin(B, GIVEN_UP_S + 1.0) is not None


def test_a_flow_that_nobody_hears_is_offered_again_more_and_more_seldom(ports):
    times, now = [], 0.0
    while now < 200.0:
        if ports[0].begin(B, now) is not None:
            times.append(now)
        now += 1.0
    assert times == [0.0, 5.0, 15.0, 35.0, 75.0, 135.0, 195.0]


def test_an_answer_to_an_earlier_offer_changes_nothing(ports):
    stale = ports[1].take_offer(A, ports[0].begin(B, 0.0), KEYS[0], 0.0)
    fresh = ports[0].begin(B, ANEW_S)
    ports[0].take_answer(B, stale, KEYS[1], ANEW_S)
    assert let_out(ports[:1], ANEW_S) == [0]
    ports[0].take_answer(B, ports[1].take_offer(A, fresh, KEYS[0], ANEW_S), KEYS[1], ANEW_S)
    assert let_out(ports[:1], ANEW_S)[0] > 0


def test_another_start_of_a_peer_has_another_flow(ports):
    agree(ports)
    assert ports[0].begin(Contributor("b", 2), 0.1) is not None
    assert ports[0].flow_with("b") is None


def test_strangers_are_not_answered_and_cost_nothing(ports):
    agree(ports)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.2)
        for size in (0, 1, 16, 40, 1280, 1281, 9000):
            stranger.sendto(bytes(size), ("127.0.0.1", ports[1].number))
        assert come(ports[1], 0.0) == ([], [])
        let_out(ports[1:], 0.0)
        with pytest.raises(TimeoutError):
            stranger.recv(2000)


def test_a_recorded_datagram_with_a_change_is_told_and_dropped(ports):
    agree(ports)
    flow = ports[1]._partners["a"].flow
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(flow.own.flow_id + bytes(60), ("127.0.0.1", ports[1].number))
        messages, problems = come(ports[1], 0.0)
    assert (messages, len(problems)) == ([], 1)


def test_there_are_no_more_flows_than_a_node_can_serve(ports):
    begun = [ports[0].begin(Contributor(f"b{number}", 1), 0.0) for number in range(MOST_FLOWS + 3)]
    assert sum(offer is not None for offer in begun) == MOST_FLOWS


def test_what_is_not_heard_for_a_while_is_not_relied_on(ports):
    agree(ports)
    make_wanted(ports)
    assert ports[0].flow_with("b").is_sure(0.3 + SURE_S - 0.01)
    assert not ports[0].flow_with("b").is_sure(0.3 + SURE_S + 0.01)
