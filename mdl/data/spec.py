"""The one line that names the data to use: SOURCE[:PATH][?option=value&option=value].

Examples: "motion", "motion?people=12&windows=60", "uci-har:UCI_HAR_Dataset.zip",
"csv:rec/*.csv?columns=ax,ay,az&label=activity&rate=50". Other sources are functions, `package.module:factory`;
`mdl.own` alone follows one, and only if the user has said it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from mdl.errors import ConfigError, did_you_mean, words_of

_Options = TypeVar("_Options", bound=msgspec.Struct)


class Spec(msgspec.Struct, frozen=True):
    """A data spec, taken apart. source is one of SOURCES or FACTORY; path is empty if none was given."""

    text: str
    source: str
    path: str
    options: dict[str, str]


def read_options(spec: Spec, kind: type[_Options]) -> _Options:
    """Return the options of a spec as a struct. Raises ConfigError naming option, value and what would be valid."""
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for name in spec.options:
        if name not in kinds:
            raise ConfigError(f"data {spec.text!r}: unknown option {name!r}; {describe_choices(name, kinds)}")
    try:
        return msgspec.convert(spec.options, kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        given = spec.options.get(name, "")[:40]
        if words := words_of(kinds.get(name)):
            reason = describe_choices(given, words)
        raise ConfigError(f"data {spec.text!r}: option {name}={given}: {reason}") from None


def describe_choices(given: str, valid: Iterable[str]) -> str:
    """Return "did you mean X? valid: A, B, C": the closest valid choice, then all of them."""
    choices = list(valid)
    stems = {re.split(r"[:.]", choice)[0]: choice for choice in choices}
    close = did_you_mean(given, stems, "{}")
    hint = f"did you mean {stems[close]}? " if close else ""
    return f"{hint}valid: {', '.join(choices) or 'none'}"


def split_names(text: str) -> list[str]:
    """Split "ax, ay" into names; leave out empty ones."""
    return [name.strip() for name in text.split(",") if name.strip()]
