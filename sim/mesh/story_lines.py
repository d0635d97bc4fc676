"""A story in readable lines: the time, the process, the event it handled, its effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

import msgspec
import numpy as np

from mdl.protocol.delta import Contributor, PartialSum
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
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Fork, Holding, HopDecision
from mdl.sim.mesh.driver import StoryStep

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
