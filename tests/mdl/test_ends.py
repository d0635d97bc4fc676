"""When a run ends and how often rounds begin, as people write it."""

import pytest

from mdl.config import load_config
from mdl.ends import EndSection, parse_period, until_settings
from mdl.errors import ConfigError


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
        ("acuracy=0.9", "--until 'acuracy=0.9': did you mean accuracy? expected accuracy=N, rounds=N, minutes=N, no-b"),
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
