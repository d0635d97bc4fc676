"""Worlds for whole rounds: drawn, and replayed from recorded phones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from mdl.devices.usage import UsageKind
from mdl.errors import ConfigError, DataError
from mdl.scheduler.rounds.world import FAMILIES, HORIZON_S, draw_recorded_world, draw_world, of_part, read_phones

HEADER = "device,Timestamp,level,status,usage,isInteractive,temperature"


def _write(path: Path, rows: list[str]) -> Path:
    text = "\n".join([HEADER, *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _phones(path: Path, names: str = "abcd") -> Path:
    """Readings each 10 s for 20 minutes; a phone is loaded in the first of every six, and in use in its second half."""
    rows = []
    for name in names:
        for at in range(120):
            usage, in_use = 100 if at % 6 == 0 else 10, "true" if at >= 60 else "false"
            rows.append(f"{name},{1_000_000 + 10_000 * at},{90 - at // 60},{2 if at < 60 else 3},{usage},{in_use},31.5")
    return _write(path, rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_world_is_the_same_for_the_same_seed_and_another_for_another(family: str) -> None:
    one, again, other = (draw_world(family, 4, 5.0, seed) for seed in (7, 7, 8))
    assert [each.busy for each in one.devices] == [each.busy for each in again.devices]
    assert all(np.array_equal(a.links_mb_s, b.links_mb_s) for a, b in zip(one.devices, again.devices, strict=True))
    assert [each.period_s for each in one.devices] != [each.period_s for each in other.devices]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mesh_is_the_same_under_every_size(family: str) -> None:
    small, large = (draw_world(family, 4, size_mb, 7) for size_mb in (0.5, 50.0))
    assert [each.period_s for each in small.devices] == [each.period_s for each in large.devices]
    assert (small.size_mb, large.size_mb) == (0.5, 50.0)


def test_links_drift_and_stay_within_their_limits() -> None:
    for seed in range(5):
        for each in draw_world("dynamic", 5, 5.0, seed).devices:
            assert 0.5 <= each.links_mb_s.min() < each.links_mb_s.max() <= 40.0
            steps = np.diff(np.log(each.links_mb_s))
            assert 0.0 < steps.std() < 0.2  # slowly: from one slot to the next by about a tenth


def test_slow_classes_train_longer_and_busy_times_last_to_the_horizon() -> None:
    found = [each for seed in range(40) for each in draw_world("dynamic", 5, 5.0, seed).devices]
    slow = [each.period_s for each in found if each.merge_mb_s < 100.0]
    fast = [each.period_s for each in found if each.merge_mb_s > 600.0]
    assert np.median(slow) > 4.0 * np.median(fast)
    busy = [each for each in found if each.kind is UsageKind.CALL]
    assert busy
    assert all(each.busy[-1][1] > 0.8 * HORIZON_S for each in busy)


def test_a_recorded_phone_is_busy_when_it_was_loaded_and_tells_its_use(tmp_path: Path) -> None:
    phones = read_phones(_phones(tmp_path / "phones.csv.gz"))
    assert [phone.name for phone in phones] == list("abcd")
    given = draw_recorded_world(phones, 3, 5.0, 1)
    for each in given.devices:
        share = sum(end - begin for begin, end in each.busy) / HORIZON_S
        assert share == pytest.approx(1.0 / 6.0, abs=0.01)
        kinds = {each.kind_at(at_s) for at_s in np.arange(0.0, 1200.0, 10.0)}
        assert kinds == {UsageKind.INTERACTIVE, UsageKind.SYNC}
        used = each.condition_at(0.0).in_use
        assert each.kind_at(0.0) is (UsageKind.INTERACTIVE if used else UsageKind.SYNC)
        assert each.condition_at(0.0).charging is not used
        assert each.condition_at(5.0).celsius == 31.5
        inside = each.busy[3][0] + 4.0
        assert each.busy_for_s(inside) == pytest.approx(4.0)
        assert each.busy_for_s(each.busy[3][1] + 1.0) == 0.0


def test_a_silence_is_left_out_of_the_replay(tmp_path: Path) -> None:
    rows = [
        f"{name},{1_000_000 + 10_000 * at + (90_000_000 if at > 60 else 0)},90,3,10,true,30"
        for name in "ab"
        for at in range(120)
    ]
    phones = read_phones(_write(tmp_path / "phones.csv", rows))
    assert phones[0].recorded_s == pytest.approx(1200.0)


def test_held_out_phones_are_never_among_those_for_tuning(tmp_path: Path) -> None:
    phones = read_phones(_phones(tmp_path / "phones.csv", "abcde"))
    tuning, held_out = of_part(phones, "tuning"), of_part(phones, "held-out")
    assert [each.name for each in tuning] == ["a", "c", "e"]
    assert [each.name for each in held_out] == ["b", "d"]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (["a,1000,90,3,often,true,30"], "line 2: no reading of a phone"),
        (["a,1000,90,3,10,true,nan"], "line 2.*not finite"),
        (["a,1000,90"], "line 2: no reading"),
        (["a,1000,90,3,10,true,30"], "0 phones with 600 s of readings"),
    ],
)
def test_a_table_that_is_none_is_told(tmp_path: Path, rows: list[str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read_phones(_write(tmp_path / "phones.csv", rows))


def test_a_table_of_something_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "walk.csv").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match="no column 'device'"):
        read_phones(tmp_path / "walk.csv")


@pytest.mark.parametrize(
    ("family", "n", "size_mb", "complaint"),
    [("dynamical", 3, 1.0, "'dynamic'"), ("dynamic", 1, 1.0, "2 to 256"), ("dynamic", 3, 0.0, "0.001 to 10000")],
)
def test_an_impossible_world_is_told(family: str, n: int, size_mb: float, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        draw_world(family, n, size_mb, 0)
