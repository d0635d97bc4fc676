"""The files of devices that share: the receivers of each share, the parcels on their way, and the received windows.

All of it is for this user alone. A share is written down before it is offered, and forgotten when its taker has
confirmed the deletion. So every device that may have windows is known here, however a sharing breaks off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from secrets import token_bytes

import msgspec

from mdl.data.parcel import deal_windows, read_parcel, shared_file, shared_home, window_bytes, write_parcel
from mdl.data.windows import DataSet
from mdl.errors import DataError, StorageError
from mdl.files.kept import read_kept, read_sealed, seal, write_kept
from mdl.protocol.machine import (
    CutWindows,
    DeleteShared,
    ForgetShare,
    PartRead,
    PartStored,
    ReadPart,
    SharedDeleted,
    StorePart,
    WindowsCut,
)
from mdl.protocol.sharing_messages import PART_BYTES, Offer, WindowsOffered, share_out
from mdl.protocol.vocabulary import Packed
from mdl.reading import decode_json, open_regular
from mdl.transport.download import digest_file
from mdl.transport.trust.words import fingerprint
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
