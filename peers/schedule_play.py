"""Plays scenarios with a look over the policy's shoulder: each decision, its alternatives, and how long it took."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mdl.errors import ConfigError
from scheduler.chain import ChainView, Decision, Pair, Policy, Wait
from scheduler.gantt import Note
from scheduler.play import Played, play
from scheduler.policies import POLICIES, make_policy

if TYPE_CHECKING:
    from sim.scenario import Scenario

OPTIMAL = "optimal"
# Alternatives of one decision that are kept.
_MOST_ALTERNATIVES = 12


class Watched:
    """A policy, and what it decided. seconds: of each decision; explains: whether its alternatives are asked for."""

    def __init__(self, policy: Policy, explains: bool = True) -> None:
        self.name = policy.name
        self.notes: list[Note] = []
        self.seconds: list[float] = []
        self._policy = policy
        self._explain = getattr(policy, "explain", None) if explains else None

    def decide(self, view: ChainView) -> Decision:
        alternatives = self._explain(view) if self._explain else ()
        started = time.perf_counter()
        decision = self._policy.decide(view)
        self.seconds.append(time.perf_counter() - started)
        self.notes.append(Note(view.time_s, decision, _tell_alternatives(alternatives)))
        return decision


def parse_policies(text: str) -> tuple[str, ...]:
    """Names with commas between them. Raises ConfigError for one that there is not."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--policies {text!r}: expected names with commas between them, e.g. greedy,tree")
    for name in names:
        check_policy(name)
    return names


def check_policy(name: str) -> None:
    """Raises ConfigError with the closest valid name."""
    if name == OPTIMAL:
        return
    known = tuple(dict.fromkeys([*POLICIES, OPTIMAL]))
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown policy {name!r}{hint} (valid: {', '.join(known)})")
    make_policy(name)


def online_policy(name: str) -> Policy:
    """A policy that knows only what it is shown. Raises ConfigError for `optimal`, which knows the future."""
    if name == OPTIMAL:
        raise ConfigError("policy 'optimal' knows when busy times end, so it can only judge scenarios, not decide")
    check_policy(name)
    return make_policy(name)


class Bench:
    """Makes policies for one scenario after the other; loads what a policy needs once, if it can be reset."""

    def __init__(self) -> None:
        self._made: dict[str, Policy] = {}

    def policy(self, name: str, scenario: Scenario) -> Policy:
        if name == OPTIMAL:
            from scheduler.optimal import Optimal

            return Optimal(scenario)
        known = self._made.get(name)
        reset: Callable[[], None] | None = getattr(known, "reset", None)
        if known is not None and reset is not None:
            reset()
            return known
        self._made[name] = make_policy(name)
        return self._made[name]


def play_watched(scenario: Scenario, policy: Policy, explains: bool = True) -> tuple[Played, Watched]:
    watched = Watched(policy, explains)
    return play(scenario, watched), watched


def _tell_alternatives(alternatives: Iterable[tuple[object, float]]) -> tuple[tuple[str, float], ...]:
    ranked = sorted(alternatives, key=lambda each: -each[1])
    return tuple((_tell_action(action), float(q)) for action, q in ranked[:_MOST_ALTERNATIVES])


def _tell_action(action: object) -> str:
    match action:
        case Pair(sender=sender, receiver=receiver):
            return f"{sender} → {receiver}"
        case Wait() | None:
            return "wait"
        case (sender, receiver):
            return f"{sender} → {receiver}"
    return str(action)
