"""The run directory of `mdl up`: the rounds as they are written, and the results that are collected at the end.

`--verify` checks every global delta to the bit against the sum of the deltas that the peers kept on disk.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.bounds import MAX_ROOM, Round, whole_number
from mdl.errors import MdlError, StorageError, UnfinishedError
from mdl.files.checkpoint import read_safetensors
from mdl.files.figures import LineTail, read_rounds, read_run
from mdl.peers.edge.best import BEST, read_best
from mdl.peers.launch.processes import Child
from mdl.protocol.delta import Partial, PartialSum
from mdl.protocol.segments import mask_of
from mdl.protocol.status_messages import RoundSummary
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


class Verifier:
    """Checks the rounds of a run. worst: the largest error so far (`error_of`), 0.0 as long as all are exact."""

    def __init__(self, out: Path) -> None:
        self.worst: float | None = None
        self._out = out

    def check(self, summary: RoundSummary) -> None:
        """Compare, then delete the round's deltas. Raises MdlError if a needed one is missing."""
        own = [self._read(peer_id, summary.round, "own") for peer_id in summary.contributors]
        result = self._read(self._who_applied(summary), summary.round, "global")
        in_part = [self._read(each.contributor.peer_id, summary.round, "own") for each in result.partial]
        self.worst = max(error_of(result, own, in_part), self.worst or 0.0)
        for path in self._out.glob(f"*/deltas/{summary.round:05d}-*.safetensors"):
            path.unlink()

    def _who_applied(self, summary: RoundSummary) -> str:
        """Return a contributor that applied the round; one may be lost before.

        All that applied it have the same delta (the round's digest).
        """
        for peer_id in summary.contributors:
            if self._path(peer_id, summary.round, "global").exists():
                return peer_id
        return summary.contributors[0]

    def _path(self, peer_id: str, round_id: int, name: str) -> Path:
        return self._out / peer_id / "deltas" / f"{round_id:05d}-{name}.safetensors"

    def _read(self, peer_id: str, round_id: int, name: str) -> PartialSum:
        path = self._path(peer_id, round_id, name)
        if not path.exists():
            raise MdlError(f"--verify: {path} is missing")
        return kept_delta(*read_safetensors(path))


def kept_delta(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> PartialSum:
    """Return a sum as `keep_delta` (peers/edge/device.py) has written it, but for its contributors."""
    partial = msgspec.json.decode(metadata.get("partial", "[]"), type=tuple[Partial, ...])
    room = whole_number(metadata["room"], MAX_ROOM) or 0
    return PartialSum(arrays["values"].astype(np.int32), float(metadata["theta"]), frozenset(), room, partial)


def error_of(result: PartialSum, own: Sequence[PartialSum], in_part: Sequence[PartialSum]) -> float:
    """Return max |global - sum| over max |contributed|, of integers on the round's grid (Eq. 1, times theta).

    in_part: those of `result.partial`, in its order, each counted in the segments that have it. Sums of integers are
    the same in any order: anything but 0.0 is a wrong result.
    """
    off = result.values.astype(np.int64)
    for delta in own:
        off -= delta.values
    for delta, each in zip(in_part, result.partial, strict=True):
        off -= np.where(mask_of(each.lacks, each.segment_values, off.size), 0, delta.values)
    if any(delta.room != result.room for delta in (*own, *in_part)):
        return 1.0
    scale = max((int(np.abs(delta.values.astype(np.int64)).max()) for delta in (*own, *in_part)), default=0) or 1
    return int(np.abs(off).max(initial=0)) / scale
