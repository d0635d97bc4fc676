"""Sources: motion, .npz, .csv and a user's own function; and what each says about data that is wrong."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mdl.data import describe_data, load_data
from mdl.data.readers.motion import RATE_HZ, WINDOW
from mdl.data.readers.uci_har import CHANNELS
from mdl.errors import ConfigError, DataError
from mdl.own import Own, own_data


def write_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def ready(n: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(n, 16, 3)), "y": np.arange(n) // 2 % 3, "subject": np.arange(n) // 12 + 1}


def test_motion_is_the_same_for_the_same_seed_and_says_that_it_is_synthetic(tmp_path: Path) -> None:
    spec = "motion?people=3&test_people=2&windows=24"
    first, again = (load_data(spec, tmp_path / name, seed=4) for name in ("a", "b"))
    other = load_data(spec, tmp_path / "a", seed=5)
    assert np.array_equal(first.train.x, again.train.x)
    assert not np.array_equal(first.train.x, other.train.x)
    assert first.synthetic
    assert "SYNTHETIC" in first.description
    assert describe_data(first)["synthetic"] is True


def test_motion_has_windows_of_nine_or_six_channels_balanced_over_activities(tmp_path: Path) -> None:
    nine = load_data("motion?people=3&test_people=2&windows=24", tmp_path)
    six = load_data("motion?people=3&test_people=2&windows=24&channels=6", tmp_path)
    assert nine.train.x.shape == (72, 9, WINDOW)
    assert six.train.x.shape == (72, 6, WINDOW)
    assert np.array_equal(nine.train.x[:, 3:], six.train.x)
    assert nine.train.x.dtype == np.float32
    assert nine.train.x.flags.c_contiguous
    assert np.bincount(nine.train.y).tolist() == [12] * 6
    with pytest.raises(ConfigError, match="channels=7; valid: 6, 9"):
        load_data("motion?channels=7", tmp_path)


def test_motion_walks_at_a_walking_pace_and_rests_at_one_g(tmp_path: Path) -> None:
    data = load_data("motion?people=8&windows=24", tmp_path).train
    level = np.linalg.norm(data.x[:, 6:].mean(axis=2), axis=1)
    assert np.abs(level[data.y >= 3] - 1).max() < 0.05
    spectrum = np.abs(np.fft.rfft(data.x[data.y == 0, 0], axis=1))[:, 1:].mean(axis=0)
    peak_hz = (np.argmax(spectrum) + 1) * RATE_HZ / WINDOW
    assert 1.4 < peak_hz < 2.3


def test_npz_without_split_holds_out_a_fifth_of_the_subjects(tmp_path: Path) -> None:
    data = load_data(f"npz:{write_npz(tmp_path / 'a.npz', **ready())}", tmp_path)
    assert data.held_out == "subject"
    assert len(np.unique(data.test.subject)) == 1
    assert data.subject_names == ("1", "2", "3", "4", "5")
    assert data.shape == (3, 16)


def test_npz_holds_out_the_same_subjects_whatever_the_seed_of_the_run(tmp_path: Path) -> None:
    spec = f"npz:{write_npz(tmp_path / 'a.npz', **ready())}"
    first, second = (load_data(spec, tmp_path / str(seed), seed).test.subject for seed in (1, 2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("split", [np.arange(60) >= 48, np.where(np.arange(60) >= 48, "test", "train")])
def test_npz_keeps_the_split_that_it_is_given(tmp_path: Path, split: np.ndarray) -> None:
    arrays = ready() | {"split": split, "classes": np.array(["sit", "stand", "walk"])}
    data = load_data(f"npz:{write_npz(tmp_path / 'a.npz', **arrays)}", tmp_path)
    assert (len(data.train), len(data.test), data.held_out) == (48, 12, "given")
    assert data.classes == ("sit", "stand", "walk")


def test_npz_may_name_its_channels(tmp_path: Path) -> None:
    spec = f"npz:{write_npz(tmp_path / 'a.npz', **ready() | {'channels': np.array(['ax', 'ay', 'az'])})}"
    assert load_data(spec, tmp_path / "cache").channels == ("ax", "ay", "az")
    assert load_data(spec, tmp_path / "cache").channels == ("ax", "ay", "az"), "mapped"
    split = ready() | {"channels": np.array(["x", "y", "z"]), "split": np.arange(60) >= 48}
    assert load_data(f"npz:{write_npz(tmp_path / 'b.npz', **split)}", tmp_path).channels == ("x", "y", "z")
    assert load_data(f"npz:{write_npz(tmp_path / 'c.npz', **ready())}", tmp_path).channels == ()


def test_motion_has_the_channels_of_uci_har(tmp_path: Path) -> None:
    nine = load_data("motion?people=3&test_people=2&windows=24", tmp_path)
    six = load_data("motion?people=3&test_people=2&windows=24&channels=6", tmp_path)
    assert nine.channels == CHANNELS
    assert six.channels == CHANNELS[3:]


def test_npz_labels_may_be_words(tmp_path: Path) -> None:
    arrays = ready() | {"y": np.array(["run", "sit", "walk"])[ready()["y"]]}
    data = load_data(f"npz:{write_npz(tmp_path / 'a.npz', **arrays)}", tmp_path)
    assert data.classes == ("run", "sit", "walk")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros((60, 16))}, "expected numbers of shape (n, time, channels)"),
        ({"x": np.array([["a"]])}, "expected numbers"),
        ({"y": np.zeros(59, dtype=int)}, "of shape (59,); expected (60,) or (60, k)"),
        ({"y": np.zeros(60)}, "whole numbers: are they numbers to predict, or names of"),
        ({"subject": np.zeros((60, 1), dtype=int)}, "subject has shape (60, 1)"),
        ({"split": np.arange(60)}, "expected 'train' and 'test', or 0 and 1"),
        ({"classes": np.array(["a", "b"])}, "classes names 2"),
        ({"channels": np.array(["a", "b"])}, "expected 3 different names, one for each of x's channels"),
        ({"channels": np.array(["a", "b", "a"])}, "expected 3 different names"),
        ({"channels": np.arange(3)}, "channels holds int64 of shape (3,)"),
        ({"y": np.array([{}] * 60, dtype=object)}, "not an .npz of plain arrays"),
    ],
)
def test_npz_that_is_wrong_is_refused_by_name_and_shape(
    tmp_path: Path, change: dict[str, np.ndarray], words: str
) -> None:
    path = write_npz(tmp_path / "a.npz", **(ready() | change))
    with pytest.raises(DataError) as caught:
        load_data(f"npz:{path}", tmp_path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_npz_with_nan_names_the_row(tmp_path: Path) -> None:
    arrays = ready()
    arrays["x"][7, 3, 1] = np.nan
    with pytest.raises(DataError, match="row 7 holds NaN"):
        load_data(f"npz:{write_npz(tmp_path / 'a.npz', **arrays)}", tmp_path)


def test_npz_without_x_lists_what_there_is(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", train_X=np.zeros(3), labels=np.zeros(3))
    with pytest.raises(DataError, match=r"no array 'x'; it holds train_X, labels; that is the layout of uci-har"):
        load_data(f"npz:{path}", tmp_path)


@pytest.mark.parametrize("source", ["npz", "uci-har", "semg"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"plain text", b"\x80\x04N."])
def test_a_damaged_npz_is_refused_in_one_line(tmp_path: Path, source: str, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz: not an \.npz of plain arrays"):
        load_data(f"{source}:{tmp_path}/a.npz", tmp_path / "cache")


@pytest.mark.parametrize("source", ["npz", "csv", "uci-har", "semg"])
def test_a_missing_path_is_named(tmp_path: Path, source: str) -> None:
    with pytest.raises(DataError, match="no-such-file"):
        load_data(f"{source}:{tmp_path}/no-such-file", tmp_path)


def write_csv(path: Path, rows: int = 300, *, delimiter: str = ",", label_every: int = 100) -> Path:
    lines = [delimiter.join(["t", "ax", "ay", "who", "activity"])]
    for row in range(rows):
        who = f"p{row // label_every}"
        lines.append(delimiter.join([f"{row * 0.02:.2f}", str(row), str(-row), who, ["sit", "run"][row // 50 % 2]]))
    text = "\n".join(lines) + "\n"
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv", ";"), ("a.csv.gz", ",")])
def test_csv_streams_become_windows(tmp_path: Path, name: str, delimiter: str) -> None:
    write_csv(tmp_path / name, delimiter=delimiter)
    spec = f"csv:{tmp_path / name}?columns=ax,ay&label=activity&subject=who&window=20&step=10"
    data = load_data(spec, tmp_path / "cache")
    assert data.classes == ("run", "sit")
    assert data.shape == (2, 20)
    assert data.held_out == "subject"
    assert data.subject_names == ("p0", "p1", "p2")
    assert len(data.train) + len(data.test) == 6 * 4
    assert np.array_equal(data.train.x[:, 0], -data.train.x[:, 1])


def test_csv_with_a_time_column_is_resampled_and_cut_at_gaps(tmp_path: Path) -> None:
    seconds = np.concatenate([np.arange(0, 4, 0.01), np.arange(10, 14, 0.01)])
    lines = ["ms,v,label"] + [f"{1000 * s:.0f},{s},{'ab'[int(s) % 2]}" for s in seconds]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    data = load_data(f"csv:{tmp_path}/a.csv?label=label&time=ms&time_unit=ms&rate=50&window=20&step=20", tmp_path / "c")
    assert np.allclose(np.diff(data.train.x[:, 0], axis=1), 0.02, atol=1e-5)
    assert len(data.train) + len(data.test) == 16


def test_csv_files_of_a_folder_or_glob_are_recordings(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        write_csv(tmp_path / name)
    spec = f"csv:{tmp_path}/?.csv?columns=ax,ay&label=activity&window=20"
    data = load_data(spec, tmp_path / "cache")
    assert data.held_out == "recording"
    assert (len(data.train), len(data.test)) == (48, 24)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("label=activty", ["no column 'activty'", "did you mean activity?", "the header is: t, ax, ay, who, activity"]),
        ("columns=ax,az&label=activity", ["no column 'az'", "header is: t, ax, ay"]),
        ("columns=ax", ["?label=activity", "the header is: t, ax"]),
        ("label=activity", ["column 'who' is 'p0'; expected a number", "?columns="]),
        ("columns=ax,activity&label=activity", ["channels other than activity"]),
        ("columns=ax&label=activity&window=200", ["no window of 200 samples", "longest stretch of one label has 50"]),
        ("columns=ax&label=activity&widow=20", ["did you mean window"]),
        ("columns=ax&label=activity&window=40&split=subject", ["split=subject"]),
    ],
)
def test_csv_options_that_do_not_fit_show_the_header(tmp_path: Path, options: str, words: list[str]) -> None:
    path = write_csv(tmp_path / "a.csv")
    with pytest.raises((ConfigError, DataError)) as caught:
        load_data(f"csv:{path}?{options}", tmp_path / "cache")
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("cell", "words"), [("nan", "data row 3: column 'v' is nan"), ("x", "data row 3: column 'v' is 'x'")]
)
def test_csv_with_a_bad_cell_names_row_and_column(tmp_path: Path, cell: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(f"v,label\n1,a\n2,a\n{cell},a\n4,a\n")
    with pytest.raises(DataError) as caught:
        load_data(f"csv:{tmp_path}/a.csv?label=label&window=2", tmp_path / "cache")
    assert words in str(caught.value)
    assert "a.csv" in str(caught.value)


def test_csv_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v,label\n1,a\n2,a\n")
    (tmp_path / "b.csv").write_text("v,w,label\n1,2,a\n2,3,a\n")
    with pytest.raises(DataError, match=r"b\.csv: column 'w' is not in .*a\.csv; name the channels with \?columns="):
        load_data(f"csv:{tmp_path}?label=label&window=2", tmp_path / "cache")
    (tmp_path / "b.csv").write_text("w,label\n1,a\n2,a\n")
    with pytest.raises(DataError, match=r"b\.csv: no column 'v', which .*a\.csv has; .*map=THEIRS:v"):
        load_data(f"csv:{tmp_path}?label=label&window=2", tmp_path / "cache")


def test_csv_files_of_one_folder_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    """a.csv has x, y, z and b.csv z, x, y: by their places x of one would meet z of the other."""
    for name, header in (("a", "x,y,z,label"), ("b", "z,x,label,y"), ("c", "x,y,z,label")):
        order = [column for column in header.split(",") if column != "label"]
        rows = [{"x": f"1{row}", "y": f"2{row}", "z": f"3{row}", "label": "ab"[row // 8 % 2]} for row in range(16)]
        lines = [",".join(row[column] for column in header.split(",")) for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]))
        assert sorted(order) == ["x", "y", "z"]
    data = load_data(f"csv:{tmp_path}?label=label&window=4", tmp_path / "cache")
    assert data.channels == ("x", "y", "z")
    for windows in (data.train, data.test):
        assert [str(value)[0] for value in windows.x[0, :, 0]] == ["1", "2", "3"]
        assert all(str(value)[0] == "3" for value in windows.x[:, 2].ravel())
    assert load_data(f"csv:{tmp_path}?label=label&window=4", tmp_path / "cache").channels == ("x", "y", "z")


def test_csv_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,x,label\n1,2,a\n2,3,a\n")
    with pytest.raises(ConfigError, match=r"column 'x' is there twice; the header is: x, x, label"):
        load_data(f"csv:{tmp_path}/a.csv?label=label&window=2", tmp_path / "cache")


def test_csv_column_called_time_is_no_channel_unless_it_is_named(tmp_path: Path) -> None:
    lines = [f"{row * 0.02},{row % 7},{9.8},{'ab'[row // 50 % 2]}" for row in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["Time,v,g,label", *lines]))
    spec = f"csv:{tmp_path}/a.csv?label=label&window=20"
    data = load_data(spec, tmp_path / "cache")
    assert data.channels == ("v", "g")
    assert data.notes[:-1] == ("times in column 'Time' are in s, 50 Hz; not resampled (?rate= does)",)
    note, _ = load_data(f"{spec}&time=none", tmp_path / "cache").notes
    assert note == "no channel, by the name: Time (?time=Time tells gaps; ?columns= takes any)"
    assert data.warnings == ("channel 'g' is constant: nothing can be learned from it",)
    named = load_data(f"{spec}&columns=Time,v", tmp_path / "cache")
    assert named.channels == ("Time", "v")
    (warning,) = named.warnings
    assert "channel 'Time' only ever rises, like a time or a counter" in warning


def test_npz_with_a_clock_or_a_constant_among_its_channels_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = ready()
    arrays["x"][:, :, 0] = np.arange(16) + 16 * np.arange(60)[:, None]
    arrays["x"][:, :, 2] = 3
    path = write_npz(tmp_path / "a.npz", **arrays)
    warnings = load_data(f"npz:{path}", tmp_path / "cache").warnings
    assert [line.partition(":")[0] for line in warnings] == [
        "channel number 1 of 3 only ever rises, like a time or a counter",
        "channel number 3 of 3 is constant",
    ]
    assert all(line in caplog.text for line in warnings)


def write_milliseconds(path: Path, rows: int = 2200) -> Path:
    """50 Hz in whole milliseconds that jitter, as a phone logs them; the unit is said nowhere."""
    rng = np.random.default_rng(0)
    times = np.cumsum(np.maximum(0, np.round(rng.normal(20, 9, rows))))
    lines = [f"{at:.0f},{rng.normal():.3f},{'ab'[row // 550 % 2]}" for row, at in enumerate(times)]
    path.write_text("\n".join(["t,v,label", *lines]))
    return path


def test_csv_times_in_milliseconds_that_jitter_are_no_reason_to_invent_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken for seconds, 44 s of data were 33,992 windows of what was never measured (max_gap=60), or none."""
    caplog.set_level("INFO")
    path = write_milliseconds(tmp_path / "a.csv")
    for options, then in (("", "not resampled (?rate= does)"), ("&rate=50&max_gap=60", "resampled to 50 Hz")):
        data = load_data(f"csv:{path}?label=label&time=t{options}", tmp_path / "cache")
        assert len(data.train) + len(data.test) == pytest.approx(27, abs=2)
        assert data.notes[:-1] == (f"times in column 't' are in ms, 50.4 Hz; {then}",)
        assert data.notes[0] in caplog.text
    with pytest.raises(DataError, match=r"are 0\.0504 Hz with time_unit=s: rate=50 would invent"):
        load_data(f"csv:{path}?label=label&time=t&rate=50&time_unit=s", tmp_path / "cache")
    with pytest.raises(DataError, match=r"\(19\.\d+ on average\) fit rate=200 in no unit; .*50\.4 Hz if they are ms"):
        load_data(f"csv:{path}?label=label&time=t&rate=200", tmp_path / "cache")


