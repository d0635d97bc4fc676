"""MHEALTH (Banos et al. 2014): the folder of mHealth_subject1.log to mHealth_subject10.log, or its zip.

50 Hz, 23 channels: acceleration of the chest and two leads of an ECG (mV), then acceleration (m/s2), angular velocity
(deg/s) and magnetic field of the left ankle and of the right lower arm. The label is the last column; 0 is none of the
twelve activities. People 5 and 10 test. Each channel is divided by a round number near its usual size.
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

CLASSES = (
    "standing still", "sitting", "lying down", "walking", "climbing stairs", "waist bends forward",
    "frontal elevation of arms", "knees bending", "cycling", "jogging", "running", "jump front and back",
)  # fmt: skip
_PLACES = ("ankle", "arm")
CHANNELS = (
    *(f"chest_acc_{axis}" for axis in "xyz"),
    *("ecg_1", "ecg_2"),
    *(f"{place}_{kind}_{axis}" for place in _PLACES for kind in ("acc", "gyro", "mag") for axis in "xyz"),
)
RATE_HZ = 50.0
_SCALES = np.array([9.81] * 3 + [1.0] * 2 + ([9.81] * 3 + [1.0] * 3 + [50.0] * 3) * 2, np.float32)
_FILE = re.compile(r"(?:.*/)?mHealth_subject(\d{1,3})\.log")
_TEST_EVERY = 5
_MOST_MISSING = 5


class MhealthOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 128
    step: Step = 64


def read_mhealth(path: Path, options: MhealthOptions) -> DataSet:
    """Raises DataError naming the file and line that is missing or wrong."""
    logs = []
    with open_members(path) as members:
        for name in members.names():
            if match := _FILE.fullmatch(name):
                with members.open(name) as file:
                    columns = range(len(CHANNELS))
                    log = read_log(file, len(CHANNELS) + 1, columns, len(CHANNELS), int(match[1]), f"{path}: {name}")
                np.divide(log.values, _SCALES, out=log.values)
                logs.append(log)
    if not logs:
        raise DataError(f"{path}: no file like mHealth_subject1.log; expected the folder MHEALTHDATASET, or its zip")
    classes = {number + 1: number for number in range(len(CLASSES))}
    windows = cut_windows(logs, classes, options.window, options.step, _MOST_MISSING)
    test = windows.subject % _TEST_EVERY == 0
    return DataSet(
        "mhealth", take_windows(windows, ~test), take_windows(windows, test), CLASSES, "subject",
        description="MHEALTH: chest, left ankle and right lower arm", channels=CHANNELS, rate_hz=RATE_HZ,
    )  # fmt: skip
