"""MDLdroid's evaluation remade, part by part, the paper's figure beside what is measured here.

    python benchmarks/mdldroid.py lan 3x40@5 6x40@5 9x40@5 --rounds 6         # as root: Fig. 11b, 11c
    python benchmarks/mdldroid.py memory 2@46.4 4@46.4 9@46.4                 # Fig. 1b, 11a
    python benchmarks/mdldroid.py target --data uci-har:PATH --flower FL/bin/python    # as root: seconds to 90 %
    python benchmarks/mdldroid.py table3 --data uci-har:PATH                  # its four columns, in one process
    python benchmarks/mdldroid.py fig3 --data uci-har:PATH --devices 6 9      # Eq. 1 to 3 as means of deltas

Each prints a table and one line of JSON; --out FILE keeps what is measured, and a later call leaves out what is in it.
The master with slaves (`benchmarks/evaluation/star.py`) has the links, messages and mathematics of the mesh.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.evaluation import accuracy, lan, target
from benchmarks.lan_round import load_helper
from benchmarks.links.places import parse_case
from mdl.errors import MdlError

# MDLdroid's own figures, by part.
PAPER = {
    "lan": "time 1.5x less than master-slave (11b), a device's energy 5.8x less than the master's (11c), on average",
    "memory": "of the master linear in N, out of memory (512 MB) at N = 8 (1b); of MDLdroid flat (11a)",
    "table3": "in the table above",
    "fig3": "NeighborSGD (Eq. 2) 3 points under CentralSGD at N = 6, about 5 at N = 9; ChainSGD (Eq. 3) level with it",
    "target": "training 1.5x faster than master-slave (11b)",
}


class Kept:
    """What earlier calls have measured, by part and key; written after each new figure. path: None: nothing is kept."""

    def __init__(self, path: Path | None, part: str) -> None:
        self._path, self._part = path, part
        self._all: dict[str, dict[str, Any]] = {}
        if path and path.exists():
            self._all = json.loads(path.read_text())
        self.mine = self._all.setdefault(part, {})

    def get(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Measured unless it is known; what failed is tried again by the next call."""
        if key not in self.mine:
            try:
                self.mine[key] = measure()
            except (RuntimeError, TimeoutError) as error:
                lan.complain(f"{key}: {error}")
                return {"failed": str(error)[-300:]}
            lan.complain(f"{key}: {json.dumps(self.mine[key])[:200]}")
            self._save()
        return dict(self.mine[key])

    def _save(self) -> None:
        if self._path:
            self._path.write_text(json.dumps(self._all, indent=1) + "\n")


def run_lan(given: argparse.Namespace, kept: Kept) -> None:
    cases = [parse_case(text) for text in given.cases or ["3x40@5", "6x40@5", "9x40@5"]]
    for case in cases:
        results = {}
        for system in given.systems.split("|"):
            results[system] = kept.get(f"{case.text} {system}", partial(lan.measure, case, system, given.rounds))
        lan.show(case, results)


def run_target(given: argparse.Namespace, kept: Kept) -> None:
    if not given.data:
        raise SystemExit("mdldroid: target needs --data, as in --data uci-har:PATH")
    systems = given.systems.split("|")
    if problem := target.why_not_flower(given.flower):
        lan.complain(f"Flower is left out: {problem}")
    else:
        systems.append("flower")
    case = parse_case((given.cases or ["6x40@1"])[0])
    name = f"{case.text.partition('@')[0]} {given.model} {given.training}"
    results = {}
    for system in systems:
        results[system] = kept.get(f"{name} {system}", partial(target.measure, case, system, given))
    target.show(case, results)


def run_table_3(given: argparse.Namespace, kept: Kept) -> None:
    accuracy.table_3(given, kept.get)


def run_figure_3(given: argparse.Namespace, kept: Kept) -> None:
    accuracy.figure_3(given, kept.get)


PARTS: dict[str, Callable[[argparse.Namespace, Kept], None]] = {
    "lan": run_lan,
    "memory": run_lan,
    "target": run_target,
    "table3": run_table_3,
    "fig3": run_figure_3,
}
# Run as root: hosts are network namespaces.
_ON_HOSTS = ("lan", "target")


def main(words: Iterable[str] | None = None) -> int:
    given = _parse(words)
    if given.part in _ON_HOSTS and (reason := load_helper("lan").why_not()):
        lan.complain(reason)
        return 2
    os.environ["OMP_NUM_THREADS"] = "1"
    kept = Kept(given.out, given.part)
    try:
        PARTS[given.part](given, kept)
    except MdlError as error:
        lan.complain(str(error))
        return error.exit_code
    print(f"paper: {PAPER[given.part]}")
    print(json.dumps({"part": given.part, "results": kept.mine}))
    return 0


def _parse(words: Iterable[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument(
        "cases", nargs="*", metavar="LINKS@MB", help="as in benchmarks/round.py; of lan, memory, target"
    )
    parser.add_argument("--systems", default="master|mesh, chain|mesh, shares", help=" | ".join(lan.SYSTEMS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--data", default="", help="a data spec")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--devices", type=int, nargs="+", default=[6], help="of table3 (one), fig3")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of table3, fig3")
    parser.add_argument("--option", default="", help="of table3, fig3: 10-E20 is ten rounds in each of 20 epochs")
    parser.add_argument("--split", default="subject")
    parser.add_argument("--training", default="{}", help="training settings as JSON")
    parser.add_argument("--target", type=float, default=0.9, help="accuracy")
    parser.add_argument("--flower", default="", help="python of an environment of its own, with flwr")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(None if words is None else list(words))


if __name__ == "__main__":
    sys.exit(main())
