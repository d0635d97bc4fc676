"""Prepared windows or images: an .npz file, or the result of a user's own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.channels import convert_channels, kept_unit, read_units
from mdl.config import LARGEST_SEED, MANY
from mdl.data.readers.archive import load_arrays
from mdl.data.spec import Spec, split_names
from mdl.data.windows import (
    FASTEST_HZ,
    DataSet,
    Integers,
    assemble_data,
    first_bad_row,
    make_windows,
    number_names,
    number_runs,
    strata_of,
    take_windows,
)
from mdl.errors import ConfigError, DataError
from mdl.task import Targets, is_one_rate

_TEST_WORDS = ("test", "train")
# Channels of a picture: grey, with transparency, in colour.
_COLOURS = (1, 2, 3, 4)


class ArrayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """split: the choice of test windows if the data makes none; gap: windows dropped at a cut in a stretch's time.

    rate: samples a second (Hz), if the file has none. units: of the channels, if the file has none: one for all, or one
    for each. targets: the kind of y, if it could be two.
    """

    split: Literal["auto", "subject", "recording", "time"] = "auto"
    # Windows may overlap by up to four fifths before more than four neighbours share a sample with one of them.
    gap: Annotated[int, msgspec.Meta(ge=0, le=MANY)] = 4
    seed: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)] = 0
    rate: Annotated[float, msgspec.Meta(gt=0, le=FASTEST_HZ)] | None = None
    targets: Targets | None = None
    units: str = ""


def read_npz(path: Path, options: ArrayOptions) -> DataSet:
    """Read x (n, time, channels), or images (n, channels, height, width), and y; optional subject, group, split
    ("train"/"test" or 0/1); names: classes, channels.

    y: classes, whole numbers or text (n,); numbers, floats (n,) or (n, k); or labels, 0 or 1, (n, k). targets: names of
    the numbers or labels; units: of the numbers; channel_units: of the channels, one for each, "-" for an unknown one.
    Known ones are brought to the unit that mdl keeps. rate: samples a second (Hz), one number; else the option of that
    name.
    Without split a fifth of the subjects is for testing; without subject, of the groups; without either, the last fifth
    of each class's rows, which must be in recording order. Raises DataError naming the array that is missing or wrong.
    """
    return build_data(path.stem, load_arrays(path), str(path), options)


def build_data(
    name: str, arrays: Mapping[str, NDArray[Any]], where: str, options: ArrayOptions, *, as_written: bool = False
) -> DataSet:
    """Make a data set of named arrays, as `read_npz` describes them. as_written: channels stay in their units."""
    _check_arrays(arrays, where)
    x = arrays["x"] if arrays["x"].ndim == 4 else np.swapaxes(arrays["x"], 1, 2)
    x, channel_units, is_converted = _in_kept_units(x, _read_units(arrays, where, options.units), as_written)
    labels, units = read_targets(arrays, where, options.targets)
    rate_hz = _read_rate(arrays, where, options.rate)
    subject = arrays.get("subject")
    given = arrays.get("group")
    _, subject_ids = number_names(subject) if subject is not None else ((), np.zeros(len(x), np.int64))
    # Rows that follow each other with the same label and subject may overlap, and stay together; images do not. For
    # numbers and labels only the subject tells.
    runs = number_runs(strata_of(labels[1]), subject_ids) if x.ndim == 3 else np.arange(len(x))
    group = number_names(given)[1] if given is not None else runs
    if "split" in arrays:
        test = _read_split(arrays["split"], where)
        # Groups that the source names must lie on one side (`check_data`); inferred ones are cut at the source's split.
        group = group if given is not None else group * 2 + test
        return _divide(name, x, labels, subject, group, test, _name_channels(arrays, where), rate_hz, units,
            channel_units, is_converted,
        )  # fmt: skip
    try:
        return assemble_data(
            name, lambda rows, _: x[rows], labels, subject, group if given is not None else None, group,
            how=options.split, gap=options.gap, seed=options.seed, description=f"windows from {where}",
            channels=_name_channels(arrays, where), rate_hz=rate_hz, units=units,
            channel_units=channel_units, is_converted=is_converted,
        )  # fmt: skip
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def call_own(function: Callable[..., object], spec: Spec) -> DataSet:
    """Call the user's function; the options of its spec are passed as keywords (text).

    It returns a DataSet, a mapping of arrays as in an .npz, or (x, y) or (x, y, subject) with x as there.
    """
    try:
        made = function(**spec.options)
    except TypeError as error:
        raise ConfigError(f"data {spec.text!r}: calling {spec.path.partition(':')[2]} failed: {error}") from error
    return _accept(made, spec.path, spec.text)


def _accept(made: object, name: str, text: str) -> DataSet:
    if isinstance(made, DataSet):
        return made
    if isinstance(made, tuple) and len(made) in (2, 3):
        made = dict(zip(("x", "y", "subject"), made, strict=False))
    if not isinstance(made, Mapping):
        raise DataError(
            f"data {text!r} returned {type(made).__name__}; expected a DataSet, a dict of arrays, or (x, y)"
        )
    return build_data(name, {key: np.asarray(array) for key, array in made.items()}, text, ArrayOptions())


def _check_arrays(arrays: Mapping[str, NDArray[Any]], where: str) -> None:
    for name in ("x", "y"):
        if name not in arrays:
            hint = "; that is the layout of uci-har:PATH" if "train_X" in arrays else ""
            raise DataError(f"{where}: no array {name!r}; it holds {', '.join(arrays) or 'nothing'}{hint}")
    x = arrays["x"]
    if x.ndim not in (3, 4) or not x.size or x.dtype.kind not in "fiu":
        raise DataError(
            f"{where}: x is {x.dtype} of shape {x.shape}; expected numbers of shape (n, time, channels), or of images "
            "(n, channels, height, width)"
        )
    if x.ndim == 4 and x.shape[3] in _COLOURS and x.shape[1] not in _COLOURS:
        raise DataError(
            f"{where}: x of shape {x.shape} looks like (n, height, width, channels); expected (n, channels, height, "
            "width): np.moveaxis(x, 3, 1)"
        )
    if x.dtype.kind == "f" and (row := first_bad_row(x)) is not None:
        raise DataError(f"{where}: x row {row} holds NaN or infinity; remove or repair it")
    y = arrays["y"]
    if y.ndim not in (1, 2) or len(y) != len(x) or not y.size or y.dtype.kind not in "fiubU":
        raise DataError(f"{where}: y is {y.dtype} of shape {y.shape}; expected ({len(x)},) or ({len(x)}, k)")
    for name in ("subject", "group", "split"):
        if name in arrays and arrays[name].shape != (len(x),):
            raise DataError(
                f"{where}: {name} has shape {arrays[name].shape}; expected ({len(x)},), one for each window"
            )
        if name in arrays and arrays[name].dtype.kind not in "iubU":
            raise DataError(f"{where}: {name} is {arrays[name].dtype}; expected integers or text")


def read_targets(
    arrays: Mapping[str, NDArray[Any]], where: str, said: Targets | None
) -> tuple[tuple[tuple[str, ...], NDArray[Any]], tuple[str, ...]]:
    """Return (names, values) of classes, numbers or labels, and the units of numbers."""
    y, kind = arrays["y"], said or _find_targets(arrays["y"], where)
    if kind == "classes":
        if y.ndim != 1 or (y.dtype.kind == "f" and not (y == np.round(y)).all()):
            raise DataError(f"{where}: y is {y.dtype} of shape {y.shape}; classes are whole numbers or text, (n,)")
        return _name_labels({**arrays, "y": y.astype(np.int64) if y.dtype.kind == "f" else y}, where), ()
    if y.dtype.kind == "U" or (kind == "labels" and not np.isin(y, (0, 1)).all()):
        raise DataError(
            f"{where}: y holds {y.reshape(-1)[0]!s}; expected {'0 and 1' if kind == 'labels' else 'numbers'}"
        )
    columns = y.reshape(len(y), -1).astype(np.uint8 if kind == "labels" else np.float32)
    names = _read_names(arrays, "targets", columns.shape[1], where) or tuple(
        f"{kind[:-1]}-{number}" for number in range(1, columns.shape[1] + 1)
    )
    units = _read_names(arrays, "units", columns.shape[1], where) if kind == "numbers" else ()
    return (names, columns), units


def _find_targets(y: NDArray[Any], where: str) -> Targets:
    """Return the kind of y. Raises DataError if it may be two."""
    if y.ndim == 1 and y.dtype.kind != "f":
        return "classes"
    if y.ndim == 2 and y.dtype.kind != "U" and np.isin(y, (0, 1)).all():
        if (y.sum(axis=1) == 1).all() and y.shape[1] > 1:
            raise DataError(
                f"{where}: each row of y has a single 1: classes, or labels? ?targets=labels, or for classes "
                "y.argmax(axis=1)"
            )
        return "labels"
    if y.dtype.kind != "f" or (y.ndim == 1 and (y == np.round(y)).all()):
        raise DataError(
            f"{where}: y is {y.dtype} of shape {y.shape} with whole numbers: are they numbers to predict, or names of "
            "classes? ?targets=numbers or ?targets=classes"
        )
    return "numbers"


def _read_names(arrays: Mapping[str, NDArray[Any]], which: str, count: int, where: str) -> tuple[str, ...]:
    """Return the numbers' or labels' names, or their units, from the array of that name; () without one."""
    if which not in arrays:
        return ()
    given = arrays[which].reshape(-1)
    names = tuple(str(name).strip() for name in given.tolist())
    if given.dtype.kind != "U" or len(names) != count or (which == "targets" and len({*names, ""}) != count + 1):
        raise DataError(f"{where}: {which} holds {given.dtype} of shape {given.shape}; expected {count} texts")
    return names


def _name_labels(arrays: Mapping[str, NDArray[Any]], where: str) -> tuple[tuple[str, ...], Integers]:
    y = arrays["y"]
    if "classes" not in arrays:
        return number_names(y)
    classes = tuple(str(name) for name in arrays["classes"].reshape(-1).tolist())
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(classes):
        raise DataError(
            f"{where}: y holds {y.min()}..{y.max()}, but classes names {len(classes)}: expected 0..{len(classes) - 1}"
        )
    return classes, y.astype(np.int64)


def _name_channels(arrays: Mapping[str, NDArray[Any]], where: str) -> tuple[str, ...]:
    """Return the channels' names; () if the source has none."""
    if "channels" not in arrays:
        return ()
    given, count = arrays["channels"], arrays["x"].shape[1 if arrays["x"].ndim == 4 else 2]
    names = tuple(str(name).strip() for name in given.reshape(-1).tolist())
    if given.dtype.kind != "U" or len(names) != count or len(set(names)) != count or not all(names):
        raise DataError(
            f"{where}: channels holds {given.dtype} of shape {given.shape}; expected {count} different names, one for "
            f"each of x's channels"
        )
    return names


