"""Two live processes of one name: each learns of the other, once, and stale announcements cost nothing."""

import hashlib
import itertools

import pytest

from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import (
    GREETING_S,
    LASTING_S,
    MAX_NAMESAKES,
    SIGN_PAUSE_S,
    SIGNS,
    SILENT_S,
    Address,
    Namesakes,
)

ME = Contributor("a", 5)


def make(me=ME):
    numbers = itertools.count(1)
    return Namesakes(me, lambda: next(numbers).to_bytes(16, "big"), mark)


def mark(challenge, incarnation):
    """What this start of the device makes of a number."""
    return hashlib.blake2b(challenge + bytes([incarnation]), digest_size=16).digest()


def start(incarnation, host="192.0.2.7", port=5750):
    return PeerInfo("a", incarnation, Role.TRAINER, host, port)


def signs(namesakes, until_s):
    """When it says that it is there, by a driver that comes at each deadline."""
    times = []
    while (now := namesakes.deadline()) is not None and now < until_s:
        namesakes.unanswered(now)
        if namesakes.is_sign_due(now):
            times.append(now)
    return times


def test_each_start_is_greeted_once_at_each_address_and_never_ourselves():
    namesakes = make()
    greeted = [namesakes.meet(info, 0.0) for info in (start(4), start(4), start(5), start(6), start(4, "192.0.2.8"))]
    assert greeted == [True, False, False, True, True]


def test_a_start_that_answers_what_was_sent_to_it_is_news_once():
    namesakes = make()
    for number in (4, 6):
        namesakes.meet(start(number, port=number), 0.0)
        answer = mark(namesakes.challenge(Address("192.0.2.7", number)), number)
        proven = [namesakes.prove(Contributor("a", number), given) for given in (b"", b"x" * 16, answer, answer)]
        assert proven == [False, False, True, False]


def test_what_another_start_was_made_to_answer_proves_nothing_of_this_one():
    """Whoever sits where a former start listened sends this node its own number back, and gets an answer to it."""
    namesakes = make()
    namesakes.meet(start(4), 0.0)
    challenge = namesakes.challenge(Address("192.0.2.7", 5750))
    assert not namesakes.prove(Contributor("a", 4), challenge)
    assert not namesakes.prove(Contributor("a", 4), namesakes.answer(challenge))


def test_a_message_in_this_nodes_name_proves_nothing():
    namesakes = make()
    namesakes.hear(Contributor("a", 4), 0.0)
    namesakes.meet(start(4), 0.0)
    assert not namesakes.prove(Contributor("a", 4), b"")
    assert not namesakes.prove(Contributor("a", 4), bytes(16))


def test_a_challenge_ends_with_its_greeting():
    namesakes = make()
    namesakes.meet(start(4), 0.0)
    answer = mark(namesakes.challenge(Address("192.0.2.7", 5750)), 4)
    namesakes.unanswered(GREETING_S)
    assert not namesakes.prove(Contributor("a", 4), answer)
    assert namesakes.challenge(Address("192.0.2.7", 5750)) == b""


def test_who_challenges_is_answered_and_challenged_once():
    """Answers hold no challenge, so two of one name do not answer each other without end."""
    namesakes, where = make(), Address("192.0.2.7", 5750)
    assert namesakes.answers(where, 0.0) == (True, namesakes.challenge(where))
    assert namesakes.challenge(where)
    assert namesakes.answers(where, 1.0) == (True, b"")
    for port in range(2 * MAX_NAMESAKES):
        namesakes.answers(Address("192.0.2.7", 6000 + port), 1.0)
    assert namesakes.answers(Address("192.0.2.7", 7000), 1.0) == (False, b"")


def test_its_address_is_known_once_it_was_introduced():
    namesakes = make()
    assert namesakes.address(Contributor("a", 6)) == ""
    namesakes.meet(start(6), 0.0)
    assert namesakes.address(Contributor("a", 6)) == "192.0.2.7:5750"


def test_an_announcement_of_our_own_last_start_costs_one_greeting_that_ends():
    namesakes = make()
    assert namesakes.meet(start(4), 1.0)
    assert namesakes.greeted() == [Address("192.0.2.7", 5750)]
    assert namesakes.deadline() == 1.0 + GREETING_S
    assert namesakes.unanswered(1.0 + GREETING_S) == [Address("192.0.2.7", 5750)]
    assert namesakes.deadline() is None
    assert namesakes.greeted() == []
    assert not namesakes.meet(start(4), 100.0)


@pytest.mark.parametrize("how", ["heard", "introduced"])
def test_the_earlier_one_gives_signs_of_life_until_all_have_noticed_and_ends_at_last(how):
    namesakes = make()
    if how == "heard":
        namesakes.hear(Contributor("a", 6), 10.0)
    else:
        namesakes.meet(start(6), 10.0)
    times = signs(namesakes, 10_000.0)
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert times[0] == 10.0
    assert min(pauses) >= SIGN_PAUSE_S
    assert sum(10.0 + SILENT_S <= time < 10.0 + 2 * SILENT_S + SIGNS for time in times) >= SIGNS
    assert 10.0 + LASTING_S <= times[-1] < 10.0 + 2 * LASTING_S


def test_the_later_one_leaves_and_gives_no_signs():
    namesakes = make()
    namesakes.hear(Contributor("a", 4), 10.0)
    assert signs(namesakes, 1000.0) == []


def test_copies_without_end_are_answered_and_not_all_remembered():
    namesakes = make()
    for incarnation in range(6, 6 + 4 * MAX_NAMESAKES):
        now = 2.0 * incarnation
        namesakes.unanswered(now)
        assert namesakes.meet(start(incarnation), now)
        assert namesakes.prove(
            Contributor("a", incarnation), mark(namesakes.challenge(Address("192.0.2.7", 5750)), incarnation)
        )
    assert len(namesakes.greeted()) <= MAX_NAMESAKES


def test_no_more_addresses_are_greeted_at_a_time_than_can_be_remembered():
    namesakes = make()
    greeted = [namesakes.meet(start(6 + i, port=6000 + i), 0.0) for i in range(MAX_NAMESAKES + 3)]
    assert greeted.count(True) == len(namesakes.greeted()) == MAX_NAMESAKES
