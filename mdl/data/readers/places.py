"""Sequences of places: places:PATH, a file, folder or glob of CSV files; by default each file is one person.

places:log.csv?time=time&place=app       a column that names the place (or app), places are its distinct names
places:gps/*.csv.gz?utc_offset=-4        columns latitude and longitude, places are the cells of a fixed grid

places:gps/*.csv.gz?clusters=FILE        the clusters that `mdl data cluster` found, then the grid

The grid is a constant of the mesh, not learned from anybody's data: devices with the same `centre` and `cell` have the
same classes. The default centre is the median of the fixes at PATH, which only fits if all of them lie on one machine.
With a file of clusters it is their median, which fits all devices with that file. A fix that no cluster reaches, for
example at the home of somebody without data here, is in a cell (rest=grid) or nowhere (rest=nowhere). This module's
output is never finer than a cell or a cluster.

Clusters of fixes are found once, in a cloud's data, and given to every device as a file. A device cannot know the
clusters of other people's fixes, and a place must have the same number for everybody. So the owner of the data finds
them (`find_clusters`, HDBSCAN's leaves), and the file gives latitude, longitude and reach in metres of each. A place
that few people have been to is somebody's home, and is left out.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import open_text
from mdl.data.readers.visits import (
    FEATURES,
    Stays,
    find_stays,
    keep_active_days,
    make_sequences,
    moments_in,
    take_stays,
)
from mdl.data.spec import describe_choices
from mdl.data.tables.recordings import find_csv_files
from mdl.data.tables.times import LATEST_S, UNITS_S, unix_unit
from mdl.data.windows import DataSet, Integers, Windows, make_windows
from mdl.errors import ConfigError, DataError
from mdl.reading import Tally
from mdl.writing import write_bytes

TEST_SHARE = 0.2
# A row a minute of a hundred people for a month, some 2 GB during the reading.
_MOST_MOMENTS = 5_000_000
# The longest name of a place, an app or a person.
_LONGEST_NAME = 256
_DAY_S = 86_400
# A column named `place` is used if there is one; else these two make a grid.
_FIX_COLUMNS = ("latitude", "longitude")
Floats64: TypeAlias = NDArray[np.float64]
HEADER = ("latitude", "longitude", "reach_m")
METRES_A_DEGREE = 111_320.0
# Each cluster is a class of the model, and a distance to each fix.
_MOST_CLUSTERS = 4096
_WIDEST_M = 100_000.0
# A tree of all fixes is searched for each fix: half a minute for so many.
_MOST_FIXES = 100_000
# Distances computed at once, 8 MB.
_BLOCK = 1_000_000
# Fixes near enough to be dense: below the smallest cluster that is worth a place.
_NEIGHBOURS = 10


class PlaceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """time, place, subject: columns. centre: "latitude,longitude" of the grid. cell: metres; rows, columns: of cells.

    23 x 16 are as many places as the paper's clusters of access points, so that its models' sizes can be compared.
    clusters: a file of places, the first ones; rest: the place of a fix that none of them reaches.
    utc_offset: hours, added to UNIX times. accuracy: metres; coarser fixes are dropped. steps: most stays in a history.
    hole: windows of 10 minutes that a stay bridges. active: stays that make a day count.
    """

    time: str = "time"
    place: str = ""
    subject: str = ""
    centre: str = ""
    cell: Annotated[float, msgspec.Meta(ge=10, le=1e6)] = 150.0
    rows: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 23
    columns: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    clusters: str = ""
    rest: Literal["grid", "nowhere"] = "grid"
    utc_offset: Annotated[float, msgspec.Meta(ge=-14, le=14)] = 0.0
    accuracy: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 100.0
    steps: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    hole: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 6
    active: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 3


@dataclass(frozen=True)
class PlaceLog:
    """All people's stays. places: names of the places 0..; stays: by person, the names in order.

    tally: the moments that were read, and those that are in no stay, with the reason.
    """

    places: tuple[str, ...]
    stays: dict[str, Stays]
    tally: Tally


def read_places(path: str, options: PlaceOptions) -> DataSet:
    """Read sequences as windows x (n, 6, steps), y the next place; the last fifth of each person's days is for testing.

    A test history never reaches back over that cut, so that no stay is on both sides.
    """
    log = read_stays(path, options)
    sides: list[list[Windows]] = [[], []]
    for number, stays in enumerate(log.stays.values()):
        for side, part in enumerate(cut_days(stays, TEST_SHARE)):
            x, y = make_sequences(part, options.steps)
            sides[side].append(make_windows(x, y, np.full(len(y), number), np.full(len(y), 2 * number + side)))
    train, test = (_join(windows) for windows in sides)
    if not len(train) or not len(test):
        raise DataError(
            f"{path}: no sequences; expected people with active days (active={options.active}) of stays; "
            f"{log.tally.line()}"
        )
    return DataSet(
        "places", train, test, log.places, "time",
        description=f"next of {len(log.places)} places from {options.steps} stays and a time",
        subject_names=tuple(log.stays), channels=FEATURES, notes=(log.tally.line(),), left_out=log.tally.samples(),
    )  # fmt: skip


def read_stays(path: str, options: PlaceOptions) -> PlaceLog:
    """Read each person's stays on active days. Raises ConfigError or DataError naming file and line."""
    tally = Tally("moments")
    moments = _read_moments(path, options, tally)
    people = sorted({moment.subject for moment in moments})
    names, numbers = _number_places(moments, options)
    times = np.array([moment.time_s for moment in moments], np.int64)
    subject = np.searchsorted(np.array(people), np.array([moment.subject for moment in moments]))
    stays = {}
    for index, name in enumerate(people):
        at, where = times[subject == index], numbers[subject == index]
        found = find_stays(at, where, options.hole)
        stays[name] = keep_active_days(found, options.active)
        _count(name, at, where, (found, stays[name]), options, tally)
    return PlaceLog(names, stays, tally)


