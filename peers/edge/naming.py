"""The name that a device takes in a mesh: the given one, or the host's; if that is another device's, one of its own.

Two new boards are both called raspberrypi, and a replaced card keeps its host's name. A device's own name is the host's
with words of its key behind it, such as raspberrypi-ash, so it is the same at each start. It has one word more as long
as that name is taken, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from mdl.errors import NameRefusedError
from mdl.peers.edge.identity import default_name
from mdl.peers.edge.membership import open_membership
from mdl.transport.trust.keys import Mesh
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.words import next_own_name, own_names

logger = logging.getLogger("mdl")

_T = TypeVar("_T")


def name_here(membership: Membership | None, first: str = "") -> str:
    """Return the name that this device begins with, by what it knows of others' names and of its own.

    first: used instead of the host's name.
    """
    host = first or default_name()
    if membership is None:
        return host
    roster, device = membership.roster, membership.device.public
    own = own_names(host, device)
    taken = [name for name in own if (holder := roster.enrolled(name)) is not None and holder.device == device]
    free = [
        name
        for name in (host, *own)
        if all(roster.has_given_up(each.device, name) for each in roster.rivals(name, device))
    ]
    return (taken or free or own)[0]


def next_name(mesh: Mesh, refused: NameRefusedError) -> str:
    """Return the name to take in place of a refused one, and log it; "" if there is none left."""
    assert mesh.keys is not None
    name = next_own_name(refused.name, open_membership(mesh.keys).device.public)
    if name:
        told = (refused.name, mesh.shown, name)
        logger.warning("%r is the name of another device of mesh %s: this one calls itself %r from now on", *told)
    return name


def under_a_free_name(mesh: Mesh, given: str | None, run: Callable[[str], _T], first: str = "") -> _T:
    """Run as a device of this mesh; run again under the next name while the name belongs to another device.

    given: the only name to take, if the user has given one. run: is given the name to take. Raises NameRefusedError if
    no name is left.
    """
    if given is not None:
        return run(given)
    name = name_here(open_membership(mesh.keys) if mesh.keys else None, first)
    while True:
        try:
            return run(name)
        except NameRefusedError as refused:
            if not (name := next_name(mesh, refused)):
                raise
