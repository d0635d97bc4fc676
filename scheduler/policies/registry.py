"""Every policy that an agent may follow, by its name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from mdl.errors import ConfigError
from scheduler.policies.chain import Policy
from scheduler.policies.fixed import Fifo, Ring, Tree
from scheduler.policies.greedy import Greedy
from scheduler.policies.planner import Planner


def make_policy(name: str) -> Policy:
    """A fresh policy. `optimal` sees the whole scenario, so it is there for judging only (`scheduler/explain`).

    Raises ConfigError with the closest valid name; for dqn also if its file is no policy (DataError).
    """
    if name == OPTIMAL:
        raise ConfigError("policy 'optimal' knows when busy times end, so it can only judge scenarios, not decide")
    if name not in POLICIES:
        close = difflib.get_close_matches(name, [*POLICIES, OPTIMAL], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown policy {name!r}{hint} (valid: {', '.join(POLICIES)})")
    return POLICIES[name]()


def _make_greedy_without_waiting() -> Policy:
    return Greedy(waiting=False, name="greedy-risk")


def _make_learned() -> Policy:
    from scheduler.policies.learned import Learned

    return Learned()


# What an agent may follow. greedy-risk is the best rule that never waits: what the planners and learners are held to.
POLICIES: dict[str, Callable[[], Policy]] = {
    "dqn": _make_learned,
    "greedy": Greedy,
    "greedy-risk": _make_greedy_without_waiting,
    "dp": Planner,
    "fifo": Fifo,
    "tree": Tree,
    "ring": Ring,
}
OPTIMAL = "optimal"
