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
    """Those who have the result first; of the rest the richest feed others, the poorest are fed by a source at once.

    A slow link takes as long as it takes: it must not begin late, nor hold up anybody else. Nobody is fed by a device
    that lately could not reach it, if there is another way. doubted: peer ids that feed nobody where
    others can.
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
    """The order, with places exchanged as long as that leaves fewer to be fed by a device that cannot reach them.

    Two that have the result change places, or two that lack it. moves: the places that may change. Who is fed by such a
    device even so comes last, since its siblings wait a while for who does not ask.
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
    """The places that lack the result, and whose parent in the tree lately could not reach them."""
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
    """How many transfers a place of the binomial tree is away from its root."""
    return place.bit_count()
