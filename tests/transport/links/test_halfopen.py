"""Connections without a key: a bound on them, that does not fall on those who have one."""

from transport.links.halfopen import HalfOpen
from transport.links.sockets import HANDSHAKE_MS

ENEMY, FRIEND = ("192.0.2.66", "1"), ("192.0.2.7", "1")
HANDSHAKE_S = HANDSHAKE_MS / 1000


def chosen(half_open, now):
    return [descriptor for descriptor, _ in half_open.excess(now)]


def test_as_many_as_a_node_can_bear_are_let_be():
    half_open = HalfOpen(3)
    for descriptor in (11, 12, 13):
        half_open.accept(descriptor, ENEMY, 0.0)
    assert half_open.excess(0.1) == []


def test_the_oldest_of_whoever_has_most_are_ended_first():
    half_open = HalfOpen(3)
    half_open.accept(5, FRIEND, 0.0)
    for descriptor in (11, 12, 13, 14):
        half_open.accept(descriptor, ENEMY, 0.1)
    assert half_open.excess(0.2) == [(11, ENEMY), (12, ENEMY)]
    assert half_open.excess(0.2) == []
    assert len(half_open) == 3


def test_who_has_said_something_or_is_gone_does_not_count():
    half_open = HalfOpen(2)
    for descriptor in (11, 12, 13, 14, 15):
        half_open.accept(descriptor, ENEMY, 0.0)
    for descriptor in (11, 13, 99):
        half_open.end(descriptor)
    assert chosen(half_open, 0.1) == [12]


def test_who_is_there_longer_than_a_handshake_may_take_has_a_key():
    half_open = HalfOpen(2)
    for descriptor in range(20, 22):
        half_open.accept(descriptor, FRIEND, 0.0)
    for descriptor in range(30, 34):
        half_open.accept(descriptor, FRIEND, HANDSHAKE_S)
    assert chosen(half_open, HANDSHAKE_S) == [30, 31]


def test_a_number_that_is_used_again_is_another_connection():
    half_open = HalfOpen(1)
    half_open.accept(11, ENEMY, 0.0)
    half_open.accept(12, ENEMY, 0.1)
    half_open.accept(11, FRIEND, 0.2)
    assert chosen(half_open, 0.3) == [12]


def test_of_many_hosts_none_is_ended_that_has_one_while_another_has_two():
    half_open = HalfOpen(10)
    for number in range(10):
        half_open.accept(number, (f"192.0.2.{number}", "1"), 0.0)
    half_open.accept(100, ("192.0.2.3", "2"), 1.0)
    assert chosen(half_open, 1.0) == [3]
