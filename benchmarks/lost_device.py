"""What a round in segments costs in which a device is killed: real processes on a shaped LAN, killed by SIGKILL.

Measured from the order to the moment in which everybody who is left has applied the result, without the time that it
takes to notice (from the kill to the order that goes on), beside B, the bound of the links of all devices.

    python -m benchmarks lost_device --case 4x40@5 --quarters 1,2,3 --runs 2            # as root
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.links.places import Case
from benchmarks.tool.hosts import load_helper, need_hosts
from benchmarks.tool.options import Namespace, Parser, add_runs, case
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns

# The first rounds show the links.
WARM_UP = 3
_PATIENCE_S = 120.0


def add_options(parser: Parser) -> None:
    parser.add_argument("--case", default="4x40@5", type=case, help="LINKS@MB, as of `round`")
    parser.add_argument("--quarters", default="1,2,3", help="how much of the result has come when the device is killed")
    parser.add_argument("--victims", default="device,agent", help="a device that does not lead, or the one that does")
    add_runs(parser, 2)


def run(given: Namespace, sheet: Sheet) -> None:
    """Kill each victim at each moment, in turns. Raises ConfigError."""
    need_hosts()
    found: dict[str, list[dict[str, Any]]] = {}
    moments = list(itertools.product(given.victims.split(","), map(int, given.quarters.split(","))))
    for _, (victim, quarters) in in_turns(given.runs, moments):
        name = f"{victim} at {quarters}/4"
        found.setdefault(name, []).append(_kill(given.case, victim, quarters))
        print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    bound_s = given.case.bound_s
    told = _summarise(found, bound_s)
    show(("medians", *next(iter(told.values()))), [(name, *each.values()) for name, each in told.items()])
    sheet.tell({"bound_s": round(bound_s, 3), "victims": told})
    sheet.all = found


def _kill(place: Case, victim: str, quarters: int) -> dict[str, Any]:
    """One mesh, one kill. Seconds: order_s to the kill, noticed_s until others follow an order without it, rest_s."""
    faults = load_helper("test_faults")
    names = [f"p{number}" for number in range(place.size)]
    settings = {"round__min_peers": place.size, "round__exchange": "shares"}
    with (
        tempfile.TemporaryDirectory() as folder,
        place.open() as net,
        faults.Mesh(Path(folder), net, place.values, **settings) as mesh,
    ):
        mesh.start(*names)

        def wait(claim: Any, since: int = 0) -> tuple[int, Any, dict[str, Any], float]:
            return (*mesh.wait_for(claim, since, _PATIENCE_S), time.monotonic())

        wait(lambda _, line: line.get("global", 0) >= WARM_UP)
        here, _, line, ordered_at = wait(lambda _, line: line.get("follows", 0) > WARM_UP)
        round_id, leader = line["follows"], mesh.leader()[0]
        wait(lambda _, line: line.get("exchanges") == round_id and line["quarters"] >= quarters, here)
        killed = leader if victim == "agent" else next(name for name in names if name != leader)
        mesh.nodes[killed].kill()
        killed_at = time.monotonic()
        *_, noticed_at = wait(lambda _, line: _goes_on(line, round_id), here)
        left = set(names) - {killed}
        for name in left:
            line, ended_at = wait(lambda who, line, name=name: who == name and line.get("global") == round_id)[2:]
        partly = np.mean(line["partly"].get(killed, [float(killed in dict(line["contributors"]))]))
        return {
            "order_s": round(killed_at - ordered_at, 3),
            "noticed_s": round(noticed_at - killed_at, 3),
            "rest_s": round(ended_at - noticed_at, 3),
            "counted": round(float(partly), 3),
        }


def _goes_on(line: dict[str, Any], round_id: int) -> bool:
    """Without the lost device; or all had the result before anybody noticed."""
    return (line.get("follows") == round_id and line["lost"] > 0) or line.get("global") == round_id


def _summarise(found: dict[str, list[dict[str, Any]]], bound_s: float) -> dict[str, Any]:
    """Medians; over_bound: order and rest, of B."""
    told = {}
    for name, runs in found.items():
        medians = {key: round(float(np.median([run[key] for run in runs])), 3) for key in runs[0]}
        spent_s = float(np.median([run["order_s"] + run["rest_s"] for run in runs]))
        told[name] = medians | {"over_bound": round(spent_s / bound_s, 2), "runs": len(runs)}
    return told
