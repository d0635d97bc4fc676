"""The recordings at a path: each table is one, and so is each folder or zip that a known app exports.

A folder that an app exported is known by the app's files in it (`mdl.data.tables.apps`). It is one recording, with a
table for each sensor; other files beside them are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mdl.data.readers.archive import list_tables, on_disk
from mdl.data.readers.clock import is_time_name
from mdl.data.tables.apps import APPS, has_sensor
from mdl.data.tables.columns import Columns
from mdl.data.tables.dialect import Dialect, Part, find_dialect, name_all
from mdl.data.tables.merge import measure_rate
from mdl.errors import DataError, MdlError

TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
# The most sensors of one device; each is read beside the others.
_MOST_PARTS = 64


def list_recordings(path: Path) -> list[Path]:
    """Return every table at or below a path, in zips too; for an app's export the folder or zip itself.

    Raises DataError if there is nothing there.
    """
    files = list_tables(path, TABLES)
    exported = [folder for folder in {each for file in files for each in file.parents} if _is_export(folder, files)]
    inside = {folder for folder in exported if folder == path or path in folder.parents}
    alone = [file for file in files if not inside.intersection(file.parents)]
    outermost = [folder for folder in inside if not inside.intersection(folder.parents)]
    return sorted([*alone, *outermost])


def look_at_recording(file: Path, wanted: Sequence[str] = (), names: Sequence[str] = ()) -> Dialect:
    """Find a dialect as `find_dialect` does, of a table, or a folder or zip of `list_recordings`. Raises as it does."""
    is_folder = file.is_dir() or file.suffix.lower() == ".zip" or (on_disk(file) != file and not file.suffix)
    if not is_folder:
        return find_dialect(file, wanted, names)
    files = [each for each in list_tables(file, TABLES) if each.parent == file]
    looked = [(each, _look(each, wanted)) for each in files]
    known = [(each, dialect) for each, dialect in looked if dialect and dialect.app]
    known = known or [(each, dialect) for each, dialect in looked if dialect]
    if not known or (len(known) > 1 and not known[0][1].app) or len(known) > _MOST_PARTS:
        told = ", ".join(each.name for each in files[:_MOST_PARTS])
        raise DataError(f"{file}: which of its files is the recording? Name one of {told}")
    left_out = tuple(each.name for each in files if each not in [one for one, _ in known])
    if len(known) == 1:
        [(part, dialect)] = known
        return name_all(replace(dialect, parts=(_whole(part, dialect),), left_out=left_out), names)
    return name_all(_merge(known, left_out), names)


def choose_base(dialect: Dialect, columns: Columns) -> Dialect:
    """Return the dialect with the fastest sensor among the channels as its base."""
    places = {place for _, place in columns.channels}
    used = [number for number, part in enumerate(dialect.parts) if places & set(part.places.values())]
    return replace(dialect, base=used[0]) if used else dialect


def _is_export(folder: Path, files: Sequence[Path]) -> bool:
    """Return True if the app's own files are there, and one of a sensor."""
    inside = {str(file.relative_to(folder)).casefold() for file in files if folder in file.parents}
    return any(
        app.exports and inside.issuperset(app.exports) and any(has_sensor(app, name) for name in inside) for app in APPS
    )


def _look(file: Path, wanted: Sequence[str]) -> Dialect | None:
    """Return the dialect of a possible part; None if it is no table."""
    try:
        return find_dialect(file, wanted)
    except MdlError:
        return None


def _whole(file: Path, dialect: Dialect) -> Part:
    """Return the part for a file that is the whole recording."""
    return Part(file, dialect, 0, {place: place for place in range(len(dialect.header))}, 0.0)


def _merge(known: Sequence[tuple[Path, Dialect]], left_out: tuple[str, ...]) -> Dialect:
    """Make one header of several sensors' files: a time, then each channel that an app's rules name, once."""
    rated = []
    for file, dialect in known:
        times = [place for place, name in enumerate(dialect.header) if is_time_name(name)]
        if times:
            rated.append((measure_rate(file, dialect, times[0]), file, dialect, times[0]))
    rated = sorted((each for each in rated if each[0]), key=lambda each: (-each[0], each[1]))
    if not rated:
        raise DataError(f"{known[0][0].parent}: none of its files has times, by which they could be merged")
    header, units, parts = [rated[0][2].header[rated[0][3]]], [rated[0][2].units[rated[0][3]]], list[Part]()
    for rate, file, dialect, time in rated:
        places = {}
        for place, alias in enumerate(dialect.aliases):
            if alias and alias not in header:
                places[place] = len(header)
                header.append(alias)
                units.append(dialect.units[place])
        if places:
            parts.append(Part(file, dialect, time, places, rate))
    return Dialect(
        "utf-8-sig", ",", tuple(header), tuple(units), 0, ("", *header[1:]), app=known[0][1].app,
        parts=tuple(parts), left_out=left_out,
    )  # fmt: skip
