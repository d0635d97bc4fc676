"""`load_data`: one line of text in, windows out; whatever had to be parsed is parsed once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from mdl.data.cache import load_cached, stamp_files
from mdl.data.readers.archive import list_files
from mdl.data.readers.arrays import ArrayOptions, call_own, read_npz
from mdl.data.readers.catalogue import find_installed
from mdl.data.readers.csv_streams import CsvOptions, find_csv_files, read_csv
from mdl.data.readers.motion import MotionOptions, make_motion
from mdl.data.readers.places import PlaceOptions, read_places
from mdl.data.readers.semg import SemgOptions, read_semg
from mdl.data.readers.uci_har import read_uci_har
from mdl.data.spec import FACTORY, Spec, parse_spec, read_options
from mdl.data.suspects import suspect_channels
from mdl.data.windows import DataSet, check_data
from mdl.errors import ConfigError, DataError
from mdl.own import Own

logger = logging.getLogger(__name__)

# Prepared by others: their channels are known.
_OWN_SOURCES = ("npz", "csv")


class _NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


def load_data(spec: str | Own, cache_dir: Path, seed: int = 0) -> DataSet:
    """As `read_data`, and says in the log what was found out about the data and what is likely a mistake in it."""
    data = read_data(spec, cache_dir, seed)
    for note in data.notes:
        logger.info("%s: %s", data.name, note)
    for warning in data.warnings:
        logger.warning("%s: %s", data.name, warning)
    return data


def read_data(spec: str | Own, cache_dir: Path, seed: int = 0) -> DataSet:
    """The data set that `spec` names (`mdl.data.spec`), checked; parsed windows stay in `cache_dir` as mapped arrays.

    A text names a built-in source; a function of the user's is called if they have said so (`mdl.own.own_data`). seed
    shapes the synthetic `motion` only; what recordings hold out for testing never depends on it. Raises
    ConfigError if the spec is wrong, DataError if the data is.
    """
    if isinstance(spec, Own):
        return _with_warnings(check_data(call_own(spec), spec.text))
    parsed = parse_spec(spec)
    if parsed.source == FACTORY:
        raise ConfigError(f"data {spec!r} names a function: nothing is imported unless you say so with --data")
    key, build = _prepare(parsed, seed)

    def checked() -> DataSet:
        data = check_data(build(), spec)
        return _with_warnings(data) if parsed.source in _OWN_SOURCES else data

    try:
        return load_cached(cache_dir, parsed.source, key, checked)
    except MemoryError:
        raise DataError(f"{spec}: does not fit into the memory of this machine") from None


def _with_warnings(data: DataSet) -> DataSet:
    return replace(data, warnings=(*data.warnings, *suspect_channels(data.train, data.channels)))


def _prepare(spec: Spec, seed: int) -> tuple[list[object], Callable[[], DataSet]]:
    """What the windows depend on, and how to make them."""
    match spec.source:
        case "motion":
            motion = read_options(spec, MotionOptions)
            return [motion, seed], lambda: make_motion(motion, seed)
        case "uci-har":
            _, path = read_options(spec, _NoOptions), _locate(spec)
            return _stamp([path], spec), lambda: read_uci_har(path)
        case "semg":
            semg, path = read_options(spec, SemgOptions), _locate(spec)
            return _stamp([path], spec), lambda: read_semg(path, semg)
        case "npz":
            arrays, path = read_options(spec, ArrayOptions), _locate(spec)
            return _stamp([path], spec), lambda: read_npz(path, arrays)
        case "places":
            places = read_options(spec, PlaceOptions)
            return _stamp(find_csv_files(spec.path), spec), lambda: read_places(spec.path, places)
        case _:
            csv = read_options(spec, CsvOptions)
            return _stamp(find_csv_files(spec.path), spec), lambda: read_csv(spec.path, csv)


def _locate(spec: Spec) -> Path:
    return Path(spec.path).expanduser() if spec.path else find_installed(spec.source)


def _stamp(paths: list[Path], spec: Spec) -> list[object]:
    files = [file.resolve() for path in paths for file in list_files(path)]
    return [spec.source, sorted(spec.options.items()), *stamp_files(files)]
