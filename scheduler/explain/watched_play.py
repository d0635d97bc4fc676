"""Plays scenarios and watches the policy: each decision, its alternatives, and its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import msgspec

from mdl.errors import ConfigError
from mdl.own import Own
from mdl.scheduler.explain.chart import Note
from mdl.scheduler.given.choice import policy_of
from mdl.scheduler.policies.chain import ChainView, Decision, Pair, Policy
from mdl.scheduler.policies.registry import OPTIMAL, SHARES_BY
from mdl.scheduler.study.optimal import Optimal
from mdl.scheduler.study.play import Played, play
from mdl.scheduler.study.segments import play_segments

if TYPE_CHECKING:
    from mdl.devices.scenario import Scenario


class Watched:
    """A policy, and its decisions. explains: True to record its alternatives, too.

    seconds: processor time of each decision, so that other programs do not count. names: the device names that the
    policy sees, by index; their numbers by default.
    """

    def __init__(self, policy: Policy, explains: bool = True, names: Sequence[str] = ()) -> None:
        self.name = policy.name
        self.notes: list[Note] = []
        self.seconds: list[float] = []
        self._policy = policy
        self._names = names
        self._explain = getattr(policy, "explain", None) if explains else None

    def decide(self, view: ChainView) -> Decision:
        if self._names:
            view = _rename(view, self._names)
        alternatives = self._explain(view) if self._explain else ()
        started = time.thread_time()
        decision = self._policy.decide(view)
        self.seconds.append(time.thread_time() - started)
        self.notes.append(Note(view.time_s, decision, _tell_alternatives(alternatives)))
        if self._names and isinstance(decision, Pair):
            sender, receiver = (self._names.index(name) for name in (decision.sender, decision.receiver))
            return Pair(str(sender), str(receiver), decision.reason)
        return decision


def parse_policies(text: str, own: Callable[[str], str | Own] = str) -> tuple[str | Own, ...]:
    """Parse names, files and functions with commas between them. Raises ConfigError or DataError for an unknown one.

    own: makes a function that the user's command line names (`mdl.own.own_policy`); by default nothing is imported.
    """
    names = tuple(own(name) for name in dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--policies {text!r}: expected names with commas between them, e.g. greedy,tree")
    for name in names:
        check_policy(name)
    return names


def check_policy(name: str | Own) -> None:
    """Raise ConfigError with the closest valid name, or DataError for a file that is no policy."""
    if name != OPTIMAL and name not in SHARES_BY:
        policy_of(name)


class Bench:
    """Makes policies for one scenario after the other, so that none remembers the last; reads no file twice."""

    def __init__(self) -> None:
        self._fresh: dict[str, Policy] = {}

    def policy(self, name: str | Own, scenario: Scenario) -> Policy:
        """Make a policy; a user's function is called for each scenario, since its result may not be copied."""
        if isinstance(name, Own):
            return policy_of(name)
        if name == OPTIMAL:
            return Optimal(scenario)
        if name not in self._fresh:
            self._fresh[name] = policy_of(name)
        return deepcopy(self._fresh[name])


def play_watched(
    scenario: Scenario, policy: Policy, explains: bool = True, names: Sequence[str] = ()
) -> tuple[Played, Watched]:
    watched = Watched(policy, explains, names)
    return play(scenario, watched), watched


def play_named(
    scenario: Scenario, name: str | Own, bench: Bench, names: Sequence[str] = ()
) -> tuple[Played, list[float]]:
    """Play under a policy by its name, or in segments; return the play and the seconds of each decision."""
    if name in SHARES_BY:
        return play_segments(scenario, compress=SHARES_BY[str(name)]).played, []
    played, watched = play_watched(scenario, bench.policy(name, scenario), explains=False, names=names)
    return played, watched.seconds


def _rename(view: ChainView, names: Sequence[str]) -> ChainView:
    devices = (msgspec.structs.replace(device, peer_id=name) for device, name in zip(view.devices, names, strict=True))
    return msgspec.structs.replace(view, devices=tuple(devices))


def _tell_alternatives(alternatives: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Convert alternatives, in the order of the policy: senders, the best first, then receivers."""
    return tuple((action, float(q)) for action, q in alternatives)