def _read_units(arrays: Mapping[str, NDArray[Any]], where: str, said: str) -> tuple[str, ...]:
    """Return the written unit of each channel; () if none is known."""
    count = arrays["x"].shape[1 if arrays["x"].ndim == 4 else 2]
    units = read_units(_read_names(arrays, "channel_units", count, where) or split_names(said), count, where)
    return units if any(units) else ()


def _in_kept_units(
    x: NDArray[Any], units: tuple[str, ...], as_written: bool
) -> tuple[NDArray[Any], tuple[str, ...], bool]:
    """Return (x, units, True if values have changed)."""
    kept = units if as_written else tuple(map(kept_unit, units))
    converted = x if kept == units else convert_channels(x, units, kept)
    return (x, units, False) if converted is None else (converted, kept, kept != units)


def _read_rate(arrays: Mapping[str, NDArray[Any]], where: str, said: float | None) -> float | None:
    """Return the rate; None if it is not known."""
    given = arrays.get("rate")
    if given is None:
        return said
    if given.size != 1 or given.dtype.kind not in "fiu" or not 0 < float(given.reshape(-1)[0]) <= FASTEST_HZ:
        raise DataError(
            f"{where}: rate holds {given.dtype} of shape {given.shape}; expected one number of Hz, above 0 and at most "
            f"{FASTEST_HZ:g}"
        )
    found = float(given.reshape(-1)[0])
    if said is not None and not is_one_rate(found, said):
        raise DataError(f"{where}: rate={said:g}, but its array `rate` says {found:g}")
    return found


