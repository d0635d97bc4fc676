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

from mdl.data.published.logs import Rows, Step, cut_windows, read_log
from mdl.data.readers.archive import open_members
from mdl.data.windows import DataSet, take_windows
from mdl.errors import DataError

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
_FILE = re.compile(r"(?:(?P<folder>.*)/)?subject(?P<subject>\d{3})\.dat")
_TEST_EVERY = 5
_MOST_MISSING = 10
_G = np.float32(9.81)


class Pamap2Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 256
    step: Step = 128


def read_pamap2(path: Path, options: Pamap2Options) -> DataSet:
    """Raises DataError naming the file and line that is missing or wrong."""
    logs = []
    with open_members(path) as members:
        for name in members.names():
            match = _FILE.fullmatch(name)
            if match and not (match["folder"] or "").endswith("Optional"):
                with members.open(name) as file:
                    log = read_log(file, _WIDTH, _COLUMNS, _LABEL, int(match["subject"]), f"{path}: {name}")
                np.divide(log.values, _G, out=log.values)
                logs.append(log)
    if not logs:
        raise DataError(f"{path}: no file like Protocol/subject101.dat; expected the folder PAMAP2_Dataset, or its zip")
    classes = {label: number for number, label in enumerate(_ACTIVITIES)}
    windows = cut_windows(logs, classes, options.window, options.step, _MOST_MISSING)
    test = windows.subject % _TEST_EVERY == 0
    return DataSet(
        "pamap2", take_windows(windows, ~test), take_windows(windows, test), CLASSES, "subject",
        description="PAMAP2: acceleration of hand, chest and ankle", channels=CHANNELS, rate_hz=RATE_HZ,
    )  # fmt: skip
