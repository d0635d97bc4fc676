"""Docstrings, comments, pages, help, errors and log lines can be read at first sight (docs: CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mdl.peers.cli.main import whole

ROOT = Path(__file__).parent.parent
FOLDERS = ("mdl", "transport", "scheduler", "sim", "peers")
OPENING = re.compile(r"(who|whom|whose|whoever|what|whatever|whether|of|as|how|where|wherever|which|whichever)\b", re.I)
WHO = re.compile(r"\b(who|whom|whose|whoever)\b", re.I)
# Of a sentence: developers have the code beside it; users and operators have nothing else.
MOST_WORDS = 40
MOST_WORDS_READ = 25
# A call of these says something to a user or an operator.
SAYS = re.compile(r"(Error|Finding|Failure|BadParameter)$|^(ok|note|fail)$|^logger\.")


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


# On a page; docstrings avoid some more.
BAD_OPENINGS = {f"begins with {word!r}" for word in ("Who", "Whom", "Whose", "What", "Whether", "Of", "As")}
MOST_WHO = 0.5 / 1000
GENERATED = [ROOT / "docs" / "reference" / f"{name}.md" for name in ("commands", "configuration", "messages")]
PAGES = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path not in GENERATED
]


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and comment, those of commands aside: they are help."""
    source = path.read_text()
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_help = any("command" in ast.dump(each) for each in getattr(node, "decorator_list", ()))
            if (text := ast.get_docstring(node)) and not is_help:
                yield getattr(node, "lineno", 1), text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa"):
            yield token.start[0], token.string.lstrip("# ")


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string below a node, docstrings aside; `{}` stands for a value in it."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.JoinedStr(values=values):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in values)
            yield node.lineno, "".join(map(str, parts))
        case ast.Constant(value=str(text)):
            yield node.lineno, text
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _strings(child)


def _said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each error, finding and log line that is written where it is said."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and SAYS.search(ast.unparse(node.func)):
            for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from _strings(given)


def _help(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Name and help of a command, of its options and arguments, and of the commands below it."""
    yield path, command.help or ""
    for each in command.params:
        yield f"{path} {each.opts[0]}", getattr(each, "help", None) or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from _help(below, f"{path} {name}")


def _problems(text: str, most_words: int = MOST_WORDS) -> list[str]:
    found = [f"says {each.group()!r}" for each in WHO.finditer(text)]
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
        if OPENING.match(sentence.strip()):
            found.append(f"begins with {sentence.split()[0]!r}")
        if len(sentence.split()) > most_words:
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


@pytest.mark.parametrize("folder", FOLDERS)
def test_errors_findings_and_log_lines_are_plain(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {problem}: {text[:60]!r}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in (_strings if "doctor" in path.parts else _said)(_parse(path))
        for problem in _problems(text, MOST_WORDS_READ)
    ]
    assert found == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_text_of_the_code_says_who(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]!r}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in _strings(_parse(path))
        if " " in text and WHO.search(text)
    ]
    assert found == []


def test_no_text_of_the_page_says_who() -> None:
    page = ROOT / "peers/web/page"
    files = [page / "index.html", *sorted(page.glob("*.js"))]
    assert len(files) > 5
    found = [path.name for path in files if WHO.search(re.sub(r"(?m)(^|\s)//.*$", "", path.read_text()))]
    assert found == []


def test_help_is_plain() -> None:
    told = list(_help(whole(), "mdl"))
    assert len(told) > 500
    found = [f"{name}: {problem}" for name, text in told for problem in _problems(text, MOST_WORDS_READ)]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'raise ConfigError(f"which mesh? give {name}")',
        'logger.warning("%s: the device whose turn it is", name)',
        'yield note("code", told, do="whatever listens there")',
        f'raise DataError(f"{{path}}: {"word " * MOST_WORDS_READ}")',
    ],
)
def test_the_check_finds_what_is_said(code: str) -> None:
    assert any(_problems(text, MOST_WORDS_READ) for _, text in _said(ast.parse(code)))


def _prose(page: str) -> list[tuple[str, bool]]:
    """Paragraphs, items of lists, cells of tables and headings, each with True if it has whole sentences.

    Blocks of code are left out; a span of code counts as one word, a link as its text.
    """
    page = re.sub(r"^ *(```+).*?^ *\1 *$", "", page, flags=re.MULTILINE | re.DOTALL)
    found: list[tuple[list[str], bool]] = []
    is_new, margin = True, 0  # margin: an item's text goes on below it, so code there stands further in
    for line in page.splitlines():
        indent = len(line) - len(line.lstrip())
        item = re.match(r"\s*(?:[-*+]|\d+\.)\s+", line)
        if not line.strip():
            is_new = True
        elif item and indent < margin + 4:
            margin, is_new = item.end(), False
            found.append(([line[item.end() :]], True))
        elif line.startswith("#"):
            margin, is_new = 0, True
            found.append(([line.lstrip("# ")], False))
        elif line.lstrip().startswith("|"):
            is_new = True
            found.extend(([cell], False) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
        elif is_new:
            margin = margin if indent >= margin else 0
            if indent < margin + 4:
                found.append(([line], True))
                is_new = False
        else:
            found[-1][0].append(line)
    return [(_plain(" ".join(lines)), is_whole) for lines, is_whole in found]


def _plain(text: str) -> str:
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*+", "", text)


def _problems_of_page(page: str) -> list[str]:
    """Return the problems of a page: long sentences, and too many relative words for its length."""
    prose = _prose(page)
    found = [
        f"{problem}: {text[:60]!r}"
        for text, is_whole in prose
        for problem in _problems(text)
        if problem.startswith("has") or (is_whole and problem in BAD_OPENINGS)
    ]
    who = [each.group() for text, _ in prose for each in WHO.finditer(text)]
    if len(who) > MOST_WHO * len(page.split()):
        found.append(f"says {', '.join(who)}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain(page: Path) -> None:
    assert _problems_of_page(page.read_text()) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (f"- {'word ' * 41}\n", "has a sentence of 41 words"),
        (f"| a | {'word ' * 41} |\n", "has a sentence of 41 words"),
        ("Short.\n\n1. Item\n   whose end\n   is here.\n", "says whose"),
        ("It ends here. Of that it says\nnothing.\n", "begins with 'Of'"),
    ],
)
def test_the_check_of_a_page_finds_it(page: str, problem: str) -> None:
    assert any(problem in each for each in _problems_of_page(page))


def test_the_check_of_a_page_passes_over_code() -> None:
    code = "word " * 41
    page = f"Text:\n\n    {code}\n\n```\n{code}\n```\n\n- an item:\n\n      {code}\n\n- `{code}` | whose\n\n"
    assert _problems_of_page(page + "Whole words. " * 4000) == []


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
