"""Checks if this device would be let in under its name, or was refused under a name that it was started with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mdl.peers.doctor.finding import Finding, fail, note
from mdl.peers.doctor.sight import Sight
from mdl.peers.edge.identity import default_name
from mdl.peers.edge.naming import name_here
from mdl.transport.trust.words import fingerprint

# The most directories of peers that are checked: more names than a machine has.
_MOST = 64


def check_name(sight: Sight, home: Path) -> Iterator[Finding]:
    """Check this device's names. home: the directories of this user's peers of the mesh, running or not."""
    membership = sight.membership
    if membership is None or membership.why_out():  # without encryption devices cannot be told apart
        return
    device, host = membership.device.public, default_name()
    started = [path.name for path in sorted(home.glob("*"))[:_MOST] if path.is_dir()]
    for name in dict.fromkeys((host, *started)):
        rivals = [each for each in membership.roster.rivals(name, device)
                  if not membership.roster.has_given_up(each.device, name)]  # fmt: skip
        if not rivals:
            continue
        other = f"{name!r} is the name of another device of the mesh ({fingerprint(rivals[0].device)})"
        if name != host:
            do = f"mdl peer --name ANOTHER; if this one takes its place: mdl mesh revoke {name}, on an owner's device"
            yield fail("device", f"{other}: this one is refused under it", do)
            continue
        own = name_here(membership)
        do = f"if this one takes its place: mdl mesh revoke {name}, on an owner's device; then: mdl peer --name {name}"
        yield note("device", f"{other}: a peer here calls itself {own!r}", do)
