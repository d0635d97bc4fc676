"""What the pages tell a reader to type is there: commands, options, their values, benchmarks and targets of make.

Nothing is carried out here: a command line is parsed, by the same parser that would parse it for the reader.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from benchmarks.tool.command import load
from benchmarks.tool.options import Parser
from mdl.config import load_config
from mdl.data.sources import parse_spec
from mdl.learning.built_in import MODELS
from mdl.learning.networks import is_configured, parse_sizes
from mdl.peers.cli.main import whole as root
from mdl.peers.command.web import with_port
from mdl.peers.dccl.model.readers import parse_log
from mdl.peers.view.compare import parse_rules, parse_wanted
from mdl.peers.view.schedule_source import draw_scenarios
from mdl.scheduler.explain.watched_play import parse_policies
from mdl.scheduler.given import is_file
from mdl.scheduler.policies.registry import POLICIES, SHARES_BY
from mdl.sim.plans.draw_plan import LEVELS

ROOT = Path(__file__).resolve().parents[1]
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("CONTRIBUTING*"))]
_PAGES += [ROOT / "benchmarks" / "README.md"]
_CODE = [path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
_PROGRAM = r"mdl|make|python -m benchmarks|python examples/\S+\.py"
_COMMAND = rf"(?:nice (?:-n \S+ )?)?(?:\.venv/bin/)?(?:{_PROGRAM})(?![^\s`])(?! <-)"
_LINE = re.compile(rf"^(?:    |\$ )({_COMMAND}.*)$")
_INLINE = re.compile(rf"`({_COMMAND}[^`]*)`")
_MAKE = re.compile(r"^([a-z-]+):", re.MULTILINE)
# Words that a reader replaces, where an option wants something particular: HOST:PORT, NAME, MINE, ALPHA.
_PLACEHOLDER = re.compile(r"[A-Z]+(?:[:-][A-Z]+)*")


class Documented(NamedTuple):
    """A command line as it stands on a page. A line of its own is whole; within a sentence it may be the name alone."""

    where: str
    text: str
    whole: bool

    def words(self) -> list[str]:
        """Without comment, `nice`, and the dots that stand for more of the same."""
        words = shlex.split(self.text, comments=True)
        words = words[words.index("nice") + 1 :] if words[0] == "nice" else words
        words = words[2:] if words[0] == "-n" else words
        kept = [word for at, word in enumerate(words) if word != "..." or words[at - 1].startswith("-")]
        return [kept[0].removeprefix(".venv/bin/"), *kept[1:]]


def _find(path: Path, text: str) -> Iterator[Documented]:
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if found := _LINE.match(line):
            command = found[1]
            for more in lines[at + 1 :]:
                if not _goes_on(command):
                    break
                command = f"{command.removesuffix(chr(92))} {more.strip()}"
            yield Documented(f"{path.relative_to(ROOT)}:{at + 1}", command, True)
    # A span of code may go on in the next line; one in an indented line was found above.
    prose = "\n".join("" if line.startswith("    ") else line for line in lines)
    for found in _INLINE.finditer(prose):
        at = prose.count("\n", 0, found.start()) + 1
        yield Documented(f"{path.relative_to(ROOT)}:{at}", " ".join(found[1].split()), False)


def _goes_on(command: str) -> bool:
    """Whether a shell would read another line: after a backslash, or within quotes."""
    if command.endswith("\\"):
        return True
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def _documented() -> list[Documented]:
    found = [each for path in _PAGES for each in _find(path, path.read_text())]
    for path in _CODE:
        tree = ast.parse(path.read_text())
        nodes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))]
        found += [each for node in nodes for each in _find(path, ast.get_docstring(node) or "")]
    return found


_ALL = _documented()


def _those(program: str) -> list[Any]:
    return [pytest.param(each, id=f"{each.where} {each.text[:50]}") for each in _ALL if each.words()[0] == program]


def test_the_commands_of_every_page_are_found() -> None:
    told = {each.text for each in _ALL if each.whole}
    assert "mdl mesh new home" in told
    assert any(text.startswith("nice -n -5 python -m benchmarks chaos") for text in told)
    assert {
        "README.md",
        "docs/results/history/under-faults.md",
        "docs/faults.md",
        "benchmarks/memory.py",
        "examples/own_loop.py",
    } <= {each.where.partition(":")[0] for each in _ALL}
    assert len(_those("mdl")) > 80


@pytest.mark.parametrize("told", _those("mdl"))
def test_a_documented_mdl_command_parses(told: Documented) -> None:
    check_mdl(told.words()[1:], told.whole)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("mdl fly", "fly"),
        ("mdl peer --mesh home --speed 3", "--speed"),
        ("mdl schedule show dynamic:6:8 --round first", "first.*int"),
        ("mdl up --policy best", "best"),
        ("mdl up --split peple", "peple"),
        ("mdl up --data motoin", "motoin"),
        ("mdl up --model lenot", "lenot"),
        ("mdl up --set training.learning=1", "learning"),
        ("mdl sim run --faults harder", "harder"),
        ("mdl schedule compare --family dynamical", "dynamical"),
        ("mdl schedule show dynamical:6:8", "dynamical"),
        ("mdl schedule rounds --rules thrid", "thrid"),
        ("mdl schedule rounds --family dynamical", "dynamical"),
        ("mdl eval", "(?i)missing"),
        ("python -m benchmarks memory --peers 3 --speed", "--speed"),
        ("python -m benchmarks accuracy_recipe --data motion --theta none", "none"),
        ("python -m benchmarks memorie", "did you mean 'memory'"),
        ("python examples/nothing.py", "nothing"),
        ("make cofee", "cofee"),
    ],
)
def test_a_command_that_is_not_there_is_seen(line: str, complaint: str) -> None:
    words = line.split()
    with pytest.raises(Exception, match=complaint):
        {"mdl": lambda: check_mdl(words[1:], True), "python": lambda: check_python(words[1:], True)}.get(
            words[0], lambda: check_make(words[1:])
        )()


def check_mdl(words: list[str], whole: bool) -> None:
    """Raises what the command would: click's UsageError, or MdlError for the value of an option."""
    path, command = ["mdl"], root()
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{' '.join(path)} has no command {words[0]}"
        path, command, words = [*path, words[0]], command.commands[words[0]], words[1:]
    if not words and not whole:
        return
    try:
        context = command.make_context(" ".join(path), [_fill_in(word) for word in with_port(words)])
    except Exception as problem:
        kind = type(problem).__name__  # typer brings a click of its own, whose names are private
        if kind == "Exit":  # --help
            return
        if not whole and (kind == "MissingParameter" or (kind == "BadOptionUsage" and words[-1].startswith("--"))):
            return
        raise
    _check_values(path[1:], context.params)


