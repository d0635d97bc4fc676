"""One name, one thing: classes of the five folders, and the words of the glossary."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("mdl", "transport", "scheduler", "sim", "peers")
# One class for each of two libraries, behind an extra of its own.
TWICE = {"MeshCallback"}
MOST_WORDS = 60


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for each in targets if isinstance(each, ast.Name)]
    return []


# `mdl/peers` and the like are links to the folders beside it.
TREES = [
    ast.parse(path.read_text())
    for name in FOLDERS
    for path in sorted((ROOT / name).rglob("*.py"))
    if path.resolve() == path
]


def test_a_class_has_a_name_of_its_own() -> None:
    names = Counter(
        node.name
        for tree in TREES
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} <= TWICE


def test_the_glossary_names_what_is_there() -> None:
    names = {name for tree in TREES for node in tree.body for name in _defined(node)}
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert 30 <= len(rows) <= MOST_WORDS
    assert [word for word, *_ in rows] == sorted(word for word, *_ in rows)
    assert not [code for *_, told in rows for code in re.findall(r"`(\w+)`", told) if code not in names]
    assert all(len(row) == 3 and "`" in row[2] for row in rows)
