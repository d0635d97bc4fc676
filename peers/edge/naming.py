"""The name that a device takes in a mesh: the given one, or the host's; where that is another device's, its own.

Two new boards are both called raspberrypi, and a replaced card keeps its host's name. A name of a device's own is the
host's with words of its key behind it, so that it is the same at each start: raspberrypi-ash, and with one word more as
long as that is taken, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from mdl.errors import NameRefusedError
from peers.edge.identity import default_name
from peers.edge.membership import open_membership
from transport.trust.keys import Mesh
from transport.trust.membership import Membership
from transport.trust.words import fingerprint

logger = logging.getLogger("mdl")

# Of a peer's name.
LONGEST_NAME = 40
# Room for the number of a second peer of the same machine.
_NUMBER = 4

_T = TypeVar("_T")


def names_here(membership: Membership | None, first: str = "") -> list[str]:
    """Return the names that this device takes in turn, without those that it knows to be other devices'.

    first: instead of the host's.
    """
    host = first or default_name()
    if membership is None:
        return [host]
    words = fingerprint(membership.device.public).split("-")
    ends = ["", *("-" + "-".join(words[: count + 1]) for count in range(len(words)))]
    names = [host[: LONGEST_NAME - _NUMBER - len(end)].strip("-") + end for end in ends]
    free = [name for name in names if not membership.roster.rivals(name, membership.device.public)]
    return free or names[-1:]


def tell_other_name(mesh: str, name: str, other: str) -> None:
    """Say that this device takes part under another name."""
    logger.warning(
        "%r is the name of another device of mesh %s: this one calls itself %r from now on", name, mesh, other
    )


def under_a_free_name(mesh: Mesh, given: str | None, run: Callable[[str], _T], first: str = "") -> _T:
    """Run as a device of this mesh, again under the next name as long as the others say that it is another device's.

    given: the only name to take, if the user has given one. run: is told the name to take if none was given. Raises
    NameRefusedError if no name is left.
    """
    names = names_here(open_membership(mesh.keys) if mesh.keys else None, first) if given is None else [given]
    for name, other in zip(names, [*names[1:], ""], strict=True):
        try:
            return run(name)
        except NameRefusedError:
            if not other:
                raise
            tell_other_name(mesh.name, name, other)
    raise AssertionError("a device has at least one name")
