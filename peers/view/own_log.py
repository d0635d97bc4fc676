"""A mesh's own log as something to train on: `recorded:FILE` of `mdl scheduler train --scenarios`."""

from __future__ import annotations

from pathlib import Path

from mdl.devices.scenario import Scenario, load_scenarios
from mdl.errors import ConfigError, DataError
from mdl.files.figures import read_rounds
from mdl.protocol.status_messages import RoundSummary
from mdl.scheduler.explain.recorded_round import finished_round, read_real_rounds, rebuild

_RECORDED = "recorded:"


def parse_recorded(text: str) -> Path:
    """Return the path that `recorded:FILE` names. Raises ConfigError for another text, or if nothing is there."""
    path = Path(text.removeprefix(_RECORDED))
    if not text.startswith(_RECORDED) or not text.removeprefix(_RECORDED):
        raise ConfigError(f"--scenarios {text[:80]!r}: expected recorded:FILE, a run directory or its metrics.jsonl")
    if not path.exists():
        raise ConfigError(f"--scenarios {text[:80]!r}: no such file or directory")
    return path


def recorded_rounds(path: Path) -> list[RoundSummary]:
    """Read the rounds of a run directory or of a metrics.jsonl. Raises DataError if it has none."""
    if path.is_dir():
        return read_real_rounds(path)
    rounds = {summary.round: summary for summary in read_rounds(path)}
    if not rounds:
        raise DataError(f"{path}: no finished round in it")
    return [rounds[number] for number in sorted(rounds)]


def recorded_scenarios(path: Path) -> list[Scenario]:
    """Return a log's rounds as scenarios; a file may hold scenarios itself (`mdl schedule scenarios`).

    A round that tells too little is left out. Raises DataError if none is left.
    """
    if path.is_file():
        try:
            return load_scenarios(path)
        except DataError:
            pass
    found, why = [], ""
    for summary in recorded_rounds(path):
        try:
            found.append(rebuild(finished_round(summary, str(path))).scenario)
        except DataError as error:
            why = str(error)
    if not found:
        raise DataError(why)
    return found
