"""Data between one person's devices: the files of shares, and the node that gives or takes windows.

All files are for this user alone: the receivers of each share, the parcels on their way, and the received windows. A
share is written down before it is offered, and forgotten when its taker has confirmed the deletion. So every device
that may have windows is known here, however a sharing breaks off.

The node meets the other devices of its mesh in a run of their own. Trainers know nothing of it. The mesh's owners, and
their revocations, count here too. Users name devices by their names in the mesh, or by the words of their keys
(`Named`). A device that trains with another one's windows hears, at the same time, that they are taken back
(`heeding`).

Shares can follow the training speed of a device (`measure_speed`): the LeNet on windows of noise, for a moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from typing import TypeVar

import msgspec
import numpy as np

from mdl.config import MeshSection
from mdl.data.parcel import (
    NAMES_BYTES,
    SHARED_RUN,
    deal_windows,
    find_shared,
    read_parcel,
    shared_file,
    shared_home,
    window_bytes,
    write_parcel,
)
from mdl.data.sources import parse_spec
from mdl.data.windows import DataSet
from mdl.errors import ConfigError, DataError, MdlError, RemoteProtocolError, StorageError
from mdl.files.kept import read_kept, read_sealed, seal, write_kept
from mdl.peers.edge.identity import claim_identity, known_meshes, release_identity, state_home
from mdl.peers.edge.membership import keep_roster, open_membership, under_a_free_name
from mdl.peers.edge.node import drive, start_runtime
from mdl.peers.interrupts import stopped_by_signals
from mdl.peers.ownership import find_device
from mdl.peers.roles.sharing import Giver, WindowTaker
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CutWindows,
    DeleteShared,
    Effect,
    Event,
    Finish,
    ForgetShare,
    Machine,
    PartRead,
    PartStored,
    PeerFound,
    ReadPart,
    SharedDeleted,
    StorePart,
    WindowsCut,
)
from mdl.protocol.sharing_messages import MAX_PARCEL_BYTES, PART_BYTES, Offer, WindowsOffered, share_out
from mdl.protocol.statements import DeviceRevoked, OwnerNamed
from mdl.protocol.vocabulary import Packed, PeerInfo, Role
from mdl.reading import decode_json, open_regular
from mdl.transport.download import digest_file
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Renewed, Runtime
from mdl.transport.trust.keys import Mesh, MeshKeys, fingerprint, is_fingerprint
from mdl.transport.trust.membership import Membership
from mdl.transport.worker import Work
from mdl.writing import make_private_folder, open_private, write_bytes

logger = logging.getLogger(__name__)

# Records of a mesh's devices, some 200 bytes each.
_LARGEST_BOOK = 1 << 20


class SharedWindows(msgspec.Struct, frozen=True):
    """Windows that a device may have. device: its key, in hex. is_ended: it is to delete them."""

    sharing_id: str
    device: str
    name: str
    train: int
    test: int
    is_ended: bool = False


class _Book(msgspec.Struct, frozen=True):
    shares: list[SharedWindows]


class TakenWindows(msgspec.Struct, frozen=True):
    """Windows that are here. sharing_id, source: in hex; source is the key of the device that gave them."""

    sharing_id: str
    source: str


def read_shares(mesh: str) -> list[SharedWindows]:
    """Return the shares that were given, with their devices. Raises DataError for an invalid file."""
    return read_kept(_book(mesh), _read_book, "windows given last cannot be taken back from here") or []


def write_shares(mesh: str, shares: Iterable[SharedWindows]) -> None:
    """Keep the shares. Raises MdlError if the disk refuses."""
    write_kept(_book(mesh), msgspec.json.encode(_Book(list(shares))))


def read_taken(windows: Path) -> TakenWindows | None:
    """Return the record of windows that another device has given; None for other windows, or missing ones."""
    path = windows.with_suffix(".json")
    try:
        return decode_json(read_sealed(path, _LARGEST_BOOK), TakenWindows, str(path)) if windows.exists() else None
    except DataError:
        return None


def delete_shared(mesh: str, words: str = "*") -> int:
    """Delete the windows from this device, or from all, and partly fetched ones; return the number of window files."""
    found = [path for suffix in ("npz", "json", "part") for path in shared_home(mesh).glob(f"from-{words}.{suffix}")]
    for path in found:
        path.unlink(missing_ok=True)
    return len([path for path in found if path.suffix == ".npz"])


class GivenFiles:
    """The giver's disk. data: to share. own: this device's own offer. words: of its own key."""

    def __init__(self, mesh: str, data: DataSet | None, own: Offer, words: str, names: dict[bytes, str]) -> None:
        self.shares: list[SharedWindows] = []
        self.kept = 0
        self._mesh, self._data, self._own, self._words, self._names = mesh, data, own, words, names
        self._parcels: dict[bytes, Path] = {}

    def cut(self, effect: CutWindows) -> WindowsCut:
        """Divide the data, write all parcels, and remember each device's share. Raises MdlError."""
        data, takers = self._data, [device for device, _ in effect.offers]
        assert data is not None
        counts = share_out(len(data.train), window_bytes(data), self._own, [offer for _, offer in effect.offers])
        rows = deal_windows(data, counts, 0)
        if any(len(train) and not len(test) for train, test in rows):
            raise DataError(f"{len(data.test)} test windows are too few for {len(rows)} devices: each needs one")
        parcels: list[tuple[bytes, WindowsOffered]] = []
        for taker, (train, test) in zip(takers, rows[1:], strict=True):
            name = self._names.get(taker, "") or fingerprint(taker)
            if not len(train):
                logger.info("%s is given nothing: its battery, memory or speed leave no room", name)
                continue
            path = shared_home(self._mesh) / f"for-{fingerprint(taker)}.npz"
            write_parcel(path, data, train, test)
            parcel = _describe(path, len(train), len(test))
            self._parcels[parcel.sharing_id] = path
            parcels.append((taker, parcel))
            self.shares.append(SharedWindows(parcel.sharing_id.hex(), taker.hex(), name, len(train), len(test)))
        self.kept = counts[0]
        if counts[0]:
            write_parcel(shared_file(self._mesh, self._words), data, *rows[0])
        write_shares(self._mesh, [*read_shares(self._mesh), *self.shares])
        return WindowsCut(tuple(parcels))

    def read(self, effect: ReadPart) -> PartRead:
        with open_regular(self._parcels[effect.sharing_id]) as file:
            file.seek(effect.part * PART_BYTES)
            return PartRead(effect.receiver, effect.sharing_id, effect.part, Packed(file.read(PART_BYTES)))

    def forget(self, effect: ForgetShare) -> None:
        left = [each for each in read_shares(self._mesh) if each.sharing_id != effect.sharing_id.hex()]
        write_shares(self._mesh, left)
        logger.info("a device has deleted the windows of a sharing that has ended")

    def close(self) -> None:
        """Delete the parcels: nothing needs to be fetched any more."""
        for path in self._parcels.values():
            path.unlink(missing_ok=True)


