"""The columns of a table: their roles, by the user's words or else by their names, and the unit of each channel.

A unit is given by the user or the header, or seen in the pull of the earth. A phone that logs g and one that logs m/s²
differ by a factor of 9.81, and nothing else about the data looks wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mdl.bounds import first_few
from mdl.channels import conversion, find_unit, quantity_of, read_units
from mdl.data.spec import describe_choices, split_names
from mdl.data.tables.dialect import CsvOptions, Dialect, is_time_name, plain_name, without_unit
from mdl.data.tables.rows import Floats64
from mdl.errors import ConfigError, DataError

# Usual names of such a column, for the hint if the user has named none.
_LABEL_NAMES = ("activity", "label", "class", "target", "gesture", "exercise", "state")
# The user's word for the time: ignore its column.
NO_TIME = "none"
# Columns named in one line.
_MOST_SHOWN = 40
# A device at rest measures 1 g. In motion the middle of many is still near it; a sensor without gravity shows none.
_IN_G, _IN_MS2 = (0.85, 1.2), (8.3, 11.8)
# Stands for a file's name if a model needs the units.
THE_MODEL = "the model"
_AXIS = re.compile(r"(?:.*acc.*|a)[^a-z]*([xyz])|(?:x)?([xyz])[^a-z]*acc.*", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Positions in the header. channels: (name, position), with the user's names or a known app's.

    targets: likewise of numbers or labels. label, subject: None if they come from the path, or there is none.
    times: candidates for the time, in order. left_out: names of columns that are no channels.
    """

    channels: tuple[tuple[str, int], ...]
    label: int | None
    subject: int | None
    times: tuple[int, ...]
    left_out: tuple[str, ...]
    targets: tuple[tuple[str, int], ...] = ()


def choose_columns(
    file: Path, dialect: Dialect, options: CsvOptions, like: Sequence[str] | None = None, like_file: Path | None = None
) -> Columns:
    """Choose the columns; check all against the header. like: the channels that the file must have, in any order.

    Raises ConfigError that shows the header, DataError if the channels are not those of `like_file`.
    """
    named = split_names(options.channels or options.columns)
    if options.channels and options.columns:
        raise ConfigError(f"{file}: channels= and columns= are one thing; give one of them")
    _refuse_two_targets(file, options)
    label = None if from_path(options.label, dialect) else _place(file, dialect, options.label)
    targets = [(name, _place(file, dialect, name)) for name in split_names(options.target or options.labels)]
    _refuse_twice(file, dialect, [name for name, _ in targets])
    if options.label_sep:
        if label is None:
            raise ConfigError(f"{file}: label_sep= parts the labels of a column: name it with ?label=")
        targets, label = [(name, label) for name in options.label_names], None
    subject = None if from_path(options.subject, dialect) else _place(file, dialect, options.subject)
    time = None if options.time in ("", NO_TIME) else _place(file, dialect, options.time)
    taken = [place for place in (label, subject, time, *dict(targets).values()) if place is not None]
    free = [place for place, name in enumerate(dialect.header) if name and place not in taken]
    times = [place for place in free if is_time_name(dialect.alias(place) or dialect.header[place])]
    # In a known app's file the app's rules name the channels, in one order for all apps.
    rest = [place for place in free if place not in times and (dialect.alias(place) or not dialect.app)]
    rest = sorted(rest, key=dialect.alias) if dialect.app else rest
    if dialect.named and len(dialect.named) == len(rest):
        given = dict(zip(rest, dialect.named, strict=True))
        aliases = tuple(given.get(place, "") for place in range(len(dialect.header)))
        dialect = replace(dialect, aliases=aliases, named=())
    places = _place_channels(file, dialect, named, rest)
    times = [place for place in times if place not in dict(places).values()]
    chosen = places or [(dialect.alias(place) or dialect.header[place], place) for place in rest]
    left_out = [] if named else [dialect.header[place] for place in free if place not in dict(chosen).values()]
    chosen = _call(file, dialect, _without_units(chosen))
    others = ", ".join(dialect.header[place] for place in taken)
    if not chosen or {place for _, place in chosen} & set(taken):
        raise ConfigError(f"{file}: columns must name channels other than {others}; {_show(dialect)}")
    _refuse_twice(file, dialect, [name for name, _ in chosen])
    if like is not None and not named:
        chosen = _order_like(file, chosen, like, like_file)
    candidates = [time] if time is not None else [] if options.time == NO_TIME else times
    return Columns(tuple(chosen), label, subject, tuple(candidates), tuple(left_out), tuple(targets))


def rename_columns(file: Path, dialect: Dialect, said: str) -> Dialect:
    """Give columns the user's names. said: "THEIRS:OURS,..."; `find_column` finds theirs.

    Raises ConfigError for a text that is no pair, and for a column that is not there.
    """
    pairs = read_map(said)
    if not pairs:
        return dialect
    aliases = list(dialect.aliases or ("",) * len(dialect.header))
    for theirs, ours in pairs.items():
        aliases[_place(file, dialect, theirs)] = ours
    return replace(dialect, aliases=tuple(aliases))


