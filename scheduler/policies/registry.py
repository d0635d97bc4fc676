"""Every policy that an agent may follow, by its name: a new one is a row here, and help, errors, `mdl schedule compare`
and the docs have it. Each is imported when it is made: help texts need only names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from mdl.config import Compress
from mdl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from mdl.scheduler.policies.chain import Policy


def make_policy(name: str) -> Policy:
    """Make a fresh policy. `optimal` sees the whole scenario, so it only judges others (`scheduler/explain`).

    Raises ConfigError with the closest valid name; for dqn also if its file is no policy (DataError).
    """
    if name == OPTIMAL:
        raise ConfigError("policy 'optimal' knows when busy times end: it can judge scenarios, not decide")
    if name in SHARES_BY:
        raise ConfigError(
            f"{name!r} is no policy: a round in segments has no hops to order; choose it by --exchange shares"
        )
    if name not in POLICIES:
        hint = did_you_mean(name, [*POLICIES, OPTIMAL, *SHARES_BY])
        raise ConfigError(f"unknown policy {name!r}{hint} (valid: {', '.join(POLICIES)})")
    return POLICIES[name].make()


def name_policies(*more: str, last: str = "or") -> str:
    """List valid names for a help text: "dqn, greedy, ... or ring". more: names that are valid beside the policies."""
    *names, final = (*POLICIES, *more)
    return f"{', '.join(names)} {last} {final}"


def _make_greedy() -> Policy:
    from mdl.scheduler.policies.greedy import Greedy

    return Greedy()


def _make_greedy_without_waiting() -> Policy:
    from mdl.scheduler.policies.greedy import Greedy

    return Greedy(waiting=False, name="greedy-risk")


def _make_planner() -> Policy:
    from mdl.scheduler.policies.planner import Planner

    return Planner()


def _make_fifo() -> Policy:
    from mdl.scheduler.policies.fixed import Fifo

    return Fifo()


def _make_tree() -> Policy:
    from mdl.scheduler.policies.fixed import Tree

    return Tree()


def _make_ring() -> Policy:
    from mdl.scheduler.policies.fixed import Ring

    return Ring()


def _make_learned() -> Policy:
    from mdl.scheduler.policies.learned import Learned

    return Learned()


@dataclass(frozen=True)
class RegisteredPolicy:
    """One policy. about: its rule in a few words. make: returns a fresh one.

    is_quick: compared where the user names no policies; the others are slow, or another one but for a rule.
    """

    about: str
    make: Callable[[], Policy]
    is_quick: bool = True


# greedy-risk is the best rule that never waits: the bar for planners and learners.
POLICIES = {
    "dqn": RegisteredPolicy("a network trained on simulated meshes, for any number of devices", _make_learned),
    "greedy": RegisteredPolicy("a rule that waits for better partners and weighs interruptions", _make_greedy),
    "greedy-risk": RegisteredPolicy(
        "the costliest device sends, the cheapest receives", _make_greedy_without_waiting, False
    ),
    "dp": RegisteredPolicy("a planner: the first step with which the round ends first", _make_planner, is_quick=False),
    "fifo": RegisteredPolicy("the first two devices that are free", _make_fifo),
    "tree": RegisteredPolicy("pairs by position, as a binomial tree", _make_tree),
    "ring": RegisteredPolicy("pairs by position, each device to the next", _make_ring),
}
OPTIMAL = "optimal"
# Compared with the policies, but without hops: segments go to owners with shares by bandwidth.
SHARES = "shares"
# The same with values rounded by `round.compress`: "shares-int8".
SHARES_BY: dict[str, Compress] = {
    SHARES if compress == "none" else f"{SHARES}-{compress}": compress for compress in get_args(Compress)
}


def quick_policies(with_optimal: bool = False) -> list[str]:
    """Return the names to compare if the user gave none: quick policies, each with another idea.

    with_optimal: add the optimum to judge them by, if it can be found.
    """
    return [*(name for name, known in POLICIES.items() if known.is_quick), *([OPTIMAL] if with_optimal else [])]
