"""What a round in segments costs in which a device is killed: real processes on a shaped LAN, killed by SIGKILL.

Measured from the order to the moment in which everybody who is left has applied the result, without the time that it
takes to notice (from the kill to the order that goes on), beside B, the bound of the links of all devices.

    python benchmarks/lost_device.py --case 4x40@5 --quarters 1,2,3 --runs 2            # as root
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.helpers import load_helper, load_lan
from benchmarks.links.places import Case, parse_case

# The first rounds show the links.
WARM_UP = 3
_PATIENCE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="4x40@5", type=parse_case, help="LINKS@MB, as in benchmarks/round.py")
    parser.add_argument("--quarters", default="1,2,3", help="how much of the result has come when the device is killed")
    parser.add_argument("--victims", default="device,agent", help="a device that does not lead, or the one that does")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if reason := load_lan().why_not():
        print(f"lost_device: {reason}", file=sys.stderr)
        return 2
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(given.runs):
        for victim in given.victims.split(","):
            for quarters in map(int, given.quarters.split(",")):
                name = f"{victim} at {quarters}/4"
                found.setdefault(name, []).append(_kill(given.case, victim, quarters))
                print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    bound_s = given.case.bound_s
    report = {"command": " ".join(sys.argv), "bound_s": round(bound_s, 3), "victims": _summarise(found, bound_s)}
    print(json.dumps(report))
    if given.out:
        given.out.write_text(json.dumps(report | {"all": found}, indent=1) + "\n")
    return 0


def _kill(case: Case, victim: str, quarters: int) -> dict[str, Any]:
    """One mesh, one kill. Seconds: order_s to the kill, noticed_s until others follow an order without it, rest_s."""
    faults = load_helper("test_faults")
    names = [f"p{number}" for number in range(case.size)]
    settings = {"round__min_peers": case.size, "round__exchange": "shares"}
    with (
        tempfile.TemporaryDirectory() as folder,
        case.open() as net,
        faults.Mesh(Path(folder), net, case.values, **settings) as mesh,
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


if __name__ == "__main__":
    sys.exit(main())
