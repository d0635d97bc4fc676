"""`load_data`: one line of text in, windows out; text files are parsed once. `mdl.data` hands on the names here."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mdl.bounds import in_utf8
from mdl.data.cache import load_cached
from mdl.data.describe import describe_data, measure_channels, suspect_channels, suspect_targets
from mdl.data.readers.arrays import call_own
from mdl.data.readers.catalogue import default_cache_dir
from mdl.data.sources import FACTORY, SOURCES, parse_spec
from mdl.data.split import Shard, donated_part, parse_shard, private_part, shard_test, split_windows
from mdl.data.windows import DataSet, Windows, check_data, make_windows, take_windows
from mdl.errors import ConfigError, DataError
from mdl.own import Own

logger = logging.getLogger(__name__)


def load_data(spec: str | Own, cache_dir: Path, seed: int = 0) -> DataSet:
    """Return the result of `read_data`; log the facts found about the data, and likely mistakes in it."""
    data = read_data(spec, cache_dir, seed)
    for note in data.notes:
        logger.info("%s: %s", data.name, note)
    for warning in data.warnings:
        logger.warning("%s: %s", data.name, warning)
    return data


def read_data(spec: str | Own, cache_dir: Path, seed: int = 0) -> DataSet:
    """Read the data set that `spec` names (`mdl.data.spec`), checked; parsed windows stay in `cache_dir`, mapped.

    A text names a built-in source; a function of the user's is called if they have said so (`mdl.own.own_data`). seed
    shapes the synthetic `motion` only; the choice of recordings' test windows never depends on it. Raises ConfigError
    if the spec is wrong, DataError if the data is.
    """
    if isinstance(spec, Own):
        return _with_warnings(check_data(call_own(spec.function, parse_spec(spec.text)), spec.text))
    parsed = parse_spec(spec)
    if parsed.source == FACTORY:
        raise ConfigError(f"data {spec!r} names a function: nothing is imported unless you say so with --data")
    source = SOURCES[parsed.source]
    key, build = source.prepare(parsed, seed)

    def checked(scratch: Path) -> DataSet:
        data = _in_utf8(check_data(build(scratch), spec))
        data = _with_count(data) if source.takes_path else data  # made-up recordings are not read
        return _with_warnings(data) if source.is_own else data

    try:
        if not source.is_cached:
            return checked(cache_dir)
        return load_cached(cache_dir, parsed.source, key, checked)
    except MemoryError:
        raise DataError(f"{spec}: does not fit into the memory of this machine") from None


def _in_utf8(data: DataSet) -> DataSet:
    """Escape bytes of a file's name that are no UTF-8: names become classes and people, and are kept and sent."""

    def readable(value: Any) -> Any:
        if isinstance(value, str):
            return in_utf8(value)
        return tuple(map(readable, value)) if isinstance(value, tuple) else value

    return replace(data, **{field.name: readable(getattr(data, field.name)) for field in fields(data)})


def _with_count(data: DataSet) -> DataSet:
    """End the notes with the number of windows read, unless the reader has given one."""
    if any(note.startswith("read ") for note in data.notes):
        return data
    return replace(data, notes=(*data.notes, f"read {len(data.train) + len(data.test):,} windows"))


def _with_warnings(data: DataSet) -> DataSet:
    found = (
        *suspect_channels(data.train, data.channels),
        *suspect_targets(data.train.y, data.test.y, data.classes),
    )
    return replace(data, warnings=(*data.warnings, *found))


__all__ = [
    "DataSet",
    "Shard",
    "Windows",
    "check_data",
    "default_cache_dir",
    "describe_data",
    "donated_part",
    "load_data",
    "make_windows",
    "measure_channels",
    "parse_shard",
    "private_part",
    "read_data",
    "shard_test",
    "split_windows",
    "take_windows",
]
