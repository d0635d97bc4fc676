"""Reports on a finished run: its card, and its pictures if matplotlib is here. It can never make a run fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mdl.errors import MdlError
from mdl.files.figures import read_rounds
from mdl.peers.report.card import model_in, write_card

# Drawing takes some seconds on a small computer.
_DRAWN_S = 60.0


def report_on(out: Path) -> list[str]:
    """Write the card and the pictures; return lines for people: the files, or why they are missing."""
    try:
        rounds = read_rounds(out / "metrics.jsonl")
        card = write_card(model_in(out), rounds)
    except MdlError as error:
        return [f"no model card: {error}"]
    return [f"the model's card is {card}", *([_draw(out)] if rounds else [])]


def _draw(out: Path, command: Sequence[str] = (sys.executable, "-P", "-m", "mdl.peers.report.pictures")) -> str:
    if find_spec("matplotlib") is None:
        return "no pictures of the run: pip install 'mdl[plot]' has them drawn"
    try:
        done = subprocess.run([*command, str(out)], capture_output=True, text=True, timeout=_DRAWN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no pictures of the run: {type(error).__name__}"
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"no pictures of the run: {why[:200]}"
    return f"pictures of the run are in {out / 'pictures'}"
