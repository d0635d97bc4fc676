"""The order of the broadcast tree: by resources (3.2.3), and around pairs that cannot reach each other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mdl.peers.roles.membership.member import poverty
from mdl.peers.roles.membership.members import Members
from mdl.protocol.delta import Contributor
from mdl.protocol.tree import tree_children, tree_parent


def order_broadcast(
    recipients: list[Contributor],
    sources: list[Contributor],
    members: Members,
    now: float = 0.0,
    doubted: Collection[str] = (),
) -> tuple[Contributor, ...]:
    """Return the order: devices with the result first; the richest of the rest feed others, sources feed the poorest.

    A slow link takes as long as it takes: it must begin at once, and hold up nobody else. Nobody is fed by a device
    that lately could not reach it, if there is another way. doubted: peer ids that feed nobody where others can.
    """
    sources = sorted(sources, key=lambda peer: peer.peer_id in doubted)
    rest = [peer for peer in recipients if peer not in sources]
    rest.sort(key=lambda peer: (peer.peer_id in doubted, poverty(members.get(peer))))
    places = range(len(sources), len(sources) + len(rest))
    leaves = sorted((place for place in places if not tree_children(place, places.stop)), key=_depth, reverse=True)
    at = dict(zip([place for place in places if place not in leaves] + leaves, rest, strict=True))
    order = tuple(sources) + tuple(at[place] for place in places)
    return around_cuts(order, set(sources), range(len(order)), members, now)


def around_cuts(
    order: tuple[Contributor, ...], have: Collection[Contributor], moves: Sequence[int], members: Members, now: float
) -> tuple[Contributor, ...]:
    """Return the order, with places exchanged as long as fewer then have a parent that cannot reach them.

    Two that have the result change places, or two that lack it. moves: the places that may change. A device that still
    has such a parent comes last, since its siblings wait a while for a device that does not ask.
    """

    def cost(order: tuple[Contributor, ...]) -> tuple[int, int]:
        cuts = _cut_places(order, have, members, now)
        return len(cuts), -sum(cuts)

    while cuts := _cut_places(order, have, members, now):
        ends = {end for place in cuts for end in (place, tree_parent(place) or 0)} & set(moves)
        swaps = [
            _exchange(order, one, other)
            for one in sorted(ends)
            for other in moves
            if (order[one] in have) == (order[other] in have)
        ]
        best = min(swaps, key=cost, default=order)
        if cost(best) >= cost(order):
            break
        order = best
    return order


def _cut_places(
    order: tuple[Contributor, ...], have: Collection[Contributor], members: Members, now: float
) -> list[int]:
    """Return the places that lack the result and have a parent in the tree that lately could not reach them."""
    cuts = []
    for pair in members.reach.apart(now):
        if pair[0] in order and pair[1] in order:
            upper, lower = sorted(map(order.index, pair))
            if tree_parent(lower) == upper and order[lower] not in have:
                cuts.append(lower)
    return cuts


def _exchange(order: tuple[Contributor, ...], one: int, other: int) -> tuple[Contributor, ...]:
    changed = list(order)
    changed[one], changed[other] = order[other], order[one]
    return tuple(changed)


def _depth(place: int) -> int:
    """Return the number of transfers from the binomial tree's root to a place."""
    return place.bit_count()
