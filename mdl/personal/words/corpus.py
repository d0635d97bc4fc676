"""Text of people and of the public, read in place: a file or a folder of .txt, .jsonl (one text a line), packed or not.

A folder's files are read in the order of their names. Each line of a .txt is text; each of a .jsonl is an object with
a "text", and perhaps an "author".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from mdl.data.readers.archive import list_files, open_members, open_text
from mdl.errors import DataError
from mdl.reading import decode_json

_EXPECTED = "a file or folder of .txt, .txt.gz, .jsonl, .jsonl.gz, or a .zip of .txt"


class NoTextError(DataError):
    """A place where text was expected, and is none."""

    hint = f"give {_EXPECTED}"


class _Entry(msgspec.Struct):
    """One line of a .jsonl. text: what somebody wrote; author: who, where the file says."""

    text: str
    author: str = ""


def read_lines_of(path: Path, author: str = "") -> Iterator[str]:
    """Every line of text, in the files' order. author: only of this one, in files that name authors.

    Raises DataError that names the file and line for what is no text, and for a place without any.
    """
    found = False
    for file in list_files(path):
        kind = file.name.removesuffix(".gz")
        if kind.endswith(".txt"):
            lines: Iterator[str] = _read_text(file)
        elif kind.endswith(".jsonl"):
            lines = _read_entries(file, author)
        elif file.name.endswith(".zip"):
            lines = _read_zip(file)
        else:
            continue
        for line in lines:
            found = True
            yield line
    if not found:
        whose = f" by author {author!r}" if author else ""
        raise NoTextError(f"{path}: no text{whose} in it; expected {_EXPECTED}")


def _read_text(file: Path) -> Iterator[str]:
    with open_text(file, errors="replace") as lines:
        yield from lines


def _read_entries(file: Path, author: str) -> Iterator[str]:
    with open_text(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry = decode_json(line, _Entry, f"{file}, line {number}", 'an object with a "text"')
            if not author or entry.author == author:
                yield entry.text


def _read_zip(file: Path) -> Iterator[str]:
    with open_members(file) as members:
        for name in members.names():
            if name.endswith(".txt") and not name.rpartition("/")[2].startswith("README"):
                yield from members.read(name).decode("utf-8", errors="replace").splitlines()
