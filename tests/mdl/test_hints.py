"""One hint for misspelt names, whatever they are names of."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mdl
from mdl.errors import did_you_mean


@pytest.mark.parametrize(
    ("given", "hint"),
    [("gredy", "; did you mean 'greedy'?"), ("trees", "; did you mean 'tree'?"), ("qqq", ""), ("", "")],
)
def test_the_closest_name_is_offered_and_none_that_is_far(given: str, hint: str) -> None:
    assert did_you_mean(given, ["greedy", "tree", "ring"]) == hint


def test_a_caller_may_say_it_in_its_own_words() -> None:
    assert did_you_mean("sede", iter(["seed"]), "did you mean {}? ") == "did you mean seed? "


@pytest.mark.slow
def test_nobody_else_looks_for_close_names() -> None:
    folders = [Path(mdl.__file__).parents[1] / name for name in ("mdl", "transport", "sim", "scheduler", "peers")]
    lookers = [
        path.name
        for folder in folders
        for path in folder.rglob("*.py")
        if any(
            isinstance(node, ast.Import) and any(alias.name == "difflib" for alias in node.names)
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert lookers == ["errors.py"]