class TakenFiles:
    """The taker's disk. words: of the key of the giving device. source: that key, once it is met."""

    def __init__(self, mesh: str, words: str, source: Callable[[], bytes]) -> None:
        self._mesh, self._words, self._source = mesh, words, source
        self.path = shared_file(mesh, words)

    def held(self) -> bytes:
        """Return the id of the sharing that gave the windows here; empty if none are."""
        taken = read_taken(self.path)
        return bytes.fromhex(taken.sharing_id) if taken else b""

    def store(self, effect: StorePart) -> PartStored:
        """Store a part. Raises DataError if the whole is not what was announced, StorageError if the disk refuses."""
        part = self.path.with_suffix(".part")
        try:
            make_private_folder(part.parent)
            with open_private(part, "ab" if effect.part else "wb") as file:
                file.write(effect.content)
                size = file.tell()
        except OSError as error:
            raise StorageError(part, error) from None
        is_whole = size == effect.offered.size_bytes
        if is_whole:
            self._accept(part, effect.offered)
        return PartStored(effect.offered.sharing_id, effect.part, is_whole)

    def delete(self, effect: DeleteShared) -> SharedDeleted:
        many = delete_shared(self._mesh, self._words)
        logger.info("%s: %s", effect.reason, "the windows are deleted" if many else "there was nothing to delete")
        return SharedDeleted()

    def _accept(self, part: Path, offered: WindowsOffered) -> None:
        try:
            if _digest(part) != offered.digest:
                raise DataError(f"{part}: not the windows that were announced")
            data = read_parcel(part)
            if (len(data.train), len(data.test)) != (offered.train, offered.test):
                raise DataError(f"{part}: {len(data.train)} windows; {offered.train} were announced")
        except DataError:
            part.unlink(missing_ok=True)
            raise
        # The record first: windows without one would never be asked back.
        taken = TakenWindows(offered.sharing_id.hex(), self._source().hex())
        write_bytes(self.path.with_suffix(".json"), seal(msgspec.json.encode(taken)))
        part.replace(self.path)
        logger.info("%d windows to train with and %d to test are here: %s", offered.train, offered.test, self.path)


def _read_book(path: Path) -> list[SharedWindows]:
    """Read a book of this version, or of an older one that kept the list alone."""
    content = read_sealed(path, _LARGEST_BOOK)
    if content.startswith(b"["):
        return decode_json(content, list[SharedWindows], str(path))
    return decode_json(content, _Book, str(path)).shares


def _book(mesh: str) -> Path:
    return shared_home(mesh) / "given.json"


def _describe(path: Path, train: int, test: int) -> WindowsOffered:
    return WindowsOffered(token_bytes(16), path.stat().st_size, _digest(path), train, test)


def _digest(path: Path) -> bytes:
    return bytes.fromhex(digest_file(path))


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


# Devices are only compared with one another, so it need not be their model: a window of UCI HAR, batches as usual.
_CHANNELS, _TIME, _CLASSES, _WINDOWS = 9, 128, 6, 64
# Long enough that a clock of milliseconds and a processor that wakes up do not matter.
_MEASURE_S = 0.5


def measure_speed(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the windows a second in training. Loads torch if needed."""
    from mdl.config import TrainingSettings
    from mdl.learning.flat import FlatModel
    from mdl.learning.models import build_model
    from mdl.learning.training import LocalTrainer

    rng = np.random.default_rng(0)
    x = rng.standard_normal((_WINDOWS, _CHANNELS, _TIME)).astype(np.float32)
    y = rng.integers(_CLASSES, size=_WINDOWS)
    model = FlatModel(build_model("lenet", _CHANNELS, _TIME, _CLASSES, 0))
    trainer = LocalTrainer(model, x, y, msgspec.structs.replace(TrainingSettings(), rounds_per_epoch=1))
    parameters = model.values().copy()
    trainer.train_round(parameters, 1)  # the first is slower
    began, done, rounds = clock(), 0, 1
    while (passed := clock() - began) < _MEASURE_S:
        rounds += 1
        done += trainer.train_round(parameters, rounds).samples
    return done / passed
