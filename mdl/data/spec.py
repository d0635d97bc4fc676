"""The one line that says which data to use: SOURCE[:PATH][?option=value&option=value].

Examples: "motion", "motion?people=12&windows=60", "uci-har:UCI_HAR_Dataset.zip",
"csv:rec/*.csv?columns=ax,ay,az&label=activity&rate=50". Where no source has that name, `package.module:factory` is one;
`mdl.own` alone follows it, and only where the user has said it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from mdl.errors import ConfigError

SOURCES = ("motion", "uci-har", "semg", "npz", "csv", "places")
_NEEDS_PATH = ("npz", "csv", "places")
# What `Spec.source` says of a function of the user's.
FACTORY = "factory"
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_Options = TypeVar("_Options", bound=msgspec.Struct)


class Spec(msgspec.Struct, frozen=True):
    """A data spec, taken apart. source is one of SOURCES or FACTORY; path is empty where none was given."""

    text: str
    source: str
    path: str
    options: dict[str, str]


def parse_spec(text: str) -> Spec:
    """Take a data spec apart. Raises ConfigError on an unknown source, a missing path or a malformed option.

    Nothing stands for the synthetic `motion`: whoever trains on data that nobody recorded has asked for it.
    """
    if not text:
        raise ConfigError(
            "which data? give --data, as in --data 'csv:walk.csv?label=activity' or --data uci-har; "
            "--data motion is synthetic"
        )
    body, options = _split_options(text)
    source, _, path = body.partition(":")
    if source in SOURCES:
        if source == "motion" and path:
            raise ConfigError(f"data {text!r}: motion takes no path; its options follow a ?, as in motion?people=12")
        if source in _NEEDS_PATH and not path:
            raise ConfigError(f"data {text!r}: {source} needs a path, as in {source}:PATH")
        return Spec(text, source, path, options)
    if _FACTORY.fullmatch(body):
        return Spec(text, FACTORY, body, options)
    raise ConfigError(f"data {text!r}: unknown source {source!r}; {describe_choices(source, _forms())}")


def names_built_in(text: str) -> bool:
    """Whether a spec names built-in data alone: no path and no function. Such a spec may come from a file.

    What `mdl data get` kept counts as built in; a path would let a file say what is opened on this machine.
    """
    try:
        spec = parse_spec(text)
    except ConfigError:
        return False
    return spec.source in SOURCES and not spec.path


def read_options(spec: Spec, kind: type[_Options]) -> _Options:
    """The options of a spec as a struct. Raises ConfigError naming the option, its value and what would be valid."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in spec.options:
        if name not in names:
            raise ConfigError(f"data {spec.text!r}: unknown option {name!r}; {describe_choices(name, names)}")
    try:
        return msgspec.convert(spec.options, kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        raise ConfigError(f"data {spec.text!r}: option {name}={spec.options.get(name, '')[:40]}: {reason}") from None


def describe_choices(given: str, valid: Iterable[str]) -> str:
    """ "did you mean X? valid: A, B, C": the closest valid choice, then all of them."""
    choices = list(valid)
    stems = {re.split(r"[:.]", choice)[0]: choice for choice in choices}
    close = difflib.get_close_matches(given, stems, n=1, cutoff=0.5)
    hint = f"did you mean {stems[close[0]]}? " if close else ""
    return f"{hint}valid: {', '.join(choices) or 'none'}"


def _forms() -> list[str]:
    return [*(f"{name}:PATH" if name != "motion" else name for name in SOURCES), "package.module:factory"]


def _split_options(text: str) -> tuple[str, dict[str, str]]:
    # A glob may hold a "?" too: only what looks like name=value behind the last one is an option.
    body, mark, tail = text.rpartition("?")
    if not mark or not re.match(r"\w+=", tail):
        return text, {}
    options: dict[str, str] = {}
    for item in tail.split("&"):
        name, equals, value = item.partition("=")
        if not equals or not name or name in options:
            raise ConfigError(f"data {text!r}: option {item!r}; expected name=value, each name once, joined by &")
        options[name] = value
    return body, options
