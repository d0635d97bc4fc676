"""Who is known, where, and on whose word."""

import itertools

import pytest

from mdl.delta import Contributor
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.messages import MAX_MEMBERS, PeerInfo, Role
from transport.directory import (
    KEEP_GREETING_S,
    SLOWEST_GREETING_S,
    Address,
    Directory,
    Greetings,
    address_of,
    parse_address,
)


def peer(peer_id="b", incarnation=1, host="192.0.2.7", port=5750):
    return PeerInfo(peer_id, incarnation, Role.TRAINER, host, port)


def test_a_new_peer_is_news_once():
    directory = Directory("a")
    assert directory.learn(peer(), first_hand=False)
    assert not directory.learn(peer(), first_hand=False)
    assert not directory.learn(peer(), first_hand=True)
    assert directory.everyone() == (peer(),)


def test_nobody_can_tell_this_node_about_itself():
    assert not Directory("a").learn(peer("a"), first_hand=True)


def test_a_higher_incarnation_wins_and_a_lower_one_never():
    directory = Directory("a")
    for incarnation, news in ((2, True), (1, False), (3, True)):
        assert directory.learn(peer(incarnation=incarnation), first_hand=True) == news
    assert directory.get("b").incarnation == 3
    assert directory.is_outdated(Contributor("b", 2))
    assert not directory.is_outdated(Contributor("b", 3))
    assert not directory.is_outdated(Contributor("unknown", 1))


def test_only_the_peer_itself_can_move_to_another_address():
    directory = Directory("a")
    directory.learn(peer(), first_hand=True)
    assert not directory.learn(peer(host="192.0.2.8"), first_hand=False)
    assert directory.learn(peer(host="192.0.2.8"), first_hand=True)
    assert directory.get("b").host == "192.0.2.8"


def test_no_more_than_max_members_are_remembered():
    directory = Directory("a")
    news = [directory.learn(peer(f"p{i}"), first_hand=True) for i in range(MAX_MEMBERS + 2)]
    assert news[-3:] == [True, False, False]


@pytest.mark.parametrize("host", ["example.org", "", "0.0.0.0", "224.0.0.251", "999.1.1.1", "127.0.0.1/8"])
def test_a_peer_must_give_an_address_that_can_be_reached(host):
    with pytest.raises(RemoteProtocolError):
        address_of(peer(host=host))


def test_addresses_are_written_as_zeromq_wants_them():
    assert parse_address("127.0.0.1:5750") == Address("127.0.0.1", 5750)
    assert parse_address("[::1]:5750").endpoint() == "tcp://[::1]:5750"


def test_an_unknown_host_is_named():
    with pytest.raises(ConfigError, match=r"no address is known for 'nowhere\.invalid'"):
        parse_address("nowhere.invalid:5750")


def test_greetings_slow_down_until_answered_and_never_end():
    address = Address("192.0.2.7", 5750)
    greetings, times = Greetings([address], 0.0), []
    while len(times) < 12:
        now = greetings.deadline()
        assert greetings.due(now) == [address]
        assert greetings.due(now) == []
        times.append(now)
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert pauses[:5] == sorted(pauses[:5])
    assert pauses[0] == pytest.approx(0.2)
    assert pauses[-1] == pytest.approx(SLOWEST_GREETING_S)
    greetings.answered(address, times[-1])
    assert greetings.deadline() == times[-1] + KEEP_GREETING_S
    greetings.answered(Address("192.0.2.9", 1), 0.0)
