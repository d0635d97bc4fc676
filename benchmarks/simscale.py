"""What a simulated mesh costs by its size: processor time, memory and messages a round, by hops and in segments.

    python -m benchmarks simscale --sizes 4 16 64 128 256 500

Every device runs the real machines (`mdl.peers.roles`), without faults, over a simulated network of 2.5 to 5 MB/s a
device, which streams share (`mdl.sim.mesh`). A delta is charged as 0.3 MB, and cut into as many segments as one of that
size is on such links. Checks after each event are left out: they are the price of a campaign, not of a mesh. Each size
is a process of its own, so that its memory is its own. Round 1 counts neither in the seconds nor in the messages: in it
everybody still meets everybody.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from statistics import fmean
from typing import Any, get_args

import numpy as np

from benchmarks.tool.apart import words_of
from benchmarks.tool.options import Namespace, Parser, add_rounds
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.table import show
from mdl.config import Exchange
from mdl.errors import ConfigError
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.peers.trials.run_plan import RATES_MB_S, SIZE_BYTES
from mdl.protocol.delta import Contributor
from mdl.protocol.segments import count_segments, segment_values
from mdl.protocol.vocabulary import Role
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from mdl.sim.plans.fault_plan import AGENT_NODE

# One dimension a training (sim/mesh/accounts.py), with room for rounds that are opened twice.
_TRAININGS, _LEAST_VALUES = 2, 256
# Virtual: far more than any round takes.
_ROUND_S = 120.0
_MEETS_S = 1.0


class _Mesh(SimMesh):
    """All processes are there before they hear of one another: one by one would be N cubed."""

    is_complete = False
    most_events = 20_000_000

    def introduce(self) -> None:
        if self.is_complete:
            super().introduce()


def measure(peers: int, rounds: int, exchange: Exchange) -> dict[str, Any]:
    """One mesh, in this process; printed as JSON too. Raises Failed if its rounds do not close in time."""
    mesh = _build(peers, rounds, exchange)
    closed = mesh.rounds
    if not mesh.run(_MEETS_S + _ROUND_S, lambda: len(closed) > 0):
        raise Failed(f"{peers} devices, {exchange}: round 1 is not closed after {mesh.now:.0f} virtual seconds")
    met_s, began, messages, events = mesh.now, time.process_time(), mesh.messages, mesh.events
    if not mesh.run(mesh.now + _ROUND_S * rounds, lambda: len(closed) >= rounds):
        raise Failed(f"{peers} devices, {exchange}: {len(closed)} of {rounds} rounds are closed in time")
    counted = rounds - 1
    told = {
        "peers": peers,
        "exchange": exchange,
        "cpu_s_a_round": round((time.process_time() - began) / counted, 3),
        "virtual_s_a_round": round((mesh.now - met_s) / counted, 3),
        "messages_a_round": round((mesh.messages - messages) / counted),
        "events_a_round": round((mesh.events - events) / counted),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
    }
    print(json.dumps(told))
    return told


def _build(peers: int, rounds: int, exchange: Exchange) -> _Mesh:
    rng = np.random.default_rng(peers)
    names = [f"p{number}" for number in range(peers)]
    parameters = np.zeros(max(_LEAST_VALUES, _TRAININGS * peers * (rounds + 1)), np.float32)
    network = Network(rng, rates_mb_s={name: float(rng.uniform(*RATES_MB_S)) for name in names}, is_shared=True)
    real = SIZE_BYTES // 4
    segments = count_segments(real, segment_values(real, fmean(RATES_MB_S), peers))
    values = -(-parameters.size // segments)
    mesh = _Mesh(network, Accounts(parameters), SIZE_BYTES)
    for name in [AGENT_NODE, *names]:
        is_agent = name == AGENT_NODE
        start = None if is_agent else TrainerStart(parameters.size, b"")
        told = simulated_start(
            Contributor(name, 1), "greedy", 2 * peers - 1, "wait", start, 0.0, exchange, segment_values=values
        )
        role = Role.AGENT if is_agent else Role.TRAINER
        mesh.add(name, role, build_machine(told, parameters), train_s=float(rng.uniform(0.15, 0.4)))
    mesh.is_complete = True
    mesh.introduce()
    return mesh


def _apart(peers: int, rounds: int, exchange: str, limit_s: float) -> dict[str, Any] | str:
    """The same in a process of its own; in words why there is no figure."""
    words = words_of("benchmarks.simscale:measure", peers, rounds, exchange)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return f"{peers} devices, {exchange}: not over after {limit_s:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def add_options(parser: Parser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64, 128, 256, 500])
    add_rounds(parser, 3, "the first one is not counted")
    parser.add_argument("--exchanges", nargs="+", choices=get_args(Exchange), default=["chain", "shares"])
    parser.add_argument("--limit-s", type=float, default=300.0, help="for one mesh, on the wall clock")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure each size and exchange. Raises ConfigError."""
    if given.rounds < 2 or min(given.sizes) < 2:
        raise ConfigError("take 2 rounds or more, of 2 devices or more")
    results, without = [], []
    for peers, exchange in itertools.product(given.sizes, given.exchanges):
        one = _apart(peers, given.rounds, exchange, given.limit_s)
        if isinstance(one, str):
            without.append(one)
        else:
            results.append(one)
        print(one, file=sys.stderr, flush=True)
    columns = ("peers", "exchange", "cpu_s_a_round", "virtual_s_a_round", "messages_a_round", "peak_mb")
    show([name.replace("_", " ") for name in columns], [[one[name] for name in columns] for one in results])
    sheet.tell({"rounds": given.rounds, "results": results, "without_a_figure": without})
    sheet.problem = "" if results else "; ".join(without)