def _count(
    name: str, times: Integers, places: Integers, stays: tuple[Stays, Stays], options: PlaceOptions, tally: Tally
) -> None:
    """Count a person's moments that are in no stay. times, places: int64 (n,). stays: all, and those that are kept."""
    found, kept = (moments_in(each, times) for each in stays)
    reach = (
        "in no cluster (rest=grid takes the cells)"
        if options.clusters
        else "outside the cells (cell=, rows=, columns=)"
    )
    for why, lost in (
        (reach, places < 0),
        (f"on days with fewer than {options.active} stays (active=)", (places >= 0) & found & ~kept),
    ):
        if lost.any():
            first = datetime.fromtimestamp(int(times[lost][0]), UTC).strftime("%Y-%m-%d %H:%M")
            tally.leave(why, int(lost.sum()), f"{name} from {first}")


def read_fixes(path: str, options: PlaceOptions) -> tuple[Floats64, Integers, Integers]:
    """Read every position in degrees (n, 2), and its person (n,) and local day (n,). Raises as `read_stays`."""
    moments = _read_moments(path, options, Tally())
    if moments[0].place:
        raise DataError(f"{path}: a log that names its places has no positions; expected {', '.join(_FIX_COLUMNS)}")
    people = np.unique(np.array([moment.subject for moment in moments]), return_inverse=True)[1].astype(np.int64)
    days = np.array([moment.time_s // _DAY_S for moment in moments], np.int64)
    return _fixes_of(moments), people, days


def cut_days(stays: Stays, share: float) -> tuple[Stays, Stays]:
    """Return the stays of the first days, and those of the last `share` of the days with stays."""
    days = np.unique(stays.day)
    if not len(days):
        return stays, stays
    late = stays.day >= days[-max(1, round(share * len(days)))]
    return take_stays(stays, ~late), take_stays(stays, late)


@dataclass(frozen=True)
class _Moment:
    subject: str
    time_s: int
    place: str
    fix: tuple[float, float]


def _read_moments(path: str, options: PlaceOptions, tally: Tally) -> list[_Moment]:
    all_moments = (moment for file in find_csv_files(path) for moment in _read_file(file, options, tally))
    moments = list(itertools.islice(all_moments, _MOST_MOMENTS + 1))
    if len(moments) > _MOST_MOMENTS:
        raise DataError(f"{path}: more than {_MOST_MOMENTS} rows; expected a row a minute, or fewer files")
    if not moments:
        raise DataError(f"{path}: no usable row; {tally.line()}")
    return moments


def _number_places(moments: list[_Moment], options: PlaceOptions) -> tuple[tuple[str, ...], Integers]:
    if moments[0].place:
        if options.clusters:
            raise ConfigError("places: clusters are of fixes, and this log names its places: leave clusters= out")
        names, numbers = np.unique(np.array([moment.place for moment in moments]), return_inverse=True)
        return tuple(names.tolist()), numbers.astype(np.int64)
    fixes = _fixes_of(moments)
    if not options.clusters:
        return _number_cells(fixes, fixes, options)
    clusters = read_clusters(Path(options.clusters).expanduser())
    places = tuple(f"place {clusters.name} {number}" for number in range(len(clusters)))
    numbers = assign(fixes, clusters)
    if options.rest == "nowhere":
        return places, numbers
    cells, rest = _number_cells(fixes, clusters.centres, options)
    return places + cells, np.where((numbers < 0) & (rest >= 0), rest + len(places), numbers)


def _number_cells(fixes: Floats64, around: Floats64, options: PlaceOptions) -> tuple[tuple[str, ...], Integers]:
    """Return the cells' names and each fix's cell. around: positions with the default centre as their median."""
    centre = np.asarray(_parse_centre(options.centre) or np.median(around, axis=0), np.float64)
    grid = _name_grid(centre, options)
    cells = tuple(f"cell {grid} {row}-{column}" for row in range(options.rows) for column in range(options.columns))
    return cells, _find_cells(fixes, centre, options)


def _fixes_of(moments: list[_Moment]) -> Floats64:
    return np.array([moment.fix for moment in moments])


def _name_grid(centre: Floats64, options: PlaceOptions) -> str:
    """Return a short digest that tells grids with different cells apart, without revealing the places."""
    text = f"{centre[0]:.6f} {centre[1]:.6f} {options.cell:g}"
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def _find_cells(fixes: Floats64, centre: Floats64, options: PlaceOptions) -> Integers:
    """Return row-major cell numbers, -1 outside the grid."""
    north, east = to_metres(fixes, centre).T
    row = np.floor(north / options.cell + options.rows / 2).astype(np.int64)
    column = np.floor(east / options.cell + options.columns / 2).astype(np.int64)
    inside = (row >= 0) & (row < options.rows) & (column >= 0) & (column < options.columns)
    return np.where(inside, row * options.columns + column, -1)


def _parse_centre(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    try:
        latitude, longitude = (float(part) for part in text.split(","))
    except ValueError:
        latitude = longitude = math.nan
    if not (abs(latitude) < 90 and abs(longitude) <= 180):
        raise ConfigError(f"places: centre={text}: expected latitude,longitude in degrees, as in 43.7,-72.3")
    return latitude, longitude


def _read_file(file: Path, options: PlaceOptions, tally: Tally) -> Iterator[_Moment]:
    with open_text(file, newline="") as lines:
        rows = csv.reader(lines)
        try:
            header = [name.strip() for name in next(rows, [])]
            index = _find_columns(file, header, options)
            for row in rows:
                if not row:
                    continue
                tally.see()
                if moment := _read_row(row, index, file, rows.line_num, options):
                    yield moment
                elif "accuracy" in index:
                    where = f"{file}, line {rows.line_num}: {row[index['accuracy']]} m"
                    tally.leave(f"coarser than accuracy={options.accuracy:g} m", sample=where)
                else:
                    tally.leave("without the name of a place", sample=f"{file}, line {rows.line_num}")
        except csv.Error as error:
            raise DataError(f"{file}: damaged ({error})") from None


def _find_columns(file: Path, header: list[str], options: PlaceOptions) -> dict[str, int]:
    place = options.place or ("place" if "place" in header else "")
    wanted = {
        "time": options.time,
        **({"place": place} if place else dict(zip(_FIX_COLUMNS, _FIX_COLUMNS, strict=True))),
    }
    if options.subject:
        wanted["subject"] = options.subject
    for name in wanted.values():
        if name not in header:
            raise ConfigError(f"{file}: no column {name!r}; {describe_choices(name, header)}")
    if not place and "accuracy" in header:
        wanted["accuracy"] = "accuracy"
    return {key: header.index(name) for key, name in wanted.items()}


def _read_row(row: list[str], index: dict[str, int], file: Path, line: int, options: PlaceOptions) -> _Moment | None:
    """Return the row's moment; None for a fix that is too coarse, or a place without a name."""
    cells = {key: row[at].strip() if at < len(row) else "" for key, at in index.items()}
    subject = cells.get("subject", file.name.partition(".")[0])
    if len(subject) > _LONGEST_NAME or len(cells.get("place", "")) > _LONGEST_NAME:
        raise DataError(f"{file}, line {line}: a name of more than {_LONGEST_NAME} characters")
    time_s = _parse_time(cells["time"], f"{file}, line {line}", options)
    if "place" in cells:
        return _Moment(subject, time_s, cells["place"], (0.0, 0.0)) if cells["place"] else None
    try:
        fix = float(cells["latitude"]), float(cells["longitude"])
        coarse = float(cells.get("accuracy") or 0.0) > options.accuracy
    except ValueError:
        raise DataError(f"{file}, line {line}: the position is no number; expected degrees and metres") from None
    if not (abs(fix[0]) <= 90 and abs(fix[1]) <= 180):
        raise DataError(f"{file}, line {line}: the position is outside -90..90, -180..180 degrees")
    return None if coarse else _Moment(subject, time_s, "", fix)


def _parse_time(text: str, where: str, options: PlaceOptions) -> int:
    """Return local seconds: UNIX time plus the offset, its unit by its size; or the clock that an ISO time shows."""
    try:
        time = float(text)
        unit = unix_unit(time) or "s"
        if abs(time) * UNITS_S[unit] > LATEST_S:
            raise DataError(
                f"{where}: time {text[:40]!r} is no UNIX time ({', '.join(UNITS_S)}) of the years 2001 to 2103"
            )
        return math.floor(time * UNITS_S[unit] + options.utc_offset * 3600)
    except ValueError:
        pass
    try:
        return math.floor(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise DataError(f"{where}: time {text[:40]!r}; expected UNIX seconds or an ISO date and time") from None


def _join(parts: list[Windows]) -> Windows:
    return Windows(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        np.concatenate([part.subject for part in parts]),
        np.concatenate([part.group for part in parts]),
    )


@dataclass(frozen=True)
class Clusters:
    """centres: degrees, float64 (k, 2). reach_m: float64 (k,)."""

    centres: Floats64
    reach_m: Floats64

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def name(self) -> str:
        """A short digest that tells files with different clusters apart, without revealing the places."""
        return hashlib.blake2b(_write(self).encode(), digest_size=3).hexdigest()


def to_metres(fixes: Floats64, centre: Floats64) -> Floats64:
    """Return metres north and east of the centre, (n, 2), on a plane: good enough for a city."""
    north = (fixes[:, 0] - centre[0]) * METRES_A_DEGREE
    east = (fixes[:, 1] - centre[1]) * METRES_A_DEGREE * math.cos(math.radians(float(centre[0])))
    return np.stack([north, east], axis=1)


def assign(fixes: Floats64, clusters: Clusters) -> Integers:
    """Return the nearest cluster that reaches each fix, int64 (n,); -1 if none does."""
    middle = np.median(clusters.centres, axis=0)
    distinct, inverse = np.unique(fixes, axis=0, return_inverse=True)
    points, centres = to_metres(distinct, middle), to_metres(clusters.centres, middle)
    numbers = np.full(len(distinct), -1, np.int64)
    for start in range(0, len(points), step := max(1, _BLOCK // len(centres))):
        rows = slice(start, start + step)
        distances = np.hypot(*(points[rows, None, axis] - centres[None, :, axis] for axis in (0, 1)))
        distances[distances > clusters.reach_m] = np.inf
        nearest = distances.argmin(axis=1)
        numbers[rows] = np.where(np.isfinite(distances[np.arange(len(nearest)), nearest]), nearest, -1)
    return numbers[inverse.reshape(-1)]


def find_clusters(fixes: Floats64, people: Integers, smallest: int, reach_m: float, least_people: int) -> Clusters:
    """Find the clusters of dense fixes (n, 2), those that most people have been to first.

    people: the person of each fix, int64 (n,). smallest: fixes of a cluster, at least. Raises ConfigError without
    scikit-learn, DataError if there is no cluster or too many fixes.
    """
    if len(fixes) > _MOST_FIXES:
        raise DataError(f"{len(fixes):,} fixes; expected at most {_MOST_FIXES:,}: give fewer people or days")
    middle = np.median(fixes, axis=0) if len(fixes) else np.zeros(2)
    labels = _label(to_metres(fixes, middle), smallest)
    found = [labels == label for label in range(labels.max(initial=-1) + 1)]
    counts = [len(np.unique(people[rows])) for rows in found]
    order = [at for at in np.argsort([-count for count in counts], kind="stable") if counts[at] >= least_people]
    if not order:
        raise DataError(
            f"{len(fixes):,} fixes make {len(found)} clusters of {smallest} and none that {least_people} people have "
            "been to; expected one: give more data, or lower --smallest or --people"
        )
    centres = np.array([np.median(fixes[found[at]], axis=0) for at in order[:_MOST_CLUSTERS]])
    return Clusters(np.round(centres, 5), np.full(len(centres), float(reach_m)))


def write_clusters(path: Path, clusters: Clusters) -> None:
    """Write a CSV of HEADER, to the nearest metre. Raises MdlError if the disk refuses."""
    write_bytes(path, _write(clusters).encode())


def read_clusters(path: Path) -> Clusters:
    """Read the file of `write_clusters`. Raises DataError naming file and line."""
    rows: list[tuple[float, ...]] = []
    with open_text(path, newline="") as lines:
        reader = csv.reader(lines)
        try:
            if tuple(name.strip() for name in next(reader, [])) != HEADER:
                raise DataError(f"{path}: expected the columns {', '.join(HEADER)}, as `mdl data cluster` writes them")
            for row in reader:
                rows.append(_read_cluster(row, f"{path}, line {reader.line_num}"))
                if len(rows) > _MOST_CLUSTERS:
                    raise DataError(f"{path}: more than {_MOST_CLUSTERS} clusters")
        except csv.Error as error:
            raise DataError(f"{path}: damaged ({error})") from None
    if not rows:
        raise DataError(f"{path}: no cluster")
    table = np.array(rows, np.float64)
    return Clusters(table[:, :2], table[:, 2])


def _read_cluster(row: list[str], where: str) -> tuple[float, ...]:
    try:
        latitude, longitude, reach = (float(cell) for cell in row)
    except ValueError:
        latitude = longitude = reach = math.nan
    if not (abs(latitude) < 90 and abs(longitude) <= 180 and 0 < reach <= _WIDEST_M):
        raise DataError(f"{where}: expected degrees and metres, as in 43.70000,-72.30000,75")
    return latitude, longitude, reach


def _write(clusters: Clusters) -> str:
    rows = [
        f"{latitude:.5f},{longitude:.5f},{reach:g}"
        for (latitude, longitude), reach in zip(clusters.centres, clusters.reach_m, strict=True)
    ]
    return "\n".join([",".join(HEADER), *rows]) + "\n"


def _label(points: Floats64, smallest: int) -> Integers:
    """Return the cluster of each point, -1 for none."""
    try:
        cluster = importlib.import_module("sklearn.cluster")
    except ImportError:
        raise ConfigError("clusters of fixes need scikit-learn: pip install 'mdl[cloud]'") from None
    if len(points) < max(2, smallest):
        return np.full(len(points), -1, np.int64)
    # Leaves, not the most lasting clusters, which are a whole campus.
    fitted = cluster.HDBSCAN(
        min_cluster_size=smallest,
        min_samples=min(_NEIGHBOURS, smallest),
        cluster_selection_method="leaf",
        # The default from scikit-learn 1.10 on.
        copy=True,
    ).fit(points)
    labels: Integers = np.asarray(fitted.labels_, np.int64)
    return labels
