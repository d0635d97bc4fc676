"""How many threads train: on a small computer one core is left to whatever else it is there for."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "OMP_NUM_THREADS"
# With as many cores or fewer one that is missing is missed.
_FEW_CORES = 4


def choose_threads(cores: int) -> int:
    """All cores but one where there are few."""
    return max(1, cores - 1) if cores <= _FEW_CORES else cores


def board_model(system: Path = Path("/")) -> str:
    """What the machine calls itself if it is a board with a device tree, as a Raspberry Pi; "" for others."""
    try:
        return (system / "proc/device-tree/model").read_text(errors="replace").strip("\0 \n")
    except OSError:
        return ""


def usable_cores() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_a_core(system: Path = Path("/")) -> None:
    """On a board, unless the user says another number, and before torch is there; says so."""
    model, cores = board_model(system), usable_cores()
    threads = choose_threads(cores)
    if model and threads < cores and VARIABLE not in os.environ and "torch" not in sys.modules:
        os.environ[VARIABLE] = str(threads)
    if said := os.environ.get(VARIABLE):
        logger.info("%s of %d cores train%s (%s)", said, cores, f" on {model}" if model else "", VARIABLE)
