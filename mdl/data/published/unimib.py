"""UniMiB SHAR (Micucci et al. 2017): the folder with acc_data.mat and acc_labels.mat, or its zip.

50 Hz, segments of 151 samples around a peak, acceleration x y z of a phone in a trouser pocket, here in g. `of=all`:
nine activities and eight falls; `of=adl` and `of=fall`: these alone. `signal=magnitude` has the length of the vector
as the only channel, as MDLdroid has one. Every fifth person tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.published.matfile import read_matrix
from mdl.data.readers.archive import LARGEST_MEMBER_BYTES, Members, open_members
from mdl.data.windows import DataSet, make_windows, number_runs, take_windows
from mdl.errors import DataError

_ADL = (
    "standing up from sitting", "standing up from lying", "walking", "running", "going upstairs", "jumping",
    "going downstairs", "lying down", "sitting down",
)  # fmt: skip
_FALLS = (
    "falling forward", "falling right", "falling back", "hitting an obstacle", "falling with protection",
    "falling back, sitting", "syncope", "falling left",
)  # fmt: skip
CLASSES = _ADL + _FALLS
SAMPLES = 151
RATE_HZ = 50.0
_TEST_EVERY = 5
_G = 9.81


class UnimibOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    of: Literal["all", "adl", "fall"] = "all"
    signal: Literal["axes", "magnitude"] = "axes"


def read_unimib(path: Path, options: UnimibOptions) -> DataSet:
    """Read the data set. Raises DataError naming the file that is missing or wrong."""
    with open_members(path) as members:
        values = _read(members, "acc_data.mat", path).astype(np.float32)
        told = _read(members, "acc_labels.mat", path)
    if values.shape[1] != 3 * SAMPLES or told.shape != (len(values), 3):
        raise DataError(
            f"{path}: acc_data.mat is {values.shape} and acc_labels.mat {told.shape}; expected (n, {3 * SAMPLES}) "
            "and (n, 3)"
        )
    label, subject, trial = (told[:, column].astype(np.int64) for column in range(3))
    if len(label) and not (label.min() >= 1 and label.max() <= len(CLASSES)):
        raise DataError(
            f"{path}: acc_labels.mat has classes {label.min()} to {label.max()}; expected 1 to {len(CLASSES)}"
        )
    chosen = {"all": range(1, 18), "adl": range(1, 10), "fall": range(10, 18)}[options.of]
    kept = np.isin(label, chosen)
    x = values[kept].reshape(-1, 3, SAMPLES) / np.float32(_G)
    if options.signal == "magnitude":
        x = np.linalg.norm(x, axis=1, keepdims=True)
    group = number_runs(subject[kept], label[kept], trial[kept])
    windows = make_windows(x, label[kept] - chosen[0], subject[kept], group)
    test = windows.subject % _TEST_EVERY == 0
    names = CLASSES[chosen[0] - 1 : chosen[-1]]
    return DataSet(
        "unimib", take_windows(windows, ~test), take_windows(windows, test), names, "subject",
        description="UniMiB SHAR: a phone in a trouser pocket", rate_hz=RATE_HZ,
        channels=("acc_x", "acc_y", "acc_z") if options.signal == "axes" else ("acc_magnitude",),
        channel_units=("g",) * x.shape[1],
    )  # fmt: skip


def _read(members: Members, name: str, path: Path) -> NDArray[np.generic]:
    found = [member for member in members.names() if member == name or member.endswith(f"/{name}")]
    if not found:
        raise DataError(f"{path}: no {name}; expected the folder UniMiB-SHAR, or its zip")
    return read_matrix(members.read(found[0]), LARGEST_MEMBER_BYTES, f"{path}: {name}")
