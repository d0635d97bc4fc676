"""A Windows task is read back as it was meant, by XML's rules and then by those of a Windows command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import cast
from xml.etree import ElementTree

import pytest

from mdl.errors import ConfigError
from mdl.peers.service import Service, how_to_create, write_task

WORDS = (
    "peer",
    "--data",
    'csv:C:\\a b\\walk.csv?label="x"&columns=<a>',
    "--name",
    "",
    "--when",
    "é\\",
    'a\\"b',
    "100%",
)
HOME = cast(Path, PureWindowsPath("C:\\Users\\Zoë & co"))
SERVICE = Service("peer-home", ("C:\\Program Files\\mdl\\mdl.exe",), WORDS, 3, 600, None, directory=HOME)


def _read(text: str) -> dict[str, str]:
    root = ElementTree.fromstring(text)
    return {element.tag.partition("}")[2]: element.text or "" for element in root.iter()}


def _split(line: str) -> list[str]:
    """Read a command line as CommandLineToArgvW does: 2n backslashes before a quote are n, an odd one escapes it."""
    words, word, is_quoted, backslashes = list[str](), "", False, 0
    has_begun = False
    for character in line + " ":
        if character == "\\":
            backslashes += 1
            has_begun = True
            continue
        if character == '"':
            word += "\\" * (backslashes // 2)
            if backslashes % 2:
                word += '"'
            else:
                is_quoted = not is_quoted
            has_begun, backslashes = True, 0
            continue
        word += "\\" * backslashes
        backslashes = 0
        if character in " \t" and not is_quoted:
            if has_begun:
                words.append(word)
            word, has_begun = "", False
        else:
            word, has_begun = word + character, True
    return words


def test_a_task_is_read_back_word_by_word() -> None:
    text = write_task(SERVICE)
    assert text.isascii()
    assert text.startswith('<?xml version="1.0"?>\n<Task ')
    told = _read(text)
    assert told["Command"] == "C:\\Program Files\\mdl\\mdl.exe"
    assert _split(told["Arguments"]) == list(WORDS)
    assert told["WorkingDirectory"] == "C:\\Users\\Zoë & co"


def test_a_task_runs_as_its_user_without_end_and_behind_other_programs() -> None:
    told = _read(write_task(SERVICE))
    assert (told["RunLevel"], told["LogonType"]) == ("LeastPrivilege", "InteractiveToken")
    assert (told["ExecutionTimeLimit"], told["Priority"]) == ("PT0S", "8")
    assert (told["StopIfGoingOnBatteries"], told["Count"]) == ("false", "5")
    assert "schtasks /Create /TN mdl-peer-home /XML mdl-peer-home.xml" in how_to_create(SERVICE)


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("two\nlines", "no service's file can"),
        ("bell\a", "no service's file can"),
        ("\u202e", "no service's file can"),
        ("csv:%APPDATA%\\a.csv", "'%APPDATA%', which the Task Scheduler would replace"),
        ("$(Arg0)", "which the Task Scheduler would replace"),
    ],
)
def test_a_word_that_would_become_another_one_is_refused(word: str, complaint: str) -> None:
    for service in (replace(SERVICE, words=("peer", word)), replace(SERVICE, directory=Path(word))):
        with pytest.raises(ConfigError) as refused:
            write_task(service)
        assert complaint in str(refused.value)
