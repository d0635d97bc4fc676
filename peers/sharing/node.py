"""The node that gives or takes windows: it meets the other devices of its mesh in a run of their own.

Trainers know nothing of it. The mesh's owners, and their revocations, count here too. Users name devices by their names
in the mesh, or by the words of their keys (`Named`). A device that trains with another one's windows hears, at the same
time, that they are taken back (`heeding`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from mdl.config import MeshSection
from mdl.data.parcel import NAMES_BYTES, SHARED_RUN, find_shared, shared_file
from mdl.data.sources import parse_spec
from mdl.data.windows import DataSet
from mdl.errors import ConfigError, MdlError, RemoteProtocolError
from mdl.peers.edge.identity import claim_identity, known_meshes, release_identity, state_home
from mdl.peers.edge.lifeline import stopped_by_signals
from mdl.peers.edge.membership import keep_roster, open_membership
from mdl.peers.edge.naming import under_a_free_name
from mdl.peers.edge.node import drive, start_runtime
from mdl.peers.roles.sharing import Giver, WindowTaker
from mdl.peers.sharing.files import (
    GivenFiles,
    SharedWindows,
    TakenFiles,
    delete_shared,
    read_shares,
    read_taken,
    write_shares,
)
from mdl.peers.trust.ownership import find_device
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CutWindows,
    DeleteShared,
    Effect,
    Event,
    Finish,
    ForgetShare,
    Machine,
    PeerFound,
    ReadPart,
    StorePart,
)
from mdl.protocol.sharing_messages import MAX_PARCEL_BYTES, PART_BYTES, Offer
from mdl.protocol.statements import DeviceRevoked, OwnerNamed
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Renewed, Runtime
from mdl.transport.trust.keys import Mesh, MeshKeys
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.words import fingerprint, is_fingerprint
from mdl.transport.worker import Work

logger = logging.getLogger(__name__)


class Named:
    """names: of all of them, as given. Raises ConfigError for an unknown device, or for this one.

    A name stands for the whole key that has it in the mesh. Words of a device that this one has not met stand for the
    first key that is met and has them.
    """

    def __init__(self, membership: Membership, texts: Iterable[str]) -> None:
        self._keys: dict[bytes, str] = {}
        self._words: dict[str, str] = {}
        for text in texts:
            words = text.strip().lower().replace(" ", "-")
            try:
                self._keys[find_device(membership, text)] = text
            except ConfigError:
                if not is_fingerprint(words):
                    raise
                self._words[words] = text
        self.names = frozenset([*self._keys.values(), *self._words.values()])
        if self.name_of(membership.device.public):
            raise ConfigError(f"{self.name_of(membership.device.public)} is this device: name another one")

    def name_of(self, device: bytes) -> str:
        """Return the name of the device with this key; "" for one that is not among them."""
        if device not in self._keys and (text := self._words.pop(fingerprint(device), "")):
            self._keys[device] = text
        return self._keys.get(device, "")

    def key_of(self, text: str) -> bytes:
        """Return the key that a name stands for; empty while only its words are known."""
        return next((key for key, given in self._keys.items() if given == text), b"")

    def words_of(self, text: str) -> str:
        """Return the words of the key that a name stands for."""
        key = self.key_of(text)
        return fingerprint(key) if key else text.strip().lower().replace(" ", "-")


_MachineT = TypeVar("_MachineT", bound=Machine)


@dataclass(frozen=True)
class Meeting:
    """The meeting of a mesh's devices to share. name: of this one; the host's by default."""

    mesh: str
    section: MeshSection
    name: str | None = None

    def keys(self) -> MeshKeys:
        """Return the keys of the mesh itself.

        Raises ConfigError, also without encryption: devices then have no keys to be known by.
        """
        code = known_meshes().get(self.mesh)
        if code is None:
            raise ConfigError(f"no code is known for mesh {self.mesh!r} (known: {', '.join(known_meshes()) or '-'})")
        return MeshKeys.from_code(code)


@dataclass(frozen=True)
class Shared:
    """The end of a sharing. shares: given to each device. kept: windows that stay here."""

    finish: Finish
    shares: tuple[SharedWindows, ...]
    kept: int
    missing: tuple[str, ...]


def give(meeting: Meeting, data: DataSet, named: Named, own: Offer, wait_s: float) -> Shared:
    """Share windows with the named devices. Raises MdlError.

    Windows from an earlier sharing are deleted there first. Raises ConfigError if an unnamed device has some.
    """
    words, names = fingerprint(open_membership(meeting.keys()).device.public), dict[bytes, str]()
    for each in read_shares(meeting.mesh):
        if not each.is_ended and not named.name_of(bytes.fromhex(each.device)):
            raise ConfigError(
                f"{each.name} has {each.train} windows of an earlier sharing: name it too, or first "
                f"mdl data unshare --mesh {meeting.mesh}"
            )
    end_shares(meeting.mesh)
    shared_file(meeting.mesh, words).unlink(missing_ok=True)

    def name_of(device: bytes) -> str:
        names[device] = named.name_of(device)
        return names[device]

    with closing(GivenFiles(meeting.mesh, data, own, words, names)) as files:
        return _run_giver(meeting, files, words, named.names, name_of, wait_s)


def take_back(meeting: Meeting, wait_s: float) -> Shared:
    """Tell the devices that their sharings have ended, as far as they are there; the others are told next time."""
    own = fingerprint(open_membership(meeting.keys()).device.public)
    with closing(GivenFiles(meeting.mesh, None, Offer(0.0), own, {})) as files:
        return _run_giver(meeting, files, own, frozenset(), lambda device: "", wait_s)


def end_shares(mesh: str, of: Callable[[SharedWindows], bool] = lambda share: True) -> int:
    """Mark these shares as ended; return how many of all are. No device is told yet."""
    shares = read_shares(mesh)
    ended = [share if share.is_ended or not of(share) else _ended(share) for share in shares]
    if shares:
        write_shares(mesh, ended)
    return len([share for share in ended if share.is_ended])


def take(meeting: Meeting, named: Named, offer: Offer, is_once: bool) -> tuple[Finish, bool]:
    """Accept windows from the named device; return how that ended, and if its windows are here."""
    (source,) = named.names
    files = TakenFiles(meeting.mesh, named.words_of(source), lambda: named.key_of(source))
    most = offer.memory_bytes + NAMES_BYTES if offer.memory_bytes else MAX_PARCEL_BYTES
    work: Work = {StorePart: files.store, DeleteShared: files.delete}

    def make(me: Contributor, now: float) -> WindowTaker:
        return WindowTaker(me, lambda device: bool(named.name_of(device)), offer, most, files.held(), is_once)

    try:
        finish, _ = _run(meeting, make, work)
    finally:
        delete_if_out(meeting.mesh)
    return finish, files.path.exists()


def delete_if_out(mesh: str) -> None:
    """Delete the shared windows of this device if an owner has revoked it."""
    code = known_meshes().get(mesh)
    out = code and any(
        open_membership(keys).why_out() for keys in (MeshKeys.from_code(code), MeshKeys.from_code(code, SHARED_RUN))
    )
    if out and delete_shared(mesh):
        logger.warning("an owner of mesh %s has revoked this device: the windows that were shared with it are deleted",
                       mesh)  # fmt: skip


def _run_giver(
    meeting: Meeting,
    files: GivenFiles,
    words: str,
    names: frozenset[str],
    name_of: Callable[[bytes], str],
    wait_s: float,
) -> Shared:
    recalled = {
        bytes.fromhex(each.sharing_id): bytes.fromhex(each.device)
        for each in read_shares(meeting.mesh)
        if each.is_ended
    }
    work: Work = {CutWindows: files.cut, ReadPart: files.read, ForgetShare: files.forget}

    def make(me: Contributor, now: float) -> Giver:
        return Giver(me, names, name_of, recalled, wait_s, now)

    finish, machine = _run(meeting, make, work)
    if not names and not read_shares(meeting.mesh):
        shared_file(meeting.mesh, words).unlink(missing_ok=True)  # this device's own share: all is its own again
    return Shared(finish, tuple(files.shares), files.kept, tuple(sorted(machine.missing())))


def _run(meeting: Meeting, make: Callable[[Contributor, float], _MachineT], work: Work) -> tuple[Finish, _MachineT]:
    """Run the node until it has finished. Raises ConfigError if this device is out."""

    def run_as(host: str) -> tuple[Finish, _MachineT]:
        with opened(meeting, make, work, host) as (runtime, machine, run), stopped_by_signals(runtime):
            return run(), machine()

    meeting.keys()
    return under_a_free_name(Mesh.from_code(known_meshes()[meeting.mesh], SHARED_RUN), meeting.name, run_as)


@contextmanager
def opened(
    meeting: Meeting, make: Callable[[Contributor, float], _MachineT], work: Work, host: str = ""
) -> Iterator[tuple[Runtime[Links], Callable[[], _MachineT], Callable[[], Finish]]]:
    """Yield a node of this machine, a function that returns its current machine, and one that drives it to its end.

    Raises ConfigError if this device is out.
    """
    keys = meeting.keys()
    mesh = Mesh.from_code(known_meshes()[meeting.mesh], SHARED_RUN)
    assert mesh.keys is not None
    _heed_owners(keys, mesh.keys)
    me, directory = claim_identity(state_home(mesh.name), meeting.name, host=host)
    try:
        machine = make(me, time.monotonic())
        info = PeerInfo(me.peer_id, me.incarnation, Role.TRAINER, "", meeting.section.port)
        most = PART_BYTES // 4

        def begin_again(links: Links) -> Renewed:
            nonlocal machine
            machine = make(me, time.monotonic())
            return Renewed(machine, [PeerFound(known) for known in links.directory.everyone()])

        runtime = start_runtime(
            machine, info, mesh, meeting.section, max_values=most, work=work, observe=_tell, renew=begin_again
        )
        yield runtime, lambda: machine, lambda: drive(runtime, mesh, meeting.section)
    finally:
        release_identity(directory)


def _heed_owners(mesh: MeshKeys, run: MeshKeys) -> None:
    """Apply the mesh owners' namings and revocations to this run too."""
    membership = open_membership(run)
    for statement in open_membership(mesh).roster.statements():
        if isinstance(statement, OwnerNamed | DeviceRevoked):
            with suppress(RemoteProtocolError):  # by an owner that only a later statement names
                membership.roster.add(statement)
    keep_roster(membership)


