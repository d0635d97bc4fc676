"""When a run ends and how often rounds begin, as people write it."""

import pytest

from mdl.config import EndSection, load_config, parse_period, until_settings
from mdl.errors import ConfigError
from mdl.task import Targets


def test_ends_become_settings() -> None:
    found = until_settings(["accuracy=0.93, no-better=5", "minutes=1.5", "rounds=20"])
    assert found == {"end.accuracy": 0.93, "end.no_better": 5, "end.minutes": 1.5, "round.rounds": 20}
    settings = load_config(None, found)
    assert (settings.end.accuracy, settings.end.no_better, settings.round.rounds) == (0.93, 5, 20)
    assert settings.end
    assert not EndSection()
    assert until_settings([]) == {}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("acuracy=0.9", "--until 'acuracy=0.9': did you mean accuracy? expected accuracy=N, f1=N, r2=N, mae=N, rou"),
        (
            "r3=0.9",
            "--until 'r3=0.9': did you mean r2? expected accuracy=N, f1=N, r2=N, mae=N, rounds=N, minutes=N, no-b",
        ),
        ("0.93", "--until '0.93': expected accuracy=N"),
        ("accuracy", "--until 'accuracy': did you mean accuracy? expected accuracy=N"),
        ("rounds=2.5", "--until 'rounds=2.5': '2.5' is not a whole number"),
        ("minutes=ten", "--until 'minutes=ten': 'ten' is not a number"),
        ("rounds=2,rounds=3", "--until rounds is given twice"),
    ],
)
def test_what_is_no_end_is_told(said: str, told: str) -> None:
    with pytest.raises(ConfigError) as failed:
        until_settings([said])
    assert str(failed.value).startswith(told)


def test_measures_of_other_tasks_become_settings() -> None:
    found = until_settings(["r2=0.8,mae=4.5", "f1=0.7"])
    assert found == {"end.r2": 0.8, "end.mae": 4.5, "end.f1": 0.7}
    end = load_config(None, found).end
    assert end.goals == {"f1": 0.7, "r2": 0.8, "mae": 4.5}
    assert end


@pytest.mark.parametrize(
    ("end", "targets", "told"),
    [
        (EndSection(r2=0.9), "classes", "--until r2: walks has classes; expected accuracy=N or f1=N, or no-better=N"),
        (EndSection(accuracy=0.9), "numbers", "--until accuracy: walks has numbers; expected r2=N or mae=N, or no-bet"),
        (EndSection(f1=0.9, mae=3.0), "labels", "--until mae: walks has labels; expected f1=N, or no-better=N"),
    ],
)
def test_a_measure_that_the_data_does_not_have_is_told(end: EndSection, targets: Targets, told: str) -> None:
    with pytest.raises(ConfigError) as failed:
        end.check(targets, "walks")
    assert str(failed.value).startswith(told)


def test_a_measure_that_the_data_has_is_none_of_these() -> None:
    EndSection(accuracy=0.9, f1=0.9).check("classes", "walks")
    EndSection(r2=0.9, mae=0.1).check("numbers", "walks")
    EndSection(f1=0.9, minutes=3).check("labels", "walks")


def test_percent_and_nan_are_out_of_range() -> None:
    for value in ("93", "nan"):
        with pytest.raises(ConfigError, match=r"end.accuracy is \S+: it must be at least 0, at most 1 \(0: none\)"):
            load_config(None, until_settings([f"accuracy={value}"]))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("1d", 86400), ("0s", 0)])
def test_a_period_has_a_unit(text: str, seconds: float) -> None:
    assert parse_period(text) == seconds


@pytest.mark.parametrize("text", ["10", "m", "", "-1m", "infh", "nans", "10min"])
def test_what_is_no_period_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a number and its unit, for example 90s, 10m"):
        parse_period(text)
