"""The file of a story: how the machine was built, and a line for each step; reads, tells and writes them.

Values are not in a story: an event or effect that is read has zeros in their place, or values made by the caller.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from mdl.errors import DataError, LocalProtocolError
from mdl.peers.roles.build import PeerStart
from mdl.protocol.bulk import Bulk, Packed
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import Vector
from mdl.protocol.machine import Effect, Event, Received, Send
from mdl.protocol.messages import PACKED
from mdl.reading import decode_json, read_bytes
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.story_lines import tell_step
from mdl.transport.story import KINDS, Row, Story, unpack_row

_EVENTS = {kind.__name__: kind for kind in get_args(Event)}
_EFFECTS = {kind.__name__: kind for kind in get_args(Effect)}
# A story of 2,000 steps has a megabyte or two; one of a mesh of 100 devices ten times as much.
_LARGEST_STORY_BYTES = 128 << 20
# Several vectors of this size are held, and hashed again in each pass: 32 million values are 128 MB.
LARGEST_MODEL = 32 << 20
# A machine that is given impossible events may raise these: it was built for what its own code records.
IMPOSSIBLE = (
    *(LocalProtocolError, KeyError, IndexError, TypeError, ValueError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError, AssertionError),
)


class Entry(msgspec.Struct, frozen=True):
    """One step. event and effects: {name of the kind: its fields}. ticks: those before it that decided nothing."""

    at_s: float
    event: dict[str, Any]
    effects: list[dict[str, Any]] = []
    ticks: list[float] = []


class _Line(msgspec.Struct, frozen=True):
    """Hold a line as `mdl.transport.story` writes it."""

    at_s: float = 0.0
    event: dict[str, Any] = {}
    effects: list[dict[str, Any]] = []
    before: list[float | Row] = []


class _Header(msgspec.Struct, frozen=True):
    header: msgspec.Raw
    left_out: int = 0


@dataclass(frozen=True)
class Recorded:
    """A story as it was read. start: None if the file does not say how the machine was built; problem: why not."""

    entries: list[Entry]
    start: PeerStart | None
    problem: str = ""

    @property
    def who(self) -> str:
        return self.start.me.peer_id if self.start else "it"


def load_story(path: Path) -> Recorded:
    """Read a story. Raises DataError that names the file and the line, if it is none."""
    lines = read_bytes(path, _LARGEST_STORY_BYTES, "a story-*.jsonl of a run").split(b"\n")
    if not lines[-1]:
        lines.pop()
    start, problem, first = None, "the story has no header that says how its machine was built", 0
    if lines and lines[0].startswith(b'{"header"'):
        start, problem = _read_header(lines[0])
        first = 1
    entries: list[Entry] = []
    for number, line in enumerate(lines[first:], first + 1):
        where = f"{path}, line {number}"
        told = decode_json(line, _Line, where, "a line of a story")
        try:
            entries += _entries_of(told)
        except ValueError as error:
            raise DataError(f"{where}: {error}; expected a line of a story") from None
    return Recorded(entries, start, problem)


def tell_entries(recorded: Recorded, limit: int = 0) -> Iterator[str]:
    """Yield readable lines of the last `limit` steps, or of all; an entry of another version is shown as it is.

    Steps in a row that only pass segments on are told together.
    """
    passing: list[Entry] = []
    for entry in recorded.entries[-limit:] if limit else recorded.entries:
        if _passes_on(entry):
            passing.append(entry)
            continue
        if passing:
            yield _tell_passing(recorded.who, passing)
            passing = []
        try:
            yield from tell_step(
                entry.at_s, recorded.who, read_event(entry.event), [_effect(item) for item in entry.effects]
            )
        except (msgspec.ValidationError, *IMPOSSIBLE):
            yield f"{entry.at_s:9.3f}  {recorded.who:<6} {_show(entry.event)} -> {_show(entry.effects)}"
    if passing:
        yield _tell_passing(recorded.who, passing)


def _passes_on(entry: Entry) -> bool:
    said = [entry.event.get("Received"), *(effect.get("Send") for effect in entry.effects)]
    return all(_kind(each) in KINDS for each in said)


def _kind(said: Any) -> str:
    message = said.get("message") if isinstance(said, dict) else None
    return str(message.get("type")) if isinstance(message, dict) else ""


def _tell_passing(who: str, entries: list[Entry]) -> str:
    heard = Counter(_kind(entry.event["Received"]) for entry in entries)
    said = Counter(_kind(effect["Send"]) for entry in entries for effect in entry.effects)
    counts = [" + ".join(f"{each[kind]} {kind}" for kind in KINDS if each[kind]) for each in (heard, said)]
    says = f", says {counts[1]}" if said else ""
    return f"{entries[0].at_s:9.3f}  {who:<6} hears {counts[0]}{says}, until {entries[-1].at_s:.3f}"


def save_stories(mesh: SimMesh, directory: Path) -> list[Path]:
    """Write the story of each process of a recorded simulated run, each with what it takes to replay it."""
    stories: dict[Contributor, Story] = {}
    for step in mesh.story or []:
        if step.who is None or isinstance(step.event, str):
            continue
        if step.who not in stories:
            header = mesh.starts.get(step.who)
            assert header is None or isinstance(header, PeerStart)
            stories[step.who] = Story(len(mesh.story or []), header)
        clock_s = step.at_s + step.offset_s
        stories[step.who].add(clock_s, step.event, list(step.effects))
    paths = []
    for who, story in sorted(stories.items()):
        paths.append(directory / f"story-{who.peer_id}-{who.incarnation}.jsonl")
        story.save(paths[-1])
    return paths


def read_event(item: dict[str, Any], value: Callable[[type, Any], Vector] | None = None) -> Event:
    """Return the event of an entry. value: makes values from the description that the story has of them.

    Raises msgspec.ValidationError if this version knows none of that kind.
    """
    ((name, fields),) = item.items()
    if name not in _EVENTS:
        raise msgspec.ValidationError(f"an event {name}")
    event: Event = _convert(fields, _EVENTS[name], value or _zeros)
    return event


def size_of(given: Any) -> int:
    """Return the size of values that a story describes; check it before memory is taken for them."""
    size = given.get("size") if isinstance(given, dict) else None
    if not isinstance(size, int) or not 0 <= size <= LARGEST_MODEL:
        raise msgspec.ValidationError(f"values of size {reprlib.repr(size)}")
    return size


def dtype_of(given: Any) -> str:
    """Return the kind of values that a story describes: parameters and deltas, or integers of sums and grids."""
    told = given.get("dtype")
    return told if told in ("int32", "int16") else "float32"


def _entries_of(line: _Line) -> Iterator[Entry]:
    """Yield the steps of a line, the rows before its own first. Raises ValueError."""
    ticks: list[float] = []
    for item in line.before:
        if isinstance(item, float):
            ticks.append(item)
        else:
            yield Entry(*unpack_row(item), ticks)
            ticks = []
    if not line.before or line.event or line.effects:
        if any(len(named) != 1 for named in (line.event, *line.effects)):
            raise ValueError("an event or effect is not one name with its fields")
        yield Entry(line.at_s, line.event, line.effects, ticks)


def _read_header(line: bytes) -> tuple[PeerStart | None, str]:
    try:
        header = decode_json(line, _Header, "the first line")
        start = decode_json(bytes(header.header), PeerStart, "the first line")
    except DataError as error:
        return None, f"its header is of another version ({error})"
    if header.left_out:
        return (
            start,
            f"its first {header.left_out} steps are not kept, so the machine cannot be brought to where it was",
        )
    return start, ""


def _effect(item: dict[str, Any]) -> Effect:
    ((name, fields),) = item.items()
    if name not in _EFFECTS:
        raise msgspec.ValidationError(f"an effect {name}")
    effect: Effect = _convert(fields, _EFFECTS[name], _zeros)
    return effect


def _convert(fields: Any, kind: type[msgspec.Struct], value: Callable[[type, Any], Any]) -> Any:
    """Convert as msgspec does; make values that are a vector or packed bytes (`Bulk`) beside it.

    msgspec knows no such union.
    """
    if kind not in (Received, Send):
        return msgspec.convert(fields, kind, dec_hook=value)
    rest = msgspec.structs.asdict(msgspec.convert(fields, _without_values(kind), dec_hook=value))
    given = fields.get("values")
    made = Packed if isinstance(rest["message"], PACKED) else np.ndarray
    return kind(**rest, values=None if given is None else value(made, given))


@cache
def _without_values(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    others = [each for each in msgspec.structs.fields(kind) if each.name != "values"]
    return msgspec.defstruct(
        kind.__name__,
        [(each.name, each.type) if each.required else (each.name, each.type, each.default) for each in others],
    )


def _show(item: object) -> str:
    try:
        return str(item)
    except RecursionError:
        return reprlib.repr(item)


def _zeros(kind: type, given: Any) -> Bulk:
    return Packed(size_of(given)) if kind is Packed else np.zeros(size_of(given), dtype_of(given))