def test_csv_times_may_be_dates(tmp_path: Path) -> None:
    lines = [
        f"2024-02-29 12:00:{row // 50:02}.{row % 50 * 2:02}0,{row % 7},{'ab'[row // 50 % 2]}" for row in range(400)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["when,v,label", *lines]))
    spec = f"csv:{tmp_path}/a.csv?label=label&time=when&window=20"
    assert load_data(spec, tmp_path / "cache").notes[:-1] == (
        "times in column 'when' are in s, 50 Hz; not resampled (?rate= does)",
    )
    with pytest.raises(DataError, match=r"time_unit=ms, but column 'when' holds dates"):
        load_data(f"{spec}&time_unit=ms", tmp_path / "cache")
    (tmp_path / "a.csv").write_text("\n".join(["when,v,label", *lines, "noon,1,a"]))
    with pytest.raises(DataError, match=r"data row 401: column 'when' is 'noon'; expected a time as the others"):
        load_data(spec, tmp_path / "cache")


def test_csv_files_of_two_rates_are_not_mixed_unless_they_are_resampled(tmp_path: Path) -> None:
    for name, rate in (("a", 50), ("b", 100), ("c", 52)):
        lines = [f"{row / rate:.3f},{row % 7},{'ab'[row // 100 % 2]}" for row in range(800)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["t,v,label", *lines]))
    spec = f"csv:{tmp_path}?label=label&time=t&window=20"
    with pytest.raises(DataError, match=r"b\.csv: 100 Hz, but .*a\.csv has 50 Hz; .*\?rate=50"):
        load_data(spec, tmp_path / "cache")
    note, _ = load_data(f"{spec}&rate=50", tmp_path / "cache").notes
    assert note == "times in column 't' are in s, 50 Hz to 100 Hz; resampled to 50 Hz"


