"""Names of classes and people: from cells, from folders, and as small numbers; and several labels of a row.

Labels stand in columns of 0 and 1, or their names in the cells of one column.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdl.data.spec import describe_choices, split_names
from mdl.data.tables.blocks import distinct
from mdl.data.tables.dialect import is_nothing
from mdl.data.tables.options import CsvOptions
from mdl.data.tables.rows import Floats64
from mdl.data.tables.stretches import UNLABELLED
from mdl.data.windows import Integers
from mdl.errors import ConfigError, DataError
from mdl.reading import shorten

# Longest name of a class or a person; a longer text is none.
LONGEST_NAME = 256
# The most distinct values: a column of more holds measurements, or texts, and no classes.
_MOST_NAMES = 10_000
_WHOLE = re.compile(r"([+-]?\d+)\.0*")


# Names of folders that tell the side of a split.
_TRAINED, _TESTED = ("train", "training"), ("val", "valid", "validation", "test", "testing")
_FLAGS = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


class Numbering:
    """Numbers names in the order in which they come. An empty name, and one to be skipped, is UNLABELLED."""

    def __init__(self, what: str, skip: Sequence[str] = (), declared: Sequence[str] = ()) -> None:
        """Begin. The errors call a name one of a `what`. declared: all valid names, in their order."""
        self._what = what
        self._skip = frozenset(each.casefold() for each in skip)
        self._declared = {each.casefold(): each for each in declared}
        self._number: dict[str, int] = {name: place for place, name in enumerate(declared)}
        self._of_cell: dict[str, int] = {}
        self._nothing: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The names, by number."""
        return tuple(self._number)

    def number(self, cells: Sequence[str], file: Path, first: int, column: str) -> Integers:
        """Return int64, one a cell. Raises DataError naming the row of a text that is no name, or not declared."""
        known = self._of_cell
        words, places = distinct(cells)
        for word in words:
            if word not in known:
                known[word] = self._learn(word, f"{file}: data row {first + cells.index(word)}: column {column!r}")
        return np.array([known[word] for word in words], np.int64)[places]

    def is_nothing(self, cell: str) -> bool:
        """Return True for a cell that names none, among those that `number` took."""
        return cell in self._nothing

    def _learn(self, cell: str, where: str) -> int:
        text = cell.strip()
        if len(text) > LONGEST_NAME:
            raise DataError(f"{where} has {len(text)} characters; expected a name")
        if is_nothing(text) or text.casefold() in self._skip:
            if text.casefold() not in self._skip:
                self._nothing.add(cell)
            return UNLABELLED
        # A spreadsheet, or a program that met an empty cell in the column, writes 3 as 3.0.
        name = match[1] if (match := _WHOLE.fullmatch(text)) else text
        if self._declared and name.casefold() not in self._declared:
            names = ", ".join(self._declared.values())
            raise DataError(f"{where} is {name!r}, none of classes={names}; add it there, or leave it out with ?skip=")
        name = self._declared.get(name.casefold(), name)
        if len(self._number) >= _MOST_NAMES:
            raise DataError(f"{where}: more than {_MOST_NAMES} different values; expected names of a {self._what}")
        return self._number.setdefault(name, len(self._number))


def number_classes(options: CsvOptions) -> Numbering:
    """Return the numbering of the labels. Raises ConfigError if two declared classes are one."""
    declared = split_names(options.classes)
    if twice := [name for name in declared if [each.casefold() for each in declared].count(name.casefold()) > 1]:
        raise ConfigError(f"classes={options.classes[:100]}: {twice[0]!r} is there twice")
    return Numbering("class", split_names(options.skip), declared)


def refuse_one_class_by_two_names(names: Sequence[str], where: str) -> None:
    """Raise DataError if two classes differ by case or spaces alone, as "Walking" and "walking" do."""
    seen: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[\s_-]+", " ", name).casefold()
        if plain in seen:
            raise DataError(
                f"{where}: are {seen[plain]!r} and {name!r} one class? Write it alike, or say ?classes=NAME,NAME,..."
            )
        seen[plain] = name