def _read_split(split: NDArray[Any], where: str) -> NDArray[np.bool_]:
    values = sorted(set(split.tolist()))
    if split.dtype.kind == "U" and set(values) <= set(_TEST_WORDS):
        return np.asarray(split == "test", dtype=bool)
    if split.dtype.kind in "iub" and set(values) <= {0, 1}:
        return split.astype(bool)
    raise DataError(f"{where}: split holds {values[:5]}; expected 'train' and 'test', or 0 and 1 (1 is test)")


def _divide(
    name: str, x: NDArray[Any], labels: tuple[tuple[str, ...], NDArray[Any]], subject: NDArray[Any] | None,
    group: Integers, test: NDArray[np.bool_], channels: tuple[str, ...], rate_hz: float | None,
    units: tuple[str, ...], channel_units: tuple[str, ...], is_converted: bool,
) -> DataSet:  # fmt: skip
    names, ids = ((), np.zeros(len(x), np.int64)) if subject is None else number_names(subject)
    windows = make_windows(x, labels[1], ids, group)
    return DataSet(
        name, take_windows(windows, ~test), take_windows(windows, test), labels[0], "given",
        description=f"windows from {name}", subject_names=names, channels=channels, rate_hz=rate_hz,
        units=units, channel_units=channel_units, is_converted=is_converted,
    )  # fmt: skip
