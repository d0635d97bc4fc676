"""Round times of nodes with equal links on a shaped LAN, one state of the code against another.

Real processes, discovery, links and file caches; training is one number in a vector of any size, so that what is
measured is the network. The states take turns, each time with fresh namespaces: needs root and iproute2.

    python benchmarks/lan_broadcast.py --code ../before,. --sizes 4,8 --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from lan_round import load_helper

from transport.keys import new_join_code

# The first rounds show the links; they are played, and not counted.
WARM_UP = 2
_PHASES = ("total", "aggregate", "broadcast")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", default=".", help="source trees, separated by commas")
    parser.add_argument("--sizes", default="4,8", help="how many devices")
    parser.add_argument("--mbit", type=float, default=40.0)
    parser.add_argument("--megabytes", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lan = load_helper("lan")
    if reason := lan.why_not():
        print(f"lan_broadcast: {reason}", file=sys.stderr)
        return 2
    seconds: dict[str, list[dict[str, float]]] = {}
    for _ in range(given.runs):
        for size in map(int, given.sizes.split(",")):
            for code in given.code.split(","):
                rounds = seconds.setdefault(f"N={size} {code}", [])
                rounds += _run(lan, Path(code).resolve(), size, given)
                print(f"N={size} {code}: {_quartiles(rounds, 'total')}", file=sys.stderr, flush=True)
    table = {name: {phase: _quartiles(rounds, phase) for phase in _PHASES} for name, rounds in seconds.items()}
    report = {"command": " ".join(sys.argv), "median_and_quartiles_s": table}
    print(json.dumps(report))
    if given.out:
        given.out.write_text(json.dumps(report | {"all": seconds}, indent=1) + "\n")
    return 0


def _run(lan: ModuleType, code: Path, size: int, given: argparse.Namespace) -> list[dict[str, float]]:
    """One mesh from start to end; the seconds of its rounds by phase, after the warm-up."""
    os.environ["PYTHONPATH"] = str(code)
    join_code = new_join_code("bench")
    node = code / "tests" / "integration" / "fault_node.py"
    with tempfile.TemporaryDirectory() as folder, lan.Lan(size + 1, given.mbit) as net:
        common = [
            "--values",
            round(given.megabytes * 1e6 / 4),
            "--set",
            f"round.min_peers={size}",
            "round.policy=greedy",
        ]
        agent = net.start(size, node, join_code, "agent", folder, "--agent", *common, f"round.rounds={given.rounds}")
        for host in range(size):
            net.start(host, node, join_code, f"dev{host}", folder, *common)
        agent.stdout.read()  # until it has ended
        lines = (Path(folder) / "agent" / "metrics.jsonl").read_text().splitlines()
    rounds: list[dict[str, Any]] = [json.loads(line)["seconds"] for line in lines]
    return [{phase: seconds.get(phase, 0.0) for phase in _PHASES} for seconds in rounds[WARM_UP:]]


def _quartiles(rounds: list[dict[str, float]], phase: str) -> list[float]:
    return [round(float(value), 3) for value in np.percentile([one[phase] for one in rounds], [50, 25, 75])]


if __name__ == "__main__":
    sys.exit(main())
