"""Names and texts of others reach a terminal or a log as text: no escape sequence, no markup, one line each."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from ipaddress import IPv4Interface
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from mdl.errors import RemoteProtocolError
from mdl.peers.view.plain import PlainFormatter, plain_lines
from mdl.peers.view.terminal import PlainConsole
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.mdns import describe, read_description
from mdl.transport.wire.codec import decode, encode

NASTY = "\x1b]0;owned\x07\x1b[2J\u202e[red]x[/]\r\n:smile:[link=http://x]"
# What a terminal would act upon.
ACTS = ("\x1b", "\x07", "\r", "\u202e", "\u2028")


def _is_plain(text: str) -> bool:
    return not any(character in text for character in ACTS)


def test_a_console_prints_strings_as_they_are() -> None:
    out = io.StringIO()
    console = PlainConsole(file=out, width=200, force_terminal=True, color_system=None)
    table = Table("class", box=None)
    table.add_row(NASTY)
    console.print(NASTY)
    console.print(table)
    assert _is_plain(out.getvalue()), out.getvalue()
    assert out.getvalue().count("[red]x[/]") == 2
    assert ":smile:" in out.getvalue()


def test_an_ordinary_console_would_not() -> None:
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=True, color_system=None).print(NASTY)
    assert not _is_plain(out.getvalue())


def test_a_line_of_the_log_is_one_line() -> None:
    record = logging.LogRecord("peers", logging.WARNING, "", 0, "refused %s", (NASTY,), None)
    line = PlainFormatter("%(name)s: %(message)s").format(record)
    assert line.isprintable()
    assert "[red]x[/]" in line


def test_the_lines_of_a_text_stay_lines() -> None:
    assert plain_lines("a\nb\x1bc") == "a\nb\\x1bc"


@pytest.mark.parametrize("name", ["\x1b[2J", "a\x07", "a\u202eb", "a\nb", "../a", "[red]a"])
def test_a_peer_of_such_a_name_is_never_met(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        decode(encode(Contributor(name, 1), _hello("ann")))
    assert str(refused.value).isprintable()
    with pytest.raises(RemoteProtocolError):
        decode(encode(Contributor("ann", 1), _hello(name)))
    record = describe(PeerInfo(name, 1, Role.TRAINER, "127.0.0.1", 1), ["127.0.0.1"], None, "home")
    with pytest.raises(RemoteProtocolError) as refused:
        read_description(record, 1, None, "home", [IPv4Interface("127.0.0.1/8")])
    assert str(refused.value).isprintable()


def _hello(name: str) -> object:
    from mdl.protocol.messages import Hello

    return Hello(PeerInfo(name, 1, Role.TRAINER, "127.0.0.1", 1))


@pytest.mark.slow
def test_commands_show_hostile_names_of_classes_and_files_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a[red]\u202e.npz"
    classes = np.array([f"walk{NASTY}", "run[/b]"])
    np.savez(path, x=np.random.default_rng(1).normal(size=(60, 3, 64)).astype(np.float32), y=classes[np.arange(60) % 2])
    for arguments in (["data", "inspect", f"npz:{path}"], ["data", "inspect", f"npz:{path}x"], ["eval", str(path)]):
        done = subprocess.run(
            [sys.executable, "-c", "from mdl.peers.cli.main import main; main()", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert _is_plain(done.stdout + done.stderr), done.stdout + done.stderr


def test_json_is_escaped_for_programs_and_lines_are_for_people() -> None:
    assert json.loads(json.dumps({"name": NASTY}))["name"] == NASTY
    assert json.dumps({"name": NASTY}).isprintable()
