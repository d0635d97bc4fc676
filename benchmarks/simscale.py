"""What a simulated mesh costs by its size: processor time, memory and messages a round, by hops and in segments.

    python benchmarks/simscale.py --sizes 4 16 64 128 256 500

Every device runs the real machines (`mdl.peers.roles`), without faults, over a simulated network of 2.5 to 5 MB/s a
device (`mdl.sim.mesh`); a delta is charged as 0.3 MB. Checks after each event are left out: they are the price of a
campaign, not of a mesh. Each size is a process of its own, so that its memory is its own. Round 1 counts neither in the
seconds nor in the messages: in it everybody still meets everybody.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from mdl.config import Exchange
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.peers.trials.run_plan import SIZE_BYTES
from mdl.protocol.delta import Contributor
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
    """One mesh, in this process. Raises RuntimeError if its rounds do not close in time."""
    mesh = _build(peers, rounds, exchange)
    closed = mesh.rounds
    if not mesh.run(_MEETS_S + _ROUND_S, lambda: len(closed) > 0):
        raise RuntimeError(f"{peers} devices, {exchange}: round 1 is not closed after {mesh.now:.0f} virtual seconds")
    met_s, began, messages, events = mesh.now, time.process_time(), mesh.messages, mesh.events
    if not mesh.run(mesh.now + _ROUND_S * rounds, lambda: len(closed) >= rounds):
        raise RuntimeError(f"{peers} devices, {exchange}: {len(closed)} of {rounds} rounds are closed in time")
    counted = rounds - 1
    return {
        "peers": peers,
        "exchange": exchange,
        "cpu_s_a_round": round((time.process_time() - began) / counted, 3),
        "virtual_s_a_round": round((mesh.now - met_s) / counted, 3),
        "messages_a_round": round((mesh.messages - messages) / counted),
        "events_a_round": round((mesh.events - events) / counted),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
    }


def _build(peers: int, rounds: int, exchange: Exchange) -> _Mesh:
    rng = np.random.default_rng(peers)
    names = [f"p{number}" for number in range(peers)]
    parameters = np.zeros(max(_LEAST_VALUES, _TRAININGS * peers * (rounds + 1)), np.float32)
    network = Network(rng, rates_mb_s={name: float(rng.uniform(2.5, 5.0)) for name in names})
    mesh = _Mesh(network, Accounts(parameters), SIZE_BYTES)
    for name in [AGENT_NODE, *names]:
        is_agent = name == AGENT_NODE
        start = None if is_agent else TrainerStart(parameters.size, b"")
        told = simulated_start(Contributor(name, 1), "greedy", 2 * peers - 1, "wait", start, 0.0, exchange)
        role = Role.AGENT if is_agent else Role.TRAINER
        mesh.add(name, role, build_machine(told, parameters), train_s=float(rng.uniform(0.15, 0.4)))
    mesh.is_complete = True
    mesh.introduce()
    return mesh


def _apart(peers: int, rounds: int, exchange: str, limit_s: float) -> dict[str, Any] | str:
    """The same in a process of its own; in words why there is no figure."""
    words = [sys.executable, __file__, "--sizes", str(peers), "--rounds", str(rounds), "--one", exchange]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return f"{peers} devices, {exchange}: not over after {limit_s:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64, 128, 256, 500])
    parser.add_argument("--rounds", type=int, default=3, help="the first one is not counted")
    parser.add_argument("--exchanges", nargs="+", choices=get_args(Exchange), default=["chain", "shares"])
    parser.add_argument("--limit-s", type=float, default=300.0, help="for one mesh, on the wall clock")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rounds < 2 or min(given.sizes) < 2:
        parser.error("take 2 rounds or more, of 2 devices or more")
    if given.one:
        try:
            print(json.dumps(measure(given.sizes[0], given.rounds, given.one)))
        except RuntimeError as error:
            print(f"simscale: {error}", file=sys.stderr)
            return 4
        return 0
    columns = ("peers", "exchange", "cpu_s_a_round", "virtual_s_a_round", "messages_a_round", "peak_mb")
    print("".join(f"{name.replace('_', ' '):>20}" for name in columns))
    results, without = [], []
    for peers in given.sizes:
        for exchange in given.exchanges:
            one = _apart(peers, given.rounds, exchange, given.limit_s)
            if isinstance(one, str):
                without.append(one)
                print(f"  {one}", flush=True)
                continue
            results.append(one)
            print("".join(f"{one[name]:>20}" for name in columns), flush=True)
    print(json.dumps({"rounds": given.rounds, "results": results, "without_a_figure": without}))
    return 0 if results else 4


if __name__ == "__main__":
    sys.exit(main())
