"""The first page does what it says: each of its commands and its program are run, on two devices of one machine."""

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import product
from tests.integration.test_examples import write_recording

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
# As a reader types them, in their order; `#` begins a remark.
LINES = [line.partition("  #")[0].strip() for line in re.findall(r"^    ((?:mdl|make) .*)$", PAGE, re.MULTILINE)]
INLINE = sorted(set(re.findall(r"`(mdl \w[^`]*)`", PAGE)))
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HERE = "--loopback"
NEW, INVITE, JOIN = "mdl mesh new home", "mdl mesh invite home", "mdl mesh join"
HALVES = [f"mdl peer --mesh home --data motion --shard {half}/2" for half in (1, 2)]
CSV = "'csv:walk.csv?label=activity'"
INSPECT, WALKS = f"mdl data inspect {CSV}", f"mdl peer --mesh home --run walks --data {CSV}"


@pytest.fixture
def homes(tmp_path):
    homes = [product.Home(tmp_path / name, tmp_path / "cache") for name in ("one", "other")]
    yield homes
    for home in homes:
        home.close()


def words_of(line, *more):
    return [*line.replace("'", "").split()[1:], *more]


def type_in(home, text, *words):
    """`mdl WORDS` on a terminal, on which this text is typed; what it says."""
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "mdl", *words]
        given = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, env=home.environment, cwd=home.folder, **given)
        os.write(ours, text.encode() + b"\n")
        said, _ = process.communicate(timeout=product.PATIENCE_S)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0, said
    return said


def train_together(homes, lines):
    """Until both have closed two rounds; then Ctrl-C."""
    peers = [home.start(*words_of(line, HERE)) for home, line in zip(homes, lines, strict=True)]
    assert product.until(lambda: all("round 2" in peer.told for peer in peers)), [peer.told for peer in peers]
    return peers


def test_the_page_has_the_commands_that_are_run_here_and_no_others():
    assert ["make up", "make test", NEW, INVITE, JOIN, *HALVES, INSPECT, WALKS] == LINES
    named = {"mdl mesh invite", "mdl mesh revoke", "mdl peer", "mdl up"}
    assert set(INLINE) == named | {"mdl doctor --mesh home", "mdl status --mesh home", "mdl up --web"}


@pytest.mark.slow
def test_two_devices_meet_by_three_words_and_train(homes):
    one, other = homes
    assert one.run(*words_of(NEW)).code == 0
    invitation = one.start(*words_of(INVITE, HERE))
    assert product.until(lambda: len(invitation.said.split()) == 3), invitation.told
    assert "knows mesh home now" in type_in(other, invitation.said.strip(), *words_of(JOIN, HERE))
    assert invitation.end() == 0
    peers = train_together(homes, HALVES)
    shown = one.run("status", "--mesh", "home", HERE)
    assert shown.code == 0, shown.told
    looked = one.run("doctor", "--mesh", "home", HERE)
    assert "FAIL" not in looked.said, looked.said
    for peer in peers:
        peer.interrupt()
        assert peer.code == 130
        assert "the model of round" in peer.told

    for seed, home in enumerate(homes):
        write_recording(home.folder / "walk.csv", seed)
        assert "sit" in home.run(*words_of(INSPECT)).said
    for peer in train_together(homes, [WALKS, WALKS]):
        peer.interrupt()

    for home in homes:
        (home.folder / "loop.py").write_text(PROGRAM.replace('"home", ', '"home", loopback=True, '))
    loops = [home.start_python(home.folder / "loop.py", fresh=True) for home in homes]
    assert [loop.end() for loop in loops] == [0, 0], [loop.told for loop in loops]
    assert all("round 10" in loop.told for loop in loops)


@pytest.mark.slow
def test_make_up_trains_and_shows_the_gain(homes):
    if not shutil.which("make"):
        pytest.skip("no make")
    told = subprocess.run(
        ["make", "--no-print-directory", "-n", "-o", ".venv/installed", "up"], cwd=ROOT, capture_output=True, text=True
    )
    words = told.stdout.split()
    assert words[0] == ".venv/bin/mdl"
    run = homes[0].start(*words[1:], "--web")
    assert run.end(4 * product.PATIENCE_S) == 0, run.told
    for line in ("mesh  ", "alone ", "central", "the mesh gained", "the page: http://", "20 rounds in"):
        assert line in run.said + run.told
