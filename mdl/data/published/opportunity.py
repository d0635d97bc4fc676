"""OPPORTUNITY (Roggen et al. 2010): the folder with dataset/S1-ADL1.dat to S4-Drill.dat, or its zip.

30 Hz, 77 channels: acceleration, angular velocity and magnetic field of five units of a jacket (back, both upper and
lower arms), and the 16 of each shoe, all divided by 1,000. `labels=gestures`: the 17 gestures of the challenge;
`labels=locomotion`: standing, walking, sitting, lying. Rows without one are left out. The runs ADL4 and ADL5 of each
person test, as in the challenge.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from mdl.data.published.logs import Log, Rows, Step, cut_windows, read_log
from mdl.data.readers.archive import open_members
from mdl.data.windows import DataSet
from mdl.errors import DataError

_GESTURES = {
    406516: "open door 1", 406517: "open door 2", 404516: "close door 1", 404517: "close door 2",
    406520: "open fridge", 404520: "close fridge", 406505: "open dishwasher", 404505: "close dishwasher",
    406519: "open drawer 1", 404519: "close drawer 1", 406511: "open drawer 2", 404511: "close drawer 2",
    406508: "open drawer 3", 404508: "close drawer 3", 408512: "clean table", 407521: "drink from cup",
    405506: "toggle switch",
}  # fmt: skip
_LOCOMOTION = {1: "stand", 2: "walk", 4: "sit", 5: "lie"}
# (column of the label, from 0; its values)
_LABELS = {"gestures": (249, _GESTURES), "locomotion": (243, _LOCOMOTION)}
_JACKET = ("back", "right upper arm", "right lower arm", "left upper arm", "left lower arm")
_SHOES = ("left shoe", "right shoe")
CHANNELS = (
    *(f"{place} {kind} {axis}" for place in _JACKET for kind in ("acc", "gyro", "mag") for axis in "xyz"),
    *(f"{place} {number}" for place in _SHOES for number in range(1, 17)),
)
RATE_HZ = 30.0
_WIDTH = 250
# Each unit of the jacket has 13 columns from the 38th on, the last four a quaternion; then come the shoes.
_COLUMNS = [37 + 13 * place + number for place in range(5) for number in range(9)] + list(range(102, 134))
_FILE = re.compile(r"(?:.*/)?S(\d)-(?:ADL(\d)|Drill)\.dat")
_TEST_RUNS = ("4", "5")
_MOST_MISSING = 15
_UNIT = np.float32(1000.0)


class OpportunityOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 32
    step: Step = 16
    labels: Literal["gestures", "locomotion"] = "gestures"


def read_opportunity(path: Path, options: OpportunityOptions) -> DataSet:
    """Read the data set. Raises DataError naming the file and line that is missing or wrong."""
    column, names = _LABELS[options.labels]
    sides: tuple[list[Log], list[Log]] = ([], [])
    with open_members(path) as members:
        for name in members.names():
            if match := _FILE.fullmatch(name):
                with members.open(name) as file:
                    log = read_log(file, _WIDTH, _COLUMNS, column, int(match[1]), f"{path}: {name}")
                np.divide(log.values, _UNIT, out=log.values)
                sides[match[2] in _TEST_RUNS].append(log)
    if not all(sides):
        raise DataError(
            f"{path}: expected S1-ADL1.dat to S4-Drill.dat, at least one of them an ADL4 or ADL5, which test, and one "
            "other: the folder OpportunityUCIDataset, or its zip"
        )
    classes = {label: number for number, label in enumerate(names)}
    train, test = (cut_windows(side, classes, options.window, options.step, _MOST_MISSING) for side in sides)
    test = replace(test, group=test.group + train.group.max(initial=-1) + 1)  # numbered anew in each side
    return DataSet(
        "opportunity", train, test, tuple(names.values()), "recording",
        description=f"OPPORTUNITY: {options.labels}, jacket and shoes", channels=CHANNELS, rate_hz=RATE_HZ,
    )  # fmt: skip
