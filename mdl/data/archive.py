"""A folder, a zip, or a zip within a zip, read the same way: named members, one at a time, each bounded."""

from __future__ import annotations

import gzip
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mdl.errors import DataError

# The largest member of the known sets is 15 MB of text; a zip that claims far more is not one of them, or is a bomb.
LARGEST_MEMBER_BYTES = 256 << 20


class Members(Protocol):
    """The files of a data set, by their path inside it."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[str]:
        return sorted(str(PurePosixPath(*f.relative_to(self._root).parts)) for f in list_files(self._root))

    def read(self, name: str) -> bytes:
        return _read_bounded(self._root / name)


class _Zip:
    def __init__(self, archive: zipfile.ZipFile, where: str) -> None:
        self._archive = archive
        self._where = where

    def names(self) -> list[str]:
        return sorted(name for name in self._archive.namelist() if not name.endswith("/"))

    def read(self, name: str) -> bytes:
        size = self._archive.getinfo(name).file_size
        if size > LARGEST_MEMBER_BYTES:
            raise DataError(f"{self._where}: {name} unpacks to {size} bytes; at most {LARGEST_MEMBER_BYTES} are read")
        try:
            return self._archive.read(name)
        except (zipfile.BadZipFile, EOFError) as error:
            raise DataError(f"{self._where}: {name} is damaged ({error}); fetch the file again") from None


@contextmanager
def open_members(path: Path) -> Iterator[Members]:
    """The members of a folder or zip. A zip that holds another zip (as the archive hands them out) is looked into."""
    if path.is_dir():
        yield _Folder(path)
        return
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise DataError(f"{path}: not a zip file; expected the original folder, its zip or the .npz") from None
    with archive:
        inner = [name for name in archive.namelist() if name.lower().endswith(".zip")]
        if not inner:
            yield _Zip(archive, str(path))
            return
        with tempfile.TemporaryFile() as file:
            file.write(_Zip(archive, str(path)).read(inner[0]))
            with zipfile.ZipFile(file) as nested:
                yield _Zip(nested, f"{path}: {inner[0]}")


def list_files(path: Path) -> list[Path]:
    """The file itself, or every file below a folder, sorted. Raises DataError if there is nothing there."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder")
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))


def load_arrays(path: Path, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of these names (all if none are named) in an .npz. Raises DataError if one is missing or pickled."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if missing := [name for name in names if name not in stored.files]:
                raise DataError(f"{path}: no array {missing[0]!r}; it holds {', '.join(stored.files) or 'nothing'}")
            return {name: stored[name] for name in names or stored.files}
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error, AttributeError) as error:
        # AttributeError: a lone .npy array under the name of an .npz.
        raise DataError(f"{path}: not an .npz of plain arrays ({error})") from None


def unpack_text(name: str, content: bytes) -> bytes:
    """The text of a member that may be gzipped."""
    if not name.endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise DataError(f"{name}: damaged gzip ({error})") from None


def _read_bounded(file: Path) -> bytes:
    if (size := file.stat().st_size) > LARGEST_MEMBER_BYTES:
        raise DataError(f"{file}: {size} bytes; at most {LARGEST_MEMBER_BYTES} are read")
    return file.read_bytes()
