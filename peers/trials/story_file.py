"""Stories in files: how a machine was built, and a line for each step; reads, tells, writes and replays them.

Values are not in a story: an event or effect that is read has zeros in their place, or values made by the caller.

In a replay the same machine is stepped through what the first one saw, and must say the same. A machine makes no digest
itself: each comes in by an event (`mdl.protocol.vector_work`), and is in the story. So the story needs no values: any
of the right size are fed, and all effects are compared with the recorded ones. A decision that depended on the values
themselves (a NaN that was refused) shows as a difference.
"""

from __future__ import annotations

import reprlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from mdl.errors import ConfigError, DataError, LocalProtocolError, RemoteProtocolError
from mdl.own import Own
from mdl.peers.roles.build import PeerStart, build_machine
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    Effect,
    Evaluated,
    Event,
    Finish,
    LocalDeltaReady,
    PeerFound,
    Received,
    RecordRound,
    Send,
    Tick,
    TransferProgressed,
)
from mdl.protocol.messages import PACKED
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Bulk, Fork, Holding, HopDecision, Packed
from mdl.reading import decode_json, read_bytes, shorten
from mdl.scheduler.given import describe_choice, policy_of
from mdl.scheduler.policies.chain import Policy
from mdl.scheduler.policies.registry import POLICIES, make_policy
from mdl.sim.mesh.driver import SimMesh, StoryStep
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
class RecordedStory:
    """A story as it was read. start: None if the file does not say how the machine was built; problem: why not."""

    entries: list[Entry]
    start: PeerStart | None
    problem: str = ""

    @property
    def who(self) -> str:
        return self.start.me.peer_id if self.start else "it"


def load_story(path: Path) -> RecordedStory:
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
    return RecordedStory(entries, start, problem)


def tell_entries(recorded: RecordedStory, limit: int = 0) -> Iterator[str]:
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


# A story takes seconds at most; one that was made up may need any number of them.
_LONGEST_S = 120.0


@dataclass(frozen=True)
class ReplayedStory:
    """The result of a replay.

    problem: why nothing could be replayed. difference: the first, in words, if there is one.
    """

    steps: int = 0
    effects: int = 0
    problem: str = ""
    difference: str = ""

    @property
    def differs(self) -> bool:
        return bool(self.difference)

    def describe(self) -> str:
        if self.problem:
            return f"printed only: {self.problem}"
        if self.difference:
            return self.difference
        return (
            f"replayed {self.steps} steps: the same {self.effects} effects; compared: kinds, receivers and all fields; "
            "not compared: values, which a story does not keep"
        )

    def as_dict(self) -> dict[str, object]:
        return {
            "replayed": not self.problem,
            "steps": self.steps,
            "effects": self.effects,
            "problem": self.problem,
            "difference": self.difference,
        }


def replay_story(recorded: RecordedStory, policy: str | Own | None = None) -> ReplayedStory:
    """Step the machine through the story.

    policy: the policy that it followed, from the user's command line; without it, the one that the story names, if that
    is built in.
    """
    if recorded.start is None or recorded.problem:
        return ReplayedStory(problem=recorded.problem)
    make_policy = _find_policy(recorded.start.policy, policy)
    if (size := recorded.start.trainer.size if recorded.start.trainer else 0) > LARGEST_MODEL:
        return ReplayedStory(problem=f"its model of {size} values is too large to be replayed, at most {LARGEST_MODEL}")
    try:
        return _play(recorded.entries, recorded.start, make_policy)
    except _PolicyNeededError as error:
        return ReplayedStory(problem=str(error))
    except (msgspec.ValidationError, ConfigError) as error:
        return ReplayedStory(problem=f"it was recorded by another version ({shorten(error)})")
    except IMPOSSIBLE as error:
        return ReplayedStory(
            problem=f"no machine of ours has lived through it ({type(error).__name__}: {shorten(error)})"
        )


class _PolicyNeededError(ConfigError):
    """The machine takes office in this story, but the story lacks the policy that it followed."""


def _find_policy(told: str, policy: str | Own | None) -> Callable[[], Policy]:
    """Return a maker of the policy. told: by the story, in words that count only if they name a built-in policy."""
    if policy is None:

        def make() -> Policy:
            if told in POLICIES:
                return make_policy(told)
            raise _PolicyNeededError(f"it followed {shorten(told)}, which a story does not keep: give it with --policy")

        return make
    if told not in POLICIES and (given := describe_choice(policy)) != told:
        raise ConfigError(f"--policy {policy}: that is {given}; the story followed {shorten(told)}")
    first = policy_of(policy)
    return lambda: policy_of(policy) if isinstance(policy, Own) else deepcopy(first)


def _play(entries: list[Entry], start: PeerStart, make_policy: Callable[[], Policy]) -> ReplayedStory:
    machine = build_machine(start, None, make_policy)
    give_up_at = time.monotonic() + _LONGEST_S
    effects_seen = 0
    for number, entry in enumerate(entries, 1):
        if time.monotonic() > give_up_at:
            return ReplayedStory(problem=f"it is not at its end after {_LONGEST_S:g} s")
        for at_s in entry.ticks:
            if said := machine.handle(Tick(), at_s):
                return _differs(number, entry, f"at {at_s:.3f} a tick led to {_kinds(said)}, not to nothing")
        try:
            effects = machine.handle(read_event(entry.event), entry.at_s)
        except RemoteProtocolError:
            effects = []
        if len(effects) != len(entry.effects):
            recorded = ", ".join(next(iter(item)) for item in entry.effects) or "nothing"
            return _differs(number, entry, f"it said {recorded}; replayed, {_kinds(effects) or 'nothing'}")
        for one, other in zip(entry.effects, map(_builtins, effects), strict=True):
            if place := _compare(one, other, ""):
                return _differs(number, entry, f"{next(iter(one))} differs in {place}")
        effects_seen += len(effects)
    return ReplayedStory(len(entries), effects_seen)