def read_map(said: str) -> dict[str, str]:
    """Return columns' new names, by their name in a file. Raises ConfigError for a text that is no THEIRS:OURS."""
    pairs = [each.rpartition(":") for each in split_names(said)]
    if wrong := [f"{theirs}{colon}{ours}" for theirs, colon, ours in pairs if not theirs.strip() or not ours.strip()]:
        raise ConfigError(f"map= has {wrong[0][:40]!r}; expected THEIRS:OURS,..., as in map=Acceleration x:ax")
    return {theirs.strip(): ours.strip() for theirs, _, ours in pairs}


def _place_channels(file: Path, dialect: Dialect, named: Sequence[str], rest: Sequence[int]) -> list[tuple[str, int]]:
    """Find the channels that the user or a model names. rest: columns that could be them, for the hint.

    Raises ConfigError with a way to give the file's columns these names.
    """
    places = [(name, find_column(dialect, name)) for name in named]
    found = [(name, place) for name, place in places if place is not None]
    if missing := [name for name, place in places if place is None]:
        left = [dialect.header[place] for place in rest if place not in dict(found).values()]
        theirs = left if len(left) == len(missing) else ["THEIRS", "THEIRS"]
        pairs = ",".join(f"{without_unit(one)}:{ours}" for one, ours in zip(theirs, missing, strict=False))
        order = ", if they are in this order" if left == theirs and len(left) > 1 else ""
        raise _no_column(file, dialect, missing[0], f"say ?map={pairs}{order}")
    return found


