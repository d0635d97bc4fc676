"""Checks of this machine alone: what a peer needs to start, and to go on, and its power supply."""

from __future__ import annotations

import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from mdl.descriptors import LEAST, RAISE_IT, raise_limit, share_out, tell_too_few
from mdl.peers.doctor.finding import Finding, fail, note, ok
from mdl.peers.edge.small.limits import LEAST_MB, LITTLE_MB, read_memory_limit
from mdl.reading import read_system_line

# Bits of a Raspberry Pi's firmware (vcgencmd get_throttled): now, and since it was started.
_UNDER_VOLTAGE, _THROTTLED, _WAS_UNDER_VOLTAGE = 0x1, 0x4, 0x10000
# Below this a laptop goes to sleep in the middle of a round.
_EMPTY_PERCENT = 15


def check_power(system: Path) -> Iterator[Finding]:
    """Check a Raspberry Pi for under-voltage, as its kernel or its firmware tells; yield nothing on other machines."""
    alarms = sorted((system / "sys/class/hwmon").glob("hwmon*/in0_lcrit_alarm"))
    bits = _throttled(system)
    if not alarms and bits is None:
        return
    is_low = any(read_system_line(alarm) == "1" for alarm in alarms) or bool(bits and bits & _UNDER_VOLTAGE)
    supply = "use the 5.1 V supply that was made for it, and a short cable"
    if is_low:
        yield note("power", "under-voltage now: the processor is slowed down, and cards get damaged", supply)
    elif bits and bits & (_THROTTLED | _WAS_UNDER_VOLTAGE):
        yield note("power", "under-voltage or heat has slowed it down since it was started", supply)
    else:
        yield ok("power", "the supply is strong enough")


def check_battery(system: Path) -> Iterator[Finding]:
    """Report a nearly empty battery; yield nothing without one, or on a charger."""
    for supply in sorted((system / "sys/class/power_supply").glob("*")):
        left = read_system_line(supply / "capacity")
        if (
            read_system_line(supply / "type") != "Battery"
            or read_system_line(supply / "scope") == "Device"
            or not left.isdigit()
        ):
            continue
        if read_system_line(supply / "status") == "Discharging" and int(left) < _EMPTY_PERCENT:
            yield note("power", f"the battery has {left} %, and is not charged", "mdl peer --when charging waits")


def _throttled(system: Path) -> int | None:
    file = system / "sys/devices/platform/soc/soc:firmware/get_throttled"
    text = read_system_line(file)
    if not text and (command := shutil.which("vcgencmd")):
        asked = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=False)
        text = asked.stdout.partition("=")[2].strip()
    try:
        return int(text, 16)
    except ValueError:
        return None


# A Raspberry Pi takes 10 s to import torch from a cold card, an emulated one on a busy machine minutes.
_TORCH_S = 300.0
_OTHER_TORCH = "install torch from its own CPU index for this machine"
# torch's own wheels need instructions that a Raspberry Pi 3 or 4 lacks; Debian's is built for every 64-bit Arm.
_TORCH_OF_DEBIAN = (
    "sudo apt install python3-torch python3-venv; install mdl in a new environment that sees it: "
    "python3 -m venv --system-site-packages (docs/raspberry-pi.md)"
)
_LITTLE_DISK_MB, _TOO_LITTLE_DISK_MB = 200, 20
_BLOCK_BYTES = 4096
# With fewer links the mesh of a home does not fit.
_FEW_PEERS = 8
# An earlier year is wrong: a Pi without a battery for its clock starts in 1970 until the network tells it the time.
_FIRST_YEAR = 2025


def check_machine(state: Path, system: Path = Path("/")) -> Iterator[Finding]:
    """Check this machine. state: the directory that a peer writes to. system: the root of /sys and /proc, for tests."""
    yield check_descriptors(raise_limit())
    yield check_memory(psutil.virtual_memory().available >> 20, read_memory_limit(system))
    yield check_disk(state)
    yield check_clock(time.gmtime(time.time()).tm_year)
    yield from check_power(system)
    yield from check_battery(system)


def check_torch(python: str = sys.executable, machine: str = platform.machine()) -> Finding:
    """Import torch in a process of its own: a wheel for another processor ends it by a signal.

    machine: the processor's kind, which decides what to install instead.
    """
    try:
        tried = subprocess.run(
            [python, "-P", "-c", "import torch; torch.ones(8).sum().item(); print(torch.__version__)"],
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
    remedy = _TORCH_OF_DEBIAN if machine == "aarch64" else _OTHER_TORCH
    if tried.returncode < 0:
        name = signal.Signals(-tried.returncode).name
        return fail("torch", f"importing torch ends with {name}: it was built for another processor", remedy)
    last = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
    return fail("torch", f"torch cannot be imported: {last[:300]}", remedy)


def check_descriptors(limit: int) -> Finding:
    peers = share_out(limit).peers
    told = f"{limit} files may be open: links to {peers} devices"
    if limit < LEAST:
        return fail("descriptors", tell_too_few(limit).partition(";")[0], RAISE_IT)
    return note("descriptors", told, RAISE_IT) if peers < _FEW_PEERS else ok("descriptors", told)


def check_memory(free_mb: int, limit_mb: int | None = None) -> Finding:
    """Check the free memory. limit_mb: of this process's container or service."""
    told = f"{free_mb} MB of memory are free"
    if limit_mb is not None and limit_mb < free_mb:
        told, free_mb = f"{limit_mb} MB of memory may be taken here (a container's or service's limit)", limit_mb
    if free_mb < LEAST_MB:
        return fail(
            "memory", told, f"a small peer takes 270 MB: end other programs, or add swap (at least {LITTLE_MB} MB)"
        )
    if free_mb < LITTLE_MB:
        return note("memory", told, "a small peer takes 270 MB; training may be slow: end other programs")
    return ok("memory", told)


def check_disk(state: Path) -> Finding:
    """Check that the directory, or its nearest existing parent, can be written and has room."""
    there = next(place for place in (state, *state.parents) if _exists(place))
    if why := why_not_writable(there):
        give = f"give it to this user, or start with --out elsewhere ({state})"
        return fail("disk", f"{there} cannot be written: {why}", give)
    free_mb = shutil.disk_usage(there).free >> 20
    told = f"{free_mb} MB are free at {there}"
    if free_mb < _TOO_LITTLE_DISK_MB:
        return fail("disk", told, "make room: a peer saves its model in each round", "start with --out on another disk")
    return note("disk", told, "make room for models and metrics") if free_mb < _LITTLE_DISK_MB else ok("disk", told)


def why_not_writable(folder: Path) -> str:
    """Return why no file can be made in the folder, or its nearest existing parent; "" if it can."""
    there = next(place for place in (folder, *folder.parents) if _exists(place))
    try:
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            file.write(bytes(_BLOCK_BYTES))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def check_clock(year: int) -> Finding:
    if year < _FIRST_YEAR:
        do = "sudo timedatectl set-ntp true; hours in --when and the times of logs are wrong until then"
        return note("clock", f"the clock says {year}", do)
    return ok("clock", "the clock is plausible")


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # this user may not even look there
        return False
