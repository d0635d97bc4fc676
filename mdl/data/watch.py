"""Recordings that go on: new files of a folder of CSV join training, and a bounded sample of all windows is kept.

A file counts when nobody has written to it for a moment, and is read once. An unreadable file, or one of another kind
than the files before, is logged and left out.

In the sample each window so far is as likely as any other: Algorithm R (Vitter, ACM TOMS 1985). A device that trained
on its newest windows alone would forget the older ones; so it trains yesterday's again beside today's, in the
proportion in which they came.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import list_files, on_disk
from mdl.data.sources import parse_spec
from mdl.data.spec import read_options
from mdl.data.tables.dialect import CsvOptions
from mdl.data.windows import DataSet, Windows
from mdl.errors import ConfigError, DataError, MdlError

logger = logging.getLogger(__name__)

Rows = NDArray[Any]


class Reservoir:
    """See the module. capacity: windows to keep at most. seen: windows that have come so far."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity, self.seen = capacity, 0
        self._random = np.random.default_rng(seed)
        self._x: Rows | None = None
        self._y: Rows = np.empty(0, np.int64)

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    @property
    def x(self) -> Rows:
        """The kept windows, (len, ...): a view, which changes with `add`."""
        assert self._x is not None, "nothing was added yet"
        return self._x[: len(self)]

    @property
    def y(self) -> Rows:
        return self._y[: len(self)]

    def add(self, x: Rows, y: Rows) -> None:
        """Add windows in the order in which they came. Raises DataError if their shape differs from earlier ones."""
        if self._x is None:
            self._x = np.empty((self.capacity, *x.shape[1:]), x.dtype)
            self._y = np.empty((self.capacity, *y.shape[1:]), y.dtype)
        if x.shape[1:] != self._x.shape[1:] or len(x) != len(y):
            raise DataError(f"windows of shape {x.shape[1:]} with {len(y)} labels, where {self._x.shape[1:]} are kept")
        room = max(0, min(len(y), self.capacity - self.seen))
        self._x[self.seen : self.seen + room], self._y[self.seen : self.seen + room] = x[:room], y[:room]
        # Among the rest, window number n (from 1) stays with probability capacity / n, in a random one's place.
        numbers = np.arange(self.seen + room, self.seen + len(y)) + 1
        places = self._random.integers(0, numbers, endpoint=False) if len(numbers) else numbers
        for row in np.flatnonzero(places < self.capacity):
            self._x[places[row]], self._y[places[row]] = x[room + row], y[room + row]
        self.seen += len(y)


# Loggers write more often than that.
_QUIET_S = 2.0
# Files read before one round: a folder that somebody fills must not keep a device from training.
_AT_ONCE = 16
# One test window is kept for so many training windows.
_TESTED = 4


def watched_folder(spec: str, data: DataSet, train: Windows, test: Windows, seed: int) -> WatchedFolder | None:
    """Return the folder that `csv:FOLDER?...&watch=N` names, with its first windows; None if it is not to be watched.

    Raises ConfigError if it is no folder, or the spec does not name its classes.
    """
    if (parsed := parse_spec(spec)).source != "csv":
        return None
    options = read_options(parsed, CsvOptions)
    if not options.watch:
        return None
    if not Path(parsed.path).is_dir():
        raise ConfigError(f"data {spec!r}: watch= needs a folder, in which new recordings appear")
    if options.targets == "classes" and not options.classes:
        raise ConfigError(f"data {spec!r}: watch= needs classes=, as a new recording may hold any of them")
    return WatchedFolder(parsed.path, options, data, (train, test), seed)


class WatchedFolder:
    """See the module. data: read at the start; windows: this device's part of it (train, test)."""

    def __init__(
        self, path: str, options: CsvOptions, data: DataSet, windows: tuple[Windows, Windows], seed: int
    ) -> None:
        # Late: it loads the library that reads tables.
        from mdl.data.readers.csv_streams import read_csv
        from mdl.data.tables.recordings import find_recordings

        self._find_recordings, self._read_csv = find_recordings, read_csv
        self._path, self._options, self._data = path, options, data
        self._known = set(find_recordings(path))
        self._ahead: dict[Path, tuple[float, float]] = {}  # time of its change, and our time when we first saw that
        self._kept = Reservoir(options.watch, seed), Reservoir(max(1, options.watch // _TESTED), seed + 1)
        self._add(*windows)

    @property
    def train(self) -> Windows:
        """The training windows kept by now: the same arrays each time, which change with `look`."""
        return _as_windows(self._kept[0])

    @property
    def test(self) -> Windows:
        return _as_windows(self._kept[1])

    def look(self, now_s: float) -> bool:
        """Read new, quiet files, at most some; return True if windows have come. now_s: seconds since 1970."""
        try:
            new = [file for file in self._find_recordings(self._path) if file not in self._known]
        except MdlError as error:
            logger.warning("nothing new is read: %s", error)
            return False
        came = False
        for file in [file for file in new if self._is_quiet(file, now_s)][:_AT_ONCE]:
            self._known.add(file)
            self._ahead.pop(file, None)
            came |= self._read(file)
        return came

    def _is_quiet(self, file: Path, now_s: float) -> bool:
        """Return True if its last change is old enough; if its disk's clock is ahead, count from our first sight."""
        changed_s = _changed_at(file)
        if changed_s <= now_s:
            return now_s - changed_s >= _QUIET_S
        if (seen := self._ahead.get(file)) is None or seen[0] != changed_s or seen[1] > now_s:
            self._ahead[file] = seen = changed_s, now_s
        return now_s - seen[1] >= _QUIET_S

    def _read(self, file: Path) -> bool:
        try:
            found = self._read_csv(self._path, self._options, files=[file])
            self._check(found)
        except MdlError as error:
            logger.warning("%s is left out: %s", file, error)
            return False
        self._add(found.train, found.test)
        seen, kept = self._kept[0].seen, len(self._kept[0])
        logger.info("%s joins training with %d windows: %d of %d are kept", file, len(found.train), kept, seen)
        return True

    def _check(self, found: DataSet) -> None:
        """Raise ConfigError if the recording is of another kind than those read at the start."""
        for what in ("channels", "shape", "rate_hz", "classes", "units", "channel_units"):
            if (here := getattr(found, what)) != (before := getattr(self._data, what)):
                raise ConfigError(f"its {what} is {here}, of the recordings before it is {before}")

    def _add(self, *windows: Windows) -> None:
        for kept, more in zip(self._kept, windows, strict=True):
            kept.add(more.x, more.y)


def _as_windows(kept: Reservoir) -> Windows:
    nobody = np.zeros(len(kept), np.int64)
    return Windows(kept.x, kept.y, nobody, nobody)


def _changed_at(file: Path) -> float:
    """Return the file's time of change, seconds since 1970; of a folder, its last file's; inf if it is gone."""
    try:
        return max(each.stat().st_mtime for each in list_files(on_disk(file)))
    except (OSError, ValueError, DataError):  # ValueError: the folder is empty by now
        return float("inf")
