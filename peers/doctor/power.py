"""Checks of the power supply: under-voltage of a Raspberry Pi, and a battery that is nearly empty."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mdl.peers.doctor.finding import Finding, note, ok

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
    is_low = any(read_line(alarm) == "1" for alarm in alarms) or bool(bits and bits & _UNDER_VOLTAGE)
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
        left = read_line(supply / "capacity")
        if read_line(supply / "type") != "Battery" or read_line(supply / "scope") == "Device" or not left.isdigit():
            continue
        if read_line(supply / "status") == "Discharging" and int(left) < _EMPTY_PERCENT:
            yield note("power", f"the battery has {left} %, and is not charged", "mdl peer --when charging waits")


def _throttled(system: Path) -> int | None:
    file = system / "sys/devices/platform/soc/soc:firmware/get_throttled"
    text = read_line(file)
    if not text and (command := shutil.which("vcgencmd")):
        asked = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=False)
        text = asked.stdout.partition("=")[2].strip()
    try:
        return int(text, 16)
    except ValueError:
        return None


def read_line(file: Path) -> str:
    """Return the line in a file of /sys or /proc; "" if there is none, or the driver does not tell."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
