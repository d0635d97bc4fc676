"""UCI HAR and sEMG as they are published: the ways in agree, and the counts are the published ones."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mdl.data import DataSet, check_data, load_data, split_windows
from mdl.data.readers.semg import SemgOptions, read_semg
from mdl.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def from_zip(data_dir: Path, cache_dir: Path) -> DataSet:
    return load_data(f"uci-har:{data_dir}/uci_har/UCI_HAR_Dataset.zip", cache_dir)


@pytest.mark.slow
def test_uci_har_has_the_published_counts(from_zip: DataSet) -> None:
    assert np.bincount(from_zip.train.y).tolist() == [1226, 1073, 986, 1286, 1374, 1407]
    assert np.bincount(from_zip.test.y).tolist() == [496, 471, 420, 491, 532, 537]
    assert from_zip.train.x.shape == (7352, 9, 128)
    assert len(np.unique(from_zip.train.subject)) == 21
    assert len(np.unique(from_zip.test.subject)) == 9
    assert not np.intersect1d(from_zip.train.subject, from_zip.test.subject).size


@pytest.mark.slow
def test_uci_har_zip_and_npz_hold_the_same_windows(from_zip: DataSet, data_dir: Path, cache_dir: Path) -> None:
    from_npz = load_data(f"uci-har:{data_dir}/uci_har/uci_har.npz", cache_dir)
    for mine, theirs in ((from_zip.train, from_npz.train), (from_zip.test, from_npz.test)):
        # The 7th digit of body and gyro values below 1e-3 may differ by one: 1e-9 at most.
        np.testing.assert_allclose(mine.x, theirs.x, rtol=0, atol=1.1e-9)
        for name in ("y", "subject", "group"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name))


def test_uci_har_stretches_are_those_that_were_found_by_matching_recordings(from_zip: DataSet, data_dir: Path) -> None:
    with np.load(data_dir / "uci_har" / "uci_har.npz", allow_pickle=False) as stored:
        known = np.concatenate([stored["train_segment"], stored["test_segment"]])
    ours = np.concatenate([from_zip.train.group, from_zip.test.group])
    pairs = np.unique(np.stack([ours, known]), axis=1)
    assert pairs.shape[1] == len(np.unique(ours)) == len(np.unique(known)) == 857


def test_uci_har_is_shared_by_six_peers_without_dividing_a_person(from_zip: DataSet) -> None:
    shares = split_windows(from_zip.train, "subject", 6, 0)
    people = [set(from_zip.train.subject[rows].tolist()) for rows in shares]
    assert sum(map(len, people)) == len(set().union(*people)) == 21


def write_small_uci_har(folder: Path, rows: int = 3) -> Path:
    root = folder / "UCI HAR Dataset"
    for side, subject in (("train", 1), ("test", 2)):
        signals = root / side / "Inertial Signals"
        signals.mkdir(parents=True)
        (root / side / f"y_{side}.txt").write_bytes(b"5\r\n" * rows)
        (root / side / f"subject_{side}.txt").write_bytes(f"{subject}\r\n".encode() * rows)
        for kind in ("body_acc", "body_gyro", "total_acc"):
            for axis in "xyz":
                line = b"  1.8085150e-004" * 128 + b"\r\n"
                (signals / f"{kind}_{axis}_{side}.txt").write_bytes(line * rows)
    return root


@pytest.mark.slow
def test_uci_har_brought_to_a_level_by_person_differs_in_nothing_else(
    from_zip: DataSet, data_dir: Path, cache_dir: Path
) -> None:
    spec = f"uci-har:{data_dir}/uci_har/UCI_HAR_Dataset.zip?level=person"
    level = load_data(spec, cache_dir)
    for before, after in ((from_zip.train, level.train), (from_zip.test, level.test)):
        for person in np.unique(before.subject):
            was, own = (side.x[before.subject == person].astype(np.float64) for side in (before, after))
            deviation = was.std(axis=(0, 2), keepdims=True)
            np.testing.assert_allclose(own, (was - was.mean(axis=(0, 2), keepdims=True)) / deviation, atol=1e-4)
        for name in ("y", "subject", "group"):
            assert np.array_equal(getattr(before, name), getattr(after, name))
    with pytest.raises(ConfigError, match=r"level=persons: did you mean person\? valid: fixed, person"):
        load_data(f"{spec}s", cache_dir)


def test_what_a_channel_never_says_is_0_at_a_level_by_person(tmp_path: Path) -> None:
    root = write_small_uci_har(tmp_path)
    assert not load_data(f"uci-har:{root}?level=person", tmp_path / "cache").train.x.any()


def test_uci_har_is_read_from_its_folder_the_folder_above_and_a_zip_within_a_zip(tmp_path: Path) -> None:
    root = write_small_uci_har(tmp_path / "a")
    inner, outer = tmp_path / "UCI HAR Dataset.zip", tmp_path / "outer.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        for file in root.rglob("*.txt"):
            archive.write(file, file.relative_to(root.parent))
    with zipfile.ZipFile(outer, "w") as archive:
        archive.write(inner, inner.name)
    first = load_data(f"uci-har:{root}", tmp_path / "cache")
    assert first.train.x.shape == (3, 9, 128)
    for path in (root.parent, inner, outer):
        assert np.array_equal(load_data(f"uci-har:{path}", tmp_path / "cache").train.x, first.train.x)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"1.0 " * 127, "body_acc_x_train.txt, line 2: 127 values; expected 128"),
        (b"1.0 " * 127 + b"abc", "line 2: 'abc'; expected a finite number"),
        (b"1.0 " * 127 + b"nan", "line 2: 'nan'; expected a finite number"),
    ],
)
def test_uci_har_with_a_bad_line_names_file_and_line(tmp_path: Path, line: bytes, words: str) -> None:
    root = write_small_uci_har(tmp_path)
    good = b"1.0 " * 128 + b"\n"
    (root / "train/Inertial Signals/body_acc_x_train.txt").write_bytes(good + line + b"\n" + good)
    with pytest.raises(DataError) as caught:
        load_data(f"uci-har:{root}", tmp_path / "cache")
    assert words in str(caught.value)


def test_uci_har_with_a_missing_file_names_it(tmp_path: Path) -> None:
    root = write_small_uci_har(tmp_path)
    (root / "test/subject_test.txt").unlink()
    with pytest.raises(DataError, match=r"no test/subject_test.txt"):
        load_data(f"uci-har:{root}", tmp_path / "cache")


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("hello")
    for source in ("uci-har", "semg"):
        with pytest.raises(DataError, match="not a zip file"):
            load_data(f"{source}:{tmp_path}/a.zip", tmp_path / "cache")


@pytest.mark.parametrize("split", ["subject", "series"])
def test_semg_never_leaks(data_dir: Path, cache_dir: Path, split: str) -> None:
    data = load_data(f"semg:{data_dir}/semg_gestures/semg_gestures.npz?split={split}", cache_dir)
    check_data(data, "semg")
    shared = np.intersect1d(data.train.subject, data.test.subject)
    assert len(shared) == (0 if split == "subject" else 30)
    assert len(data.classes) == 6
    assert np.bincount(data.train.y).min() > 400


def test_semg_text_and_npz_hold_the_same_windows(data_dir: Path, tmp_path: Path) -> None:
    source = data_dir / "semg_gestures"
    (original,) = source.glob("1_raw_data_*.txt.gz")
    # The one original file is subject 1's; as subject 5 and 6 it gives a set with both sides.
    for subject in ("05", "06"):
        (tmp_path / subject).mkdir()
        (tmp_path / subject / original.name.removesuffix(".gz")).write_bytes(gzip.decompress(original.read_bytes()))
    text = read_semg(tmp_path, SemgOptions())
    with np.load(source / "semg_gestures.npz", allow_pickle=False) as stored:
        rows = (stored["subject"] == 1) & (stored["series"] == 1)
        parts = {name: stored[name][rows] for name in ("codes", "label", "series")}
    twice = {name: np.concatenate([part, part]) for name, part in parts.items()}
    np.savez(tmp_path / "a.npz", **twice, subject=np.repeat([5, 6], rows.sum()))
    codes = read_semg(tmp_path / "a.npz", SemgOptions())
    assert len(text.train) > 50
    assert np.array_equal(text.train.x, codes.train.x)
    assert np.array_equal(text.test.y, codes.test.y)


def write_semg(folder: Path, last: str = "") -> None:
    header = "time\t" + "\t".join(f"channel{index}" for index in range(1, 9)) + "\tclass\r\n"
    for subject in (4, 5):
        (folder / f"{subject:02d}").mkdir(parents=True)
        rows = [
            f"{row}\t"
            + "\t".join(f"{(row + channel) % 50 * 1e-5:g}" for channel in range(8))
            + f"\t{row // 100 % 3}\r\n"
            for row in range(600)
        ]
        (folder / f"{subject:02d}" / "1_raw_data_a.txt").write_text(header + "".join(rows) + last, newline="")


def test_semg_text_may_end_in_the_middle_of_its_last_line(tmp_path: Path) -> None:
    write_semg(tmp_path / "a")
    write_semg(tmp_path / "b", last="601\t1e-05\t1e-05\t0")
    whole, torn = (read_semg(tmp_path / name, SemgOptions()) for name in ("a", "b"))
    assert np.array_equal(whole.train.x, torn.train.x)


def test_semg_without_both_sides_says_which_is_missing(tmp_path: Path) -> None:
    write_semg(tmp_path)
    with pytest.raises(DataError, match=r"split=series leaves no windows for training"):
        read_semg(tmp_path, SemgOptions(split="series"))


def test_semg_may_be_told_by_how_strong_each_channel_is_on_that_arm(tmp_path: Path) -> None:
    """Two people do the same; the other one's signals are two and three times as strong, and one channel is dead."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-20, 20, (400, 8)).astype(np.int8)
    codes[:, 7] = 0
    gains = np.array([1, 2, 3, 1, 2, 3, 1, 1], np.int8)
    both = {"codes": np.concatenate([codes, codes * gains]), "label": np.tile(np.repeat([0, 1, 0, 2], 100), 2)}
    np.savez(tmp_path / "a.npz", **both, subject=np.repeat([4, 5], 400), series=np.ones(800, np.int64))
    fixed, leveled = (read_semg(tmp_path / "a.npz", SemgOptions(level=level)) for level in ("fixed", "recording"))
    assert not np.allclose(fixed.train.x, fixed.test.x)
    assert np.allclose(leveled.train.x, leveled.test.x)
    assert not leveled.train.x[:, 7].any()
    means = read_semg(tmp_path / "a.npz", SemgOptions(level="recording", window=100, step=100)).train.x
    # The mean over the recording is 1, rest and what has no label in it; these are the two gestures.
    assert np.allclose(means[:, :7].mean(axis=(0, 2)), 1.0, atol=0.15)


