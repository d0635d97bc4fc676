"""Time to accuracy of rounds that wait for all devices, beside rounds that do not.

    python -m benchmarks waiting --data uci-har:PATH --seeds 100 101 102 103

The machines of a mesh, with all that they decide and say, really train UCI HAR by person on a virtual clock. The
devices are unequal: four classes of processors and links (mdl/sim/timing/scenario.py), and their owners use them
(family `dynamic`): training stands still meanwhile. The worlds are paired: the same devices and uses for each
rule. Nothing was tuned on them. See docs/results/waiting.md.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.tool.options import Namespace, Parser, add_data, add_model, add_seeds
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.training.simulated import TrainingMesh
from mdl.config import RoundSection, TrainingSettings
from mdl.data import DataSet, default_cache_dir, load_data
from mdl.devices.usage import Periods, active_end_s
from mdl.own import own_data
from mdl.peers.roles.agent.settings import TimeLimit
from mdl.peers.roles.peer import Peer
from mdl.protocol.machine import Effect, TrainLocally
from mdl.sim.mesh.process import Node
from mdl.sim.timing.scenario import draw_scenario, vary_scenario

# A training takes this many times as long as on the fastest class: the medians of a CPU benchmark of phones.
_SLOWER = (1.0, 1.9, 7.1, 12.5)
_LONGEST_S = 1_800.0
# Accuracies on the test people, in percent.
_TARGETS = (80, 84, 88)
_DEFAULT = RoundSection()
RULES = {
    "all": TimeLimit(),
    "half": TimeLimit(_DEFAULT.wait_for, _DEFAULT.grace_s, _DEFAULT.left_out_at_most, rule="half"),
    "best-ratio": TimeLimit(_DEFAULT.wait_for, _DEFAULT.grace_s, _DEFAULT.left_out_at_most, rule="best-ratio"),
}


class WaitingMesh(TrainingMesh):
    """See the module. busy: by peer id. train_s: seconds of a training on an idle device, by peer id."""

    def __init__(self, data: DataSet, options: Namespace, seed: int, limit: TimeLimit) -> None:
        settings = TrainingSettings(rounds_per_epoch=options.parts, schedule="constant")
        size_bytes, given = round(options.mb * 1e6), (options.peers, options.split, seed)
        super().__init__(
            data, options.model, settings, *given, is_defended=False, exchange="auto", size_bytes=size_bytes
        )
        rng = np.random.default_rng([seed, 0x3A17])
        scenario = vary_scenario(draw_scenario("dynamic", options.peers, 1_000_000 + seed), rng)
        if options.equal:
            scenario = draw_scenario("paper", options.peers, 0)
        period_s = float(rng.uniform(1.0, 8.0))
        self.busy: dict[str, Periods] = {}
        self.train_s: dict[str, float] = {}
        self._uses = rng
        for peer_id, device in zip(sorted(self.nodes), scenario.devices, strict=True):
            self.busy[peer_id] = () if options.equal else _repeat(device.busy)
            self.train_s[peer_id] = period_s * (1.0 if options.equal else _SLOWER[device.device_class])
            self.network.rates_mb_s[peer_id] = device.link_mb_s
            self.network.merge_mb_s[peer_id] = device.merge_mb_s
        self.network.is_shared = True
        for peer_id in sorted(self.nodes):
            machine = self.nodes[peer_id].machine
            assert isinstance(machine, Peer)
            machine.agent_settings = msgspec.structs.replace(
                machine.agent_settings, limit=limit, rounds=0, lost_after_s=8.0, stall_s=10.0, partition_s=15.0
            )

    def _carry_out(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, TrainLocally) and (work := self.devices[node.peer_id].work(effect)):
            seconds = self.train_s[node.peer_id] * float(np.exp(self._uses.normal(0.0, 0.1)))
            ends_s = active_end_s((self.busy[node.peer_id],), self.now, seconds)
            self._schedule(ends_s - self.now, node, work[1])
        else:
            super()._carry_out(node, effect)


def _repeat(periods: Periods) -> Periods:
    """Return these periods again and again, until the run is over for certain."""
    if not periods:
        return ()
    span_s, times = periods[-1][1] + 1.0, range(int(_LONGEST_S / (periods[-1][1] + 1.0)) + 2)
    return tuple((begin + span_s * time, end + span_s * time) for time in times for begin, end in periods)


def add_options(parser: Parser) -> None:
    add_data(parser, what="for example uci-har:PATH")
    add_model(parser)
    add_seeds(parser, range(100, 104))
    parser.add_argument("--split", default="subject")
    parser.add_argument("--peers", type=int, default=9)
    parser.add_argument("--mb", type=float, default=10.0, help="of a delta, on its way")
    parser.add_argument("--parts", type=int, default=16, help="rounds that an epoch is cut into")
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES), help="all beside the first one")
    parser.add_argument("--equal", action="store_true", help="equal devices that nobody uses")


def run(options: Namespace, sheet: Sheet) -> None:
    """Train the same worlds by each rule, on one thread. Raises ConfigError or DataError."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    data = load_data(own_data(options.data), default_cache_dir(), seed=0)
    runs: list[dict[str, Any]] = []
    sheet.tell({"data": data.name, "runs": runs})
    for seed, rule in itertools.product(options.seeds, options.rules):
        runs.append(_run(data, options, seed, rule))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        sheet.save()
    show(
        ("rule", "left out a round", "least share", *(f"to {each} %" for each in _TARGETS)), table(runs, options.rules)
    )


