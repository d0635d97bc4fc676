"""The choice of the history that goes on, among all that devices bring. Pure functions of what the agent hears."""

from __future__ import annotations

from mdl.peers.roles.membership.majority import has_quorum, is_senior
from mdl.peers.roles.membership.member import Member, newest_position, voters
from mdl.protocol.vocabulary import Lineage


def choose_lineage(following: list[Member]) -> list[Member]:
    """Return the members on the lineage that goes on: one that its own majority can go on with, then the senior one.

    following: not empty.
    """
    groups: dict[Lineage, list[Member]] = {}
    for member in following:
        groups.setdefault(member.report.lineage, []).append(member)
    nowhere = groups.get((), [])  # they go wherever they are sent, and may be of any base
    best, *others = groups.values()
    for group in others:
        one, other = _has_claim(group, nowhere), _has_claim(best, nowhere)
        if one > other or (one == other and _is_senior(group, best)):
            best = group
    return best


def may_decide(standing: list[Member]) -> bool:
    """Return True if the members that stand on one lineage may decide on its next round."""
    return has_quorum(_base(standing), voters(standing))


def _has_claim(standing: list[Member], nowhere: list[Member]) -> bool:
    """Return True if a majority of the deciding devices can stand here; some may have forgotten their votes."""
    return has_quorum(_base(standing), {member.peer_id for member in (*standing, *nowhere)})


def _is_senior(one: list[Member], other: list[Member]) -> bool:
    (mine, my_round, _), (theirs, their_round, _) = newest_position(one), newest_position(other)
    return is_senior(mine, theirs, my_round, their_round, _workers(one), _workers(other))


def _workers(standing: list[Member]) -> int:
    """Return how many devices have worked in the newest model of these members."""
    position = newest_position(standing)
    return next(member.report.workers for member in standing if member.at == position)


def _base(standing: list[Member]) -> tuple[str, ...]:
    """Return the devices that decide on the next round of these members' lineage."""
    position = newest_position(standing)
    return next(member.report.base for member in standing if member.at == position)
