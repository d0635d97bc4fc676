"""A Python process that mdl starts does not import what lies in the directory it was started in (`-P`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGES = ("mdl", "transport", "sim", "scheduler", "peers")


def _commands(tree: ast.AST) -> list[ast.List | ast.Tuple]:
    """Lists and tuples of words that begin with an interpreter and go on with -m, -c or a file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            first = ast.unparse(node.elts[0])
            rest = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if first.endswith("executable") or (first == "python" and {"-c", "-m"} & set(rest)):
                found.append(node)
    return found


def test_each_start_of_python_has_it() -> None:
    commands = [
        (str(path), node)
        for package in PACKAGES
        for path in sorted(Path(package).rglob("*.py"))
        for node in _commands(ast.parse(path.read_text()))
    ]
    assert len(commands) >= 6
    without = [
        f"{path}:{node.lineno}"
        for path, node in commands
        if "-P" not in [each.value for each in node.elts if isinstance(each, ast.Constant)]
    ]
    assert without == []


@pytest.mark.parametrize("text", ["[sys.executable, '-m', 'mdl']", "(python, '-c', 'x')"])
def test_one_without_it_is_found(text: str) -> None:
    assert len(_commands(ast.parse(text))) == 1
