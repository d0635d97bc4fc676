"""The built-in sources of data, and their names in a spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from mdl.data.windows import DataSet

import re

from mdl.data.spec import Spec, describe_choices, read_options
from mdl.errors import ConfigError

# The folder is for windows that do not fit into memory: `load_cached`.
Prepared: TypeAlias = "tuple[list[object], Callable[[Path], DataSet]]"


@dataclass(frozen=True)
class DataSource:
    """One kind of data: a row of SOURCES. Help, errors, `mdl data list` and the page of sources are made from it.

    about: what it is, in a few words. prepare: returns the key of the windows and a function to make them, by the spec
    and the seed. takes_path, needs_path: `NAME:PATH`, or path_name in its place. is_own: recorded by the user, so that
    its channels may hold mistakes. is_cached: parsed windows may be kept; not those that another device may take back.
    """

    about: str
    prepare: Callable[[Spec, int], Prepared]
    takes_path: bool = True
    needs_path: bool = False
    path_name: str = "PATH"
    is_own: bool = False
    is_cached: bool = True


def _of_file(load: Callable[[], tuple[type[Any], Callable[[Path, Any], DataSet]]]) -> Callable[[Spec, int], Prepared]:
    """Return the `prepare` of a source that is one file or folder. load: imports its options and its reader."""

    def prepare(spec: Spec, seed: int) -> Prepared:
        kind, read = load()
        options, path = read_options(spec, kind), _locate(spec)
        return _stamp([path], spec), lambda _: read(path, options)

    return prepare


def _motion(spec: Spec, seed: int) -> Prepared:
    from mdl.data.readers.motion import MotionOptions, make_motion

    options = read_options(spec, MotionOptions)
    return [options, seed], lambda _: make_motion(options, seed)


def _uci_har() -> tuple[type[Any], Callable[[Path, Any], DataSet]]:
    from mdl.data.readers.uci_har import UciHarOptions, read_uci_har

    return UciHarOptions, read_uci_har


def _semg() -> tuple[type[Any], Callable[[Path, Any], DataSet]]:
    from mdl.data.readers.semg import SemgOptions, read_semg

    return SemgOptions, read_semg


def _mhealth() -> tuple[type[Any], Callable[[Path, Any], DataSet]]:
    from mdl.data.readers.public_logs import MhealthOptions, read_mhealth

    return MhealthOptions, read_mhealth


def _pamap2() -> tuple[type[Any], Callable[[Path, Any], DataSet]]:
    from mdl.data.readers.public_logs import Pamap2Options, read_pamap2

    return Pamap2Options, read_pamap2


def _unimib() -> tuple[type[Any], Callable[[Path, Any], DataSet]]:
    from mdl.data.readers.unimib import UnimibOptions, read_unimib

    return UnimibOptions, read_unimib


def _opportunity() -> tuple[type[Any], Callable[[Path, Any], DataSet]]:
    from mdl.data.readers.public_logs import OpportunityOptions, read_opportunity

    return OpportunityOptions, read_opportunity


def _npz() -> tuple[type[Any], Callable[[Path, Any], DataSet]]:
    from mdl.data.readers.arrays import ArrayOptions, read_npz

    return ArrayOptions, read_npz


def _csv(spec: Spec, seed: int) -> Prepared:
    from mdl.data.readers.csv_streams import CsvOptions, read_csv
    from mdl.data.tables.recordings import find_recordings

    options = read_options(spec, CsvOptions)
    return _stamp(find_recordings(spec.path), spec), lambda scratch: read_csv(spec.path, options, scratch)


def _places(spec: Spec, seed: int) -> Prepared:
    from mdl.data.readers.places import PlaceOptions, read_places
    from mdl.data.tables.recordings import find_csv_files

    options = read_options(spec, PlaceOptions)
    told = [Path(options.clusters).expanduser()] if options.clusters else []
    return _stamp([*find_csv_files(spec.path), *told], spec), lambda _: read_places(spec.path, options)


def _images(spec: Spec, seed: int) -> Prepared:
    from mdl.data.readers.images import ImageOptions, find_images, read_images

    options = read_options(spec, ImageOptions)
    return _stamp(find_images(spec.path), spec), lambda scratch: read_images(spec.path, options, scratch)


def _shared(spec: Spec, seed: int) -> Prepared:
    from mdl.data.parcel import SharedOptions, find_shared, read_parcel

    path = find_shared(spec.path, read_options(spec, SharedOptions).source)
    return [], lambda _: read_parcel(path)


# Readers are imported on demand: taking a spec apart needs no numpy.
SOURCES = {
    "motion": DataSource("six activities of made-up people: SYNTHETIC", _motion, takes_path=False),
    "uci-har": DataSource("Human Activity Recognition Using Smartphones", _of_file(_uci_har)),
    "semg": DataSource("EMG data for gestures", _of_file(_semg)),
    "mhealth": DataSource("MHEALTH: twelve activities, 23 channels", _of_file(_mhealth), needs_path=True),
    "pamap2": DataSource("PAMAP2: acceleration of hand, chest and ankle", _of_file(_pamap2), needs_path=True),
    "unimib": DataSource("UniMiB SHAR: activities and falls", _of_file(_unimib), needs_path=True),
    "opportunity": DataSource("OPPORTUNITY: sensors of a jacket and shoes", _of_file(_opportunity), needs_path=True),
    "csv": DataSource("your recordings in tables: a file, folder, zip or glob", _csv, needs_path=True, is_own=True),
    "images": DataSource("your pictures, one folder for each class", _images, needs_path=True, is_own=True),
    "npz": DataSource("your arrays x and y", _of_file(_npz), needs_path=True, is_own=True),
    "places": DataSource("your log of places, to predict the next one", _places, needs_path=True),
    "shared": DataSource(
        "windows that another device of yours shares", _shared, needs_path=True, path_name="MESH", is_cached=False
    ),
}
# The `Spec.source` of a user's function.
FACTORY = "factory"


# The ending tells the kind of a path alone.
_ENDINGS = {"csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz"), "npz": (".npz",)}
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def parse_spec(text: str) -> Spec:
    """Take a data spec apart. Raises ConfigError on an unknown source, a missing path or a malformed option.

    No default stands for the synthetic `motion`: training on unrecorded data takes an explicit request.
    """
    if not text:
        raise ConfigError(
            "no data is named: give --data, as in --data 'csv:walk.csv?label=activity' or --data uci-har; "
            "--data motion is synthetic"
        )
    body, options = split_options(text)
    source, _, path = body.partition(":")
    if source in SOURCES:
        if path and not SOURCES[source].takes_path:
            raise ConfigError(f"data {text!r}: {source} takes no path; its options follow a ?, as in motion?people=12")
        if SOURCES[source].needs_path and not path:
            raise ConfigError(f"data {text!r}: {source} needs a path, as in {source}:PATH")
        return Spec(text, source, path, options)
    if _FACTORY.fullmatch(body):
        return Spec(text, FACTORY, body, options)
    for kind, endings in _ENDINGS.items():
        if body.lower().endswith(endings):
            return Spec(text, kind, body, options)
    raise ConfigError(f"data {text!r}: unknown source {source!r}; {describe_choices(source, source_forms())}")


def names_built_in(text: str) -> bool:
    """Return True if a spec names built-in data alone: no path and no function. Such a spec may come from a file.

    Data that `mdl data get` kept counts as built in; a path would let a file decide what this machine opens.
    """
    try:
        spec = parse_spec(text)
    except ConfigError:
        return False
    return spec.source in SOURCES and not spec.path


def source_forms() -> dict[str, str]:
    """Return what --data may name -> what that is: each source, and a function of the user's."""
    forms = {}
    for name, source in SOURCES.items():
        path = f":{source.path_name}" if source.needs_path else f"[:{source.path_name}]" if source.takes_path else ""
        forms[name + path] = source.about
    return forms | {"package.module:factory": "a function of yours"}


def split_options(text: str, what: str = "data") -> tuple[str, dict[str, str]]:
    """Return BODY and the options behind its last ?. Raises ConfigError for one that is not name=value.

    The error calls the text `what`.
    """
    # A glob may hold a "?" too: only name=value behind the last one is an option.
    body, mark, tail = text.rpartition("?")
    if not mark or not re.match(r"\w+=", tail):
        return text, {}
    options: dict[str, str] = {}
    for item in tail.split("&"):
        name, equals, value = item.partition("=")
        if not equals or not name or name in options:
            raise ConfigError(f"{what} {text!r}: option {item!r}; expected name=value, each name once, joined by &")
        options[name] = value
    return body, options


def _locate(spec: Spec) -> Path:
    from mdl.data.readers.catalogue import find_installed

    return Path(spec.path).expanduser() if spec.path else find_installed(spec.source)


def _stamp(paths: list[Path], spec: Spec) -> list[object]:
    from mdl.data.cache import stamp_files
    from mdl.data.readers.archive import list_files, on_disk

    files = {file.resolve() for path in map(on_disk, paths) for file in list_files(path)}
    return [spec.source, sorted(spec.options.items()), *stamp_files(files)]
