"""Every policy that an agent may follow, by its name. Each is imported when it is made: help texts need only names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from mdl.config import Compress
from mdl.errors import ConfigError
from mdl.hints import did_you_mean

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
    return POLICIES[name]()


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
    from mdl.scheduler.policies.planning.planner import Planner

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


# The policies for an agent. greedy-risk is the best rule that never waits: the bar for planners and learners.
POLICIES: dict[str, Callable[[], Policy]] = {
    "dqn": _make_learned,
    "greedy": _make_greedy,
    "greedy-risk": _make_greedy_without_waiting,
    "dp": _make_planner,
    "fifo": _make_fifo,
    "tree": _make_tree,
    "ring": _make_ring,
}
OPTIMAL = "optimal"
# Compared with the policies, but without hops: segments go to owners with shares by bandwidth.
SHARES = "shares"
# The same with values rounded by `round.compress`: "shares-int8".
SHARES_BY: dict[str, Compress] = {
    SHARES if compress == "none" else f"{SHARES}-{compress}": compress for compress in get_args(Compress)
}
# Compared only if they are named: dp is slow, greedy-risk is greedy but for one rule.
_ON_DEMAND = frozenset({"dp", "greedy-risk"})


def quick_policies(with_optimal: bool = False) -> list[str]:
    """Return the names to compare if the user gave none: quick policies, each with another idea.

    with_optimal: add the optimum to judge them by, if it can be found.
    """
    return [*(name for name in POLICIES if name not in _ON_DEMAND), *([OPTIMAL] if with_optimal else [])]
