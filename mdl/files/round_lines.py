"""The rounds that nodes have written, one JSON line each (metrics.jsonl)."""

from __future__ import annotations

from pathlib import Path

from mdl.protocol.status_messages import RoundSummary
from mdl.reading import decode_json, open_regular


def read_run(out: Path) -> list[RoundSummary]:
    """Return the rounds of all nodes, each once: every device that was in the mesh then has a line for it."""
    rounds = {summary.round: summary for path in sorted(out.glob("*/metrics.jsonl")) for summary in read_rounds(path)}
    return [rounds[number] for number in sorted(rounds)]


def read_rounds(path: Path) -> list[RoundSummary]:
    """Return the completely written rounds; [] if there is no such file. Raises DataError for a malformed line."""
    if not path.exists():
        return []
    with open_regular(path) as file:
        lines = file.read().split(b"\n")[:-1]  # the last piece is empty, or not written to its end
    return [decode_json(line, RoundSummary, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


# Rounds that a view keeps: more than fit on any screen.
ROUNDS_KEPT = 500
