"""A folder, a zip, or a zip within a zip, read the same way: named members, one at a time, each bounded.

`parse_table` makes numbers of a member's text, fast, and names the line when one is wrong.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import math
import os
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePath, PurePosixPath
from tokenize import TokenError
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from mdl.errors import DataError
from mdl.reading import open_regular, read_bytes, shorten

# The largest member of the known sets is a zip of 61 MB; a far larger one belongs to none of them, or is a bomb.
LARGEST_MEMBER_BYTES = 128 << 20
# Text of sensors packs 3 to 10 times, many repeats 20 times. Zeros pack 1,000 times.
MOST_UNPACKED = 50
# Ten seconds of parsing: a row is slow, however short.
_LEAST_TEXT_BYTES = 16 << 20
# The original UCI HAR has 40 members of 100 bytes each in its list.
_LARGEST_DIRECTORY_BYTES = 8 << 20
# The most members of a zip of recordings: its list is read again for each of them.
MOST_MEMBERS = 2_000
# The size of the record at the end of a zip, with the longest comment.
_END_RECORD_BYTES = 22 + (1 << 16)
# A row of a thousand channels has 20,000 characters.
LONGEST_LINE = 1 << 17

_PIECE_BYTES = 1 << 20
# Lines parsed as a whole: enough that a call costs little beside its lines.
_BLOCK_BYTES = 1 << 20
# Lines parsed as a whole where a block has an unusual row: few enough that the others in it cost little.
_NARROW_CHARACTERS = 1 << 16
# The share of zeros in every second byte of UTF-16 text in the west; a few letters are beyond the first 256.
_MOSTLY = 0.8

# The second line: errors of numpy for a header that is not one of its own dictionaries.
_DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, struct.error),
    *(TokenError, SyntaxError, TypeError, OverflowError),
)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class ArchiveFiles(Protocol):
    """The files of a data set, by their path inside it."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a member to read in pieces, so that it may be larger than LARGEST_MEMBER_BYTES."""
        ...


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[str]:
        return sorted(str(PurePosixPath(*f.relative_to(self._root).parts)) for f in list_files(self._root))

    def read(self, name: str) -> bytes:
        return read_bytes(self._root / name, LARGEST_MEMBER_BYTES)

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        return open_regular(self._root / name)


class _Zip:
    """budget: bytes that may still be unpacked from it."""

    def __init__(self, archive: zipfile.ZipFile, where: str, budget: int) -> None:
        self._archive = archive
        self._where = where
        self.budget = budget

    def names(self) -> list[str]:
        return sorted(name for name in self._archive.namelist() if not name.endswith("/"))

    def read(self, name: str) -> bytes:
        size = self._archive.getinfo(name).file_size
        if size > min(LARGEST_MEMBER_BYTES, self.budget):
            raise DataError(
                f"{self._where}: {name} unpacks to {size} bytes; at most {LARGEST_MEMBER_BYTES} are read of one file, "
                f"and {MOST_UNPACKED} times its size of an archive"
            )
        self.budget -= size
        with _reading_zip(f"{self._where}: {name}"):
            return self._archive.read(name)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        size = self._archive.getinfo(name).file_size
        if size > self.budget:
            raise DataError(f"{self._where}: {name} unpacks to {size} bytes, more than {MOST_UNPACKED} times its size")
        self.budget -= size
        with _reading_zip(f"{self._where}: {name}"), self._archive.open(name) as member:
            yield cast(BinaryIO, member)


@contextmanager
def open_members(path: Path) -> Iterator[ArchiveFiles]:
    """Yield the members of a folder or zip. A zip that holds another zip (as the archive delivers) is opened, too."""
    if path.is_dir():
        yield _Folder(path)
        return
    with _open_zip(path, "the original folder, its zip or the .npz") as archive:
        whole = _Zip(archive, str(path), largest_unpacked(path.stat().st_size))
        inner = [name for name in archive.namelist() if name.lower().endswith(".zip")]
        if not inner:
            yield whole
            return
        content = io.BytesIO(whole.read(inner[0]))
        where = f"{path}: {inner[0]}"
        with _reading_zip(where):
            _check_directory(content, where)
            nested = zipfile.ZipFile(content)
        with nested:
            yield _Zip(nested, where, whole.budget)


def largest_unpacked(packed_bytes: int, least: int = LARGEST_MEMBER_BYTES) -> int:
    """Return the most bytes that a packed file of this size may hold, at least `least`."""
    return max(least, MOST_UNPACKED * packed_bytes)


