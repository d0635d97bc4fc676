"""Windows in transit from one of a person's devices to another, as a plain .npz, and their place there.

`shared:MESH` reads the windows that this device was given in a mesh, or keeps of those it shares. It goes through no
cache: when a sharing ends, one file is deleted and nothing is left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
import platformdirs
from numpy.typing import NDArray

from mdl.data.readers.archive import load_arrays
from mdl.data.readers.arrays import ArrayOptions, build_data
from mdl.data.windows import DataSet, Integers, Windows, targets_of
from mdl.errors import ConfigError, DataError
from mdl.protocol.sharing_messages import apportion
from mdl.writing import write_whole

# The run of a mesh in which its devices meet to share; its folder has their parcels.
SHARED_RUN = "shared"
_FILE = "from-{}.npz"
# Bytes of a window beside its values and targets: its stretch as int64, and its side.
_NUMBER_BYTES = 9
# Bytes of a parcel beside its windows: names of classes and channels, headers of arrays.
NAMES_BYTES = 1 << 20
_MESH = re.compile(r"[a-z0-9-]{1,31}")


class SharedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """source: the words of the device's key, if windows of several devices are here."""

    source: Annotated[str, msgspec.Meta(pattern=r"^[a-z-]{0,80}\Z")] = ""


def shared_home(mesh: str) -> Path:
    """Return the folder in which this user's devices keep the parcels of a mesh."""
    return Path(platformdirs.user_state_dir("mdl")) / f"{mesh}--{SHARED_RUN}"


def shared_file(mesh: str, words: str) -> Path:
    """Return the file with the windows from the device with these words for its key."""
    return shared_home(mesh) / _FILE.format(words)


def find_shared(mesh: str, source: str = "") -> Path:
    """Return the file of windows. Raises ConfigError if there is none, or several devices' and no source is given."""
    if not _MESH.fullmatch(mesh):
        raise ConfigError(f"data 'shared:{mesh[:40]}': expected the name of a mesh, as in shared:home")
    found = {path.name[5:-4]: path for path in sorted(shared_home(mesh).glob(_FILE.format("*")))}
    if not found:
        raise ConfigError(
            f"data 'shared:{mesh}': no windows are shared with this device in mesh {mesh}; "
            f"mdl data accept --mesh {mesh} --from DEVICE takes some"
        )
    if source not in found and (source or len(found) > 1):
        raise ConfigError(f"data 'shared:{mesh}': say of which device: ?source= one of {', '.join(found)}")
    return found[source] if source else next(iter(found.values()))


def deal_windows(data: DataSet, shares: Sequence[int], seed: int) -> list[tuple[Integers, Integers]]:
    """Draw (training rows, test rows) of each device, ascending: disjoint, and together all of them.

    shares: training windows of each. Each has as large a share of the test windows, so that each is tested once; a
    device that trains has at least one, as far as there are enough.
    """
    rng = np.random.default_rng([seed, len(data.train)])
    tested = apportion(len(data.test), [float(share) for share in shares])
    for place, share in enumerate(shares):
        if share and not tested[place] and max(tested) > 1:
            tested[tested.index(max(tested))] -= 1
            tested[place] = 1
    return list(zip(_deal(shares, rng), _deal(tested, rng), strict=True))


def window_bytes(data: DataSet) -> int:
    """Return the bytes of a training window in a parcel, with its part of the test windows."""
    name_bytes = 4 * max(map(len, data.subject_names), default=2)
    one: int = data.train.x[0].nbytes + data.train.y[:1].nbytes + name_bytes + _NUMBER_BYTES
    return one * (len(data.train) + len(data.test)) // len(data.train) + 1


def write_parcel(path: Path, data: DataSet, train: Integers, test: Integers) -> None:
    """Write these rows, for this user alone. Raises MdlError if the disk refuses."""
    sides = [(data.train, train), (data.test, test)]
    x = np.concatenate([windows.x[rows] for windows, rows in sides])
    arrays: dict[str, np.ndarray] = {
        "x": x if data.is_of_images else x.swapaxes(1, 2),
        "split": np.repeat([0, 1], [len(train), len(test)]).astype(np.uint8),
        "classes" if data.targets == "classes" else "targets": np.array(data.classes),
        "synthetic": np.array([data.synthetic]),
        "name": np.array([data.name]),
    }
    for name in ("y", "subject", "group"):
        arrays[name] = np.concatenate([_numbers(windows, name)[rows] for windows, rows in sides])
    if data.subject_names:
        arrays["subject"] = np.array(data.subject_names)[arrays["subject"]]
    if data.units:
        arrays["units"] = np.array(data.units)
    if data.channels:
        arrays["channels"] = np.array(data.channels)
    if data.channel_units:
        arrays["channel_units"] = np.array([unit or "-" for unit in data.channel_units])
    if data.rate_hz is not None:
        arrays["rate"] = np.array([data.rate_hz])

    def write(file: BinaryIO) -> None:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its own flag is no array

    write_whole(path, write)


def read_parcel(path: Path) -> DataSet:
    """Read the file of `write_parcel`. Raises DataError for anything else."""
    arrays = load_arrays(path)
    # The type of whole numbers decides here: nobody is there to be asked.
    targets = targets_of(arrays["y"]) if "y" in arrays else None
    data = build_data(path.stem, arrays, str(path), ArrayOptions(targets=targets), as_written=True)
    try:
        name, synthetic = str(arrays["name"].reshape(-1)[0]), bool(arrays["synthetic"].reshape(-1)[0])
    except (KeyError, IndexError):
        raise DataError(f"{path} holds no windows that were shared") from None
    return replace(data, name=name, synthetic=synthetic, description=f"shared windows of {name}")


def _deal(shares: Sequence[int], rng: np.random.Generator) -> list[Integers]:
    drawn = rng.permutation(sum(shares)).astype(np.int64)
    return [np.sort(rows) for rows in np.split(drawn, np.cumsum(shares)[:-1])]


def _numbers(windows: Windows, name: str) -> NDArray[Any]:
    numbers: NDArray[Any] = getattr(windows, name)
    return numbers
