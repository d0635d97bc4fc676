"""Whom a node tells what everybody is to hear: at most so many, and the ones that are there."""

from __future__ import annotations

from mdl.bounds import MAX_MEMBERS
from mdl.peers.roles.peer import Introduced
from mdl.protocol.vocabulary import PeerInfo, Role


def _info(name: str) -> PeerInfo:
    return PeerInfo(name, 1, Role.TRAINER, "192.0.2.1", 9)


def test_a_newcomer_takes_the_place_of_whoever_has_not_spoken_for_longest() -> None:
    introduced = Introduced("me")
    for number in range(MAX_MEMBERS):
        introduced.add(_info(f"p{number}"))
        introduced.note_spoken(f"p{number}")
    introduced.note_spoken("p0")
    introduced.add(_info("new"))
    introduced.note_spoken("new")
    introduced.add(_info("newer"))
    gone = {f"p{number}" for number in range(MAX_MEMBERS)} - introduced.known.keys()
    assert (gone, len(introduced.known)) == ({"p1", "p2"}, MAX_MEMBERS)


def test_those_who_are_mentioned_without_end_take_one_place() -> None:
    introduced = Introduced("me")
    for number in range(MAX_MEMBERS):
        introduced.add(_info(f"p{number}"))
        introduced.note_spoken(f"p{number}")
    for number in range(3 * MAX_MEMBERS):
        introduced.add(_info(f"x{number}"))
    assert {f"p{number}" for number in range(1, MAX_MEMBERS)} <= introduced.known.keys()
