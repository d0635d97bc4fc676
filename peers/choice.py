"""Which history of the mesh goes on, out of all that its devices bring. Pure functions of what the agent hears."""

from __future__ import annotations

from mdl.messages import Lineage
from peers.members import Member, newest_position, newest_round
from peers.quorum import has_quorum, is_senior


def choose_lineage(following: list[Member]) -> Lineage:
    """The one that a majority of its own can go on with; of several the senior one. following: not empty."""
    best = following[0].report.lineage
    for lineage in {member.report.lineage for member in following} - {best}:
        one, other = _has_claim(lineage, following), _has_claim(best, following)
        rounds = newest_round(following, lineage), newest_round(following, best)
        if one > other or (one == other and is_senior(lineage, best, *rounds)):
            best = lineage
    return best


def may_decide(lineage: Lineage, following: list[Member]) -> bool:
    """Whether those who stand on this lineage, or all who are here, may decide on its next round."""
    here = [member for member in following if member.report.lineage == lineage]
    voters = {member.peer_id for member in here if member.report.votes}
    return has_quorum(_base(here), voters, {member.peer_id for member in following})


def _has_claim(lineage: Lineage, following: list[Member]) -> bool:
    """A majority of those who decide stands here, though some may have forgotten what they voted for."""
    here = [member for member in following if member.report.lineage == lineage]
    ids = {member.peer_id for member in here}
    return may_decide(lineage, following) or has_quorum(_base(here), ids, ids)


def _base(here: list[Member]) -> tuple[str, ...]:
    """Who decides on the next round of the lineage on which these stand."""
    position = newest_position(here)
    return next(member.report.base for member in here if member.at == position)
