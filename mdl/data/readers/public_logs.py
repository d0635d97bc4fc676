"""Public sets that are long logs of sensors in text: MHEALTH, OPPORTUNITY and PAMAP2, each a folder or its zip.

They are read in their authors' form, which `mdl data get` does not fetch (MDLdroid's Table 1).

A log has whitespace between numbers, a label in one column, NaN if a sensor has no value. Logs are read in pieces,
since one may be larger than memory should hold; only the wanted columns are kept.

MHEALTH (Banos et al. 2014), mHealth_subject1.log to mHealth_subject10.log: 50 Hz, 23 channels: acceleration of the
chest and two leads of an ECG (mV), then acceleration (m/s2), angular velocity (deg/s) and magnetic field of the left
ankle and of the right lower arm. The label is the last column; 0 is none of the twelve activities. People 5 and 10
test. Each channel is divided by a round number near its usual size.

OPPORTUNITY (Roggen et al. 2010), dataset/S1-ADL1.dat to S4-Drill.dat: 30 Hz, 77 channels: acceleration, angular
velocity and magnetic field of five units of a jacket (back, both upper and lower arms), and the 16 of each shoe, all
divided by 1,000. `labels=gestures`: the 17 gestures of the challenge; `labels=locomotion`: standing, walking, sitting,
lying. Rows without one are left out. The runs ADL4 and ADL5 of each person test, as in the challenge.

PAMAP2 (Reiss and Stricker 2012), Protocol/subject101.dat to subject109.dat: 100 Hz, nine channels: acceleration
(+-16 g) of hand, chest and ankle, here in g. The twelve activities of the protocol; transient ones (label 0) and those
that some people did in addition (the folder Optional) are left out. Rows that the wireless link lost are filled in up
to a tenth of a second. Person 105 tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import open_members
from mdl.data.windows import (
    DataSet,
    Floats,
    Integers,
    Windows,
    cut_runs,
    make_windows,
    number_runs,
    take_rows,
    take_windows,
)
from mdl.errors import DataError

_PIECE_BYTES = 4 << 20
# No row of these sets is longer; bytes without an end of line for so long are none of them.
_LONGEST_ROW_BYTES = 1 << 16
_TEST_EVERY = 5
Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=4, le=10_000)]
Step: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
MHEALTH_CLASSES = (
    "standing still", "sitting", "lying down", "walking", "climbing stairs", "waist bends forward",
    "frontal elevation of arms", "knees bending", "cycling", "jogging", "running", "jump front and back",
)  # fmt: skip
_MHEALTH_PLACES = ("ankle", "arm")
MHEALTH_CHANNELS = (
    *(f"chest_acc_{axis}" for axis in "xyz"),
    *("ecg_1", "ecg_2"),
    *(f"{place}_{kind}_{axis}" for place in _MHEALTH_PLACES for kind in ("acc", "gyro", "mag") for axis in "xyz"),
)
MHEALTH_RATE_HZ = 50.0
_MHEALTH_SCALES = np.array([9.81] * 3 + [1.0] * 2 + ([9.81] * 3 + [1.0] * 3 + [50.0] * 3) * 2, np.float32)
_MHEALTH_FILE = re.compile(r"(?:.*/)?mHealth_subject(?P<subject>\d{1,3})\.log")
_MHEALTH_EXPECTED = "mHealth_subject1.log; expected the folder MHEALTHDATASET"
_MHEALTH_MOST_MISSING = 5
_GESTURES = {
    406516: "open door 1", 406517: "open door 2", 404516: "close door 1", 404517: "close door 2",
    406520: "open fridge", 404520: "close fridge", 406505: "open dishwasher", 404505: "close dishwasher",
    406519: "open drawer 1", 404519: "close drawer 1", 406511: "open drawer 2", 404511: "close drawer 2",
    406508: "open drawer 3", 404508: "close drawer 3", 408512: "clean table", 407521: "drink from cup",
    405506: "toggle switch",
}  # fmt: skip
_LOCOMOTION = {1: "stand", 2: "walk", 4: "sit", 5: "lie"}
# (column of the label, from 0; its values)
_OPPORTUNITY_LABELS = {"gestures": (249, _GESTURES), "locomotion": (243, _LOCOMOTION)}
_JACKET = ("back", "right upper arm", "right lower arm", "left upper arm", "left lower arm")
_SHOES = ("left shoe", "right shoe")
OPPORTUNITY_CHANNELS = (
    *(f"{place} {kind} {axis}" for place in _JACKET for kind in ("acc", "gyro", "mag") for axis in "xyz"),
    *(f"{place} {number}" for place in _SHOES for number in range(1, 17)),
)
OPPORTUNITY_RATE_HZ = 30.0
_OPPORTUNITY_WIDTH = 250
# Each unit of the jacket has 13 columns from the 38th on, the last four a quaternion; then come the shoes.
_OPPORTUNITY_COLUMNS = [37 + 13 * place + number for place in range(5) for number in range(9)] + list(range(102, 134))
_OPPORTUNITY_FILE = re.compile(r"(?:.*/)?S(\d)-(?:ADL(\d)|Drill)\.dat")
_TEST_RUNS = ("4", "5")
_OPPORTUNITY_MOST_MISSING = 15
_OPPORTUNITY_UNIT = np.float32(1000.0)
# By the label in the files.
_PAMAP2_ACTIVITIES = {
    1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "nordic walking",
    12: "ascending stairs", 13: "descending stairs", 16: "vacuum cleaning", 17: "ironing", 24: "rope jumping",
}  # fmt: skip
PAMAP2_CLASSES = tuple(_PAMAP2_ACTIVITIES.values())
PAMAP2_CHANNELS = tuple(f"{place}_acc_{axis}" for place in ("hand", "chest", "ankle") for axis in "xyz")
PAMAP2_RATE_HZ = 100.0
_PAMAP2_WIDTH, _PAMAP2_LABEL = 54, 1
# Time, activity and heart rate, then 17 columns a place: temperature, acceleration of +-16 g, ...
_PAMAP2_COLUMNS = [3 + 17 * place + 1 + axis for place in range(3) for axis in range(3)]
# Files in the folder Optional are left out.
_PAMAP2_FILE = re.compile(r"(?!(?:.*/)?Optional/)(?:.*/)?subject(?P<subject>\d{3})\.dat")
_PAMAP2_EXPECTED = "Protocol/subject101.dat; expected the folder PAMAP2_Dataset"
_PAMAP2_MOST_MISSING = 10
_PAMAP2_G = np.full(len(PAMAP2_CHANNELS), 9.81, np.float32)


@dataclass(frozen=True)
class Log:
    """One recording. values: float32 (rows, channels), NaN if unknown. label: int64 (rows,), as written."""

    values: Floats
    label: Integers
    subject: int


def read_log(file: BinaryIO, width: int, channels: Sequence[int], label: int, subject: int, where: str) -> Log:
    """Read one log. width: columns of each row; channels, label: the wanted columns, from 0.

    Raises DataError naming the line that holds something else than numbers, or another count of them.
    """
    parts: list[NDArray[np.float32]] = []
    wanted, rest, line = [*channels, label], b"", 1
    while piece := file.read(_PIECE_BYTES):
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        if not newline and len(rest) > _LONGEST_ROW_BYTES:
            raise DataError(f"{where}, line {line}: more than {_LONGEST_ROW_BYTES} bytes; expected {width} numbers")
        parts.append(_parse(whole, width, wanted, where, line))
        line += whole.count(b"\n") + len(newline)
    parts.append(_parse(rest, width, wanted, where, line))
    table = np.concatenate(parts)
    if not len(table):
        raise DataError(f"{where}: empty; expected lines of {width} numbers")
    named = table[:, -1]
    if not (np.isfinite(named).all() and (named == np.floor(named)).all()):
        raise DataError(f"{where}: column {label + 1} holds {named[~np.isfinite(named) | (named % 1 != 0)][0]:g}; "
                        "expected the number of an activity")  # fmt: skip
    return Log(np.ascontiguousarray(table[:, :-1]), named.astype(np.int64), subject)


def read_logs(
    path: Path, file: re.Pattern[str], width: int, columns: Sequence[int], label: int, scale: Floats, expected: str
) -> list[Log]:
    """Read all logs of a folder or a zip with names that fit `file`; its group "subject" is the person.

    scale: the divisor of each channel. expected: for the error if there is no log. Raises DataError.
    """
    logs = []
    with open_members(path) as members:
        for name in members.names():
            if match := file.fullmatch(name):
                with members.open(name) as opened:
                    log = read_log(opened, width, columns, label, int(match["subject"]), f"{path}: {name}")
                np.divide(log.values, scale, out=log.values)
                logs.append(log)
    if not logs:
        raise DataError(f"{path}: no file like {expected}, or its zip")
    return logs


def hold_out(windows: Windows) -> tuple[Windows, Windows]:
    """Return (to train, to test): people with a number that is a multiple of five test."""
    test = windows.subject % _TEST_EVERY == 0
    return take_windows(windows, ~test), take_windows(windows, test)


def cut_windows(logs: Sequence[Log], classes: Mapping[int, int], window: int, step: int, most_missing: int) -> Windows:
    """Cut windows of rows with one label, one recording and no gap; a run of such rows is a group.

    classes: the class of each label; other labels are left out. most_missing: missing rows of a channel in a row to
    fill in linearly; windows never cross a longer gap.
    """
    values = np.concatenate([fill_gaps(log.values, most_missing) for log in logs])
    label = np.concatenate([log.label for log in logs])
    subject = np.repeat([log.subject for log in logs], [len(log.label) for log in logs])
    recording = np.repeat(np.arange(len(logs)), [len(log.label) for log in logs])
    known = np.isfinite(values).all(axis=1)
    run = number_runs(recording, label, known)
    starts, group = cut_runs(run, window, step)
    kept = known[starts] & np.isin(label[starts], list(classes))
    starts, group = starts[kept], group[kept]
    y = np.array([classes[each] for each in label[starts].tolist()], np.int64)
    return make_windows(take_rows(values, starts, window), y, subject[starts], group)


def fill_gaps(values: Floats, most: int) -> Floats:
    """Return a copy with up to `most` missing rows between two known ones of a channel filled in linearly."""
    filled = values.copy()
    for column in filled.T:
        missing = ~np.isfinite(column)
        column[missing] = np.nan  # infinity is no measurement either
        if not missing.any() or missing.all():
            continue
        edges = np.diff(np.concatenate([[0], missing.view(np.int8), [0]]))
        for start, stop in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            if start > 0 and stop < len(column) and stop - start <= most:
                column[start:stop] = np.linspace(column[start - 1], column[stop], stop - start + 2)[1:-1]
    return filled


def _parse(text: bytes, width: int, wanted: list[int], where: str, line: int) -> NDArray[np.float32]:
    """Return the wanted columns of these whole lines; empty lines at the end count for nothing."""
    fields = text.split()
    rows = text.count(b"\n") + 1 if fields else 0
    if len(fields) != rows * width:
        raise _blame(text, width, where, line)
    table = np.array(fields).reshape(-1, width)[:, wanted] if fields else np.zeros((0, len(wanted)), "S1")
    try:
        return table.astype(np.float32)
    except ValueError:
        raise _blame(text, width, where, line) from None


def _blame(text: bytes, width: int, where: str, first_line: int) -> DataError:
    for number, line in enumerate(text.split(b"\n"), start=first_line):
        fields = line.split()
        if len(fields) != width:
            return DataError(f"{where}, line {number}: {len(fields)} values; expected {width}")
        for field in fields:
            try:
                float(field)
            except ValueError:
                return DataError(f"{where}, line {number}: {field[:40].decode('latin-1')!r}; expected a number")
    return DataError(f"{where}: expected lines of {width} numbers")


class MhealthOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 128
    step: Step = 64


def read_mhealth(path: Path, options: MhealthOptions) -> DataSet:
    """Read the data set. Raises DataError naming the file and line that is missing or wrong."""
    wide = len(MHEALTH_CHANNELS)
    logs = read_logs(path, _MHEALTH_FILE, wide + 1, range(wide), wide, _MHEALTH_SCALES, _MHEALTH_EXPECTED)
    classes = {number + 1: number for number in range(len(MHEALTH_CLASSES))}
    windows = cut_windows(logs, classes, options.window, options.step, _MHEALTH_MOST_MISSING)
    return DataSet(
        "mhealth", *hold_out(windows), MHEALTH_CLASSES, "subject",
        description="MHEALTH: chest, left ankle and right lower arm", channels=MHEALTH_CHANNELS,
        rate_hz=MHEALTH_RATE_HZ,
    )  # fmt: skip


class OpportunityOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 32
    step: Step = 16
    labels: Literal["gestures", "locomotion"] = "gestures"


def read_opportunity(path: Path, options: OpportunityOptions) -> DataSet:
    """Read the data set. Raises DataError naming the file and line that is missing or wrong."""
    column, names = _OPPORTUNITY_LABELS[options.labels]
    sides: tuple[list[Log], list[Log]] = ([], [])
    with open_members(path) as members:
        for name in members.names():
            if match := _OPPORTUNITY_FILE.fullmatch(name):
                with members.open(name) as file:
                    log = read_log(
                        file, _OPPORTUNITY_WIDTH, _OPPORTUNITY_COLUMNS, column, int(match[1]), f"{path}: {name}"
                    )
                np.divide(log.values, _OPPORTUNITY_UNIT, out=log.values)
                sides[match[2] in _TEST_RUNS].append(log)
    if not all(sides):
        raise DataError(
            f"{path}: expected S1-ADL1.dat to S4-Drill.dat, at least one of them an ADL4 or ADL5, which test, and one "
            "other: the folder OpportunityUCIDataset, or its zip"
        )
    classes = {label: number for number, label in enumerate(names)}
    train, test = (
        cut_windows(side, classes, options.window, options.step, _OPPORTUNITY_MOST_MISSING) for side in sides
    )
    test = replace(test, group=test.group + train.group.max(initial=-1) + 1)  # numbered anew in each side
    return DataSet(
        "opportunity", train, test, tuple(names.values()), "recording",
        description=f"OPPORTUNITY: {options.labels}, jacket and shoes", channels=OPPORTUNITY_CHANNELS,
        rate_hz=OPPORTUNITY_RATE_HZ,
    )  # fmt: skip


class Pamap2Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count samples."""

    window: Rows = 256
    step: Step = 128


def read_pamap2(path: Path, options: Pamap2Options) -> DataSet:
    """Read the data set. Raises DataError naming the file and line that is missing or wrong."""
    logs = read_logs(path, _PAMAP2_FILE, _PAMAP2_WIDTH, _PAMAP2_COLUMNS, _PAMAP2_LABEL, _PAMAP2_G, _PAMAP2_EXPECTED)
    classes = {label: number for number, label in enumerate(_PAMAP2_ACTIVITIES)}
    windows = cut_windows(logs, classes, options.window, options.step, _PAMAP2_MOST_MISSING)
    return DataSet(
        "pamap2", *hold_out(windows), PAMAP2_CLASSES, "subject",
        description="PAMAP2: acceleration of hand, chest and ankle", channels=PAMAP2_CHANNELS, rate_hz=PAMAP2_RATE_HZ,
        channel_units=("g",) * len(PAMAP2_CHANNELS),
    )  # fmt: skip