def _differs(number: int, entry: Entry, text: str) -> ReplayedStory:
    event = next(iter(entry.event))
    return ReplayedStory(number, difference=f"step {number} (at {entry.at_s:.3f}, {event}): {text}")


def _compare(recorded: Any, replayed: Any, place: str) -> str:
    """Return the place of the first difference; empty if there is none."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        if recorded.keys() != replayed.keys():
            return place or "kind"
        pairs = ((f"{place}.{name}", recorded[name], replayed[name]) for name in recorded)
    elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        pairs = ((place, one, other) for one, other in zip(recorded, replayed, strict=True))
    else:
        return "" if recorded == replayed else place
    return next((found for where, one, other in pairs if (found := _compare(one, other, where))), "")


def _builtins(effect: Effect) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(_ENCODE({type(effect).__name__: effect}))
    return found


def _shorten(value: object) -> object:
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "size": int(value.size)}
    raise NotImplementedError(f"{type(value).__name__} in an effect")


_ENCODE = msgspec.json.Encoder(enc_hook=_shorten, order="deterministic").encode


def _kinds(effects: list[Effect]) -> str:
    return ", ".join(type(effect).__name__ for effect in effects)


_INDENT = " " * 20
# Fields that every report repeats and no reader of a story needs.
_UNTOLD = {"term", "digest", "schema_hash", "model", "size", "sequence", "resources", "training", "evaluation",
           "sent_bytes", "successors", "base_digest", "planned_rounds", "history", "round_id", "counted"}  # fmt: skip
# The most members of a list that are named.
_MOST_NAMED = 8


def tell_story(steps: Iterable[StoryStep]) -> Iterator[str]:
    """Yield lines for people. Ticks that led to nothing are left out."""
    for step in steps:
        if isinstance(step.event, str):
            yield f"{step.at_s:9.3f}  **  {step.event}"
            continue
        assert step.who is not None
        if isinstance(step.event, Tick) and not step.effects:
            continue
        yield from tell_step(step.at_s, step.who.peer_id, step.event, step.effects)


def tell_step(at_s: float, who: str, event: Event, effects: Iterable[Effect]) -> Iterator[str]:
    """Yield one event of one machine and its effects, a line each."""
    yield f"{at_s:9.3f}  {who:<6} {tell_event(event)}"
    for effect in effects:
        yield f"{_INDENT}{tell_effect(effect)}"


def tell_event(event: Event) -> str:
    match event:
        case Received(sender=sender, message=message):
            return f"hears {_message(message)} from {_short(sender)}"
        case Tick():
            return "looks at its clock"
        case PeerFound(info=info):
            return f"finds {info.peer_id}/{info.incarnation} ({info.role.value})"
        case LocalDeltaReady(round_id=round_id):
            return f"has trained round {round_id}"
        case TransferProgressed(sender=sender, received_bytes=received, size_bytes=size):
            return f"has {received / max(1, size):.0%} of a transfer from {sender.peer_id}"
        case Evaluated(round_id=round_id):
            return f"has tested round {round_id}"
    return _fields(event)


def tell_effect(effect: Effect) -> str:
    match effect:
        case Send(receiver=receiver, message=message):
            return f"-> {receiver}: {_message(message)}"
        case RecordRound(summary=summary):
            return f"records round {summary.round}: theta {summary.theta:g} of {', '.join(summary.contributors)}"
        case Finish(problem=problem, exit_code=exit_code):
            return f"ends with {exit_code} {problem}".rstrip()
    return _fields(effect)


def _message(message: msgspec.Struct) -> str:
    if not isinstance(message, PeerReport):
        return _fields(message, getattr(message, "round_id", None))
    told = _fields(message).removeprefix("PeerReport")
    return f"PeerReport at {message.round_id}{told}"


def _fields(item: msgspec.Struct, round_id: int | None = None) -> str:
    """Return the name and the informative fields that differ from their defaults."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(item)}
    told = [] if round_id is None else [f"round {round_id}"]
    for name, default in defaults.items():
        value = getattr(item, name)
        if name in _UNTOLD and not (round_id is None and name == "round_id" and not isinstance(item, PeerReport)):
            continue
        if not isinstance(value, np.ndarray) and value != default:
            told.append(f"{name} {_short(value)}")
    return f"{type(item).__name__} ({', '.join(told)})" if told else type(item).__name__


def _short(value: object) -> str:
    match value:
        case Contributor(peer_id=peer_id, incarnation=incarnation):
            return f"{peer_id}/{incarnation}"
        case Holding(contributors=contributors, sent_hop=sent_hop, sent_to=sent_to):
            gone = f" sent by hop {sent_hop} to {_short(sent_to)}" if sent_hop is not None else ""
            return f"{_short(contributors)}{gone}"
        case HopDecision(hop_id=hop_id, outcome=outcome, reason=reason):
            return f"{hop_id} {outcome.value}{f' ({reason})' if reason else ''}"
        case Fork(round_id=round_id, size=size, name=name):
            return f"{name}@{round_id}x{size}"
        case PartialSum(theta=theta, contributors=contributors):
            return f"theta {theta:g} of {_short(tuple(sorted(contributors)))}"
        case Enum():
            return str(value.value)
        case bytes():
            return value.hex()[:8]
        case float():
            return f"{value:g}"
        case tuple():
            more = f" +{len(value) - _MOST_NAMED}" if len(value) > _MOST_NAMED else ""
            return "[" + " ".join(_short(part) for part in value[:_MOST_NAMED]) + more + "]"
        case msgspec.Struct():
            return _fields(value)
    return str(value)
