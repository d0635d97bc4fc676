"""Docstrings and comments can be read at first sight (docs: CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("mdl", "transport", "scheduler", "sim", "peers")
OPENING = re.compile(r"(who|whom|whose|whoever|what|whatever|whether|of|as|how|where|wherever|which|whichever)\b", re.I)
WHO = re.compile(r"\b(who|whom|whose|whoever)\b", re.I)
MOST_WORDS = 40


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and comment, those of commands aside: they are help."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_help = any("command" in ast.dump(each) for each in getattr(node, "decorator_list", ()))
            if (text := ast.get_docstring(node)) and not is_help:
                yield getattr(node, "lineno", 1), text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa"):
            yield token.start[0], token.string.lstrip("# ")


def _problems(text: str) -> list[str]:
    found = [f"says {each.group()!r}" for each in WHO.finditer(text)]
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
        if OPENING.match(sentence.strip()):
            found.append(f"begins with {sentence.split()[0]!r}")
        if len(sentence.split()) > MOST_WORDS:
            found.append(f"has a sentence of {len(sentence.split())} words")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_are_plain(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {problem}: {text[:60]!r}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in _texts(path)
        for problem in _problems(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Whether it is over.", "begins with 'Whether'"),
        ("Return it. Of the others nothing is known.", "begins with 'Of'"),
        ("Return the device whose turn it is.", "says 'whose'"),
        ("word " * 41, "has a sentence of 41 words"),
    ],
)
def test_the_check_finds_it(text: str, problem: str) -> None:
    assert problem in _problems(text)
