"""The facts beside every result: the machine, the day, the state of the code."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def facts() -> dict[str, Any]:
    """Return date, commit, processor, cores, load before the run, and versions.

    commit: with a + where files differ from it; "" outside a repository. load: of other work, over the last minute.
    """
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": _version("torch"),
    }


def _commit() -> str:
    try:
        words = ["git", "describe", "--always", "--exclude", "*", "--dirty=+"]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
