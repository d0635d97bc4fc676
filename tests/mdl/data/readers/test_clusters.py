"""Places as clusters of fixes: the same for everybody who has the file, and nobody's home among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdl.data import load_data
from mdl.data.readers.places import (
    Clusters,
    PlaceOptions,
    assign,
    find_clusters,
    read_clusters,
    read_fixes,
    read_stays,
    write_clusters,
)
from mdl.errors import ConfigError, DataError

_METRE = 1 / 111_320
# Of a square, a canteen, and somebody's home; on a grid of 150 m square and canteen are one cell.
_SQUARE, _CANTEEN, _HOME = (43.0, -72.0), (43.0 + 60 * _METRE, -72.0), (43.0 + 900 * _METRE, -72.0)
_HEAD = "latitude,longitude,reach_m\n"


def _draw_fixes() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """40 fixes of each of three people at square and canteen, 40 of the first one's at home."""
    rng = np.random.default_rng(0)
    visits = [(person, place) for person in range(3) for place in (_SQUARE, _CANTEEN)] + [(0, _HOME)]
    fixes = [np.array(place) + rng.normal(0, 4 * _METRE, (40, 2)) for _, place in visits]
    return np.concatenate(fixes), np.repeat([person for person, _ in visits], 40)


def test_clusters_are_where_fixes_are_dense_and_a_home_is_told_to_nobody() -> None:
    fixes, people = _draw_fixes()
    found = find_clusters(fixes, people, 30, 25, least_people=2)
    places = assign(np.array([_SQUARE, _CANTEEN, _HOME]), found)
    assert len(set(places[:2].tolist()) - {-1}) == 2
    assert places[2] == -1
    assert assign(np.array([_HOME]), find_clusters(fixes, people, 30, 25, least_people=1))[0] >= 0


def test_a_fix_belongs_to_the_nearest_cluster_that_reaches_it() -> None:
    clusters = Clusters(np.array([_SQUARE, _CANTEEN]), np.array([100.0, 20.0]))
    asked = [[_SQUARE[0] + metres * _METRE, -72.0] for metres in (10, 50, 35, 90, 200)]
    assert assign(np.array(asked), clusters).tolist() == [0, 1, 0, 0, -1]


def test_a_file_says_the_same_to_everybody(tmp_path: Path) -> None:
    found = find_clusters(*_draw_fixes(), 30, 25, 1)
    write_clusters(tmp_path / "clusters.csv", found)
    told = read_clusters(tmp_path / "clusters.csv")
    assert np.array_equal(told.centres, found.centres)
    assert told.name == found.name != Clusters(found.centres, found.reach_m + 1).name


def _write_log(path: Path) -> None:
    """By turns at the square, at the canteen and at home, ten minutes each, for ten days."""
    rows = [
        f"{day * 86_400 + turn * 600},{place[0]},{place[1]}"
        for day in range(10)
        for turn, place in enumerate([_SQUARE, _CANTEEN, _HOME] * 4)
    ]
    path.write_text("\n".join(["time,latitude,longitude", *rows]) + "\n")


def test_what_no_cluster_reaches_is_in_the_grid_or_nowhere(tmp_path: Path) -> None:
    _write_log(tmp_path / "ann.csv")
    file = tmp_path / "clusters.csv"
    file.write_text(_HEAD + "43.0,-72.0,25\n43.00054,-72.0,25\n")
    log = read_stays(str(tmp_path / "ann.csv"), PlaceOptions(clusters=str(file)))
    assert log.stays["ann"].place[:2].tolist() == [0, 1]
    assert log.places[log.stays["ann"].place[2]].startswith("cell ")
    assert len(log.places) == 2 + 23 * 16
    nowhere = read_stays(str(tmp_path / "ann.csv"), PlaceOptions(clusters=str(file), rest="nowhere"))
    assert set(nowhere.stays["ann"].place.tolist()) == {0, 1}
    assert nowhere.places == log.places[:2]


def test_the_grid_beside_clusters_follows_from_the_file_and_not_from_ones_own_fixes(tmp_path: Path) -> None:
    _write_log(tmp_path / "ann.csv")
    (tmp_path / "bob.csv").write_text("time,latitude,longitude\n0,43.01,-72.0\n")
    (tmp_path / "clusters.csv").write_text(_HEAD + "43.0,-72.0,25\n")
    options = PlaceOptions(clusters=str(tmp_path / "clusters.csv"), active=1)
    ann, bob = (read_stays(str(tmp_path / f"{name}.csv"), options).places for name in ("ann", "bob"))
    assert ann == bob


def test_another_file_of_the_same_name_is_read_anew(tmp_path: Path) -> None:
    _write_log(tmp_path / "ann.csv")
    spec = f"places:{tmp_path}/ann.csv?clusters={tmp_path}/clusters.csv&rest=nowhere"
    found = []
    for rows in ("43.0,-72.0,25\n43.00054,-72.0,25\n", "43.0,-72.0,25\n43.0081,-72.0,25\n43.1,-72.0,25\n"):
        (tmp_path / "clusters.csv").write_text(_HEAD + rows)
        found.append(len(load_data(spec, tmp_path / "cache").classes))
    assert found == [2, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lat,lon\n", "expected the columns latitude, longitude, reach_m"),
        (_HEAD, "no cluster"),
        (_HEAD + "43.0,-72.0\n", "line 2: expected degrees and metres"),
        (_HEAD + "43.0,-72.0,25\n91,0,25\n", "line 3: expected degrees and metres"),
        (_HEAD + "nan,0,25\n", "line 2"),
        (_HEAD + "0,0,0\n", "line 2"),
        (_HEAD + "0,0,1\n" * 5000, "more than 4096"),
    ],
)
def test_a_file_of_no_clusters_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "clusters.csv").write_text(text)
    with pytest.raises(DataError, match=reason):
        read_clusters(tmp_path / "clusters.csv")


def test_named_places_have_no_clusters(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("time,place\n0,home\n600,work\n")
    with pytest.raises(ConfigError, match="names its places"):
        read_stays(str(tmp_path / "log.csv"), PlaceOptions(clusters="clusters.csv"))
    with pytest.raises(DataError, match="no positions"):
        read_fixes(str(tmp_path / "log.csv"), PlaceOptions())


def test_too_few_fixes_make_no_cluster() -> None:
    fixes, people = _draw_fixes()
    for some, smallest, least in ((len(fixes), 30, 4), (10, 30, 1), (0, 2, 1)):
        with pytest.raises(DataError, match="expected one"):
            find_clusters(fixes[:some], people[:some], smallest, 25, least)
