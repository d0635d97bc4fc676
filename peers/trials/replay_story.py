"""Replays a recorded process: the same machine is stepped through what the first one saw, and must say the same.

A machine makes no digest itself: each comes in by an event (`mdl.protocol.vector_work`), and is in the story. So the
story needs no values: any of the right size are fed, and all effects are compared with the recorded ones. A decision
that depended on the values themselves (a NaN that was refused) shows as a difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from mdl.errors import ConfigError, RemoteProtocolError
from mdl.own import Own
from mdl.peers.roles.build import PeerStart, build_machine
from mdl.peers.trials.story_file import IMPOSSIBLE, LARGEST_MODEL, Entry, Recorded, read_event
from mdl.protocol.machine import Effect, Tick
from mdl.reading import shorten
from mdl.scheduler.given import describe_choice, policy_of
from mdl.scheduler.policies.chain import Policy
from mdl.scheduler.policies.registry import POLICIES, make_policy

# A story takes seconds at most; one that was made up may need any number of them.
_LONGEST_S = 120.0


@dataclass(frozen=True)
class Replayed:
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


def replay_story(recorded: Recorded, policy: str | Own | None = None) -> Replayed:
    """Step the machine through the story.

    policy: the policy that it followed, from the user's command line; without it, the one that the story names, if that
    is built in.
    """
    if recorded.start is None or recorded.problem:
        return Replayed(problem=recorded.problem)
    make_policy = _find_policy(recorded.start.policy, policy)
    if (size := recorded.start.trainer.size if recorded.start.trainer else 0) > LARGEST_MODEL:
        return Replayed(problem=f"its model of {size} values is too large to be replayed, at most {LARGEST_MODEL}")
    try:
        return _play(recorded.entries, recorded.start, make_policy)
    except _PolicyNeededError as error:
        return Replayed(problem=str(error))
    except (msgspec.ValidationError, ConfigError) as error:
        return Replayed(problem=f"it was recorded by another version ({shorten(error)})")
    except IMPOSSIBLE as error:
        return Replayed(problem=f"no machine of ours has lived through it ({type(error).__name__}: {shorten(error)})")


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


def _play(entries: list[Entry], start: PeerStart, make_policy: Callable[[], Policy]) -> Replayed:
    machine = build_machine(start, None, make_policy)
    give_up_at = time.monotonic() + _LONGEST_S
    effects_seen = 0
    for number, entry in enumerate(entries, 1):
        if time.monotonic() > give_up_at:
            return Replayed(problem=f"it is not at its end after {_LONGEST_S:g} s")
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
    return Replayed(len(entries), effects_seen)


def _differs(number: int, entry: Entry, text: str) -> Replayed:
    event = next(iter(entry.event))
    return Replayed(number, difference=f"step {number} (at {entry.at_s:.3f}, {event}): {text}")


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
