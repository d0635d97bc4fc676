"""`--verify`: check every global delta to the bit against the sum of the deltas that the peers kept on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.bounds import MAX_ROOM, whole_number
from mdl.errors import MdlError
from mdl.files.checkpoint import read_safetensors
from mdl.protocol.delta import Partial, PartialSum
from mdl.protocol.segments import mask_of
from mdl.protocol.status_messages import RoundSummary


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
