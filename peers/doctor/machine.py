"""Checks of this machine alone: what a peer needs to start, and to go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil

from peers.doctor.finding import Finding, fail, note, ok
from transport.links.descriptors import RESERVED, raise_limit, share_out

# A Raspberry Pi takes 10 s to import torch from a cold card.
_TORCH_S = 60.0
# A LeNet peer takes some 270 MB (docs/results.md), and the system wants to live.
_LITTLE_MB, _TOO_LITTLE_MB = 500, 150
_LITTLE_DISK_MB, _TOO_LITTLE_DISK_MB = 200, 20
# With fewer links a mesh of a home does not fit.
_FEW_PEERS = 8
# Nobody ran this before: a Pi without a battery for its clock starts in 1970 until the network tells it the time.
_FIRST_YEAR = 2025
# What the firmware of a Raspberry Pi says (vcgencmd get_throttled): now, and since it was started.
_UNDER_VOLTAGE, _THROTTLED, _WAS_UNDER_VOLTAGE = 0x1, 0x4, 0x10000


def check_machine(state: Path, system: Path = Path("/")) -> Iterator[Finding]:
    """state: the directory that a peer writes to. system: where /sys is, for tests."""
    yield check_descriptors(raise_limit())
    yield check_memory(psutil.virtual_memory().available >> 20)
    yield check_disk(state)
    yield check_clock(datetime.now(tz=UTC).year)
    yield from check_power(system)


def check_torch(python: str = sys.executable) -> Finding:
    """In a process of its own: a wheel for another processor ends it by a signal."""
    try:
        tried = subprocess.run(
            [python, "-c", "import torch; torch.ones(8).sum().item(); print(torch.__version__)"],
            capture_output=True,
            text=True,
            timeout=_TORCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return fail(
            "torch", f"importing torch takes more than {_TORCH_S:.0f} s", "look at memory and disk: it may swap"
        )
    if tried.returncode == 0:
        return ok("torch", f"torch {tried.stdout.strip()} works")
    remedy = "install torch from its own CPU index for this machine (docs/raspberry-pi.md)"
    if tried.returncode < 0:
        name = signal.Signals(-tried.returncode).name
        return fail("torch", f"importing torch ends with {name}: it was built for another processor", remedy)
    last = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
    return fail("torch", f"torch cannot be imported: {last[:300]}", remedy)


def check_descriptors(limit: int) -> Finding:
    peers = share_out(limit).peers
    told = f"{limit} files may be open: links to {peers} devices"
    raise_it = "raise the limit: ulimit -n 1024, or LimitNOFILE= of the service"
    if limit <= RESERVED:
        return fail("descriptors", f"only {limit} files may be open, mdl needs more than {RESERVED}", raise_it)
    return note("descriptors", told, raise_it) if peers < _FEW_PEERS else ok("descriptors", told)


def check_memory(free_mb: int) -> Finding:
    told = f"{free_mb} MB of memory are free"
    if free_mb < _TOO_LITTLE_MB:
        return fail(
            "memory", told, f"a small peer takes 270 MB: end other programs, or add swap (at least {_LITTLE_MB} MB)"
        )
    if free_mb < _LITTLE_MB:
        return note("memory", told, "a small peer takes 270 MB; training may be slow: end other programs")
    return ok("memory", told)


def check_disk(state: Path) -> Finding:
    """Whether the directory, or the nearest one there is above it, can be written and has room."""
    there = next(place for place in (state, *state.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return fail(
            "disk", f"{there} cannot be written", f"give it to this user, or start with --out elsewhere ({state})"
        )
    free_mb = shutil.disk_usage(there).free >> 20
    told = f"{free_mb} MB are free at {there}"
    if free_mb < _TOO_LITTLE_DISK_MB:
        return fail("disk", told, "make room: a peer saves its model in each round", "start with --out on another disk")
    return note("disk", told, "make room for models and metrics") if free_mb < _LITTLE_DISK_MB else ok("disk", told)


def check_clock(year: int) -> Finding:
    if year < _FIRST_YEAR:
        do = "sudo timedatectl set-ntp true; hours in --when and the times of logs are wrong until then"
        return note("clock", f"the clock says {year}", do)
    return ok("clock", "the clock is plausible")


def check_power(system: Path) -> Iterator[Finding]:
    """Under-voltage of a Raspberry Pi, as its kernel or its firmware tells; nothing on other machines."""
    alarms = sorted((system / "sys/class/hwmon").glob("hwmon*/in0_lcrit_alarm"))
    bits = _throttled(system)
    if not alarms and bits is None:
        return
    is_low = any(_read(alarm) == "1" for alarm in alarms) or bool(bits and bits & _UNDER_VOLTAGE)
    supply = "use the 5.1 V supply that was made for it, and a short cable"
    if is_low:
        yield note("power", "under-voltage now: the processor is slowed down, and cards get damaged", supply)
    elif bits and bits & (_THROTTLED | _WAS_UNDER_VOLTAGE):
        yield note("power", "under-voltage or heat has slowed it down since it was started", supply)
    else:
        yield ok("power", "the supply is strong enough")


def _throttled(system: Path) -> int | None:
    file = system / "sys/devices/platform/soc/soc:firmware/get_throttled"
    text = _read(file)
    if not text and (command := shutil.which("vcgencmd")):
        asked = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=False)
        text = asked.stdout.partition("=")[2].strip()
    try:
        return int(text, 16)
    except ValueError:
        return None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
