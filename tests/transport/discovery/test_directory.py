"""Who is known, where, and on whose word."""

import itertools
import socket

import msgspec
import pytest

from mdl.bounds import MAX_MEMBERS
from mdl.errors import ConfigError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.statements import Enrolled, Proof
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import (
    KEEP_GREETING_S,
    LOST_S,
    OTHER_STARTS,
    SIGN_PAUSE_S,
    SIGNS,
    SILENT_S,
    SLOWEST_GREETING_S,
    Address,
    Directory,
    Greetings,
    address_of,
    parse_address,
)
from tests.fuzz.hostile import forced


def peer(peer_id="b", incarnation=1, host="192.0.2.7", port=5750):
    return PeerInfo(peer_id, incarnation, Role.TRAINER, host, port)


def learned(*incarnations):
    """A directory that was told of these starts of b, one each second, in this order."""
    directory = Directory("a")
    for second, incarnation in enumerate(incarnations):
        directory.learn(peer(incarnation=incarnation, host=f"192.0.2.{incarnation}"), True, float(second))
    return directory


def current(directory):
    return directory.get("b").incarnation


def test_a_new_peer_is_news_once():
    directory = Directory("a")
    assert directory.learn(peer(), False, 0.0)
    assert not directory.learn(peer(), False, 0.0)
    assert not directory.learn(peer(), True, 0.0)
    assert directory.everyone() == (peer(),)


def test_nobody_can_tell_this_node_about_itself():
    assert not Directory("a").learn(peer("a"), True, 0.0)


def test_a_higher_incarnation_wins_and_a_lower_one_never():
    directory = Directory("a")
    for incarnation, news in ((2, True), (1, False), (3, True)):
        assert directory.learn(peer(incarnation=incarnation), True, 0.0) == news
    assert current(directory) == 3
    assert not directory.hear(Contributor("b", 2), 0.0)
    assert not directory.hear(Contributor("b", 1), 0.0)
    assert directory.hear(Contributor("b", 3), 0.0)
    assert directory.hear(Contributor("unknown", 1), 0.0)


def test_only_the_peer_itself_can_move_to_another_address():
    directory = Directory("a")
    directory.learn(peer(), True, 0.0)
    assert not directory.learn(peer(host="192.0.2.8"), False, 0.0)
    assert directory.learn(peer(host="192.0.2.8"), True, 0.0)
    assert directory.get("b").host == "192.0.2.8"


def full(first_hand=False):
    directory = Directory("a")
    news = [directory.learn(peer(f"p{i}"), first_hand, 0.0) for i in range(MAX_MEMBERS + 2)]
    return directory, news


def test_no_more_than_max_members_are_remembered():
    directory, news = full()
    assert news[-3:] == [True, False, False]
    assert len(directory.everyone()) == MAX_MEMBERS


def test_peers_that_were_only_invented_do_not_keep_out_one_that_introduces_itself():
    directory, _ = full()
    directory.hear(Contributor("p0", 1), 1.0)
    assert directory.learn(peer("honest"), True, 1.0)
    assert directory.get("honest")
    assert directory.get("p0"), "it speaks"
    assert not directory.get("p1"), "nobody has ever heard it"
    assert len(directory.everyone()) == MAX_MEMBERS


def test_what_others_mention_takes_the_place_of_what_has_been_silent_for_long():
    directory, _ = full()
    assert not directory.learn(peer("b"), False, LOST_S - 1)
    assert directory.learn(peer("b"), False, LOST_S)
    everybody = directory.everyone()
    assert len(everybody) == MAX_MEMBERS
    for info in everybody:
        directory.hear(Contributor(info.peer_id, 1), LOST_S)
    assert not directory.learn(peer("c"), True, LOST_S + 1), "all of them speak"


def test_a_peer_is_heard_as_long_as_this_start_of_it_speaks():
    directory = learned(1)
    assert not directory.is_heard("b", 0.0), "introduced only"
    directory.hear(Contributor("b", 1), 1.0)
    assert directory.is_heard("b", LOST_S)
    assert not directory.is_heard("b", LOST_S + 1)
    directory.hear(Contributor("b", 1), 1.0)
    directory.learn(peer(incarnation=2), True, 2.0)
    assert not directory.is_heard("b", 2.0)


def test_an_earlier_start_that_still_speaks_is_current_again_once_the_later_one_is_silent():
    """A copied data directory: the copy, started later, has left; the first one was there all the time."""
    directory = learned(1, 2)
    directory.hear(Contributor("b", 2), 3.0)
    heard = [directory.hear(Contributor("b", 1), 3.5 + second) for second in range(6)]
    assert heard == [False] * 5 + [True], "five seconds after the later one's last word"
    assert directory.get("b").host == "192.0.2.1", "and can be reached"
    assert not directory.hear(Contributor("b", 2), 9.0)


