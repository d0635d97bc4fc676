"""Conditions that end a run, and their notation: `--until accuracy=0.93`; likewise `--every 10m`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, ClassVar

from mdl.errors import ConfigError
from mdl.hints import did_you_mean
from mdl.section import LONGEST_S, MANY, Range, Section
from mdl.task import Targets

_ENDS: dict[str, tuple[str, type[int] | type[float]]] = {
    "accuracy": ("end.accuracy", float),
    "f1": ("end.f1", float),
    "r2": ("end.r2", float),
    "mae": ("end.mae", float),
    "rounds": ("round.rounds", int),
    "minutes": ("end.minutes", float),
    "no-better": ("end.no_better", int),
}
# The ends that a model's tests decide, and the targets that each one needs.
GOALS: dict[str, tuple[Targets, ...]] = {
    "accuracy": ("classes",),
    "f1": ("classes", "labels"),
    "r2": ("numbers",),
    "mae": ("numbers",),
}
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class EndSection(Section, frozen=True):
    """Conditions that end the mesh for all; the agent's device decides. Any one is enough, and so is `round.rounds`.

    accuracy: of the mesh's model on the test windows of all devices, for classes only; 0: none.
    f1: likewise, the micro F1 of labels, or the macro F1 of classes; 0: none.
    r2: likewise, for numbers: the mean R2 over all of them; 0: none.
    mae: likewise, for numbers: the greatest mean absolute error that any of them may have, in its unit; 0: none.
    minutes: since the first round of this start was opened; 0: any.
    no_better: rounds without a better model (`MEASURES`), by the training loss where no device tests; 0: any.
    """

    table: ClassVar[str] = "end"
    accuracy: Annotated[float, Range(0, 1, "0: none")] = 0.0
    f1: Annotated[float, Range(0, 1, "0: none")] = 0.0
    r2: Annotated[float, Range(0, 1, "0: none")] = 0.0
    mae: Annotated[float, Range(0, MANY, "0: none")] = 0.0
    minutes: Annotated[float, Range(0, LONGEST_S, "0: any")] = 0.0
    no_better: Annotated[int, Range(0, MANY, "0: any")] = 0

    def __bool__(self) -> bool:
        return bool(self.goals or self.minutes or self.no_better)

    @property
    def goals(self) -> dict[str, float]:
        """The test results that a model has to reach, by the names of `GOALS`."""
        return {name: goal for name in GOALS if (goal := getattr(self, name))}

    def check(self, targets: Targets, data: str) -> None:
        """Raise ConfigError for a goal that models of such data (its name) cannot be measured by."""
        for name in self.goals:
            if targets not in GOALS[name]:
                valid = " or ".join(f"{goal}=N" for goal, kinds in GOALS.items() if targets in kinds)
                raise ConfigError(f"--until {name}: {data} has {targets}; expected {valid}, or no-better=N")


def until_settings(texts: Iterable[str]) -> dict[str, float]:
    """Parse any number of texts like `accuracy=0.93,no-better=5` into settings by their dotted keys.

    Raises ConfigError in one line; the configuration checks the ranges.
    """
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    found: dict[str, float] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if name not in _ENDS or not equals:
            hint = did_you_mean(name, _ENDS, "did you mean {}? ")
            raise ConfigError(f"--until {part[:40]!r}: {hint}expected {', '.join(f'{end}=N' for end in _ENDS)}")
        key, kind = _ENDS[name]
        if key in found:
            raise ConfigError(f"--until {name} is given twice")
        try:
            found[key] = kind(value)
        except ValueError:
            whole = "a whole number" if kind is int else "a number"
            raise ConfigError(f"--until {part[:40]!r}: {value[:24]!r} is not {whole}") from None
    return found


def parse_period(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `1.5h` or `1d`. Raises ConfigError."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"--every {text[:24]!r}: expected a number and its unit, for example 90s, 10m, 1.5h or 1d")
    return seconds
