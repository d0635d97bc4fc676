"""One table for each kind of thing: a new row is in the help, the errors, the lists and the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mdl.data.sources import SOURCES, parse_spec, source_forms
from mdl.errors import ConfigError
from mdl.learning.built_in import MODELS, model_forms
from mdl.peers.cli.main import whole
from mdl.scheduler.policies.registry import POLICIES, name_policies

DOCS = Path(__file__).resolve().parents[1] / "docs"


def _help_of(option: str) -> str:
    [found] = [each for each in whole().commands["peer"].params if option in each.opts]
    return str(found.help)


def test_each_row_is_in_the_help() -> None:
    assert ", ".join(source_forms()) in _help_of("--data")
    assert ", ".join(model_forms()) in _help_of("--model")
    assert name_policies() in _help_of("--policy")


def test_an_unknown_source_names_each_row() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_spec("nosuch")
    assert ", ".join(source_forms()) in str(raised.value)


@pytest.mark.parametrize(
    ("page", "rows"), [("data.md", SOURCES), ("training-model.md", MODELS), ("schedule.md", POLICIES)]
)
def test_each_row_is_on_the_page_that_helps_to_choose(page: str, rows: dict[str, object]) -> None:
    missing = {name for name in rows if not re.search(rf"`{name}\b", (DOCS / page).read_text())}
    assert not missing - {"places"}, "places stand on the pages of the cloud"


@pytest.mark.parametrize("rows", [SOURCES, MODELS, POLICIES])
def test_each_row_says_what_it_is_in_few_words(rows: dict[str, object]) -> None:
    for name, row in rows.items():
        about = str(vars(row)["about"])
        assert 0 < len(about.split()) <= 15, name
