"""Checks of the memory limit of a container or service, before the system ends mdl without a word.

The kernel kills a control group that exceeds its limit: nothing is written or logged.
"""

from __future__ import annotations

import logging
from pathlib import Path

import psutil

from mdl.errors import ConfigError

logger = logging.getLogger(__name__)

# torch alone takes 143 MB that are in no file; a LeNet peer 195 MB with that (docs/results.md has larger ones).
LEAST_MB, LITTLE_MB = 150, 500
# The memory of a first step of training and its threads beside that, measured for a LeNet.
_STEP_BYTES = 16 << 20
# Vectors of a model's size that every round makes: gradients, the delta, the result.
_VECTORS = 3
# The limit that a control group without one reports (version 1).
_NO_LIMIT = 1 << 60
_ITS_LIMIT = "a container's or service's limit"


def read_memory_limit(system: Path = Path("/")) -> int | None:
    """Return the megabytes that the control group of this process, or one above it, may take; None without a limit."""
    limits = []
    for line in _read(system / "proc/self/cgroup").splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds not in ("", "memory"):
            continue
        top = system / "sys/fs/cgroup" / kinds
        for place in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            limits += [_read(top / place / name) for name in ("memory.max", "memory.limit_in_bytes")]
    found = [int(limit) >> 20 for limit in limits if limit.isdigit() and int(limit) < _NO_LIMIT]
    return min(found, default=None)


def check_limit(trainers: int = 1, system: Path = Path("/")) -> None:
    """Raise ConfigError if the limit leaves these trainers no room; warn if it is narrow.

    Call this before libraries are loaded.
    """
    limit_mb = read_memory_limit(system)
    if limit_mb is None:
        return
    if limit_mb < trainers * LEAST_MB:
        raise ConfigError(
            f"only {limit_mb} MB of memory may be taken here ({_ITS_LIMIT}), and training takes at least "
            f"{trainers * LEAST_MB} MB. The system would kill it without a message: allow it {trainers * LITTLE_MB} MB"
        )
    if limit_mb < trainers * LITTLE_MB:
        text = (
            "only %d MB of memory may be taken here (%s): a small model takes 200 to 270, and a process that takes "
            "more is killed"
        )
        logger.warning(text, limit_mb, _ITS_LIMIT)


def check_room(parameters_bytes: int, system: Path = Path("/"), taken_bytes: int | None = None) -> None:
    """Raise ConfigError if a round cannot fit into the limit; call this once the model is built.

    taken_bytes: memory of this process without pages of files, which the system takes back.
    """
    limit_mb = read_memory_limit(system)
    if limit_mb is None:
        return
    taken = _taken_bytes() if taken_bytes is None else taken_bytes
    needed_mb = (taken + _VECTORS * parameters_bytes + _STEP_BYTES) >> 20
    if limit_mb < needed_mb:
        raise ConfigError(
            f"only {limit_mb} MB of memory may be taken here ({_ITS_LIMIT}), and training this model on this data "
            f"takes more than {needed_mb} MB. The system would kill it without a message: allow it {2 * needed_mb} "
            "MB, or take a smaller model or share of the data"
        )


def _taken_bytes() -> int:
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