def find_sides(path: str, files: Sequence[Path]) -> tuple[NDArray[np.bool_] | None, str]:
    """Return (True for each test file, a note) if the folders below a path are the sides of a split.

    They are called train, and val or test. (None, "") if a file is in another folder, or all are on one side.
    """
    try:
        folders = [name_from_path("path", path, file) for file in files]
    except ConfigError:
        return None, ""
    sides = np.array([folder.casefold() in _TESTED for folder in folders])
    if sides.all() or not sides.any() or not {each.casefold() for each in folders} <= {*_TRAINED, *_TESTED}:
        return None, ""
    train, test = (
        sorted({folder for folder, side in zip(folders, sides, strict=True) if side == tested})
        for tested in (False, True)
    )
    return sides, f"{'/, '.join(train)}/ is trained on, {'/, '.join(test)}/ is tested on (by the folders' names)"


def below_sides(said: str) -> str:
    """Return the meaning of `path` if the first folders are sides of a split: the second one."""
    return "path:2" if said == "path" else said


def name_from_path(said: str, path: str, file: Path) -> str:
    """Return the name of `path`, `path:N` or `file` for this file of csv:PATH. Raises ConfigError if it has none."""
    word, _, number = said.partition(":")
    if word == "file":
        return file.name.partition(".")[0]
    root = Path(path)
    if glob.has_magic(path) and not root.exists():
        parts = root.parts
        root = Path(*parts[: next(place for place, part in enumerate(parts) if glob.has_magic(part))])
    folders = file.parent.relative_to(root).parts if file.is_relative_to(root) and file != root else ()
    place = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0 if number else 1
    if not 1 <= place <= len(folders):
        raise ConfigError(
            f"{file}: {said!r} is the name of a folder between {root} and the file; there are {len(folders)} "
            f"({'file would be its own name' if not folders else 'path:1 is the first'})"
        )
    return folders[place - 1]


def read_flags(cells: Sequence[str], file: Path, first: int, column: str) -> Floats64:
    """Return float64, 1 if the label holds, NaN for an empty cell. Raises DataError naming the row and the column."""
    return np.array([_read_flag(cell, file, first + row, column) for row, cell in enumerate(cells)])


def part_labels(
    cells: Sequence[str], names: Sequence[str], separator: str, file: Path, first: int, column: str
) -> list[Floats64]:
    """Return for each name float64, 1 in rows with it in their cell, 0 for "none" or "-", NaN for an empty cell.

    Raises DataError naming the row of a label that is none of `names`.
    """
    places = {name.casefold(): place for place, name in enumerate(names)}
    known: dict[str, Floats64] = {}
    for row, cell in enumerate(cells):
        if cell not in known:
            known[cell] = _part(cell, places, names, separator, f"{file}: data row {first + row}: column {column!r}")
    return list(np.stack([known[cell] for cell in cells], axis=1))


def _read_flag(cell: str, file: Path, row: int, column: str) -> float:
    value = np.nan if is_nothing(cell) else _FLAGS.get(cell.strip().casefold())
    if value is None:
        told = shorten(repr(cell.strip()))
        raise DataError(
            f"{file}: data row {row}: column {column!r} is {told}; expected 0 or 1 (?target= takes numbers)"
        )
    return value


def _part(cell: str, places: dict[str, int], names: Sequence[str], separator: str, where: str) -> Floats64:
    if not cell.strip():
        return np.full(len(names), np.nan)
    flags = np.zeros(len(names))
    for part in () if is_nothing(cell) else cell.split(separator):
        if not part.strip():
            continue
        if (place := places.get(part.strip().casefold())) is None:
            choices = describe_choices(part.strip()[:40], names)
            raise DataError(f"{where} has the label {shorten(repr(part.strip()))}, none of classes=; {choices}")
        flags[place] = 1.0
    return flags
