"""`mdl replay`: builds the machine of a recorded process again and steps it through what it saw.

Values are not in a story, only their sizes and digests. So other vectors that differ likewise are fed, and digests are
compared up to renaming: where the recorded machine said A, the replayed one must say B, always. What depends on the
values themselves (a NaN that was refused) shows as a difference.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from mdl.errors import ConfigError, RemoteProtocolError
from mdl.own import Own
from mdl.protocol.delta import Contributor, Vector, apply_delta, digest_of
from mdl.protocol.machine import Effect, Event, Received, SaveModel, Tick
from mdl.protocol.segment_messages import PieceMessage, SegmentMessage
from mdl.reading import shorten
from peers.roles.build import PeerStart, build_machine
from peers.roles.peer import Peer
from peers.trials.story_file import IMPOSSIBLE, LARGEST_MODEL, Entry, Recorded, read_event, size_of
from scheduler.given.choice import describe_choice, policy_of
from scheduler.policies.chain import Policy
from scheduler.policies.registry import POLICIES, make_policy

# Each pass settles the digests of at least one more round; a bounded story holds fewer rounds.
_MOST_PASSES = 200
# A pass takes seconds at most; a story that was made up may need any number of them.
_LONGEST_S = 120.0


@dataclass(frozen=True)
class Replayed:
    """How a replay went. problem: why nothing could be replayed. difference: the first, in words, if there is one."""

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
            f"replayed {self.steps} steps: the same {self.effects} effects; compared: kinds, receivers and all fields, "
            "digests up to renaming; not compared: values, which a story does not keep"
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
    """Step the machine through the story, again until all digests have their names.

    policy: what it followed, from the user's command line; without it, what the story names, if that is built in.
    """
    if recorded.start is None or recorded.problem:
        return Replayed(problem=recorded.problem)
    make_policy = _find_policy(recorded.start.policy, policy)
    if (size := recorded.start.trainer.size if recorded.start.trainer else 0) > LARGEST_MODEL:
        return Replayed(problem=f"its model of {size} values is too large to be replayed, at most {LARGEST_MODEL}")
    names: dict[str, str] = {}
    give_up_at = time.monotonic() + _LONGEST_S
    for _ in range(_MOST_PASSES):
        run = _Pass(recorded, recorded.start, make_policy, names, give_up_at)
        try:
            result = run.play()
        except _PolicyNeededError as error:
            return Replayed(problem=str(error))
        except (msgspec.ValidationError, ConfigError) as error:
            return Replayed(problem=f"it was recorded by another version ({shorten(error)})")
        except IMPOSSIBLE as error:
            return Replayed(
                problem=f"no machine of ours has lived through it ({type(error).__name__}: {shorten(error)})"
            )
        if not run.renamed:
            return result
        names |= run.renamed
    return Replayed(problem="its digests cannot be matched")


class _PolicyNeededError(ConfigError):
    """The machine takes office in this story, and what it decided by is not in it."""


def _find_policy(told: str, policy: str | Own | None) -> Callable[[], Policy]:
    """told: by the story, in words that are never followed unless they name a built-in policy."""
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


@dataclass
class _Pass:
    """One replay. make_policy: of each time in office.

    names: recorded digest -> the replayed machine's; renamed: those that turned out otherwise. told: what others have
    said of a round's result of these contributors, recorded.
    """

    recorded: Recorded
    start: PeerStart
    make_policy: Callable[[], Policy]
    names: dict[str, str]
    give_up_at: float
    renamed: dict[str, str] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)
    told: dict[tuple[int, frozenset[Contributor]], str] = field(default_factory=dict)
    number: int = 0

    def play(self) -> Replayed:
        told = self.start.trainer
        parameters = self._vector(_text(told.digest), told.size) if told else None
        machine = build_machine(self.start, parameters, self.make_policy)
        effects_seen = 0
        for number, entry in enumerate(self.recorded.entries, 1):
            if time.monotonic() > self.give_up_at:
                return Replayed(problem=f"its digests are not matched after {_LONGEST_S:g} s")
            self.number = number
            for at_s in entry.ticks:
                if said := machine.handle(Tick(), at_s):
                    return self._differs(number, entry, f"at {at_s:.3f} a tick led to {_kinds(said)}, not to nothing")
            self._recognise(entry, machine)
            event = read_event(self._rename(_describe(entry.event)), self._value)
            self._foresee_result(event, machine)
            try:
                effects = machine.handle(event, entry.at_s)
            except RemoteProtocolError:
                effects = []
            self._keep_vectors(machine, effects)
            replayed = [_builtins(effect) for effect in effects]
            if len(replayed) != len(entry.effects):
                recorded = ", ".join(next(iter(item)) for item in entry.effects) or "nothing"
                return self._differs(number, entry, f"it said {recorded}; replayed, {_kinds(effects) or 'nothing'}")
            for one, other in zip(entry.effects, replayed, strict=True):
                if place := self._compare(one, other, ""):
                    return self._differs(number, entry, f"{next(iter(one))} differs in {place}")
            effects_seen += len(effects)
        return Replayed(len(self.recorded.entries), effects_seen)

    def _differs(self, number: int, entry: Entry, text: str) -> Replayed:
        event = next(iter(entry.event))
        return Replayed(number, difference=f"step {number} (at {entry.at_s:.3f}, {event}): {text}")

    def _recognise(self, entry: Entry, machine: Peer) -> None:
        """What another device says of a model or result that this one makes itself, perhaps in this very step."""
        report = entry.event.get("Received", {}).get("message", {})
        trainer = machine.trainer
        if trainer and trainer.part and trainer.part.spread.staged and report.get("type") == "CatchUp":
            saved = [item["SaveModel"]["digest"] for item in entry.effects if "SaveModel" in item]
            if report["digest"] in saved and self.start.trainer:
                eta = self.start.trainer.settings.eta
                applied = apply_delta(trainer.parameters, trainer.part.spread.staged.values, eta)
                self._learn(report["digest"], _text(digest_of(applied)))
        if report.get("type") != "PeerReport" or trainer is None:
            return
        lineage = msgspec.to_builtins(trainer.standing.lineage)
        if (report["round_id"], report["lineage"]) == (trainer.round_id, list(lineage)):
            self._learn(report["digest"], _text(trainer.digest))
        if staged := report["staged"]:
            contributors = frozenset(msgspec.convert(staged["contributors"], list[Contributor]))
            self.told[report["open_round"], contributors] = staged["digest"]
        self._recognise_result(machine)

    def _recognise_result(self, machine: Peer) -> None:
        """What others say of the result that this device has: they may have said it before it had that, by segments."""
        part = machine.trainer.part if machine.trainer else None
        if part and part.spread.staged:
            told = self.told.get((part.round_id, part.spread.staged.contributors), "")
            self._learn(told, _text(part.spread.digest))

    def _foresee_result(self, event: Event, machine: Peer) -> None:
        """The result that this event makes whole, if others have told of it: the device may let it go at once."""
        part = machine.trainer.part if machine.trainer else None
        exchange = part.spread.exchange if part else None
        if part is None or exchange is None or not isinstance(event, Received) or exchange.lacks != 1:
            return
        foreseen = deepcopy(exchange)
        with suppress(RemoteProtocolError):
            if isinstance(event.message, PieceMessage) and isinstance(event.values, np.ndarray):
                foreseen.take_piece(event.sender, event.message, event.values, 0.0)
            elif isinstance(event.message, SegmentMessage) and isinstance(event.values, np.ndarray):
                foreseen.take_result(event.sender, event.message, event.values)
        if foreseen.is_whole:
            told = self.told.get((part.round_id, frozenset(exchange.order.contributors)), "")
            self._learn(told, _text(digest_of(foreseen.values)))

    def _keep_vectors(self, machine: Peer, effects: list[Effect]) -> None:
        """What the machine has made itself may come back to it from another device."""
        for effect in effects:
            if isinstance(effect, SaveModel):
                self.vectors[_text(effect.digest)] = effect.parameters
        part = machine.trainer.part if machine.trainer else None
        if part and part.spread.staged:
            self.vectors[_text(part.spread.digest)] = part.spread.staged.values
            self._recognise_result(machine)

    def _learn(self, recorded: str, replayed: str) -> None:
        if recorded and replayed and self._name(recorded) != replayed:
            self.renamed.setdefault(recorded, replayed)

    def _name(self, digest: str) -> str:
        """What a recorded digest is called in this replay."""
        return self.names.get(digest) or (_text(digest_of(_invent(digest, self._size))) if digest else "")

    @property
    def _size(self) -> int:
        return self.start.trainer.size if self.start.trainer else 1

    def _vector(self, digest: str, size: int) -> Vector:
        """A vector with this recorded digest's name; zeros for a model that has not been trained."""
        if not digest:
            return np.zeros(size, np.float32)
        return self.vectors.get(self._name(digest), _invent(digest, size)).copy()

    def _value(self, kind: type, given: Any) -> Vector:
        """Values without a digest are compared with nothing: any that differ from all others will do."""
        return self._vector(given.get("digest") or f"step {self.number}", size_of(given))

    def _rename(self, item: Any, key: str = "") -> Any:
        """The same event with digests as this replay knows them; descriptions of values keep theirs."""
        if isinstance(item, dict):
            if "dtype" in item:
                return item
            return {name: self._rename(value, name) for name, value in item.items()}
        if isinstance(item, list):
            return [self._rename(value, key) for value in item]
        return self._name(item) if key.endswith("digest") and isinstance(item, str) else item

    def _compare(self, recorded: Any, replayed: Any, place: str) -> str:
        """Where they differ; empty if they do not. Learns the names of digests on the way."""
        key = place.rpartition(".")[2]
        if key.endswith("digest") and isinstance(recorded, str) and isinstance(replayed, str):
            if not recorded or not replayed:
                return "" if recorded == replayed else place
            if "summary" not in place:  # there it is in hexadecimal digits
                self._learn(recorded, replayed)
            return ""
        if isinstance(recorded, dict) and isinstance(replayed, dict):
            if recorded.keys() != replayed.keys():
                return place or "kind"
            pairs = ((f"{place}.{name}", recorded[name], replayed[name]) for name in recorded)
        elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
            pairs = ((place, one, other) for one, other in zip(recorded, replayed, strict=True))
        else:
            return "" if recorded == replayed else place
        return next((found for where, one, other in pairs if (found := self._compare(one, other, where))), "")


def _describe(item: dict[str, Any]) -> dict[str, Any]:
    """The description of values that came with a digest says which."""
    heard = item.get("Received", {})
    if not heard.get("values") or not heard.get("digest"):
        return item
    return {"Received": heard | {"values": heard["values"] | {"digest": heard["digest"]}}}


def _invent(digest: str, size: int) -> Vector:
    """A small vector that differs for each recorded digest."""
    values = np.zeros(size, np.float32)
    drawn = np.frombuffer(hashlib.blake2b(digest.encode(), digest_size=16).digest(), np.uint8)[:size]
    values[: drawn.size] = drawn.astype(np.float32) / 256
    return values


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


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
