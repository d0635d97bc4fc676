"""Rosters for simulated meshes: real statements and signatures of devices, with keys that follow from their names.

Every device is an owner, named by a founder that takes no part. A signature is checked once for all meshes of this
process: a check takes longer than all else that a simulated device does in a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, lru_cache, partial

from mdl.protocol.vocabulary import PeerInfo
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.search import copy_graph
from mdl.sim.trust import Gate, Judge
from mdl.transport.links.standing import Standing, Stated
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, is_signed, new_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import Roster
from mdl.trust.statements import AnyStatement

_FOUNDER = "the founder"


def open_gate(mesh: SimMesh, node_ids: tuple[str, ...]) -> Gate:
    """Return the gate of a mesh with processes of these names."""
    names = {_device(peer_id).public: peer_id for peer_id in node_ids}
    return Gate(mesh, partial(_open, node_ids), _revoke, names, Judge(mesh))


def _open(
    node_ids: tuple[str, ...],
    peer_id: str,
    kept: tuple[AnyStatement, ...] | None,
    linked: Mapping[str, PeerInfo],
    now: float,
) -> Standing:
    membership = Membership(_keys(), _device(peer_id))
    first = _first_roster(node_ids)
    membership.roster = copy_graph(first) if kept is None else Roster(_keys(), kept, _is_signed)
    return Standing(peer_id, membership, lambda: list(linked), lambda: list(linked.values()), now)


def _revoke(standing: Standing, peer_id: str, now: float) -> Stated:
    assert standing.membership is not None
    return Stated(standing.membership.revoke(_device(peer_id).public, int(1000 * now), ""))


@cache
def _keys() -> MeshKeys:
    return MeshKeys.from_code(new_join_code("sim", bytes(19), founder_mark(_device(_FOUNDER).public)))


@cache
def _device(name: str) -> DeviceKey:
    return DeviceKey.of(hashlib.blake2b(name.encode(), digest_size=32).digest())


@cache
def _first_roster(node_ids: tuple[str, ...]) -> Roster:
    """Return the statements that all devices know when the mesh begins."""
    founder = Membership(_keys(), _device(_FOUNDER))
    roster = Roster(_keys(), check=_is_signed)
    for statement in (founder.found(), *(founder.name_owner(_device(peer_id).public) for peer_id in node_ids)):
        roster.add(statement)
    for peer_id in node_ids:
        roster.add(Membership(_keys(), _device(peer_id)).enrol(peer_id))
    return roster


@lru_cache(4096)
def _checked(public: bytes, claim: bytes, signature: bytes) -> bool:
    return is_signed(public, claim, signature)


def _is_signed(public: bytes, claim: bytes, signature: bytes) -> bool:
    return _checked(public, claim, signature)