def _check_values(path: list[str], given: dict[str, Any]) -> None:
    """What only the command itself would find out: names that are given as text."""
    said = {name: value for name, value in given.items() if value and not _is_placeholder(value)}
    models = [
        said[name] for name in ("model", "large") if isinstance(said.get(name), str)
    ]  # some versions of typer make paths of FILEs at once
    schedule = path[:1] == ["schedule"]
    if "data" in said and said.get("task") == "recommend":
        parse_log(said["data"])
    elif "data" in said:
        parse_spec(said["data"])
    if "policy" in said:
        is_given = is_file(said["policy"]) or ":" in said["policy"]
        known = (*POLICIES, *SHARES_BY) if schedule else POLICIES
        assert is_given or said["policy"] in known, said["policy"]
    if "policies" in said:
        parse_policies(said["policies"])
    if "rules" in said:
        parse_rules(",".join(rule for rule in said["rules"].split(",") if not is_file(rule)))
    if "faults" in said:
        assert said["faults"] in LEVELS, said["faults"]
    if "family" in said and path[-1:] == ["rounds"]:
        parse_wanted(said["family"], "3", "1", 1, 0, with_phones="recordings" in said)
    elif "family" in said:
        draw_scenarios(said["family"], 3, 1, 0, None)
    if "split" in said:
        assert re.fullmatch(r"subject|iid|dirichlet:[\d.]+", said["split"]), said["split"]
    if "source" in said and schedule and ":" in said["source"]:
        family, n, seed = said["source"].split(":")
        draw_scenarios(family, int(n), 1, int(seed), None)
    for name in models:
        if is_configured(name):
            parse_sizes(name)
            continue
        assert name in MODELS or is_file(name) or re.fullmatch(r"\w+:\w+|\d+-\d+", name), name
    if "assign" in said and not schedule:
        load_config(None, {}, said["assign"])


def _fill_in(word: str) -> str:
    """A number for N, a file that is there for FILE and runs/..., so that the parser goes on to what follows."""
    if word == "N":
        return "4"
    return __file__ if word == "FILE" or ("/" in word and "..." in word) else word


def _is_placeholder(value: object) -> bool:
    return isinstance(value, str) and (value == "..." or _PLACEHOLDER.fullmatch(value) is not None)


@pytest.mark.parametrize("told", _those("python"))
def test_a_documented_benchmark_or_example_parses(told: Documented) -> None:
    check_python(told.words()[1:], told.whole and "..." not in told.text)


def check_python(words: list[str], whole: bool) -> None:
    """Raise FileNotFoundError, ConfigError for an unknown benchmark, or ValueError with what its parser says."""
    if words[0] != "-m":
        if not (ROOT / words[0]).is_file():
            raise FileNotFoundError(words[0])
        return
    if len(words) == 2 or words[2].isupper():  # the list, or a NAME for the reader to replace
        return
    try:
        parser_of(words[2]).parse_args(words[3:])
    except ValueError as problem:
        if whole or "are required" not in str(problem):
            raise


@cache
def parser_of(name: str) -> Parser:
    def complain(message: str) -> NoReturn:
        raise ValueError(message)

    parser = load(name)[0]
    parser.error = complain  # type: ignore[method-assign]
    return parser


@pytest.mark.parametrize("told", _those("make"))
def test_a_documented_target_of_make_is_there(told: Documented) -> None:
    check_make(told.words()[1:])


def check_make(words: list[str]) -> None:
    targets = set(_MAKE.findall((ROOT / "Makefile").read_text()))
    assert {word for word in words if "=" not in word} <= targets, words
