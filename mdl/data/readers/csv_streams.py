"""Streams in CSV files, cut into windows that never straddle a change of label, a gap in time or two recordings.

csv:PATH?label=activity&columns=ax,ay,az&rate=50&window=128&step=64 where PATH is a file, a glob, a folder or a zip.
Each file is a recording, and so is each folder or zip as a known app exports it; `mdl.data.tables` finds out the form
of a file (delimiter, encoding, units, dates). Columns are found by their names: the files of one folder may have them
in any order. Rows and windows go through files, so that memory does not grow with the recordings.
"""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import list_tables
from mdl.data.spec import split_names
from mdl.data.tables.dialect import CsvOptions
from mdl.data.tables.recordings import TABLES, list_recordings
from mdl.data.tables.streams import Streams, read_streams
from mdl.data.tables.stretches import below_sides, find_sides
from mdl.data.windows import LARGEST_WINDOWS_BYTES, DataSet, Floats, Integers, assemble_data, overlap_gap
from mdl.errors import DataError
from mdl.writing import open_private

__all__ = ["CsvOptions", "find_csv_files", "find_recordings", "gather_windows", "read_csv", "window_starts"]

# Windows gathered together: 512 of 9 x 128 in float32 are 2.4 MB.
_AT_ONCE = 512
# Classes named in one line.
_MOST_SHOWN = 8


def find_csv_files(path: str) -> list[Path]:
    """Return the tables of a file name, a folder, a zip or a glob. Raises DataError if there is none."""
    return _find(path, lambda root: list_tables(root, TABLES))


def find_recordings(path: str) -> list[Path]:
    """Return files like `find_csv_files`; a folder or zip that a known app exported stands for all its tables."""
    return _find(path, list_recordings)


def _find(path: str, look: Callable[[Path], list[Path]]) -> list[Path]:
    if glob.has_magic(path) and not Path(path).exists():
        looked = [(found, look(found)) for found in sorted(_expand(path)) if found.is_file() or "**" not in path]
        # A folder counts only if it is one recording.
        files = [file for found, inside in looked if found.is_file() or inside == [found] for file in inside]
    else:
        files = look(Path(path))
    if not files:
        raise DataError(f"{path}: no file; expected a file, a folder or zip with {', '.join(TABLES[:3])}, or a glob")
    return files


def read_csv(
    path: str,
    options: CsvOptions,
    scratch: Path | None = None,
    *,
    labelled: bool = True,
    files: list[Path] | None = None,
) -> DataSet:
    """Read the data set at `path`. scratch: a folder on a disk for rows and windows; None for a temporary one.

    labelled: False takes all rows, with any label or none. files: only these of the files at `path`. Raises ConfigError
    or DataError naming the file, the column or row, and the header.
    """
    files = files or find_recordings(path)
    sides, split = find_sides(path, files) if options.split == "auto" else (None, "")
    if split:
        changes = {"label": below_sides(options.label), "subject": below_sides(options.subject)}
        options = msgspec.structs.replace(options, **changes)
    with _place_for_rows(scratch) as folder:
        rows = folder / "rows.f32"
        with open_private(rows, "xb") as into:
            streams = read_streams(path, files, options, into, labelled, scratch=folder)
        try:
            return _cut(
                path, replace(streams, notes=[*filter(None, [split]), *streams.notes]), options, rows, len(files), sides
            )
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        finally:
            rows.unlink()


