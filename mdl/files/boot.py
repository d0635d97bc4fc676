"""Names this start of the machine: the writes of one start are still there, unless the disk has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

# Linux makes a new random one at each start of the kernel; a container has its host's.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LONGEST = 100
_ANSWERS_S = 2.0


def name_boot() -> str:
    """Return the name of this start of the machine, its time in seconds where it has no name, or "" if unknown."""
    try:
        return _BOOT_ID.read_text("ascii").strip()[:_LONGEST]
    except (OSError, ValueError):
        pass
    if sys.platform == "darwin" and (name := _ask_sysctl()):
        return name
    try:
        return f"{psutil.boot_time():.0f}"
    except (OSError, RuntimeError, psutil.Error):
        return ""


def _ask_sysctl() -> str:
    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWERS_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()[:_LONGEST]