def test_csv_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v,label\n")
    with pytest.raises(DataError, match="no rows below the header"):
        load_data(f"csv:{tmp_path}/a.csv?label=label", tmp_path / "cache")


def test_a_factory_in_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data_source.py").write_text(
        "import numpy as np\n"
        "def make(n='30'):\n"
        "    n = int(n)\n"
        "    return np.ones((n, 8, 2)), np.arange(n) // 2 % 3, np.arange(n) // 6\n"
        "def wrong():\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    data = load_data(own_data("own_data_source:make?n=60"), tmp_path / "cache")
    assert data.train.x.shape[1:] == (2, 8)
    assert data.held_out == "subject"
    with pytest.raises(DataError, match="returned int; expected a DataSet"):
        load_data(own_data("own_data_source:wrong"), tmp_path)
    with pytest.raises(ConfigError, match="calling make failed"):
        load_data(own_data("own_data_source:make?m=1"), tmp_path)


def test_sources_say_their_sampling_rate_where_they_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rate_of(spec: str) -> float | None:
        return load_data(spec, tmp_path / "cache").rate_hz

    assert rate_of("motion?people=3&test_people=2&windows=24") == RATE_HZ
    plain = write_npz(tmp_path / "plain.npz", **ready())
    assert rate_of(f"npz:{plain}") is None
    assert rate_of(f"npz:{plain}?rate=50") == 50.0
    said = write_npz(tmp_path / "said.npz", rate=np.array(100.0), **ready())
    assert rate_of(f"npz:{said}") == rate_of(f"npz:{said}") == 100.0  # from the cache too
    with pytest.raises(DataError, match="rate=50, but its array `rate` says 100"):
        rate_of(f"npz:{said}?rate=50")
    rows = [f"{row / 25:.3f},{row % 7},{row % 5},{'ab'[row // 50 % 2]}" for row in range(400)]
    stream = tmp_path / "walk.csv"
    stream.write_text("\n".join(["time,ax,ay,label", *rows]))
    csv = f"csv:{stream}?label=label&window=16"
    assert rate_of(f"{csv}&time=time") == pytest.approx(25.0)
    assert rate_of(f"{csv}&time=time&rate=20") == 20.0
    assert rate_of(csv) == pytest.approx(25.0)
    assert (rate_of(f"{csv}&time=none"), rate_of(f"{csv}&rate=25")) == (None, 25.0)


@pytest.mark.parametrize("rate", [np.array(0.0), np.array([50.0, 100.0]), np.array("50"), np.array(np.nan)])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, rate: np.ndarray) -> None:
    with pytest.raises(DataError, match="expected one number of Hz"):
        load_data(f"npz:{write_npz(tmp_path / 'a.npz', rate=rate, **ready())}", tmp_path / "cache")


def test_a_function_may_say_its_rate() -> None:
    made = load_data(Own("mine:make", lambda: {**ready(), "rate": 64}), Path())
    assert made.rate_hz == 64.0
    with pytest.raises(DataError, match=r"a rate of -1 Hz; expected one above 0"):
        load_data(Own("mine:make", lambda: replace(made, rate_hz=-1)), Path())
