"""What always holds in a mesh, whatever fails (design: faults). Each check raises InvariantError with the evidence.

They look at machines through two protocols, so that the simulator needs to know no roles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

import numpy as np

from mdl.delta import Contributor, ModelDelta, Vector, central_mean
from sim.mesh import Node, SimMesh


class InvariantError(AssertionError):
    """The mesh did what must never happen."""


@runtime_checkable
class Holder(Protocol):
    """A machine that holds partial means and applies rounds."""

    round_id: int
    digest: bytes
    parameters: Vector

    def holdings(self) -> dict[int, ModelDelta]: ...

    def open_round(self) -> int: ...


@runtime_checkable
class Keeper(Protocol):
    """A machine that knows who is out of the open round."""

    def lost_members(self) -> Collection[Contributor]: ...


def check_disjoint(mesh: SimMesh) -> None:
    """No contribution is answered for by two live holders: nothing can be counted twice."""
    seen: dict[tuple[int, int, Contributor], str] = {}
    for node, round_id, segment, hold in _live_holds(mesh):
        for contributor in hold.contributors:
            key = (round_id, segment, contributor)
            if key in seen:
                raise InvariantError(f"{contributor} is held by {seen[key]} and by {node.info.peer_id}")
            seen[key] = node.info.peer_id


def check_theta(mesh: SimMesh) -> None:
    """theta is the sum of the contributors' weights, and the values are their weighted mean (Eq. 1, 3)."""
    for node, round_id, _, hold in _live_holds(mesh):
        own = [mesh.own_deltas[round_id, contributor] for contributor in sorted(hold.contributors)]
        if not np.isclose(hold.theta, sum(delta.theta for delta in own), rtol=1e-9):
            raise InvariantError(f"{node.info.peer_id} holds theta {hold.theta} of {sorted(hold.contributors)}")
        if len(own) > 1 and not np.allclose(hold.values, central_mean(own), rtol=1e-4, atol=1e-5):
            raise InvariantError(f"{node.info.peer_id} holds no mean of {sorted(hold.contributors)}")


def same_digest() -> Callable[[SimMesh], None]:
    """All who stand at round r have the same parameters, then and ever after. Remembers what it has seen."""
    digests: dict[int, tuple[bytes, str]] = {}

    def check(mesh: SimMesh) -> None:
        for node in mesh.nodes.values():
            if not isinstance(node.machine, Holder) or node.machine.round_id == 0:
                continue
            seen = digests.setdefault(node.machine.round_id, (node.machine.digest, node.info.peer_id))
            if seen[0] != node.machine.digest:
                raise InvariantError(f"round {node.machine.round_id} differs between {seen[1]} and {node.info.peer_id}")

    return check


def all_invariants() -> list[Callable[[SimMesh], None]]:
    return [check_disjoint, check_theta, same_digest()]


def _live_holds(mesh: SimMesh) -> list[tuple[Node, int, int, ModelDelta]]:
    lost = {c for node in mesh.nodes.values() if isinstance(node.machine, Keeper) for c in node.machine.lost_members()}
    return [
        (node, node.machine.open_round(), segment, hold)
        for node in mesh.nodes.values()
        if node.running and isinstance(node.machine, Holder) and node.contributor not in lost
        for segment, hold in node.machine.holdings().items()
    ]
