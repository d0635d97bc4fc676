"""Places as clusters of fixes: found once, in a cloud's data, and given to every device as a file.

A device cannot know the clusters of other people's fixes, and a place must have the same number for everybody. So the
owner of the data finds them (`find_clusters`, HDBSCAN's leaves), and the file gives latitude, longitude and reach in
metres of each. A place that few people have been to is somebody's home, and is left out. Knows nothing of stays.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import open_text
from mdl.data.windows import Integers
from mdl.errors import ConfigError, DataError
from mdl.writing import write_bytes

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
                rows.append(_read_row(row, f"{path}, line {reader.line_num}"))
                if len(rows) > _MOST_CLUSTERS:
                    raise DataError(f"{path}: more than {_MOST_CLUSTERS} clusters")
        except csv.Error as error:
            raise DataError(f"{path}: damaged ({error})") from None
    if not rows:
        raise DataError(f"{path}: no cluster")
    table = np.array(rows, np.float64)
    return Clusters(table[:, :2], table[:, 2])


def _read_row(row: list[str], where: str) -> tuple[float, ...]:
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