def _tell(now: float, event: Event, effects: list[Effect]) -> None:
    if isinstance(event, PeerFound) and event.info.proof:
        logger.info("found %s (%s)", event.info.peer_id, fingerprint(event.info.proof.enrolled.device))


def _ended(share: SharedWindows) -> SharedWindows:
    return SharedWindows(share.sharing_id, share.device, share.name, share.train, share.test, is_ended=True)


# The interval of looks for the windows: training stops within a batch after one.
_LOOK_S = 1.0
_END_S = 3.0


@contextmanager
def heeding(spec: str, section: MeshSection, name: str) -> Iterator[Callable[[], str]]:
    """Let the giver of the windows of `spec` delete them meanwhile; yield a function that returns why they are gone.

    With other data nothing happens. Raises ConfigError if there are none, or if this device was revoked: they are
    deleted then.
    """
    parsed = parse_spec(spec)
    if parsed.source != "shared":
        yield lambda: ""
        return
    delete_if_out(parsed.path)
    path = find_shared(parsed.path, parsed.options.get("source", ""))
    asked_at, reason = -_LOOK_S, ""

    def gone() -> str:
        nonlocal asked_at, reason
        if (now := time.monotonic()) - asked_at >= _LOOK_S:
            asked_at, reason = now, "" if path.exists() else "the windows that it trained with were taken back"
        return reason

    taken = read_taken(path)
    if taken is None:  # this device's own
        yield gone
        return
    source = bytes.fromhex(taken.source)
    files = TakenFiles(parsed.path, fingerprint(source), lambda: source)

    def make(me: Contributor, now: float) -> WindowTaker:
        return WindowTaker(me, lambda device: device == source, Offer(0.0), 0, files.held())

    meeting = Meeting(parsed.path, msgspec.structs.replace(section, port=0, join=()), name)
    try:
        with opened(meeting, make, {StorePart: files.store, DeleteShared: files.delete}) as (runtime, _, run):
            thread = threading.Thread(target=_drive, args=(run,), name="mdl-heed", daemon=True)
            thread.start()
            try:
                yield gone
            finally:
                runtime.stop()
                thread.join(_END_S)
    finally:
        delete_if_out(parsed.path)


def _drive(run: Callable[[], Finish]) -> None:
    try:
        run()
    except MdlError as error:
        logger.warning("this device cannot hear that shared windows are taken back: %s", error)