def write_stream(path: Path, names: list[str], columns: list[np.ndarray]) -> Path:
    table = np.char.mod("%.9g", np.stack([np.asarray(column, np.float64) for column in columns[:-1]], axis=1))
    lines = [",".join(row) for row in np.concatenate([table, columns[-1].astype(str)[:, None]], axis=1)]
    path.write_text("\n".join([",".join(names), *lines]))
    return path


@pytest.mark.parametrize("worn", [0, 1], ids=["phone", "watch"])
def test_the_clock_of_real_phones_and_watches_is_found_in_their_timestamps(
    worn: int, data_dir: Path, tmp_path: Path
) -> None:
    """spsw_har: UNIX milliseconds at about 102 and 104 Hz; the phone hands over several rows at once."""
    with np.load(data_dir / "spsw_har" / "spsw_har.npz", allow_pickle=False) as stored:
        first = (stored["device"] == worn) & (stored["subject"] <= stored["subject"].min() + 1)
        part = {name: stored[name][first] for name in ("x", "time_ms", "label", "execution", "subject")}
    parts = np.unique(np.stack([part["subject"], part["execution"]]), axis=1).T[:6]
    seconds = 0.0
    for number, (subject, execution) in enumerate(parts.tolist()):
        rows = (part["subject"] == subject) & (part["execution"] == execution)
        at = part["time_ms"][rows]
        order = np.argsort(at, kind="stable")
        seconds += (at.max() - at.min()) / 1000
        columns = [at[order] - (0 if number % 2 else at.min()), *part["x"][rows][order].T, part["label"][rows][order]]
        # Half of the files count from their start, in seconds.
        columns[0] = columns[0] if number % 2 else columns[0] / 1000
        write_stream(tmp_path / f"{number}.csv", ["stamp", "ax", "ay", "az", "gx", "gy", "gz", "label"], columns)
    spec = f"csv:{tmp_path}?label=label&time=stamp&window=50"
    note, unit, _ = load_data(spec, tmp_path / "cache").notes
    assert unit == "ax, ay, az in m/s2"
    assert note.startswith("times in column 'stamp' are in s/ms, 10")
    assert note.endswith("Hz; not resampled (?rate= does)")
    data = load_data(f"{spec}&rate=50", tmp_path / "cache")
    assert 25 * (len(data.train) + len(data.test)) / 50 < seconds
    with pytest.raises(DataError, match=r"rate=500 in no unit|rate=500 would invent"):
        load_data(f"{spec}&rate=500", tmp_path / "cache")


