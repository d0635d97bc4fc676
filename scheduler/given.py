"""A user's choice of a policy: a built-in name, a policy file, a function of their own. Pure.

A text is a name or a file and is never imported. A function comes as `mdl.own.Own`, which only the user's own command
line makes; it is held to the rules of a mesh, and greedy decides if it breaks them (`Foreign`). A file is data: its
kind, its constants and its shapes are checked before it decides anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mdl.bounds import printable
from mdl.errors import ConfigError
from mdl.own import Own
from mdl.reading import read_bytes, shorten
from mdl.scheduler.paper.policy import PaperPolicy, is_paper_dqn, load_paper_dqn
from mdl.scheduler.policies.chain import ChainView, Decision, Pair, Policy, Wait, leave_to, tell_states
from mdl.scheduler.policies.greedy import Greedy
from mdl.scheduler.policies.learned import Learned
from mdl.scheduler.policies.qnet_numpy import PolicyFileError
from mdl.scheduler.policies.registry import POLICIES, make_policy

# The usual errors of a faulty function: the round goes on, and the reason names the error.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_LONGEST_REASON = 200


class Foreign:
    """See the module. own: called without arguments, returns an object with `decide(view) -> Pair | Wait`.

    Its own reasons follow its name. Raises ConfigError if the function fails or returns something else.
    """

    def __init__(self, own: Own) -> None:
        try:
            made = own.function()
        except _MISTAKES as error:
            raise ConfigError(f"policy {own.text!r}: its factory failed with {_name(error)}") from error
        if not callable(getattr(made, "decide", None)):
            raise ConfigError(
                f"policy {own.text!r} returned {type(made).__name__}, not an object with decide(view) -> Pair or Wait"
            )
        self.name = own.text
        self._policy: Policy = made  # type: ignore[assignment]
        self._fallback = Greedy()

    def decide(self, view: ChainView) -> Decision:
        if len(view.free()) < 2:
            return self._fallback.decide(view)
        try:
            decision = self._policy.decide(view)
        except _MISTAKES as error:
            return leave_to(self._fallback, view, self.name, f"it failed with {_name(error)}")
        if wrong := _find_wrong(view, decision):
            return leave_to(self._fallback, view, self.name, wrong)
        said = printable(str(decision.reason), _LONGEST_REASON) or "it gives no reason"
        told = f"{self.name}: it sees {tell_states(view)}"
        if isinstance(decision, Wait):
            return Wait(f"{told}, and waits: {said}")
        return Pair(decision.sender, decision.receiver, f"{told}; {decision.sender} to {decision.receiver}: {said}")

    def explain(self, view: ChainView) -> list[tuple[str, float]]:
        """List its alternatives with their values, if it has such a method with a valid answer; else none."""
        explain = getattr(self._policy, "explain", None)
        if not callable(explain):
            return []
        try:
            return [(printable(str(action)), float(value)) for action, value in explain(view)]
        except _MISTAKES:
            return []


def _find_wrong(view: ChainView, decision: object) -> str:
    """Return why this cannot be done; empty if it can."""
    if isinstance(decision, Wait):
        return "" if view.may_wait() else "it waits though no device is busy"
    if not isinstance(decision, Pair):
        return f"it said {shorten(decision)}, which is neither a Pair nor a Wait"
    free = [device.peer_id for device in view.free()]
    if decision.sender == decision.receiver or decision.sender not in free or decision.receiver not in free:
        return f"it paired {shorten(decision.sender)} and {shorten(decision.receiver)}, which are not two free devices"
    return ""


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {shorten(error)}"


# A network of this version has 60 KB, the paper's for 64 devices with large layers a few MB.
_LARGEST_FILE_BYTES = 64 << 20
# Hexadecimal digits that tell people two files apart; they protect no secret.
_DIGEST_SHOWN = 12


@dataclass(frozen=True)
class TimeBudget:
    """Greedy decides if a policy takes longer than deadline_s by `clock`: a round must not wait for a network."""

    deadline_s: float
    clock: Callable[[], float]


def is_file(name: str) -> bool:
    """Return True if a text means a file: it has a / (./mine), or ends in .safetensors."""
    return "/" in name or (name.endswith(".safetensors") and ":" not in name)


def policy_of(name: str | Own, budget: TimeBudget | None = None) -> Policy:
    """Make a fresh policy of this name, from this file, or from this function of the user's.

    Raises ConfigError for an unknown name, or a function that makes no policy; PolicyFileError for a file that this
    version cannot use.
    """
    if isinstance(name, Own):
        return Foreign(name)
    if is_file(name):
        return load_policy(Path(name), budget)
    if ":" in name:
        raise ConfigError(f"policy {name!r}: nothing is imported unless you say so with --policy on the command line")
    return make_policy(name)


def load_policy(path: Path, budget: TimeBudget | None = None) -> Policy:
    """Load a policy that `mdl scheduler train --out` has made, of either variant. Raises PolicyFileError."""
    if path.is_dir():
        raise PolicyFileError(f"{path}: is a directory, not a policy file")
    if is_paper_dqn(path):
        return PaperPolicy(load_paper_dqn(path)[0], path.name)
    if budget is None:
        return Learned(path, name=path.name)
    return Learned(path, name=path.name, deadline_s=budget.deadline_s, clock=budget.clock)


def describe_choice(name: str | Own) -> str:
    """Describe the choice for a story: a name, which any device may follow, or words that no device follows.

    The words for a file include the beginning of its SHA-256, so that another file of the same name is told apart.
    """
    if isinstance(name, Own):
        return f"the function {name.text}"
    if name in POLICIES or not is_file(name):
        return name
    path = Path(name)
    digest = hashlib.sha256(read_bytes(path, _LARGEST_FILE_BYTES, str(path))).hexdigest()
    return f"the file {path.name}, sha256 {digest[:_DIGEST_SHOWN]}"


def check_count(policy: Policy, count: int, where: str) -> None:
    """Raise ConfigError if the policy can never order a mesh of this size, named with `where`: the user's text."""
    known = getattr(policy, "n", None)
    if isinstance(known, int) and known != count:
        raise ConfigError(f"{where}: it orders {known} devices and no other number; this mesh has {count}")
