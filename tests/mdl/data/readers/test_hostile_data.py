"""Data files that were made to do harm: each is one line, in bounded time and memory."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mdl.data import load_data
from mdl.data.readers.archive import LARGEST_MEMBER_BYTES, load_arrays, open_members
from mdl.errors import ConfigError, DataError

# Address space that a test may take on top of what it has: far below what the bombs here unpack to.
_HEADROOM_BYTES = 2 << 30
_MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def _bounded_memory() -> object:
    resource = pytest.importorskip("resource")
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _HEADROOM_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def npy(shape: str, content: bytes = b"", descr: str = "'<f4'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def zeros(name: str, megabytes: int) -> bytes:
    """A zip with one member of zeros, written without holding them."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        for _ in range(megabytes):
            member.write(bytes(_MEGABYTE))
    return file.getvalue()


def encrypted(content: bytes) -> bytes:
    """The flag alone: nobody has the password anyway."""
    local, central = content.index(b"PK\3\4") + 6, content.index(b"PK\1\2") + 8
    return content[:local] + b"\1" + content[local + 1 : central] + b"\1" + content[central + 1 :]


def method(content: bytes, number: int) -> bytes:
    local, central = content.index(b"PK\3\4") + 8, content.index(b"PK\1\2") + 10
    return content[:local] + bytes([number]) + content[local + 1 : central] + bytes([number]) + content[central + 1 :]


def deep(depth: int) -> bytes:
    content = b"x"
    for _ in range(depth):
        content = zipped({"inner.zip": content})
    return content


# The file's name, what is in it, and the data spec behind its path.
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "npz of a huge shape": ("a.npz", lambda: zipped({"x.npy": npy("(1000000000000,)"), "y.npy": npy("(2,)")}), ""),
    "npz of a huge count": ("a.npz", lambda: zipped({"x.npy": npy(f"({'9' * 400},)"), "y.npy": npy("(2,)")}), ""),
    "npz of 5,000 digits": ("a.npz", lambda: zipped({"x.npy": npy(f"({'9' * 5000},)"), "y.npy": npy("(2,)")}), ""),
    "npz of a negative shape": ("a.npz", lambda: zipped({"x.npy": npy("(-1, -4)", bytes(16)), "y.npy": b""}), ""),
    "npz of empty texts": ("a.npz", lambda: zipped({"x.npy": b"", "y.npy": npy("(900000000,)", b"", "'<U0'")}), ""),
    "npz of nested brackets": ("a.npz", lambda: zipped({"x.npy": npy("(" * 9000), "y.npy": b""}), ""),
    "npz of objects": ("a.npz", lambda: zipped({"x.npy": npy("(1,)", b"\x80\4N.", "'|O'"), "y.npy": b""}), ""),
    "npz of zeros": ("a.npz", lambda: zeros("x.npy", 140), ""),
    "npz, encrypted": ("a.npz", lambda: encrypted(zipped({"x.npy": npy("(2,)", bytes(8))})), ""),
    "npz, unknown packing": ("a.npz", lambda: method(zipped({"x.npy": npy("(2,)", bytes(8))}), 99), ""),
    "npz that is a text": ("a.npz", lambda: b"hello", ""),
    "npz, empty": ("a.npz", lambda: b"", ""),
    "zip, encrypted": ("a.zip", lambda: encrypted(zipped({"train/y_train.txt": b"1\n"})), "uci-har"),
    "zip of zeros": ("a.zip", lambda: zeros("train/y_train.txt", 140), "uci-har"),
    "zip in a zip in a zip": ("a.zip", lambda: deep(4), "uci-har"),
    "zip of a zip of zeros": ("a.zip", lambda: zipped({"b.zip": zeros("train/y_train.txt", 140)}), "uci-har"),
    "zip of what is no zip": ("a.zip", lambda: zipped({"b.zip": b"hello"}), "uci-har"),
    "zip of empty lines": ("a.zip", lambda: zipped({"train/y_train.txt": b"\n" * (20 << 20)}), "uci-har"),
    "semg of zeros in gzip": (
        "a.zip",
        lambda: zipped({"01/1_raw_data_a.txt.gz": gzip.compress(b"time" + bytes(140 << 20), 1)}),
        "semg",
    ),
    "uci-har of words": ("a.npz", lambda: words("train_X train_y train_subject test_X test_y test_subject"), "uci-har"),
    "semg of words": ("a.npz", lambda: words("codes label subject series"), "semg"),
    "csv of 200,000 columns": ("a.csv", lambda: row(200_000) + row(200_000), "csv?label=c0"),
    "csv of one line": ("a.csv", lambda: b"a,b\n" + b"1" * (8 << 20), "csv?label=b"),
    "csv of one line in quotes": ("a.csv", lambda: b'a,b\n1,"' + b"1\n" * (1 << 20), "csv?label=b"),
    "csv of a header alone": ("a.csv", lambda: b"a," * (8 << 20), "csv?label=b"),
    "csv of a book as a label": ("a.csv", lambda: b"a,b\n" + b"1,x\n" * 200_000 + b"1," + b"x" * 60_000, "csv?label=b"),
    "csv of 5,000 digits": ("a.csv", lambda: b"a,b\n" + b"1" * 5000 + b",x\n", "csv?label=b"),
    "csv of binary": ("a.csv", lambda: bytes(range(256)) * 1000, "csv?label=b"),
    "csv of NUL": ("a.csv", lambda: b"a,b\n\0,\0\n", "csv?label=b"),
    "csv.gz of zeros": ("a.csv.gz", lambda: gzip.compress(b"a,b\n" + b"1,x\n" * (5 << 20), 9), "csv?label=b"),
    "csv.gz, truncated": ("a.csv.gz", lambda: gzip.compress(b"a,b\n" + b"1,x\n" * 9999)[:-20], "csv?label=b&window=9"),
    "csv.gz that is none": ("a.csv.gz", lambda: b"hello", "csv?label=b"),
    "csv of a wide gap": (
        "a.csv",
        lambda: b"t,a,b\n" + b"".join(b"%d,1,x\n" % t for t in [*range(100), 10**15]),
        "csv?label=b&time=t&time_unit=s&rate=1&max_gap=1e9",
    ),
    "places of one line": ("a.csv", lambda: b"time,place\n" + b"1" * (8 << 20), "places"),
    "places of a far time": ("a.csv", lambda: b"time,place\n1e300,home\n", "places"),
    "places of 5,000 digits": ("a.csv", lambda: b"time,place\n" + b"1" * 5000 + b",home\n", "places"),
    "places of bytes": ("a.csv", lambda: b"time,place\n1,\xff\xfe\n", "places"),
    "places.gz, truncated": ("a.csv.gz", lambda: gzip.compress(b"time,place\n" + b"1,x\n" * 9999)[:-20], "places"),
    "places of a long name": ("a.csv", lambda: b"time,place\n1," + b"x" * 9999, "places"),
}


