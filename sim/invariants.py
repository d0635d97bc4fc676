"""What always holds in a mesh, whatever fails (design: faults). Each check raises InvariantError with the evidence.

They run after every event, and look again only at the node that handled it, where that is enough. Machines are looked
at through two protocols, so that the simulator needs to know no roles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol, cast

import numpy as np

from mdl.delta import Contributor, ModelDelta, Vector, central_mean
from mdl.messages import Role
from sim.mesh import Node, SimMesh

Invariant = Callable[[SimMesh, Node], None]


class InvariantError(AssertionError):
    """The mesh did what must never happen."""


class Holder(Protocol):
    """A machine that holds partial means and applies rounds."""

    round_id: int
    digest: bytes
    parameters: Vector

    def holdings(self) -> dict[int, ModelDelta]: ...

    def attempt(self) -> tuple[int, int]: ...


class Keeper(Protocol):
    """A machine that opens rounds, and knows who still counts in the open one."""

    def attempt(self) -> tuple[int, int]: ...

    def live_members(self) -> Collection[Contributor]: ...


def check_disjoint(mesh: SimMesh, _: Node) -> None:
    """No contribution is answered for by two live holders: nothing can be counted twice."""
    for keeper in _keepers(mesh):
        seen: dict[tuple[int, Contributor], str] = {}
        live = set(keeper.live_members())
        for node, holder in _holders(mesh):
            if node.contributor not in live or holder.attempt() != keeper.attempt():
                continue
            for segment, hold in holder.holdings().items():
                for contributor in hold.contributors:
                    if other := seen.get((segment, contributor)):
                        raise InvariantError(f"{contributor} is held by {other} and by {node.info.peer_id}")
                    seen[segment, contributor] = node.info.peer_id


def check_theta(mesh: SimMesh, node: Node) -> None:
    """theta is the sum of the contributors' weights, and the values are their weighted mean (Eq. 1, 3)."""
    if node.info.role is not Role.TRAINER:
        return
    holder = cast(Holder, node.machine)
    for hold in holder.holdings().values():
        own = [mesh.own_deltas[holder.attempt()[0], contributor] for contributor in sorted(hold.contributors)]
        if abs(hold.theta - sum(delta.theta for delta in own)) > 1e-9 * hold.theta:
            raise InvariantError(f"{node.info.peer_id} holds theta {hold.theta} of {sorted(hold.contributors)}")
        if len(own) > 1 and np.abs(hold.values - central_mean(own)).max() > 1e-5:
            raise InvariantError(f"{node.info.peer_id} holds no mean of {sorted(hold.contributors)}")


def same_digest() -> Invariant:
    """All who stand at round r have the same parameters, then and ever after. Remembers what it has seen."""
    digests: dict[int, tuple[bytes, str]] = {}

    def check(mesh: SimMesh, node: Node) -> None:
        if node.info.role is not Role.TRAINER:
            return
        holder = cast(Holder, node.machine)
        digest, peer_id = digests.setdefault(holder.round_id, (holder.digest, node.info.peer_id))
        if holder.round_id and digest != holder.digest:
            raise InvariantError(f"round {holder.round_id} differs between {peer_id} and {node.info.peer_id}")

    return check


def all_invariants() -> list[Invariant]:
    return [check_disjoint, check_theta, same_digest()]


def _holders(mesh: SimMesh) -> Iterator[tuple[Node, Holder]]:
    for node in mesh.nodes.values():
        if node.running and node.info.role is Role.TRAINER:
            yield node, cast(Holder, node.machine)


def _keepers(mesh: SimMesh) -> Iterator[Keeper]:
    for node in mesh.nodes.values():
        if node.running and node.info.role is Role.AGENT:
            yield cast(Keeper, node.machine)
