"""A policy of the user's own, held to the rules of a mesh: greedy decides if it breaks them. Pure."""

from __future__ import annotations

from mdl.bounds import printable
from mdl.errors import ConfigError
from mdl.own import Own
from mdl.reading import shorten
from mdl.scheduler.policies.chain import ChainView, Decision, Pair, Policy, Wait, leave_to, tell_states
from mdl.scheduler.policies.greedy import Greedy

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