def words(names: str) -> bytes:
    file = io.BytesIO()
    np.savez(file, **dict.fromkeys(names.split(), np.array(["a"])))  # type: ignore[arg-type]
    return file.getvalue()


def row(count: int) -> bytes:
    return b",".join(b"c%d" % index for index in range(count)) + b"\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line(name: str, tmp_path: Path) -> None:
    file, content, spec = HOSTILE[name]
    (tmp_path / file).write_bytes(content())
    source, mark, options = (spec or "npz").partition("?")
    with pytest.raises((DataError, ConfigError)) as caught:
        load_data(f"{source}:{tmp_path / file}{mark}{options}", tmp_path / "cache")
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 3000 or name == "csv of 200,000 columns"


@pytest.mark.parametrize("source", ["npz", "csv", "places", "uci-har", "semg"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder", "loop", "x" * 5000, "nul\0l", "secret"])
def test_what_is_no_file_is_one_line(source: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind if kind != "/dev/zero" else Path(kind)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "loop").symlink_to(path)
        (path / "again").symlink_to(path)
    elif kind == "loop":
        path.symlink_to(path)
    with pytest.raises(DataError) as caught:
        load_data(f"{source}:{path}{'?label=a' if source == 'csv' else ''}", tmp_path / "cache")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "motion?people=1000&windows=10000",
        "motion?seed=-1",
        f"motion?seed={'9' * 5000}",
        f"motion?windows={'9' * 5000}",
        "csv:a.csv?label=b&rate=1e300",
        "csv:a.csv?label=b&rate=nan",
        "csv:a.csv?label=b&window=1000000000000000000000000000000",
        "csv:a.csv?label=b&seed=-1",
        "csv:a.csv?label=b&max_gap=inf",
        "places:a.csv?hole=100000000000000000000000000",
        "npz:a.npz?seed=-1",
    ],
)
def test_a_spec_of_impossible_numbers_is_one_line(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n" + "1,x\n" * 9)
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 16, 3)), y=np.arange(4) % 2)
    with pytest.raises((ConfigError, DataError)) as caught:
        load_data(spec, tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_links_to_their_own_folder_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{row},{'xy'[row // 40 % 2]}\n" for row in range(400)))
    for name in ("one", "two", "three"):
        (tmp_path / name).symlink_to(tmp_path)
    for where in (tmp_path, f"{tmp_path}/**/*.csv"):
        assert len(load_data(f"csv:{where}?label=b&window=9", tmp_path / "cache").train) > 0


def test_overlapping_windows_of_a_small_file_do_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,x\n" * 200_000)
    with pytest.raises(DataError, match=r"would take .* GB of memory"):
        load_data(f"csv:{tmp_path}/a.csv?label=b&window=100000&step=1", tmp_path / "cache")


def test_honest_packed_data_is_read(tmp_path: Path) -> None:
    """Small integers pack well, and are no bomb."""
    x = np.zeros((4096, 128, 9), np.float32)
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.arange(4096) % 2)
    assert x.nbytes < LARGEST_MEMBER_BYTES
    assert load_arrays(tmp_path / "a.npz")["x"].shape == x.shape


def test_arrays_come_as_they_were_stored(tmp_path: Path) -> None:
    arrays = {
        "c": np.arange(6).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "u": np.array(["é"]),
        "s": np.array(3.5),
        "e": np.zeros((0, 3)),
    }
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    for name, array in load_arrays(tmp_path / "a.npz").items():
        assert np.array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype


def test_a_list_of_a_million_members_is_not_read(tmp_path: Path) -> None:
    whole = zipped({f"{index:05d}": b"" for index in range(2000)})
    end = whole.rindex(b"PK\5\6")
    patched = whole[: end + 12] + struct.pack("<I", 500 << 20) + whole[end + 16 :]
    (tmp_path / "a.zip").write_bytes(patched)
    with pytest.raises(DataError, match="of members"), open_members(tmp_path / "a.zip"):
        pass
