"""PAMAP2 (Reiss and Stricker 2012): the folder with Protocol/subject101.dat to subject109.dat, or its zip.

100 Hz, nine channels: acceleration (+-16 g) of hand, chest and ankle, here in g. The twelve activities of the protocol;
transient ones (label 0) and those that some people did in addition (the folder Optional) are left out. Rows that the
wireless link lost are filled in up to a tenth of a second. Person 105 tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np

from mdl.data.published.logs import Rows, Step, cut_windows, hold_out, read_logs
from mdl.data.windows import DataSet

# By the label in the files.
_ACTIVITIES = {
    1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "nordic walking",
    12: "ascending stairs", 13: "descending stairs", 16: "vacuum cleaning", 17: "ironing", 24: "rope jumping",
}  # fmt: skip
CLASSES = tuple(_ACTIVITIES.values())
CHANNELS = tuple(f"{place}_acc_{axis}" for place in ("hand", "chest", "ankle") for axis in "xyz")
RATE_HZ = 100.0
_WIDTH, _LABEL = 54, 1
# Time, activity and heart rate, then 17 columns a place: temperature, acceleration of +-16 g, ...
_COLUMNS = [3 + 17 * place + 1 + axis for place in range(3) for axis in range(3)]
# Files in the folder Optional are left out.
_FILE = re.compile(r"(?!(?:.*/)?Optional/)(?:.*/)?subject(?P<subject>\d{3})\.dat")
_EXPECTED = "Protocol/subject101.dat; expected the folder PAMAP2_Dataset"
_MOST_MISSING = 10
_G = np.full(len(CHANNELS), 9.81, np.float32)


class Pamap2Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 256
    step: Step = 128


def read_pamap2(path: Path, options: Pamap2Options) -> DataSet:
    """Read the data set. Raises DataError naming the file and line that is missing or wrong."""
    logs = read_logs(path, _FILE, _WIDTH, _COLUMNS, _LABEL, _G, _EXPECTED)
    classes = {label: number for number, label in enumerate(_ACTIVITIES)}
    windows = cut_windows(logs, classes, options.window, options.step, _MOST_MISSING)
    return DataSet(
        "pamap2", *hold_out(windows), CLASSES, "subject",
        description="PAMAP2: acceleration of hand, chest and ankle", channels=CHANNELS, rate_hz=RATE_HZ,
        channel_units=("g",) * len(CHANNELS),
    )  # fmt: skip
