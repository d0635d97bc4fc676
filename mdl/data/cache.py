"""Parsed windows kept as arrays on disk and memory-mapped, so that text is parsed once (MDLdroid Fig. 11d).

An entry is one directory: eight .npy files and meta.json, which states their sizes. It is written aside and renamed, so
that it appears completely or not at all, however many processes build it at once; a torn entry is built again.
Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np

from mdl.data.windows import DataSet, Windows
from mdl.errors import DataError
from mdl.reading import decode_json, read_bytes
from mdl.writing import make_private_folder, open_private

# Raise this whenever any source prepares its windows differently: older entries are then never read again.
VERSION = 10
logger = logging.getLogger(__name__)

# Names of people and places, one each; some hundred bytes for most.
_LARGEST_META_BYTES = 64 << 20
_ARRAYS = ("x", "y", "subject", "group")
# Windows; images; images as their pixels are kept.
_KINDS = (("float32", 3), ("float32", 4), ("uint8", 4))
# Classes, numbers, labels.
_TARGETS = (("int64", 1), ("float32", 2), ("uint8", 2))


class _Meta(msgspec.Struct, frozen=True):
    name: str
    classes: tuple[str, ...]
    held_out: str
    synthetic: bool
    description: str
    subject_names: tuple[str, ...]
    sizes_bytes: dict[str, int]
    channels: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    rate_hz: float | None
    units: tuple[str, ...]
    channel_units: tuple[str, ...]
    is_converted: bool
    left_out: tuple[str, ...]


def load_cached(cache_dir: Path, label: str, key: Iterable[object], build: Callable[[Path], DataSet]) -> DataSet:
    """Return the data set stored under `key`, memory-mapped; if there is none, call `build` and store its result.

    label names the directory for people; key is everything that the content depends on. build: gets a folder, where it
    may leave the windows x of a side as SIDE_x.npy, mapped, so that they are never in memory.
    """
    digest = hashlib.blake2b(repr((VERSION, *key)).encode(), digest_size=8).hexdigest()
    entry = cache_dir / f"{label}-{digest}"
    if (stored := _read(entry)) is not None:
        return stored
    is_new = not cache_dir.exists()
    aside = _make_aside(entry)
    try:
        built = build(aside)
        try:
            _write(aside, entry, built)
        except OSError as error:
            # A full or read-only disk costs time at the next start, nothing else.
            logger.warning("windows not cached in %s: %s", cache_dir, error.strerror)
            return built
    finally:
        # Mapped files stay readable after this.
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # the entry is in it
                cache_dir.rmdir()
    # Another process may have removed our entry (a cleaned cache): then the data in memory still serves.
    return _read(entry) or built


def stamp_files(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of each file: a changed file is a changed key."""
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]


def _read(entry: Path) -> DataSet | None:
    """Return the entry, or None if it is missing or torn."""
    try:
        meta = decode_json(read_bytes(entry / "meta.json", _LARGEST_META_BYTES), _Meta, str(entry))
        if any((entry / file).stat().st_size != size for file, size in meta.sizes_bytes.items()):
            return None
        train, test = _map(entry, "train"), _map(entry, "test")
    except (OSError, ValueError, DataError):
        return None
    if not all(_fits(windows) for windows in (train, test)):
        return None
    return DataSet(
        meta.name, train, test, meta.classes, meta.held_out, meta.synthetic, meta.description, meta.subject_names,
        meta.channels, meta.notes, meta.warnings, meta.rate_hz, meta.units,
        meta.channel_units, meta.is_converted, meta.left_out,
    )  # fmt: skip


def _fits(windows: Windows) -> bool:
    """Return True if the arrays have the types of `_write`; their content was checked before they were written."""
    rest = (windows.subject, windows.group)
    fits = (windows.x.dtype.name, windows.x.ndim) in _KINDS and (windows.y.dtype.name, windows.y.ndim) in _TARGETS
    return (
        fits
        and len(windows.y) == len(windows.x)
        and all(array.dtype == np.int64 and array.shape == windows.x.shape[:1] for array in rest)
    )


def _map(entry: Path, side: str) -> Windows:
    # "c": torch wants writable memory, and the file must stay as it is.
    return Windows(*(np.load(entry / f"{side}_{name}.npy", mmap_mode="c", allow_pickle=False) for name in _ARRAYS))


def _make_aside(entry: Path) -> Path:
    """Make a folder beside the entry, to become it; if that is impossible, a temporary folder."""
    try:
        make_private_folder(entry.parent)
        return Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    except OSError:
        return Path(tempfile.mkdtemp())


def _write(aside: Path, entry: Path, data: DataSet) -> None:
    make_private_folder(entry.parent)
    for side, windows in (("train", data.train), ("test", data.test)):
        for name in _ARRAYS:
            target = aside / f"{side}_{name}.npy"
            if not (name == "x" and target.exists()):
                with open_private(target, "xb") as file:
                    np.save(file, getattr(windows, name), allow_pickle=False)
    with open_private(aside / "meta.json", "xb") as file:
        file.write(msgspec.json.encode(_describe(aside, data)))
    _put(aside, entry)


def _put(aside: Path, entry: Path) -> None:
    """Move a finished entry into place. If another process was faster, keep its entry."""
    if entry.exists() and _read(entry) is None:
        torn = aside.with_name(f"{aside.name}.torn")
        with contextlib.suppress(OSError):
            entry.rename(torn)
        shutil.rmtree(torn, ignore_errors=True)
    with contextlib.suppress(OSError):
        aside.rename(entry)


def _describe(aside: Path, data: DataSet) -> _Meta:
    sizes = {file.name: file.stat().st_size for file in aside.glob("*.npy")}
    return _Meta(
        data.name, data.classes, data.held_out, data.synthetic, data.description, data.subject_names, sizes,
        data.channels, data.notes, data.warnings, data.rate_hz, data.units,
        data.channel_units, data.is_converted, data.left_out,
    )  # fmt: skip
