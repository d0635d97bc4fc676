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

from mdl.data.published.logs import Rows, Step, cut_windows, hold_out, read_logs
from mdl.data.windows import DataSet

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
_FILE = re.compile(r"(?:.*/)?mHealth_subject(?P<subject>\d{1,3})\.log")
_EXPECTED = "mHealth_subject1.log; expected the folder MHEALTHDATASET"
_MOST_MISSING = 5


class MhealthOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 128
    step: Step = 64


def read_mhealth(path: Path, options: MhealthOptions) -> DataSet:
    """Read the data set. Raises DataError naming the file and line that is missing or wrong."""
    wide = len(CHANNELS)
    logs = read_logs(path, _FILE, wide + 1, range(wide), wide, _SCALES, _EXPECTED)
    classes = {number + 1: number for number in range(len(CLASSES))}
    windows = cut_windows(logs, classes, options.window, options.step, _MOST_MISSING)
    return DataSet(
        "mhealth", *hold_out(windows), CLASSES, "subject",
        description="MHEALTH: chest, left ankle and right lower arm", channels=CHANNELS, rate_hz=RATE_HZ,
    )  # fmt: skip
