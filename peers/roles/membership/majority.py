"""The majority that may decide on a round, and the choice among the histories that devices bring. Pure.

A round closes only with a majority of those that contributed to the round before; any two majorities share a member, so
that no round gets two results. A group without one waits, or forks: it goes on under a longer lineage. When groups meet
again, `choose_lineage` says which history goes on.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from itertools import pairwise

from mdl.bounds import MAX_TERM
from mdl.peers.roles.membership.members import TrainerSeen, newest_position, voters
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import Lineage, LineagePoint

# Terms are dealt out to the processes, one in so many to each.
TERMS = 1 << 16
# The highest term wins, so one message with the last of all would end every election for ever, and it is saved. A
# device believes terms at most so far above the one it knew at its start. That covers four million rounds or elections
# while it was away or two groups ran apart: 48 days of one each second.
TERM_LEAP = TERMS << 22
# A mesh may also have used up so many since: no real one closes sixteen rounds a second.
TERMS_PER_S = 16 * TERMS
# No device believes more, whatever it knew; so there is always room for the terms that it takes itself.
LAST_TERM = MAX_TERM - TERM_LEAP
# A process that knows no term believes the first that it hears, up to here: a mesh two years old at a round a second.
# So a forger of messages needs 48 days more to use up the rest, and any restart of all devices ends that.
LAST_FIRST_TERM = LAST_TERM // 2


def has_quorum(base: Collection[str], voters: Collection[str]) -> bool:
    """Return True if `voters` may decide for `base` (peer ids); in an even split, the side of the smallest id may."""
    if not base:
        return False
    members = set(base)
    votes = members & set(voters)
    return 2 * len(votes) > len(members) or (2 * len(votes) == len(members) and min(members) in votes)


def is_senior(
    one: Lineage,
    other: Lineage,
    one_round: int = 0,
    other_round: int = 0,
    one_workers: int = 0,
    other_workers: int = 0,
) -> bool:
    """Return True if `one` goes on when both are found to live, as far as their history tells.

    The side with more of their shared history is senior. A trunk is senior to its forks if it has gone on without them;
    else they are, holding all that it has. Between two forks it is the later one, then the larger, then the one with
    the smaller name. Between two starts of a mesh it is the one that more devices have worked in, since a device alone
    makes many rounds in a short time. If as many have, it is the one that has come further, since nobody carries for
    ever what the other gave. A device that never took part (no fork at all, not even the mesh's start) is junior to
    everybody.
    """
    if one == other or not one or not other:
        return bool(one) and not other
    common = shared_forks(one, other)
    if not common and one_workers != other_workers:
        return one_workers > other_workers
    trunk = max(common, 1)  # the forks up to which they are compared: two starts by how far each has come
    mine, theirs = one[trunk:], other[trunk:]
    left, others_left = (mine[0].round_id if mine else one_round), (theirs[0].round_id if theirs else other_round)
    if left != others_left:
        return left > others_left
    if common and not (mine and theirs):
        return bool(mine)
    first, second = one[common], other[common]
    return (-first.size, first.name, first.round_id) < (-second.size, second.name, second.round_id)


def was_left_behind(lineage: Lineage, reached: Iterable[LineagePoint]) -> bool:
    """Return True if a trunk of `lineage` went on without this fork, and one of these rounds came there.

    A device that has been there is junior to nobody on this fork, though it may have come back without the model.
    """
    rounds = {entry.fork: entry.round_id for entry in reached}
    return any(rounds.get(trunk.name, 0) > fork.round_id for trunk, fork in pairwise(lineage))


def shared_forks(one: Lineage, other: Lineage) -> int:
    """Return how many forks two lineages have in common."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def has_in_common(one: Lineage, other: Lineage, round_id: int) -> bool:
    """Return True if w(round_id) is the same on both: neither has left the other before."""
    common = shared_forks(one, other)
    return all(fork.round_id >= round_id for fork in (*one[common:], *other[common:]))


def next_term(known: int, who: Contributor) -> int:
    """Return the first term above `known` that is this process's own: two agents never order under the same one.

    Nor do two starts of one: the second may lead before it has heard of the first one's term.
    """
    own = zlib.crc32(f"{who.peer_id}/{who.incarnation}".encode()) % TERMS
    return (known // TERMS + (own <= known % TERMS)) * TERMS + own


def choose_lineage(following: list[TrainerSeen]) -> list[TrainerSeen]:
    """Return the members on the lineage that goes on: one that its own majority can go on with, then the senior one.

    following: not empty.
    """
    groups: dict[Lineage, list[TrainerSeen]] = {}
    for member in following:
        groups.setdefault(member.report.lineage, []).append(member)
    nowhere = groups.get((), [])  # they go wherever they are sent, and may be of any base
    best, *others = groups.values()
    for group in others:
        one, other = _has_claim(group, nowhere), _has_claim(best, nowhere)
        if one > other or (one == other and _is_senior(group, best)):
            best = group
    return best


def may_decide(standing: list[TrainerSeen]) -> bool:
    """Return True if the members that stand on one lineage may decide on its next round."""
    return has_quorum(_base(standing), voters(standing))


def _has_claim(standing: list[TrainerSeen], nowhere: list[TrainerSeen]) -> bool:
    """Return True if a majority of the deciding devices can stand here; some may have forgotten their votes."""
    return has_quorum(_base(standing), {member.peer_id for member in (*standing, *nowhere)})


def _is_senior(one: list[TrainerSeen], other: list[TrainerSeen]) -> bool:
    (mine, my_round, _), (theirs, their_round, _) = newest_position(one), newest_position(other)
    return is_senior(mine, theirs, my_round, their_round, _workers(one), _workers(other))


def _workers(standing: list[TrainerSeen]) -> int:
    """Return how many devices have worked in the newest model of these members."""
    position = newest_position(standing)
    return next(member.report.workers for member in standing if member.at == position)


def _base(standing: list[TrainerSeen]) -> tuple[str, ...]:
    """Return the devices that decide on the next round of these members' lineage."""
    position = newest_position(standing)
    return next(member.report.base for member in standing if member.at == position)
