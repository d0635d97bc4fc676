"""To whom links are held: honest peers are all reached at once, invented ones a few at a time."""

import random

import pytest

from mdl.transport.wire.places import BUSY_S, IDLE_S, KEPT_LINKS, MAX_TRIES, OPENINGS, TRY_S, Calls


class Node:
    """heard: who has spoken; knocks: when which peer's address was called."""

    def __init__(self, most=1000):
        self.heard, self.knocks = set(), []
        self.calls = Calls(most, lambda peer_id: peer_id in self.heard)

    def want(self, peer_id, now):
        """Whether a link to it is there, as an outbox would have it."""
        if peer_id not in self.calls._open:
            if self.calls.open(peer_id, now) is None:
                return False
            self.knocks.append((now, peer_id))
        self.calls.use(peer_id, now)
        return True

    def pump(self, now):
        while (waiting := self.calls.next()) is not None and self.want(waiting, now):
            pass

    def distinct(self):
        return len({peer_id for _, peer_id in self.knocks})


def test_an_honest_mesh_of_500_is_reached_within_a_second():
    node, now = Node(), 0.0
    for number in range(500):
        node.want(f"p{number}", now)
    while node.calls.next() is not None:
        now += 0.03  # each answers
        node.heard |= {peer_id for _, peer_id in node.knocks}
        node.pump(now)
    assert node.distinct() == len(node.calls) == 500
    assert now < 1.0


def test_invented_peers_are_tried_a_few_at_a_time():
    node = Node()
    for second in range(100):
        for number in range(1024):
            node.want(f"p{number}", float(second))
        node.pump(float(second))
        assert len(node.calls) <= MAX_TRIES
    assert len(node.knocks) == MAX_TRIES * round(100 / TRY_S)
    assert node.distinct() == len(node.knocks), "each in its turn"


def test_whoever_speaks_need_not_wait_behind_invented_peers():
    node = Node()
    for number in range(1024):
        node.want(f"p{number}", 0.0)
    assert not node.want("honest", 1.0)
    node.heard.add("honest")
    assert node.want("honest", 1.1)


def test_a_peer_that_has_ever_new_addresses_is_not_called_at_each():
    """A link to another address is a new one, and the one before it is closed."""
    for heard, most in ((False, MAX_TRIES * 7), (True, OPENINGS + 16 * 60 + 16)):
        node = Node()
        node.heard |= {"x"} if heard else set()
        for step in range(60_000):
            node.want("x", step / 1000)
            node.calls.close("x")
        assert len(node.knocks) <= most


def test_there_are_never_more_links_than_allowed_and_those_in_use_stay():
    node = Node(most=10)
    node.heard |= {f"p{number}" for number in range(50)}
    for number in range(10):
        assert node.want(f"p{number}", number / 10)
    assert not node.want("p10", 1.0), "all are in use"
    assert node.want("p10", BUSY_S)
    assert "p0" not in node.calls._open
    assert len(node.calls) == 10


def test_who_never_answered_makes_room_for_who_speaks():
    node = Node(most=3)
    for name in "abc":
        assert node.want(name, 0.0)
    node.heard |= {"a", "b", "d"}
    assert node.want("d", 0.1)
    assert "c" not in node.calls._open


def test_idle_links_are_closed_where_there_are_many():
    node = Node()
    node.heard |= {f"p{number}" for number in range(KEPT_LINKS + 5)}
    for number in range(KEPT_LINKS + 5):
        node.want(f"p{number}", number / 1000)
    assert node.calls.idle(IDLE_S - 1) == []
    assert node.calls.idle(IDLE_S + 1) == [f"p{number}" for number in range(5)]
    for number in range(5):
        node.calls.close(f"p{number}")
    assert node.calls.idle(IDLE_S + 1) == [], "a small mesh keeps its links"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_wanted_when_bounds_hold(seed):
    chance, node, now = random.Random(seed), Node(most=100), 0.0
    for _ in range(3000):
        now += chance.expovariate(50)
        peer_id = f"p{chance.randrange(400)}"
        match chance.randrange(4):
            case 0:
                node.heard ^= {peer_id}
            case 1:
                node.calls.close(peer_id)
            case _:
                node.want(peer_id, now)
        assert len(node.calls) <= 100
        assert len(node.calls._waiting) <= 400
