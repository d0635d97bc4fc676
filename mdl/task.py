"""A model's task in one line: model, window, channels, classes; and in words the difference of two such lines.

Two devices may have vectors of one size that mean different things: `hash_task` (`mdl/learning/flat.py`) tells that
they differ, the lines tell their users in what. The line is made to be read; a user's own module has another one.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Literal, TypeAlias

from mdl.bounds import printable

# The learning target of a window: its class, numbers (regression), or several labels that may hold (multi-label).
Targets: TypeAlias = Literal["classes", "numbers", "labels"]
# Widths that together stay below the 256 characters of a text in a message, with the rest of a sentence around them.
_MODEL, _CHANNELS, _CLASSES, _NAMED, _UNITS = 40, 90, 65, 70, 24
_LINE = re.compile(
    r"(?P<model>.+?)(?: of \S+)? (?P<shape>\d+(?:x\d+)+)(?: at (?P<rate>[\d.,e+-]+) Hz)?"
    r"(?: in (?P<units>[^\[\]]+?))?(?: \[(?P<channels>.*)\])?"
    r" -> (?P<classes>.*)"
)
# Two rates on one step count as equal: ten steps a decade, 26 % each, so that drifting clocks agree. Usual sensor
# rates (25, 26, 50, 52, 60, 100, 104) lie 5 % or more from the end of their step. Near an end `rate=` decides.
_STEPS_A_DECADE = 10


def describe_task(
    model: str,
    shape: Sequence[int],
    channels: Sequence[str],
    classes: Sequence[str],
    rate_hz: float | None = None,
    targets: Targets = "classes",
    channel_units: Sequence[str] = (),
) -> str:
    """Return "lenet 3x128 at 50 Hz in m/s2 [ax, ay, az] -> run, sit".

    shape: (channels, time), or (channels, height, width). channels: () if they have no names.
    rate_hz: samples a second; None if it is not known. targets: what `classes` names; shown unless it is "classes".
    channel_units: () if none is known; equal neighbours appear once.
    """
    rate = f" at {describe_rate(rate_hz)}" if rate_hz else ""
    named = f" [{_shorten(channels, _CHANNELS)}]" if channels else ""
    kind = "" if targets == "classes" else f"{targets}: "
    size, told = "x".join(map(str, shape)), _shorten(classes, _CLASSES)
    units = f" in {_shorten(unit_runs(channel_units), _UNITS)}" if any(channel_units) else ""
    return printable(f"{model[:_MODEL]} {size}{rate}{units}{named} -> {kind}{told}")


def unit_runs(channel_units: Sequence[str]) -> list[str]:
    """Return the units, equal neighbours once, with "?" for unknown ones."""
    return [unit or "?" for unit, _ in itertools.groupby(channel_units)]


def describe_rate(rate_hz: float) -> str:
    """Return "50 Hz", to three digits below 1,000 Hz: jitter leaves no more."""
    return f"{rate_hz:.3g} Hz" if rate_hz < 1000 else f"{rate_hz:,.0f} Hz"


def rate_step(rate_hz: float) -> int:
    """Return the number of the step that a rate is on; two rates on one step count as the same."""
    return round(_STEPS_A_DECADE * math.log10(rate_hz))


def is_one_rate(one_hz: float | None, other_hz: float | None) -> bool:
    """Return True if both rates are on one step. None, an unknown rate, equals only None."""
    if one_hz is None or other_hz is None:
        return one_hz is other_hz
    return rate_step(one_hz) == rate_step(other_hz)


def rates_difference(mine: float | None, theirs: float | None) -> str:
    """Return in words the difference of two known rates; empty if they agree or one is not known."""
    if mine is None or theirs is None or is_one_rate(mine, theirs):
        return ""
    return f"{describe_rate(mine)} here and {describe_rate(theirs)} there"


def task_difference(yours: str, ours: str) -> str:
    """Return the difference of two `describe_task` lines in rate, units, channels or classes; "" for any other."""
    one, other = _LINE.fullmatch(yours), _LINE.fullmatch(ours)
    if not one or not other or (one["model"], one["shape"]) != (other["model"], other["shape"]):
        return ""
    if not is_one_rate(_rate(one), _rate(other)):
        return _rate_difference(_rate(one), _rate(other))
    if one["units"] != other["units"]:
        return _unit_difference(one["units"] or "", other["units"] or "")
    if one["channels"] != other["channels"]:
        return _channel_difference(one["channels"] or "", other["channels"] or "")
    if one["classes"] != other["classes"]:
        kinds = {each["classes"].partition(": ")[0] for each in (one, other)}
        what = "classes" if not kinds & {"numbers", "labels"} else "targets"
        return f"your {what} ({_cut(one['classes'])}) differ from the mesh's ({_cut(other['classes'])})"
    return ""


def channels_of(line: str) -> list[str]:
    """Return the names of channels in a `describe_task` line; of many only the first."""
    found = _LINE.fullmatch(line)
    return (found["channels"] or "").removesuffix(" ...").split(", ") if found else []


def channels_difference(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """Return the first channel that has two names; empty if there is none, or where the names are not known."""
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False), 1):
        if one != other:
            return printable(f"channel {number} is {one!r} here and {other!r} there")
    return ""


def _rate(line: re.Match[str]) -> float | None:
    """Return the rate in a line, or None: lines come from other devices, and may hold anything."""
    try:
        rate_hz = float((line["rate"] or "").replace(",", ""))
    except ValueError:
        return None
    return rate_hz if 0 < rate_hz < math.inf else None


def _rate_difference(yours: float | None, ours: float | None) -> str:
    said = [describe_rate(rate) if rate else "a rate that is not known" for rate in (ours, yours)]
    told = f"windows of another sampling rate: this mesh: {said[0]}, this device: {said[1]}"
    if ours and yours:
        return f"{told}; bring its windows to that rate (?rate={ours:.6g} of csv)"
    return f"{told}; if it is the same, say so with ?rate={ours:.6g} (csv, npz)" if ours else told


def _unit_difference(yours: str, ours: str) -> str:
    said = [f"in {units}" if units else "in units that nobody has said" for units in (ours, yours)]
    told = f"channels of other units: this mesh has them {said[0]}, this device {said[1]}"
    if ours == "g" and yours == "m/s2":
        return f"{told}; ?acceleration=g of csv brings them to g"
    return told if yours else f"{told}; say them with ?units= (csv, npz)"


def _channel_difference(yours: str, ours: str) -> str:
    if not yours or not ours:
        which, named = ("your channels have", ours) if ours else ("the mesh's channels have", yours)
        hint = "; name them: ?columns= of csv, an array `channels` of npz" if ours else ""
        return f"{which} no names, where others are {_cut(named)}{hint}"
    mine, theirs = yours.split(", "), ours.split(", ")
    if sorted(mine) == sorted(theirs):
        return f"your channels ({_cut(yours)}) are the mesh's in another order: give them as {_cut(ours)}"
    pairs = [pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]]
    first = f"{_cut(pairs[0][0])} is {_cut(pairs[0][1])} there; " if pairs else ""
    return f"your channels differ from the mesh's: {first}yours {_cut(yours)}; the mesh's {_cut(ours)}"


def _shorten(names: Sequence[str], width: int) -> str:
    return textwrap.shorten(", ".join(names), width, placeholder=" ...")


def _cut(text: str) -> str:
    return textwrap.shorten(text, _NAMED, placeholder=" ...")
