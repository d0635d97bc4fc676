"""The base of every table of the configuration: a struct of numbers with ranges. It imports no torch."""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, TypeAlias, get_type_hints

import msgspec

from mdl.errors import ConfigError

# The limit for rounds, windows, people and the like: far beyond any run, and no sum of them leaves 64 bits.
MANY = 1_000_000_000
MEMBERS = 1024  # the most that a mesh may have
# 11 days: longer than anybody waits, and a timer of 32 bits in milliseconds still holds it.
LONGEST_S = 1_000_000
LARGEST_SEED = 2**63 - 1  # the largest that TOML can write; every random generator takes it
_SHOWN_DIGITS = 24  # digits of a number that an error repeats


class Range(msgspec.Struct, frozen=True):
    """The valid values of a number, both ends included, unless it must be above the low or below the high one.

    note: the meaning of a special value.
    """

    low: float
    high: float
    note: str = ""
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """Return True if the value lies in the range; NaN does not."""
        return (self.low < value or (value == self.low and not self.above)) and (
            value < self.high or (value == self.high and not self.below)
        )

    def __str__(self) -> str:
        low, high = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{low} {self.low}, {high} {self.high}" + (f" ({self.note})" if self.note else "")


Seed: TypeAlias = Annotated[int, Range(0, LARGEST_SEED)]
Many: TypeAlias = Annotated[int, Range(1, MANY)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table. Every number has a `Range` in its type; ConfigError names the first one out of its range."""

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, valid in ranges_of(type(self)).items():
            if not valid.holds(value := getattr(self, name)):
                key = f"{self.table}.{name}".lstrip(".")
                raise ConfigError(f"{key} is {str(value)[:_SHOWN_DIGITS]}: it must be {valid}")


@cache
def ranges_of(section: type[Section]) -> dict[str, Range]:
    """Return the range of every number of a table, by its key."""
    hints = get_type_hints(section, include_extras=True).items()
    notes = ((name, note) for name, hint in hints for note in getattr(hint, "__metadata__", ()))
    return {name: note for name, note in notes if isinstance(note, Range)}
