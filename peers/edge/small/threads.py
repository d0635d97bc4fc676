"""The number of threads that train: a small computer keeps one core for its other programs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "OMP_NUM_THREADS"
# With at most so many cores, training leaves one of them free.
_FEW_CORES = 4


def choose_threads(cores: int) -> int:
    """Return all cores, less one if there are few."""
    return max(1, cores - 1) if cores <= _FEW_CORES else cores


def board_model(system: Path = Path("/")) -> str:
    """Return the name of a board with a device tree, such as a Raspberry Pi; "" for other machines."""
    try:
        return (system / "proc/device-tree/model").read_text(errors="replace").strip("\0 \n")
    except OSError:
        return ""


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_a_core(system: Path = Path("/")) -> None:
    """Leave one core of a board free, unless the user sets another number or torch is loaded; log the number."""
    model, cores = board_model(system), usable_cores()
    threads = choose_threads(cores)
    if model and threads < cores and VARIABLE not in os.environ and "torch" not in sys.modules:
        os.environ[VARIABLE] = str(threads)
    if said := os.environ.get(VARIABLE):
        logger.info("%s of %d cores train%s (%s)", said, cores, f" on {model}" if model else "", VARIABLE)