def _run(data: DataSet, options: Namespace, seed: int, rule: str) -> dict[str, Any]:
    mesh, reached, missed = WaitingMesh(data, options, seed, RULES[rule]), dict[int, float](), 0
    counts = dict.fromkeys(mesh.nodes, 0)
    while mesh.now < _LONGEST_S and len(reached) < len(_TARGETS):
        seen = len(mesh.rounds)
        if mesh.run(_LONGEST_S, lambda seen=seen: len(mesh.rounds) > seen):  # type: ignore[misc]
            for peer_id in mesh.rounds[-1].contributors:
                counts[peer_id] += 1
            missed += options.peers - len(mesh.rounds[-1].contributors)
            accuracy = 100.0 * mesh.test().accuracy
            for target in _TARGETS:
                if accuracy >= target:
                    reached.setdefault(target, round(mesh.now, 1))
    rounds, shares = len(mesh.rounds), sorted(counts.values())
    mesh.end()
    least = shares[0] / max(1.0, fmean(shares))
    told = {"seed": seed, "rule": rule, "rounds": rounds, "left_out": round(missed / max(1, rounds), 2)}
    return told | {"least_share": round(least, 2), "seconds": {str(target): at for target, at in reached.items()}}


def table(runs: list[dict[str, Any]], rules: list[str], targets: Sequence[object] = _TARGETS) -> list[tuple[str, ...]]:
    """Return a row for each rule: seconds to a target over the first rule's, with the paired 95 % interval."""
    rows = []
    for rule in rules:
        mine, base = ([run for run in runs if run["rule"] == name] for name in (rule, rules[0]))
        cells = []
        for target in map(str, targets):
            both = [
                (one["seconds"].get(target), other["seconds"].get(target))
                for one, other in zip(mine, base, strict=True)
            ]
            ratios = [np.log(one / other) for one, other in both if one and other]
            wide = 1.96 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
            middle = fmean(ratios) if ratios else float("nan")
            low, high = np.exp(middle - wide), np.exp(middle + wide)
            cells.append(f"{np.exp(middle):.2f} ({low:.2f} to {high:.2f}, {len(ratios)} worlds)")
        left_out, least = fmean(run["left_out"] for run in mine), fmean(run["least_share"] for run in mine)
        rows.append((rule, f"{left_out:.1f}", f"{least:.2f}", *cells))
    return rows
