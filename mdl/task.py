"""What a model is for, in one line: model, window, channels, classes; and in words where two such lines differ.

Two devices whose vectors have one size may still mean different things by them: `hash_task` (`mdl/flat.py`) tells that
they differ, the lines tell their users how. The line is made to be read; whoever brings an own module has another one.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from mdl.bounds import printable

# Together they stay below the 256 characters of a text in a message, with the rest of a sentence around them.
_MODEL, _CHANNELS, _CLASSES, _NAMED = 40, 120, 70, 70
_LINE = re.compile(r"(?P<model>.+?)(?: of \S+)? (?P<shape>\d+x\d+)(?: \[(?P<channels>.*)\])? -> (?P<classes>.*)")


def describe_task(model: str, shape: tuple[int, int], channels: Sequence[str], classes: Sequence[str]) -> str:
    """ "lenet 3x128 [ax, ay, az] -> run, sit". shape: (channels, time). channels: () if they have no names."""
    named = f" [{_shorten(channels, _CHANNELS)}]" if channels else ""
    return printable(f"{model[:_MODEL]} {shape[0]}x{shape[1]}{named} -> {_shorten(classes, _CLASSES)}")


def task_difference(yours: str, ours: str) -> str:
    """In what two lines of `describe_task` differ, if it is the channels or the classes alone; else empty."""
    one, other = _LINE.fullmatch(yours), _LINE.fullmatch(ours)
    if not one or not other or (one["model"], one["shape"]) != (other["model"], other["shape"]):
        return ""
    if one["channels"] != other["channels"]:
        return _channel_difference(one["channels"] or "", other["channels"] or "")
    if one["classes"] != other["classes"]:
        return f"your classes ({_cut(one['classes'])}) differ from the mesh's ({_cut(other['classes'])})"
    return ""


def channels_difference(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """The first channel that has two names; empty if there is none, or where the names are not known."""
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False), 1):
        if one != other:
            return printable(f"channel {number} is {one!r} here and {other!r} there")
    return ""


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
