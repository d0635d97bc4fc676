"""Round times of nodes that do not train, one state of the code against another: what is measured is the protocol.

Real processes, discovery, links and file caches; training is one number in a vector of any size. The states take turns.
On hosts with equal links of --mbit, which needs root and iproute2, or on loopback (--mbit 0).

    python -m benchmarks bare_round --code ../before,. --sizes 4,8 --runs 2             # as root
    python -m benchmarks bare_round --code ../before,. --sizes 4 --mbit 0 --megabytes 46.4 --profile
"""

from __future__ import annotations

import itertools
import json
import os
import pstats
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.links.places import Loopback
from benchmarks.tool.hosts import need_hosts
from benchmarks.tool.options import Namespace, Parser, add_rounds, add_runs, need_more_rounds
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.spread import quartiles
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.transport.trust.keys import new_join_code

# The first rounds show the links; they are played, and not counted.
WARM_UP = 2
_PHASES = ("total", "aggregate", "broadcast")
# What the loop does not do, but wait.
_WAITING = ("poll", "select", "zmq_poll", "_poll")


def add_options(parser: Parser) -> None:
    parser.add_argument("--code", default=".", help="source trees, separated by commas")
    parser.add_argument("--sizes", default="4,8", help="how many devices")
    parser.add_argument("--mbit", type=float, default=40.0, help="of each link; 0: loopback")
    parser.add_argument("--megabytes", type=float, default=5.0)
    add_rounds(parser, 8)
    add_runs(parser, 2)
    parser.add_argument("--profile", action="store_true", help="tell how much of its time each loop spends in hashing")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure each state of the code with each number of devices, in turns. Raises ConfigError."""
    need_more_rounds(given.rounds, WARM_UP)
    lan = need_hosts() if given.mbit else None
    rounds: dict[str, list[dict[str, float]]] = {}
    shares: dict[str, list[float]] = {}
    cases = list(itertools.product(map(int, given.sizes.split(",")), given.code.split(",")))
    for _, (size, code) in in_turns(given.runs, cases):
        name = f"N={size} {code}"
        place = lan.Lan(size + 1, given.mbit) if lan else Loopback()
        with tempfile.TemporaryDirectory() as folder, place as net:
            _run(net, Path(code).resolve(), size, Path(folder), given)
            rounds.setdefault(name, []).extend(_read_rounds(Path(folder)))
            shares.setdefault(name, []).extend(_read_profiles(Path(folder)))
        print(f"{name}: {_spread(rounds[name], 'total')}", file=sys.stderr, flush=True)
    found = {name: {phase: _spread(done, phase) for phase in _PHASES} for name, done in rounds.items()}
    show(("median s", *_PHASES), [[name, *(spread[0] for spread in each.values())] for name, each in found.items()])
    hashing = {name: round(float(np.mean(each)), 3) for name, each in shares.items() if each}
    sheet.tell({"median_and_quartiles_s": found, "hashing_share_of_loop": hashing})
    sheet.all = rounds


def _run(net: Any, code: Path, size: int, folder: Path, given: Namespace) -> None:
    """One mesh from start to end."""
    os.environ["PYTHONPATH"] = str(code)
    join_code, node = new_join_code("bench"), code / "tests" / "integration" / "fault_node.py"
    settings = [
        f"round.min_peers={size}",
        "round.policy=greedy",
        "round.exchange=chain",
        f"round.rounds={given.rounds}",
    ]
    settings += ["faults.lost_after_s=30", *([] if given.mbit else ["mesh.loopback=true"])]
    common = ["--values", round(given.megabytes * 1e6 / 4), "--set", *settings]

    def start(host: int, name: str, *more: str) -> Any:
        profile = ["-m", "cProfile", "-o", folder / f"{name}.prof"] if given.profile else []
        return net.start(host, *profile, node, join_code, name, folder, *common, *more)

    agent = start(size, "agent", "--agent")
    peers = [start(host, f"dev{host}") for host in range(size)]
    for process in (agent, *peers):
        process.stdout.read()  # until it has ended


def _read_rounds(folder: Path) -> list[dict[str, float]]:
    """Seconds by phase of the rounds after the warm-up, whoever led them."""
    lines = [line for path in folder.glob("*/metrics.jsonl") for line in path.read_text().splitlines()]
    by_round = {int(line["round"]): line for line in map(json.loads, lines)}  # each device has the line of each round
    told: list[dict[str, Any]] = [by_round[number] for number in sorted(by_round)]
    return [{phase: line["seconds"].get(phase, 0.0) for phase in _PHASES} for line in told[WARM_UP:]]


def _read_profiles(folder: Path) -> list[float]:
    """Of each device's loop: the share of the time in which it does not wait that it spends in hashing."""
    shares = []
    for path in sorted(folder.glob("dev*.prof")):
        stats: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
        spent = _total(stats, lambda name: not any(word in name for word in _WAITING))
        shares.append(_total(stats, lambda name: name == "digest_of" or "blake2b" in name) / spent)
    return shares


def _total(stats: dict[tuple[str, int, str], tuple[Any, ...]], wanted: Callable[[str], bool]) -> float:
    return sum(float(found[2]) for (_, _, name), found in stats.items() if wanted(name))


def _spread(rounds: list[dict[str, float]], phase: str) -> list[float]:
    return quartiles([one[phase] for one in rounds])
