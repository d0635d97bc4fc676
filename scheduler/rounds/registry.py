"""Every participation rule: those that come with mdl, by name and bounds, and learned ones, by their file. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from pathlib import Path

import msgspec

from mdl.data.sources import split_options
from mdl.errors import ConfigError, did_you_mean
from mdl.scheduler.rounds.learned import load_rounds_policy
from mdl.scheduler.rounds.participation import Bandit, BestRatio, Bounds, CloseAfter, Half, ParticipationRule

# Waits and rounds beyond these are mistakes.
_LONGEST_S, _MOST_ROUNDS = 3600.0, 1000.0
# Name -> its class and bounds. `all` is the paper: no device is left out or dropped.
RULES: dict[str, tuple[Callable[[str, Bounds], ParticipationRule], Bounds]] = {
    "third": (CloseAfter, Bounds()),
    "all": (CloseAfter, Bounds(wait_for=1.0, grace_s=0.0, left_out_at_most=inf, drop_times=inf)),
    "deadline": (CloseAfter, Bounds(wait_for=0.5, grace_s=8.0)),
    "k-of-n": (CloseAfter, Bounds(wait_for=5.0 / 9.0, grace_s=0.0)),
    "half": (Half, Bounds(wait_for=0.51)),
    "best-ratio": (BestRatio, Bounds(wait_for=0.0, grace_s=0.0)),
    "bandit": (Bandit, Bounds()),
}
# Bound -> the least and the most; `inf` is valid for the last two, and means that there is none.
_RANGES = {
    "wait_for": (0.0, 1.0),
    "grace_s": (0.0, _LONGEST_S),
    "drop_extra_s": (0.0, _LONGEST_S),
    "left_out_at_most": (1.0, _MOST_ROUNDS),
    "drop_times": (1.0, _MOST_ROUNDS),
}


def make_rule(text: str) -> ParticipationRule:
    """Make a fresh rule of a name, of a name with bounds (`third?wait_for=0.5&grace_s=1`), or of a policy file.

    Raises ConfigError with the closest valid name or bound, and DataError for a file that holds no rule.
    """
    if text.endswith(".safetensors"):
        return load_rounds_policy(Path(text), Bounds())
    name, given = split_options(text, "rule")
    if name not in RULES:
        raise ConfigError(f"unknown rule {name[:80]!r}{did_you_mean(name, RULES)} (valid: {', '.join(RULES)})")
    make, bounds = RULES[name]
    for option, value in given.items():
        if option not in _RANGES:
            hint = did_you_mean(option, _RANGES)
            raise ConfigError(f"rule {name!r}: unknown bound {option[:80]!r}{hint} (valid: {', '.join(_RANGES)})")
        bounds = msgspec.structs.replace(bounds, **{option: _parse(name, option, value)})
    return make(text, bounds)


def _parse(name: str, option: str, value: str) -> float:
    low, high = _RANGES[option]
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if number == inf and option in ("left_out_at_most", "drop_times"):
        return number
    if not (isfinite(number) and low <= number <= high):
        raise ConfigError(f"rule {name!r}: {option}={value[:24]!r}: expected a number from {low:g} to {high:g}")
    return number
