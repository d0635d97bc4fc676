"""Forks of simulated meshes under faults, and how many of them begin with a majority present that lacks its votes.

    python -m benchmarks forks                 # 120 hard meshes of six devices, three rounds each
    python -m benchmarks forks --wide          # 2 to 9 devices, 1 to 12 rounds, faults in every round

The start of a mesh is no fork. `mdl sim run` draws the same plans from the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.table import show
from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.membership.majority import has_quorum
from mdl.peers.trials.campaign import Campaign, silent_machines
from mdl.peers.trials.run_plan import run_guarded
from mdl.protocol.vocabulary import Lineage


def add_options(parser: Parser) -> None:
    parser.add_argument("--seeds", type=int, default=120, help="meshes")
    parser.add_argument("--seed-from", type=int, default=5000, help="the first one's seed")
    parser.add_argument("--wide", action="store_true", help="as `mdl sim run --wide`")


def run(given: Namespace, sheet: Sheet) -> None:
    """Play the meshes. Raises Failed if one does not pass."""
    campaign = Campaign(wide=given.wide)
    here: list[bool] = []
    with silent_machines(), watched(here):
        for seed in range(given.seed_from, given.seed_from + given.seeds):
            if kind := run_guarded(campaign.plan(seed)).kind:
                raise Failed(f"seed {seed}: {kind}")
    show(("meshes", "forks", "with a majority present"), [(given.seeds, len(here), sum(here))])
    sheet.tell({"meshes": given.seeds, "forks": len(here), "with a majority present": sum(here)})


@contextmanager
def watched(here: list[bool]) -> Iterator[None]:
    """Note of each fork within if a majority of those that decide is present as it begins."""
    begin = MobileAgent._begin_fork

    def begin_fork(self: MobileAgent, lineage: Lineage, round_id: int, size: int) -> Lineage:
        following = self.following()
        if lineage:
            base = next(member.report.base for member in following if member.report.lineage == lineage)
            here.append(has_quorum(base, {member.peer_id for member in following}))
        return begin(self, lineage, round_id, size)

    with patch.object(MobileAgent, "_begin_fork", begin_fork):
        yield
