"""Data specs: one line of text, taken apart, or refused in one line that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.data import load_data
from mdl.data.readers.motion import MotionOptions
from mdl.data.sources import parse_spec
from mdl.data.spec import read_options
from mdl.errors import ConfigError
from mdl.own import own_data


def test_a_spec_is_source_path_and_options() -> None:
    spec = parse_spec("csv:a/b.csv?columns=ax,ay&label=activity&rate=50")
    assert (spec.source, spec.path) == ("csv", "a/b.csv")
    assert spec.options == {"columns": "ax,ay", "label": "activity", "rate": "50"}


@pytest.mark.parametrize(
    ("text", "source", "path"),
    [
        ("csv:x.csv", "csv", "x.csv"),
        ("npz:data", "npz", "data"),
        ("semg:data", "semg", "data"),
        ("uci-har", "uci-har", ""),
        ("csv:rec?.csv", "csv", "rec?.csv"),
        ("csv:rec?.csv?label=a", "csv", "rec?.csv"),
        ("my.package:make", "factory", "my.package:make"),
        ("make_data:make", "factory", "make_data:make"),
    ],
)
def test_a_path_is_never_mistaken_for_a_factory(text: str, source: str, path: str) -> None:
    spec = parse_spec(text)
    assert (spec.source, spec.path) == (source, path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("uci_hr", ["did you mean uci-har[:PATH]", "valid: motion, uci-har[:PATH]"]),
        ("motoin", ["did you mean motion", "package.module:factory"]),
        ("", ["no data is named: give --data", "--data motion is synthetic"]),
        ("csv", ["csv needs a path", "csv:PATH"]),
        ("npz:", ["npz needs a path"]),
        ("motion:people=3", ["takes no path", "motion?people=12"]),
        ("motion?people=3&people=4", ["each name once"]),
        ("motion?people=3&windows", ["expected name=value"]),
    ],
)
def test_an_unknown_spec_names_the_closest_valid_one(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_spec(text)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("motion?peple=3", ["'peple'", "did you mean people"]),
        ("motion?people=many", ["people=many", "int"]),
        ("motion?people=0", ["people=0", ">= 1"]),
        ("motion?windows=2", ["windows=2", ">= 12"]),
    ],
)
def test_a_wrong_option_is_named_with_its_value(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(parse_spec(text), MotionOptions)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_factory_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    for text, word in [("no_such_module:make", "no_such_module"), ("json:lods", "did you mean loads")]:
        with pytest.raises(ConfigError, match=word) as caught:
            load_data(own_data(text), tmp_path)
        assert "\n" not in str(caught.value)
