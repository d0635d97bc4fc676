"""`--verify`: check every global delta against the central mean of the deltas that the peers kept on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mdl.errors import MdlError
from mdl.files.checkpoint import read_safetensors
from mdl.protocol.delta import ModelDelta, Partial, Vector, central_mean
from mdl.protocol.segments import split_values, theta_by_value
from mdl.protocol.status_messages import RoundSummary


class Verifier:
    """Checks the rounds of a run. worst: the largest relative error so far (`error_of`)."""

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

    def _read(self, peer_id: str, round_id: int, name: str) -> ModelDelta:
        path = self._path(peer_id, round_id, name)
        if not path.exists():
            raise MdlError(f"--verify: {path} is missing")
        return kept_delta(*read_safetensors(path))


def kept_delta(arrays: Mapping[str, Vector], metadata: Mapping[str, str]) -> ModelDelta:
    """Return a delta as `keep_delta` (peers/edge/device.py) has written it, but for its contributors."""
    partial = msgspec.json.decode(metadata.get("partial", "[]"), type=tuple[Partial, ...])
    return ModelDelta(arrays["values"], float(metadata["theta"]), frozenset(), partial)


def error_of(result: ModelDelta, own: Sequence[ModelDelta], in_part: Sequence[ModelDelta]) -> float:
    """Return max |global - mean| over max |contributed|, the mean of own deltas in float64 (Eq. 1).

    in_part: those of `result.partial`, in its order, each counted in the segments that have it. The error is relative
    to the contributed deltas, not to the mean. Devices may pull in opposite directions (batch-norm statistics late in a
    run): the mean nearly vanishes, and no float32 arithmetic can keep the digits that cancelled.
    """
    total, weight = central_mean(own), sum(delta.theta for delta in own)
    mean = total * (weight / theta_by_value(result))
    for delta, each in zip(in_part, result.partial, strict=True):
        _, counted = split_values(delta.values, each.lacks, each.segment_values)
        mean += counted * (each.theta / theta_by_value(result))
    scale = max(float(np.abs(delta.values).max()) for delta in (*own, *in_part)) or 1.0
    return float(np.abs(result.values - mean).max()) / scale
