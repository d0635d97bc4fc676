"""Checks of this device: its key, its name and place in the mesh, its clock, and if an owner has locked it out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mdl.errors import ConfigError
from mdl.peers.doctor.finding import Finding, fail, note, ok
from mdl.peers.doctor.machine import why_not_writable
from mdl.peers.doctor.sight import Sight
from mdl.peers.edge.identity import default_name
from mdl.peers.edge.membership import KEY_VARIABLE, device_key, key_path, name_here
from mdl.protocol.vocabulary import Role
from mdl.transport.discovery.interfaces import name_of
from mdl.transport.trust.words import fingerprint

# Smaller differences of two clocks disturb neither people nor logs.
_CLOCKS_S = 30.0
_NEW_DEVICE = "remove the file, and this is a new device (mdl mesh revoke, on an owner's device, locks the old one out)"


def check_key() -> Finding:
    """Check that this device has a key, and will still have it at its next start."""
    try:
        device = device_key()
        kept = bool(os.environ.get(KEY_VARIABLE)) or key_path().exists()
    except (ConfigError, OSError) as error:
        return fail("device", str(error), _NEW_DEVICE, "MDL_KEY=@FILE names another key")
    folder = key_path().parent
    why = why_not_writable(folder)
    give = f"give it to this user: sudo chown -R $USER {folder}"
    if not kept:
        told = f"its key cannot be kept in {folder} ({why}): it would be another device at each start"
        return fail("device", told, give, "MDL_KEY=@FILE names a key that is kept elsewhere")
    if why:
        return note("device", f"the list of the mesh's members cannot be kept in {folder} ({why})", give)
    return ok("device", f"this device is {fingerprint(device.public)}")


def check_standing(sight: Sight) -> Iterator[Finding]:
    """Check how the mesh sees this device, under the name that a peer here would have."""
    membership = sight.membership
    if membership is None:  # without encryption devices cannot be told apart
        return
    name, device = default_name(), membership.device.public
    if why := membership.why_out():
        yield fail(
            "device", why, "ask an owner of the mesh", "become another device: another user, or MDL_KEY=@NEW-FILE"
        )
        return
    for info in sight.known:
        if info.role is Role.OBSERVER or name_of(info.host) or not info.proof:
            continue
        if info.proof.enrolled.device == device:
            told = f"{info.peer_id} at {info.host} has this device's key: a copied card or home directory"
            do = f"on one of the two: rm {key_path()}, and another host name"
            yield fail("device", told, do) if info.peer_id == name else note("device", told, do)


def check_clocks(sight: Sight) -> Iterator[Finding]:
    """Compare the clocks of devices: a wrong one makes times of logs and the hours of `--when` wrong."""
    wrong = {who: ahead_s for who, ahead_s in sight.clocks_s.items() if abs(ahead_s) >= _CLOCKS_S}
    if not wrong:
        return
    told = ", ".join(f"{who}'s is {_tell_time(ahead_s)}" for who, ahead_s in sorted(wrong.items())[:4])
    whose = "this machine's clock, or theirs: " if len(wrong) > 1 else ""
    do = "on the one that is wrong: sudo timedatectl set-ntp true, or sudo date --set ..."
    yield note("clock", f"clocks differ: {whose}{told}", do)


def _tell_time(ahead_s: float) -> str:
    seconds = abs(ahead_s)
    amount = next(
        f"{seconds / unit_s:.0f} {unit}"
        for unit, unit_s in (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
        if seconds >= 2 * unit_s
    )
    return f"{amount} {'ahead' if ahead_s > 0 else 'behind'}"


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
