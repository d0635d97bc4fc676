"""The run directory of `mdl up`: the rounds as they are written, and the results that are collected at the end."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec

from mdl.bounds import Round
from mdl.errors import StorageError, UnfinishedError
from mdl.files.checkpoint import read_safetensors
from mdl.files.figures import read_rounds, read_run
from mdl.peers.edge.best import BEST, read_best
from mdl.peers.launch.processes import Child
from mdl.peers.view.tail import LineTail
from mdl.reading import decode_json
from mdl.writing import spare_place, write_bytes, write_whole

logger = logging.getLogger(__name__)

MODEL = "global.safetensors"


class _Exported(msgspec.Struct):
    """A part of the description of an exported model."""

    round_id: Round


class CycleReader:
    """Follows the file that the cloud of a run writes. last: its newest cycle, None before the first."""

    def __init__(self, out: Path) -> None:
        self.last: dict[str, Any] | None = None
        self._tail = LineTail(out / "cloud" / "cycles.jsonl")

    def look(self) -> None:
        while lines := self._tail.new():
            self.last = msgspec.json.decode(lines[-1])


def collect_results(out: Path, trainers: list[Child]) -> Path | None:
    """Bring metrics and the newest global model to the run directory; return the model's path, or None without one.

    Raises UnfinishedError if the disk refuses; it says where the model is instead.
    """
    problems = []
    try:
        if rounds := read_run(out):
            write_bytes(out / "metrics.jsonl", b"".join(msgspec.json.encode(summary) + b"\n" for summary in rounds))
    except StorageError as error:
        problems.append(str(error))
    spares = [spare_place(out / MODEL, child.process.pid) for child in trainers]
    models = [path for path in (*(out / child.name / MODEL for child in trainers), *spares) if path.exists()]
    if not models and not problems:
        return None
    saved = max(models, key=_round_of, default=None)
    if saved:
        try:
            with saved.open("rb") as source:
                write_whole(out / MODEL, lambda file: shutil.copyfileobj(source, file))
            saved = out / MODEL
        except StorageError as error:
            problems.append(str(error))
    for spare in spares:
        if spare != saved:
            spare.unlink(missing_ok=True)
    if problems:
        kept = f"the model is in {saved}" if saved else _describe_caches(out)
        result = {"run_dir": str(out), "model": str(saved) if saved else None}
        raise UnfinishedError("; ".join([*problems, kept]), 4, result)
    return saved


def collect_best(out: Path, peers: int) -> int:
    """Bring the best model of a run that ends by itself to the run directory; return its round, 0 without one.

    The latest one is the best: it was better than those before, or a device judged it that had not tried them. If the
    disk refuses, it stays in its place.
    """
    places = [out / f"peer-{index}" / BEST for index in range(1, peers + 1)]
    found = [(kept, path) for path in places if (kept := read_best(path))]
    if not found:
        return 0
    kept, path = max(found, key=lambda each: each[0].best_round)
    try:
        with path.open("rb") as source:
            write_whole(out / BEST, lambda file: shutil.copyfileobj(source, file))
    except StorageError as error:
        logger.warning("%s; the best model is in %s", error, path)
    return kept.best_round


def _round_of(path: Path) -> int:
    """Return the round of an exported model, without torch."""
    return decode_json(read_safetensors(path)[1]["mdl"].encode(), _Exported, str(path)).round_id


def remove_traces(out: Path) -> None:
    """Remove the directory of a run with refused input: all in `out` is ours, it was empty before."""
    if not (out / "metrics.jsonl").exists():
        shutil.rmtree(out, ignore_errors=True)


def describe_interrupt(out: Path) -> str:
    """Return in words what an interrupted run leaves, and where."""
    saved = out / MODEL
    rounds = len(read_rounds(out / "metrics.jsonl"))
    if saved.exists():
        return f"interrupted after {rounds} finished rounds; the last global model is in {saved}"
    if not rounds:
        return f"interrupted before the first round was finished: no model yet; logs are in {out / 'logs'}"
    return (
        f"interrupted after {rounds} finished rounds; no device was quick enough to export it, {_describe_caches(out)}"
    )


def _describe_caches(out: Path) -> str:
    return f"its file caches are {out / '*' / 'model.safetensors'}"