def test_a_real_stream_has_the_same_windows_in_whatever_unit_its_times_are(data_dir: Path, tmp_path: Path) -> None:
    """hapt, 50 Hz, its first recording with jitter on the times: in s, ms, us and ns."""
    with np.load(data_dir / "hapt" / "hapt.npz", allow_pickle=False) as stored:
        rows = (stored["subject"] == 1) & (stored["recording"] == stored["recording"][0])
        x, label = stored["codes"][rows] * stored["scale"], stored["label"][rows]
    rng = np.random.default_rng(0)
    at = np.arange(len(x)) / 50 + rng.uniform(-0.006, 0.006, len(x))
    names = ["at", "ax", "ay", "az", "gx", "gy", "gz", "label"]
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        times = at * scale if unit == "s" else np.round(at * scale)
        write_stream(tmp_path / f"{unit}.csv", names, [times, *x.T, label])
    sets = {}
    for unit in ("s", "ms", "us", "ns"):
        spec = f"csv:{tmp_path}/{unit}.csv?label=label&time=at&rate=50&skip=0,7,8,9,10,11,12"
        sets[unit] = load_data(spec, tmp_path / "cache")
        times, acceleration, _ = sets[unit].notes
        assert times == f"times in column 'at' are in {unit}, 50 Hz; resampled to 50 Hz"
        assert acceleration == "ax, ay, az in m/s2 (converted from g)"
        assert not sets[unit].warnings
    without = load_data(f"csv:{tmp_path}/s.csv?label=label&skip=0,7,8,9,10,11,12&columns=ax,ay,az,gx,gy,gz", tmp_path)
    for data in sets.values():
        assert len(data.train) == pytest.approx(len(without.train), abs=8)
        assert np.abs(data.train.x[:9] - sets["s"].train.x[:9]).max() < 1e-2
