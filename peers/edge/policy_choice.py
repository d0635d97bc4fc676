"""The policy of a node that leads: checked before the node starts, made afresh for each time in office."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from mdl.config import Config
from mdl.own import Own
from mdl.peers.edge.relearner import DECISION_S, make_own_policy
from mdl.scheduler.given import TimeBudget, check_count, describe_choice, is_file, policy_of
from mdl.scheduler.policies.chain import Policy


@dataclass(frozen=True)
class ChosenPolicy:
    """told: as the node's story keeps it. learns: True if it goes on learning beside the mesh (3.3.3).

    make: makes a fresh policy; the directory holds what the node has re-learned.
    """

    told: str
    make: Callable[[Path], Policy]
    learns: bool = False


def choose_policy(config: Config, policy: str | Own | None = None) -> ChosenPolicy:
    """Choose the policy: `policy` of the command line, or if None the configuration's, which can name no function.

    A file is read once, here. Raises ConfigError or DataError in one line for an invalid policy, and for a file that
    cannot order as many devices as the mesh waits for.
    """
    name = config.round.policy if policy is None else policy
    if name == "dqn":
        return ChosenPolicy("dqn", lambda directory: make_own_policy(config, directory), config.round.relearn)
    first = policy_of(name, TimeBudget(DECISION_S, time.perf_counter))
    check_min_peers(first, config.round.min_peers, str(name))
    is_read = isinstance(name, str) and is_file(name)
    return ChosenPolicy(describe_choice(name), lambda _: deepcopy(first) if is_read else policy_of(name))


def check_min_peers(policy: Policy, least: int, where: str) -> None:
    """Raise ConfigError if the mesh begins with more devices than the policy's file can order."""
    known = getattr(policy, "n", None)
    if isinstance(known, int) and least > known:
        check_count(policy, least, where)
