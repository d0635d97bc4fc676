"""Some seconds of whole conversations in each run of the tests; what they found once; and planted bugs are found."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mdl.peers.roles.agent.ledger import RoundLedger
from mdl.peers.roles.membership.members import Members
from mdl.protocol import statements
from mdl.protocol.delta import Contributor
from mdl.transport.links import mesh_links
from tests.fuzz.conversations.run import SHARES, Failure, replay, run_case, shrink
from tests.fuzz.conversations.scenes import CODE_HOLDER, MEMBER
from tests.fuzz.machines import be_quiet

ROOT = Path(__file__).resolve().parents[3]
FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
# About a minute of one of two cores where nothing else runs, and a fifth of it.
MESSAGES = [pytest.param(12_000, id="some"), pytest.param(60_000, id="many", marks=pytest.mark.long)]


@pytest.fixture(autouse=True)
def lines_checked():
    """Every line of a log is looked at, as by the command."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    be_quiet()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # where much else runs
@pytest.mark.parametrize("messages", MESSAGES)
def test_a_while_of_hostile_conversations_ends_no_process(tmp_path, messages):
    command = [sys.executable, "-m", "tests.fuzz.conversations", "--messages", str(messages), "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1750, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    for scene, role in SHARES:
        assert f"{scene:<10}{role:<12}" in done.stdout


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_handled(path):
    assert replay(msgspec.json.decode(path.read_bytes(), type=Failure)) is None


def test_a_case_is_the_same_each_time():
    tallies = [run_case("mesh", MEMBER, 5, 200) for _ in range(2)]
    assert tallies[0].refused == tallies[1].refused > 0
    assert tallies[0].most_sent == tallies[1].most_sent > 0
    assert tallies[0].failures == []


def _any_text_is_an_address(text: str) -> None:
    """As it was: a pattern let `1.2` through, in a signed Hello, and whoever passed it on parsed it."""


def _nobody_looks_at_frames(envelope: Any, frames: Any) -> None:
    """A chunk may come without its bytes."""


def _whoever_is_named_is_a_member(self: Members, contributor: Contributor) -> Any:
    return self._table[contributor.peer_id]


def _senders_are_never_freed(self: RoundLedger) -> list[Any]:
    return []


# mutation -> (where, name; the scene, the role and the case that find it, and what they say)
MUTATIONS: dict[Callable[..., Any], tuple[Any, str, str, str, int, str]] = {
    _any_text_is_an_address: (statements, "check_reachable", "mesh", CODE_HOLDER, 0, "ValueError"),
    _nobody_looks_at_frames: (mesh_links, "check_frames", "mesh", MEMBER, 2, "IndexError"),
    _whoever_is_named_is_a_member: (Members, "get", "mesh", MEMBER, 24, "KeyError"),
    _senders_are_never_freed: (RoundLedger, "to_release", "mesh", MEMBER, 22, "no round of two"),
}
# Cases that are tried where a changed machine is no longer caught by the one that is named.
_CASES, _MESSAGES = 40, 600


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
def test_a_planted_bug_is_found_and_shrunk(mutation, monkeypatch):
    where, name, scene, role, first, text = MUTATIONS[mutation]
    monkeypatch.setattr(where, name, mutation)
    tallies = (run_case(scene, role, case, _MESSAGES) for case in (first, *range(_CASES)))
    failure = next((tally.failures[0] for tally in tallies if tally.failures), None)
    assert failure is not None
    assert text in failure.text
    short = shrink(failure, 12)
    assert len(short.moves) < len(failure.moves)
    found = replay(short)
    assert found is not None
    assert text in found[0]
    monkeypatch.undo()
    assert replay(short) is None