@contextmanager
def _place_for_rows(scratch: Path | None) -> Iterator[Path]:
    if scratch is not None:
        yield scratch
        return
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cut(
    path: str, streams: Streams, options: CsvOptions, rows: Path, recordings: int, sides: NDArray[np.bool_] | None
) -> DataSet:
    """Cut streams into windows. sides: True for test recordings, if their folders tell."""
    window, step = options.window, options.step or max(1, options.window // 2)
    starts, group = window_starts(streams.stretches, window, step)
    if not len(starts):
        raise DataError(
            f"no window of {window} samples fits: the longest stretch of one label has {streams.longest}; "
            f"?window= takes shorter ones"
        )
    _, _, label, subject, recording = streams.stretches[group].T
    people, channels = np.array(streams.people or ("",)), len(streams.channels)
    _check_size(len(starts), channels, window)
    width = channels
    warnings: tuple[str, ...] = ()
    if options.targets == "classes":
        classes, warnings = _order_classes(streams, label, options)
        number = np.array([classes.index(name) if name in classes else 0 for name in streams.classes] or [0])
        y = number[label]
    else:
        classes, width = streams.classes, channels + len(streams.classes)
        y = gather_targets(rows, starts, slice(channels, width), width, options)
    return assemble_data(
        Path(path).stem if not glob.has_magic(path) else "csv",
        lambda chosen, side: gather_windows(
            rows, starts[chosen], channels, window, rows.with_name(f"{side}_x.npy"), width
        ),
        (classes, y),
        people[subject] if options.subject else None,
        recording if recordings > 1 else None,
        group,
        how=options.split,
        given=None if sides is None else sides[recording],
        gap=overlap_gap(window, step),
        seed=options.seed,
        description=f"streams from {path}, {recordings} recordings",
        channels=streams.channels,
        notes=tuple(streams.notes),
        warnings=warnings,
        rate_hz=streams.rate_hz,
        units=streams.units,
        channel_units=streams.channel_units,
        is_converted=streams.is_converted,
        left_out=streams.left_out,
    )


def gather_targets(
    rows: Path, starts: Integers, columns: slice, width: int, options: CsvOptions
) -> NDArray[np.float32] | NDArray[np.uint8]:
    """Return each window's numbers, float32 (n, k), or the labels that hold in more than half of it, uint8 (n, k)."""
    found = np.empty((len(starts), columns.stop - columns.start))
    for first in range(0, len(starts), _AT_ONCE):
        stream = np.asarray(np.memmap(rows, np.float32, "r")).reshape(-1, width)[:, columns]
        for place, start in enumerate(starts[first : first + _AT_ONCE].tolist(), first):
            window = stream[start : start + options.window]
            is_last = options.target and options.target_of == "last"
            found[place] = window[-1] if is_last else window.mean(axis=0, dtype=np.float64)
    return (found > 0.5).astype(np.uint8) if options.targets == "labels" else found.astype(np.float32)


def window_starts(stretches: NDArray[np.int64], window: int, step: int) -> tuple[Integers, Integers]:
    """Return (starts, stretch of each): first row of every window; windows start at a stretch's first row."""
    counts = (stretches[:, 1] - window) // step + 1
    group = np.repeat(np.arange(len(stretches)), counts)
    within = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    return stretches[group, 0] + within * step, group


def _order_classes(streams: Streams, label: Integers, options: CsvOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (classes, warnings): as declared, else those with windows, by name; the others are named in a warning."""
    held = {streams.classes[number] for number in np.unique(label).tolist()} if streams.classes else {"?"}
    if options.classes:
        return tuple(split_names(options.classes)), ()
    without = sorted(set(streams.classes) - held)
    shown = ", ".join(without[:_MOST_SHOWN]) + (" ..." if len(without) > _MOST_SHOWN else "")
    lost = (f"no stretch of {options.window} samples has the class {shown}: left out; ?window= takes shorter ones",)
    return tuple(sorted(held)), lost if without else ()


def gather_windows(
    rows: Path, starts: Integers, channels: int, window: int, into: Path, width: int | None = None
) -> Floats:
    """Gather windows (n, channels, window), float32, mapped from a file: memory holds some hundred at a time.

    width: values of a row, if it holds more than the channels, which are the first.
    """
    with open_private(into, "xb") as file:
        shape = (len(starts), channels, window)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, len(starts), _AT_ONCE):
            # Mapped anew each time: pages that were read count as memory as long as they are mapped.
            stream = np.asarray(np.memmap(rows, np.float32, "r")).reshape(-1, width or channels)[:, :channels]
            some = [stream[start : start + window].T for start in starts[first : first + _AT_ONCE].tolist()]
            file.write(np.stack(some).tobytes())
    # "c": torch wants writable memory, and the file must stay as it is.
    mapped: Floats = np.load(into, mmap_mode="c", allow_pickle=False) if len(starts) else np.zeros(shape, np.float32)
    return mapped


def _check_size(count: int, channels: int, window: int) -> None:
    size_bytes = 4 * count * channels * window
    if size_bytes > LARGEST_WINDOWS_BYTES:
        raise DataError(
            f"{count} windows of {window} rows would take {size_bytes / 2**30:.0f} GB of memory, at most "
            f"{LARGEST_WINDOWS_BYTES >> 30} are taken: a larger step, or shorter windows"
        )


def _expand(path: str) -> list[Path]:
    """Return the files of a glob. `**` enters no linked folder, or two links to their own folder would have no end."""
    if "**" not in path:
        return [Path(name) for name in glob.glob(path)]
    root = Path(Path(path).anchor)
    found = root.glob(str(Path(path).relative_to(root)))
    return [file for file in found if not file.name.startswith(".")]