def _call(file: Path, dialect: Dialect, chosen: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Give the channels the user's names, if there is one for each of them."""
    if not dialect.named:
        return chosen
    if len(dialect.named) == len(chosen):
        return [(name, place) for name, (_, place) in zip(dialect.named, chosen, strict=True)]
    raise ConfigError(
        f"{file}: names= says {len(dialect.named)} names; expected one for each of the {len(dialect.header)} columns, "
        f"or of the {len(chosen)} channels ({first_few([name for name, _ in chosen], _MOST_SHOWN)}); "
        f"?map={chosen[0][0]}:{dialect.named[0]},... names some"
    )


def _without_units(chosen: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Take known units off the channels' names, "ax (g)" -> "ax", unless two channels would be called alike."""
    short = [(without_unit(name), place) for name, place in chosen]
    return short if len({name for name, _ in short}) == len({name for name, _ in chosen}) else chosen


def _refuse_two_targets(file: Path, options: CsvOptions) -> None:
    said = [name for name in ("label", "target", "labels") if getattr(options, name)]
    if len(said) > 1:
        raise ConfigError(f"{file}: {'=, '.join(said)}= are given; a model learns one of them")
    if options.label_sep and not options.classes:
        raise ConfigError(
            f"{file}: label_sep={options.label_sep} needs all labels that there are: ?classes=NAME,NAME,..."
        )
    if options.classes and (options.target or options.labels):
        raise ConfigError(f"{file}: classes= names classes; {said[0]}= names its columns")


def from_path(said: str, dialect: Dialect | None = None) -> bool:
    """Return True if a label or a subject is the name of a folder or of the file, and not a column of that name."""
    word = said.partition(":")[0]
    return not said or (word in ("path", "file") and (dialect is None or find_column(dialect, said) is None))


def find_column(dialect: Dialect, name: str) -> int | None:
    """Return the column of this name: the whole name, else without regard to case, else also without the unit.

    Another name of a column, by the user or a known app's rules, counts as its name.
    """
    for form in (str, str.casefold, plain_name):
        for names in (dialect.header, dialect.aliases):
            if found := [place for place, each in enumerate(names) if form(each) == form(name)]:
                return found[0]
    return None


def ask_for_label(file: Path, dialect: Dialect) -> ConfigError:
    """Return the error that asks for the column of the class, if the user has named none."""
    likely = likely_labels(dialect)
    return ConfigError(
        f"{file}: say which column holds the class, as in ?label={likely[0] if likely else 'NAME'} "
        f"(or ?label=path, if there is a folder for each; ?target=NAME for a number); {_show(dialect)}"
    )


def likely_labels(dialect: Dialect) -> list[str]:
    """Return the columns with usual names of classes."""
    return [name for name in dialect.header if plain_name(name) in _LABEL_NAMES]


def _place(file: Path, dialect: Dialect, name: str) -> int:
    found = find_column(dialect, name)
    if found is None:
        raise _no_column(file, dialect, name)
    return found


def _no_column(file: Path, dialect: Dialect, name: str, remedy: str = "") -> ConfigError:
    hint = describe_choices(name, dialect.header).partition("valid:")[0].rstrip(" ?")
    told = [f"{file}: no column {name!r}{f' ({hint}?)' if hint else ''}", remedy, _show(dialect)]
    return ConfigError("; ".join(filter(None, told)))


def _refuse_twice(file: Path, dialect: Dialect, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1 or dialect.header.count(name) > 1:
            raise ConfigError(f"{file}: column {name!r} is there twice; {_show(dialect)}")


def _order_like(
    file: Path, chosen: list[tuple[str, int]], like: Sequence[str], like_file: Path | None
) -> list[tuple[str, int]]:
    """Return the same channels in the order, and by the names, of the first file."""
    here = {plain_name(name): (name, place) for name, place in chosen}
    known = {plain_name(name) for name in like}
    if missing := [name for name in like if plain_name(name) not in here]:
        raise DataError(
            f"{file}: no column {missing[0]!r}, which {like_file} has; ?columns= names the channels of all files, "
            f"?map=THEIRS:{missing[0]} calls a column so"
        )
    if more := [name for plain, (name, _) in here.items() if plain not in known]:
        raise DataError(f"{file}: column {more[0]!r} is not in {like_file}; name the channels with ?columns=")
    return [(name, here[plain_name(name)][1]) for name in like]


def _show(dialect: Dialect) -> str:
    also = [name for name in dialect.aliases if name]
    called = f", called {first_few(also, _MOST_SHOWN)}" if also else ""
    return f"the header is: {first_few(dialect.header, _MOST_SHOWN)}{called}"


def acceleration_columns(names: Sequence[str]) -> list[int]:
    """Return the places of an accelerometer's x, y and z among the channels' names; [] unless each is there once."""
    plain = [re.sub(r"\s*[\[(].*", "", name).strip() for name in names]
    found = [(place, _AXIS.fullmatch(name)) for place, name in enumerate(plain)]
    axes = {(match[1] or match[2]).lower(): place for place, match in found if match}
    count = sum(1 for _, match in found if match)
    return [axes[axis] for axis in "xyz"] if count == 3 and len(axes) == 3 else []


def find_units(
    file: Path, dialect: Dialect, channels: Sequence[tuple[str, int]], values: Floats64, said: Sequence[str]
) -> tuple[str, ...]:
    """Return the unit of each channel as a file has it; "" if it is not known.

    channels: (name, column). values: (rows, channels or more) of the file's beginning. said: the user's units, one for
    all channels or one for each; else empty. Raises ConfigError for another number of them, or an unknown one.
    """
    if said:
        return read_units(said, len(channels), file)
    units = [find_unit(dialect.units[place]) for _, place in channels]
    axes = acceleration_columns([name for name, _ in channels])
    axes = axes or acceleration_columns([dialect.header[place] for _, place in channels])
    if axes and not any(units[axis] for axis in axes):
        seen = _see_acceleration(values[:, axes])
        for axis in axes:
            units[axis] = seen
    return tuple(units)


def scale_to(
    file: Path, channels: Sequence[tuple[str, int]], found: Sequence[str], wanted: Sequence[str], like: str
) -> tuple[Floats64, Floats64]:
    """Return (factor, offset) of each channel, (channels,), which bring values in the units `found` to those `wanted`.

    like: the source of `wanted`: the first file of a set, or THE_MODEL. A model's empty unit is unknown: such a channel
    stays as it is. Raises DataError that names both sides if a channel measures another quantity.
    """
    pairs = []
    for (name, _), here, there in zip(channels, found, wanted, strict=True):
        pair = (1.0, 0.0) if like == THE_MODEL and not there else conversion(here, there)
        if pair is None:
            told = f"is in {here} ({quantity_of(here)})" if here else "has no unit"
            other = f"{like} has it in {there} ({quantity_of(there)})" if there else f"{like} has none"
            hint = f"?units={there}, if that is what it is" if there else f"?units={here} says that all are in it"
            raise DataError(f"{file}: channel {name!r} {told}, but {other}; {hint}")
        pairs.append(pair)
    factor, offset = np.array(pairs, np.float64).T
    return factor, offset


def _see_acceleration(values: Floats64) -> str:
    """Return "g", "m/s2", or "" if the lengths of the vectors, values (rows, 3), tell neither."""
    lengths = np.sqrt(np.square(values[np.isfinite(values).all(axis=1)]).sum(axis=1))
    if not len(lengths):
        return ""
    middle = float(np.median(lengths))
    if _IN_G[0] <= middle <= _IN_G[1]:
        return "g"
    return "m/s2" if _IN_MS2[0] <= middle <= _IN_MS2[1] else ""


def agree_on_units(found: Sequence[tuple[Path, tuple[str, ...]]]) -> tuple[str, ...]:
    """Return the units of the numbers to learn, by the files' headers; () if none has any. Raises DataError."""
    first, units = found[0]
    for file, other in found:
        if other != units:
            here, there = (", ".join(filter(None, each)) or "no unit" for each in (other, units))
            raise DataError(f"{file}: the target is in {here}, but {first} has {there}; bring them to one unit")
    return units if any(units) else ()
