"""Raw results leave the tree: a release has them as one file, whose SHA-256 is in `benchmarks/results.sha256`.

    python -m benchmarks results --pack                              # benchmarks/results becomes dist/FILE
    python -m benchmarks results dist/mdl-benchmark-results.tar      # checks a file, and unpacks it there again

The same results give the same file: names are sorted, and a member has neither a time nor an owner.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import tarfile
from pathlib import Path

from benchmarks.tool.machine import ROOT
from benchmarks.tool.sheet import Sheet
from mdl.errors import ConfigError, DataError

FOLDER = ROOT / "benchmarks" / "results"
RECORD = ROOT / "benchmarks" / "results.sha256"
NAME = "mdl-benchmark-results.tar"
# More than all results have: a file is read at once.
_LARGEST_BYTES = 256 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", help=f"a {NAME} of a release: checked, and unpacked")
    parser.add_argument("--pack", action="store_true", help="make the release's file, and record its SHA-256")


def run(given: argparse.Namespace, sheet: Sheet) -> None:
    """Pack or unpack. Raises ConfigError, DataError."""
    if given.pack == (given.file is not None):
        raise ConfigError("give --pack, or a file to unpack")
    if given.pack:
        file = ROOT / "dist" / NAME
        sheet.tell({"file": NAME, "files": pack(FOLDER, file, RECORD)})
        print(f"{file.relative_to(ROOT)}, recorded in {RECORD.relative_to(ROOT)}")
    else:
        sheet.tell({"file": given.file.name, "files": unpack(given.file, FOLDER, RECORD)})
        print(f"unpacked into {FOLDER.relative_to(ROOT)}")


def pack(folder: Path, file: Path, record: Path) -> int:
    """Write all of a folder into a tar, and its SHA-256 into `record`; return the number of files.

    Raises DataError if there is nothing to pack.
    """
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    if not found:
        raise DataError(f"{folder} has no results: run benchmarks with --out, or unpack a release's file first")
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in found:
            member = tarfile.TarInfo(f"results/{path.relative_to(folder).as_posix()}")
            member.size = path.stat().st_size
            tar.addfile(member, io.BytesIO(path.read_bytes()))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(written.getvalue())
    record.write_text(f"{hashlib.sha256(written.getvalue()).hexdigest()}  {file.name}\n")
    return len(found)


def unpack(file: Path, folder: Path, record: Path) -> int:
    """Write a tar's results into a folder, if it is the recorded one; return the number of files. Raises DataError."""
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise DataError(f"{file}: larger than any file of results")
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None
    wanted, found = record.read_text().split()[0], hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise DataError(f"{file}: its SHA-256 is {found}; {record.name} has {wanted}: take the file of this release")
    count = 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            place = folder / Path(member.name).relative_to("results")
            if content is None or not place.resolve().is_relative_to(folder.resolve()):
                raise DataError(f"{file}: {member.name} is no result")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.read())
            count += 1
    return count