def list_files(path: Path) -> list[Path]:
    """Return the file itself, or every file below a folder, sorted. Raises DataError if there is nothing there."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) else ""
        raise DataError(f"{path}: {reason or 'no such file or folder'}") from None
    if not stat.S_ISDIR(mode):
        open_regular(path).close()
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path)))


def list_tables(path: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return every file with one of these endings (".csv") at or below a path, those in zips as ZIP/NAME, sorted.

    path: may be such a ZIP/FOLDER. A file that is named itself needs no ending. Raises DataError if there is nothing
    there, or a zip holds too many.
    """
    if (packed := on_disk(path)) != path:
        return [member for member in _list_members(packed) if path in member.parents]
    found = []
    for file in list_files(path):
        if file.suffix.lower() == ".zip":
            found += [member for member in _list_members(file) if member.name.lower().endswith(endings)]
        elif file == path or file.name.lower().endswith(endings):
            found.append(file)
    return found


def on_disk(file: Path) -> Path:
    """Return the zip that a file of `list_tables` lies in, or the file itself."""
    return next((each for each in file.parents if each.suffix.lower() == ".zip" and each.is_file()), file)


def _list_members(file: Path) -> list[Path]:
    """Return the files of a zip, without names that lead out of it."""
    with _open_zip(file, "a zip of recordings") as archive:
        names = [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]
    inside = [name for name in names if not name.is_absolute() and ".." not in name.parts and not _is_hidden(name)]
    if len(inside) > MOST_MEMBERS:
        raise DataError(f"{file}: {len(inside)} files; at most {MOST_MEMBERS} are read from a zip: unpack it")
    return sorted(file / name for name in inside)


def _is_hidden(name: PurePath) -> bool:
    """Return True for files of a system or an editor: .ipynb_checkpoints, .DS_Store, __MACOSX."""
    return any(part.startswith((".", "__MACOSX")) for part in name.parts)


