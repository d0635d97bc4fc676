"""What `--help` shows: commands and options under headings, a short whole sentence for each command."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from mdl.__main__ import HELP, HELP_COLUMNS
from mdl.peers.cli.main import whole
from mdl.peers.command import options as headings
from mdl.scheduler.explain.what_if import _FIELDS
from mdl.sim.timing.scenario import FAMILIES

FIRST = ("--mesh", "--invite", "--data", "--model", "--name", "--when", "--rounds", "--web")
MOST_WORDS = 10


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{path} {name}")


def _help(*words: str) -> str:
    command, context = whole(), None
    for word in ("mdl", *words):
        command = command if context is None else command.commands[word]
        context = command.context_class(command, info_name=word, parent=context, terminal_width=HELP_COLUMNS)
    text: str = command.get_help(context)
    return text


def _below(heading: str, text: str) -> list[str]:
    """The names in the left column below a heading."""
    lines = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]


ALL = dict(_commands(whole(), "mdl"))


@pytest.mark.parametrize("path", [path for path in ALL if path != "mdl"])
def test_a_command_is_told_in_ten_words(path: str) -> None:
    told = ALL[path].get_short_help_str(1_000)
    assert 0 < len(told.split()) <= MOST_WORDS, told
    assert told.endswith("."), "a sentence, not cut"


def test_commands_stand_in_groups_and_none_is_left_out() -> None:
    text = _help()
    shown = {heading: _below(heading, text) for heading in headings.COMMANDS}
    named = [name for name, command in whole().commands.items() if not command.hidden]
    assert sorted(name for names in shown.values() for name in names) == sorted(named)
    assert shown[headings.MESH] == ["up", "peer", "agent", "cloud", "mesh"]
    places = [text.index(f"\n{heading}:\n") for heading in headings.COMMANDS]
    assert places == sorted(places)
    assert "..." not in text.partition("\nOptions:\n")[2]
    assert text.partition(f"\n{headings.MESH}:\n")[2].count("\n\n") == len(headings.COMMANDS) - 1


def test_a_peer_shows_eight_options_first_and_the_others_under_headings() -> None:
    text = _help("peer")
    assert _below("Options", text) == [*FIRST, "--help"]
    others = [name for heading in headings.OPTIONS for name in _below(heading, text)]
    known = {option.opts[0] for option in ALL["mdl peer"].params}
    assert set(others) == known - set(FIRST)


@pytest.mark.parametrize(
    ("path", "option", "names"),
    [
        *((path, "--family", FAMILIES) for path in ("mdl schedule compare", "mdl scheduler eval")),
        ("mdl schedule what-if", "--set", _FIELDS),
    ],
)
def test_an_option_of_few_words_names_all_of_them(path: str, option: str, names: Collection[str]) -> None:
    [found] = [each for each in ALL[path].params if option in each.opts]
    assert set(names) <= set(re.findall(r"\w+", found.help))


def test_the_kept_help_is_what_the_commands_say() -> None:
    assert HELP.read_text(encoding="utf-8") == _help() + "\n", "python -m tests.peers.cli.test_help writes it anew"


if __name__ == "__main__":
    HELP.write_text(_help() + "\n", encoding="utf-8")
