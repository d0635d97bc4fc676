"""The statements of an owner about a mesh: told to every peer that is reached, and kept for the others.

The mesh and its runs have rosters of their own; a statement goes into all that this machine knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mdl.config import MeshSection
from mdl.errors import ConfigError, MdlError
from mdl.peers.edge.identity import codes_home, known_meshes, remember_code
from mdl.peers.edge.membership import keep_roster, open_membership
from mdl.peers.view.watch import Watcher
from mdl.transport.links.standing import Stated
from mdl.transport.trust.keys import RUN_MARK, Mesh, MeshKeys, code_hash, fingerprint, new_join_code
from mdl.transport.trust.membership import Membership

# Digests are compared every second; a peer that is reached has agreed by then, or is busy.
_AGREED_S = 3.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class RosterLine:
    """One line of a roster. device: its fingerprint. state: "in", or the reason why it is out."""

    name: str
    device: str
    is_owner: bool
    is_this: bool
    state: str = "in"


@dataclass(frozen=True)
class Agreement:
    """The devices that have taken over a statement, and those that were reached."""

    agreed: tuple[str, ...]
    reached: tuple[str, ...]

    def tell(self) -> str:
        if not self.reached:
            return "no device was reached: this one keeps it, and tells the others when it meets them"
        missing = sorted(set(self.reached) - set(self.agreed))
        told = f"{len(self.agreed)} of {len(self.reached)} devices that were reached have it"
        return f"{told}; not yet: {', '.join(missing)}" if missing else told


def list_members(membership: Membership) -> list[RosterLine]:
    """Return everybody that is or was in, by name, as far as this machine knows."""
    roster, own = membership.roster, membership.device.public
    found = [
        RosterLine(each.peer_id, fingerprint(each.device), each.device in roster.owners(), each.device == own)
        for each in roster.members()
    ]
    for owner in sorted(roster.owners() - {each.device for each in roster.members()}):
        found.append(RosterLine("-", fingerprint(owner), True, owner == own, "no peer of it was met"))
    for gone in roster.revocations():
        state = f"revoked{': ' if gone.reason else ''}{gone.reason}"
        found.append(RosterLine(gone.name or "-", fingerprint(gone.device), False, gone.device == own, state))
    return found


def find_device(membership: Membership, text: str) -> bytes:
    """Return the device with this name or fingerprint. Raises ConfigError that lists the known ones."""
    roster = membership.roster
    if (named := roster.enrolled(text)) is not None:
        return named.device
    wanted = text.strip().lower().replace(" ", "-")
    for each in roster.members():
        if fingerprint(each.device) == wanted:
            return each.device
    there = ", ".join(f"{each.peer_id} ({fingerprint(each.device)})" for each in roster.members()[:8])
    raise ConfigError(f"no device {text[:80]!r} is known in mesh {membership.keys.shown}; there is {there or 'nobody'}")


def owned(keys: MeshKeys | None) -> Membership:
    """Return this device's membership of a mesh that it owns. Raises ConfigError if it does not own it."""
    if keys is None or not keys.mark:
        raise ConfigError(
            "this mesh has no owners: its join code is an old one, or it has none. `mdl mesh upgrade NAME` gives it "
            "an owner and a code, which every device then needs"
        )
    membership = open_membership(keys)
    if membership.device.public not in membership.roster.owners():
        owners = ", ".join(fingerprint(each) for each in sorted(membership.roster.owners())) or "its founder"
        raise ConfigError(f"this device does not own mesh {keys.shown}: run it on {owners}")
    return membership


def state(
    mesh: str,
    code: str,
    section: MeshSection,
    make: Callable[[Membership], Stated],
    wait_s: float,
    note_stated: Callable[[Membership], None] = lambda membership: None,
) -> list[Agreement]:
    """State the same in the mesh and its runs. make: called with each roster, once the other peers were heard.

    note_stated: called when it is stated and kept.
    """
    runs = sorted(path.stem.partition(RUN_MARK)[2] for path in codes_home().glob(f"{mesh}{RUN_MARK}*.roster"))
    return [_state_in(Mesh.from_code(code, run), section, make, wait_s, note_stated) for run in ("", *runs)]


def who_is_left_out(membership: Membership, keep: Sequence[str], everybody: bool) -> list[str]:
    """Return the members that a new code would not keep: they have never worked here, and nobody names them."""
    roster = membership.roster
    stay = set(membership.who_stays([find_device(membership, each) for each in keep], everybody))
    return [each.peer_id for each in roster.members() if each.device not in stay]


def change_code(
    mesh: str, section: MeshSection, wait_s: float, keep: Sequence[str] = (), everybody: bool = False
) -> tuple[str, list[Agreement], list[str]]:
    """Give the mesh another join code. Returns the new code, which is remembered, and names of those left out.

    keep: names or fingerprints of devices that stay though they have never worked here. everybody: all stay.
    """
    former = known_meshes()[mesh]
    code = new_join_code(mesh, mark=MeshKeys.from_code(former).mark)
    named: list[bytes] = []
    left_out: list[str] = []

    def make(membership: Membership) -> Stated:
        _, _, run = membership.keys.name.partition(RUN_MARK)
        if not run:  # the mesh itself comes first
            named.extend(find_device(membership, each) for each in keep)
            left_out.extend(who_is_left_out(membership, keep, everybody))
        statement = membership.change_code(code_hash(code), named, everybody)
        return Stated((statement,), code, MeshKeys.from_code(code, run))

    def note_stated(membership: Membership) -> None:
        if membership.roster.wanted_code() != code_hash(code):
            raise ConfigError(f"mesh {mesh}: its owners have changed meanwhile, and the code stays as it was")
        if membership.keys.name == mesh:
            remember_code(code, replace=True)  # even if the runs fail: the mesh has this code now

    return code, state(mesh, former, section, make, wait_s, note_stated), left_out


def _state_in(
    mesh: Mesh,
    section: MeshSection,
    make: Callable[[Membership], Stated],
    wait_s: float,
    note_stated: Callable[[Membership], None],
) -> Agreement:
    pause = threading.Event()
    with Watcher(mesh, section) as watcher:
        watcher.heard.wait(wait_s)
        if watcher.problem and not isinstance(watcher.problem, MdlError):
            raise watcher.problem
        standing = watcher.standing
        membership = standing.membership
        assert membership is not None
        watcher.state(make(membership))
        give_up_at = time.monotonic() + _AGREED_S
        while True:
            pause.wait(_LOOK_S)
            reached = {info.peer_id for info in watcher.introduced()[1]}
            agreed = standing.agreeing() & reached
            if agreed == reached or time.monotonic() >= give_up_at:
                break
    keep_roster(membership)
    note_stated(membership)
    return Agreement(tuple(sorted(agreed)), tuple(sorted(reached)))