def load_arrays(path: Path, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names (default: all) in an .npz. Raises DataError if one is missing or pickled.

    No array takes memory before its header and the archive's directory agree on its size.
    """
    with _open_zip(path, "", "not an .npz of plain arrays") as archive:
        stored = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if missing := [name for name in names if name not in stored]:
            raise DataError(f"{path}: no array {missing[0]!r}; it holds {', '.join(stored) or 'nothing'}")
        wanted = {name: stored[name] for name in names or stored}
        unpacked, most = sum(info.file_size for info in wanted.values()), largest_unpacked(path.stat().st_size)
        if unpacked > most:
            raise DataError(f"{path}: unpacks to {unpacked} bytes; at most {most} are read of a file of its size")
        with _reading_zip(str(path), "not an .npz of plain arrays"):
            return {name: _read_array(archive, info) for name, info in wanted.items()}


def check_numbers(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise DataError unless each holds one whole number for each row."""
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{path}: {name} is {array.dtype} of shape {array.shape}; expected whole numbers, one a row"
            )


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"{info.filename} is of version {version}")
        shape, by_column, dtype = _HEADERS[version](member)
        count, left = math.prod(shape), info.file_size - member.tell()
        if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0 or count * dtype.itemsize != left:
            raise ValueError(f"{info.filename} claims {dtype} of shape {shape}, has {left} bytes; objects are not read")
        array = np.empty(count, dtype)
        whole, filled = array.view(np.uint8), 0
        while filled < left:
            if not (piece := member.read(_PIECE_BYTES)):
                raise EOFError(f"{info.filename} ends too early")
            whole[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
    return array.reshape(shape, order="F" if by_column else "C")


@contextmanager
def _open_zip(path: Path, expected: str, problem: str = "not a zip file") -> Iterator[zipfile.ZipFile]:
    with open_regular(path, expected) as file:
        with _reading_zip(f"{path}", f"{problem}{f'; expected {expected}' if expected else ''}"):
            _check_directory(file, str(path))
            archive = zipfile.ZipFile(file)
        with archive:
            yield archive


@contextmanager
def _reading_zip(where: str, problem: str = "damaged, or packed in a way that is not read here") -> Iterator[None]:
    """Turn the standard library's errors for an archive that is torn, encrypted, or none at all into DataError."""
    try:
        yield
    except (*_DAMAGES, RuntimeError, ValueError, EOFError, OSError) as error:  # RuntimeError: encrypted
        raise DataError(f"{where}: {problem} ({shorten(error)})") from None


def _check_directory(file: BinaryIO, where: str) -> None:
    """Bound the list of members before it is read whole. Raises DataError."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END_RECORD_BYTES))
    end = file.read().rpartition(b"PK\5\6")[2]
    file.seek(0)
    if len(end) >= 12 and int.from_bytes(end[8:12], "little") > _LARGEST_DIRECTORY_BYTES:
        raise DataError(f"{where}: a list of more than {_LARGEST_DIRECTORY_BYTES} bytes of members")


@contextmanager
def open_text(
    file: Path, *, encoding: str = "utf-8-sig", errors: str = "strict", newline: str | None = None
) -> Iterator[Iterator[str]]:
    """Yield the lines of a text file that may be gzipped. Raises DataError for a file without lines of text.

    Neither a line nor a packed file's content has to fit into memory for this to be found out.
    """
    with _open_unpacked(file) as (source, most), io.TextIOWrapper(source, encoding, errors, newline) as text:
        yield _bounded_lines(text, file, most)


class TextBlocks:
    """The lines of a text file as `open_text` yields them; or, with `look` and `skip`, all those of a block at once."""

    def __init__(self, source: BinaryIO, encoding: str, file: Path, most: int | None) -> None:
        self._source, self._file, self._most = source, file, most
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        # The text that was read, the places of the next line and of the block's end in it, and its last, open line.
        self._text, self._at, self._end, self._left = "", 0, 0, ""
        self._is_narrow = False
        self._total, self._number, self._ended = 0, 0, False

    @property
    def is_between(self) -> bool:
        """True if all lines of the block have been given."""
        return self._at == self._end

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self.fill():
            raise StopIteration
        end = self._text.find("\n", self._at) + 1 or len(self._text)
        line, self._at = self._text[self._at : end], end
        self._total, self._number = self._total + len(line), self._number + 1
        _check_line(line, self._file, self._number, self._total, self._most)
        return line

    def fill(self) -> bool:
        """Have lines to give: read a block if there are none. Return False at the end of the file."""
        if self.is_between and self._end < len(self._text):
            self._cut()
        while self.is_between and not self._ended:
            piece = self._source.read(_BLOCK_BYTES)
            self._ended = not piece
            text = self._left + self._decoder.decode(piece, final=self._ended)
            cut = len(text) if self._ended else text.rfind("\n") + 1
            if not cut and len(text) > LONGEST_LINE:
                cut = len(text)  # `next` refuses it
            self._text, self._left, self._at, self._end, self._is_narrow = text[:cut], text[cut:], 0, cut, False
        return not self.is_between

    def narrow(self) -> bool:
        """Cut what was read into smaller blocks, from the next line on. Return False if it was cut already."""
        if self._is_narrow:
            return False
        self._is_narrow = True
        self._cut()
        return True

    def _cut(self) -> None:
        self._end = self._text.find("\n", self._at + _NARROW_CHARACTERS) + 1 or len(self._text)

    def look(self) -> str:
        """Return the block's lines that have not been given; "" if they unpack to too much, of which `next` tells."""
        text = self._text[self._at : self._end]
        if self._most is not None and self._total + len(text) > self._most:
            return ""
        return text

    def skip(self, lines: int) -> None:
        """Count the block's lines as given."""
        self._total, self._number = self._total + self._end - self._at, self._number + lines
        self._at = self._end


@contextmanager
def open_blocks(file: Path, encoding: str) -> Iterator[TextBlocks]:
    """Yield the lines of a text file that may be gzipped. Raises DataError as `open_text` does."""
    with _open_unpacked(file) as (source, most):
        yield TextBlocks(source, encoding, file, most)


def find_encoding(file: Path) -> str:
    """Return the encoding of a text file that may be gzipped: UTF-8, spreadsheets' UTF-16, or Windows' western.

    The whole file is read, a piece at a time: the first letter that is not ASCII may be in its last line.
    """
    with _open_unpacked(file) as (source, most):
        return _encoding_of(source, most)


def decode_lines(content: bytes) -> Iterator[str]:
    """Return the lines of text in an encoding that is found likewise."""
    encoding = _encoding_of(io.BytesIO(content), None)
    return io.TextIOWrapper(io.BytesIO(content), encoding, errors="replace")


def _encoding_of(source: BinaryIO, most: int | None) -> str:
    piece = source.read(_PIECE_BYTES)
    if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for name, zeros in (("utf-16-le", piece[1:4096:2]), ("utf-16-be", piece[:4096:2])):
        if len(zeros) > 1 and zeros.count(0) > _MOSTLY * len(zeros):
            return name
    decoder, total = codecs.getincrementaldecoder("utf-8")(), 0
    while piece and (most is None or total <= most):
        try:
            # ASCII needs no decoding, unless a letter was cut before it.
            if decoder.getstate()[0] or not piece.isascii():
                decoder.decode(piece)
        except UnicodeDecodeError:
            return "cp1252"
        total += len(piece)
        piece = source.read(_PIECE_BYTES)
    return "utf-8-sig"


@contextmanager
def open_raw(file: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Yield the bytes of a file or of a member of a zip, as they are, and their number. Raises DataError."""
    if (packed := on_disk(file)) == file:
        with open_regular(file, "a text file") as raw:
            yield raw, os.fstat(raw.fileno()).st_size
        return
    name = str(PurePosixPath(*file.relative_to(packed).parts))
    with _open_zip(packed, "a zip of recordings") as archive:
        try:
            size = archive.getinfo(name).file_size
        except KeyError:
            raise DataError(f"{packed}: it holds no {name}") from None
        members = _Zip(archive, str(packed), largest_unpacked(packed.stat().st_size, _LEAST_TEXT_BYTES))
        with members.open(name) as member:
            yield member, size


@contextmanager
def _open_unpacked(file: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """Yield the bytes of a file that may be gzipped; if it is, also the most bytes to read."""
    with open_raw(file) as (raw, size):
        packed = file.name.endswith(".gz")
        source = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        most = largest_unpacked(size, _LEAST_TEXT_BYTES) if packed else None
        try:
            yield source, most
        except (*_DAMAGES, OSError, EOFError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: damaged ({shorten(error)})") from None


def _bounded_lines(text: io.TextIOWrapper, file: Path, most: int | None) -> Iterator[str]:
    total, number = 0, 0
    while line := text.readline(LONGEST_LINE + 1):
        total, number = total + len(line), number + 1
        _check_line(line, file, number, total, most)
        yield line


def _check_line(line: str, file: Path, number: int, total: int, most: int | None) -> None:
    """Raise DataError for a line that is too long, or beyond the most characters of a packed file."""
    if len(line) > LONGEST_LINE:
        raise DataError(f"{file}, line {number}: more than {LONGEST_LINE} characters; expected lines of text")
    if most is not None and total > most:
        raise DataError(f"{file}: unpacks to more than {most} bytes, {MOST_UNPACKED} times its size")


def unpack_text(name: str, content: bytes) -> bytes:
    """Return the text of a member that may be gzipped."""
    if not name.endswith(".gz"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            text = file.read(LARGEST_MEMBER_BYTES + 1)
    except (*_DAMAGES, OSError, EOFError) as error:
        raise DataError(f"{name}: damaged gzip ({shorten(error)})") from None
    if len(text) > LARGEST_MEMBER_BYTES:
        raise DataError(f"{name}: unpacks to more than {LARGEST_MEMBER_BYTES} bytes")
    return text


def parse_table(text: bytes, columns: int, where: str, first_line: int = 1) -> NDArray[np.float64]:
    """Parse whitespace-separated numbers as (rows, columns), float64.

    Raises DataError naming the line that holds something else, another count of values, or NaN.
    """
    with warnings.catch_warnings():
        # numpy says "could not be read to its end" as a warning today and as a ValueError in future versions.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text.decode("ascii"), dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            raise _blame(text, columns, where, first_line) from None
    lines = text.count(b"\n") + (not text.endswith(b"\n") and bool(text.strip()))
    if values.size != lines * columns or not np.isfinite(values.sum()):
        raise _blame(text, columns, where, first_line)
    return values.reshape(-1, columns)


def _blame(text: bytes, columns: int, where: str, first_line: int) -> DataError:
    for number, line in enumerate(io.BytesIO(text), start=first_line):
        fields = line.split()
        for field in fields:
            try:
                good = bool(np.isfinite(float(field)))
            except ValueError:
                good = False
            if not good:
                return DataError(f"{where}, line {number}: {field.decode('latin-1')!r}; expected a finite number")
        if len(fields) != columns:
            return DataError(f"{where}, line {number}: {len(fields)} values; expected {columns}")
    return DataError(f"{where}: expected lines of {columns} numbers, without empty lines")