def test_to_be_introduced_counts_as_a_word():
    directory = learned(1, 2)
    told = [now for now in (1.5, 2.5, 3.5, 4.5, 5.5, 6.1) if directory.hear(Contributor("b", 1), now)]
    assert told == [6.1]


def test_as_long_as_the_later_start_speaks_the_earlier_one_does_not_count():
    directory = learned(1, 2)
    for tenth in range(10, 600):
        assert not directory.hear(Contributor("b", 1), tenth / 10)
        if tenth % 40 == 0:
            assert directory.hear(Contributor("b", 2), tenth / 10)


def test_rule_4_what_a_dead_process_left_in_a_suspended_nodes_queues_does_not_bring_it_back():
    """Two bursts, one before and one after the suspension, are no signs of life for seconds."""
    directory = learned(1, 2)
    for now in (1.1, 1.2, 60.0, 60.1, 60.3):
        assert not directory.hear(Contributor("b", 1), now)
    assert current(directory) == 2


def test_signs_before_the_later_starts_last_word_do_not_count():
    directory = learned(1, 2)
    for now in (1.1, 2.2, 3.3):
        directory.hear(Contributor("b", 1), now)
    directory.hear(Contributor("b", 2), 4.0)
    assert not directory.hear(Contributor("b", 1), 30.0)


def test_a_later_start_that_left_is_not_current_again_because_somebody_still_mentions_it():
    directory = learned(1, 2)
    for second in range(8):
        directory.hear(Contributor("b", 1), 2.0 + second)
    assert current(directory) == 1
    for first_hand in (False, True):
        assert not directory.learn(peer(incarnation=2), first_hand, 11.0)
    assert current(directory) == 1
    assert directory.learn(peer(incarnation=3), True, 12.0), "one that is new is news"


def test_a_copy_that_is_started_again_and_again_does_not_push_out_the_one_that_speaks():
    directory, now = learned(1, 2), 2.0
    for incarnation in range(3, 3 + 3 * OTHER_STARTS):
        directory.hear(Contributor("b", 1), now)
        now += SIGN_PAUSE_S
        directory.learn(peer(incarnation=incarnation), True, now)
        assert len(directory.others_called("b")) <= OTHER_STARTS
    heard = [directory.hear(Contributor("b", 1), now + SIGN_PAUSE_S * i) for i in range(1, round(SILENT_S) + SIGNS)]
    assert heard[-1]
    assert current(directory) == 1


def test_an_earlier_start_that_is_introduced_later_is_known_too():
    """This node is younger than both."""
    directory = learned(2, 1)
    assert [info.incarnation for info in directory.others_called("b")] == [1]
    assert directory.others_called("unknown") == ()
    assert any(directory.hear(Contributor("b", 1), 1.0 + second) for second in range(7))


@pytest.mark.parametrize("host", ["example.org", "", "0.0.0.0", "224.0.0.251", "999.1.1.1", "127.0.0.1/8"])
def test_a_peer_must_give_an_address_that_can_be_reached(host):
    with pytest.raises(RemoteProtocolError):
        address_of(forced(peer(), {"host": host}))


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


def test_a_link_local_address_is_joined_with_its_link_and_told_without():
    number = socket.if_nametoindex("lo")
    assert parse_address("[fe80::1%lo]:7300") == Address(f"fe80::1%{number}", 7300)
    assert parse_address("[fe80::1]:7300") == Address("fe80::1", 7300)
    with pytest.raises(ConfigError, match="no address is known for"):
        parse_address("[fe80::1%gone0]:7300")
    with pytest.raises(RemoteProtocolError, match="a link of its own machine is nobody else's"):
        address_of(peer(host="fe80::1%eth0"))


def test_what_a_peer_has_signed_of_where_it_is_counts_whoever_tells_it():
    def signed(host, *hosts):
        enrolled = Enrolled(bytes(32), "b", bytes(32))
        return msgspec.structs.replace(peer(host=host), proof=Proof(enrolled, 5751, (host, *hosts), 1))

    directory = Directory("a")
    assert directory.learn(signed("192.0.2.7"), True, 0.0)
    assert not directory.learn(signed("192.0.2.8", "192.0.2.7"), False, 0.0), "it is still where it was"
    assert directory.learn(signed("192.0.2.9"), False, 0.0)
    assert directory.get("b").host == "192.0.2.9"
    assert not directory.learn(peer(host="192.0.2.10"), False, 0.0), "it has not signed that"
