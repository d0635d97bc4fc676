"""MDLdroid's evaluation remade, part by part, the paper's figure beside what is measured here.

    python benchmarks/mdldroid.py lan 3x40@5 6x40@5 9x40@5 --rounds 6         # as root: Fig. 11b, 11c
    python benchmarks/mdldroid.py memory 2@46.4 4@46.4 9@46.4                 # Fig. 1b, 11a
    python benchmarks/mdldroid.py target --data uci-har:PATH --flower FL/bin/python    # as root: seconds to 90 %
    python benchmarks/mdldroid.py table3 --data uci-har:PATH                  # its four columns, in one process
    python benchmarks/mdldroid.py fig3 --data uci-har:PATH --devices 6 9      # Eq. 1 to 3 as means of deltas
    python benchmarks/mdldroid.py fig1a --data uci-har:PATH                   # time and battery of one device alone
    python benchmarks/mdldroid.py fig1c --devices 2 4 8 16 20                 # models from files, one after the other
    python benchmarks/mdldroid.py fig1d                                       # training and learning the schedule
    python benchmarks/mdldroid.py fig11 --data uci-har:PATH --devices 1 2 3 4 5 6 7 8 9   # 11b, 11c, modelled
    python benchmarks/mdldroid.py fig11d --data uci-har:PATH                  # where the time of a batch goes
    python benchmarks/mdldroid.py fig12 --data uci-har:PATH --devices 1 3 6 9 # accuracy of the five options
    python benchmarks/mdldroid.py fig13 --data uci-har:PATH --devices 1 3 6 9 # 13, 14: their battery and time, modelled

Fig. 6 and 8 to 10 are parts of benchmarks/chain_scheduler.py. Each prints a table and one line of JSON; --out FILE
keeps what is measured, and a later call leaves out what is in it.
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

from benchmarks import relearning
from benchmarks.evaluation import accuracy, lan, options, sequential, single, target
from benchmarks.helpers import load_lan
from benchmarks.links.places import parse_case
from mdl.errors import MdlError

# MDLdroid's own figures, by part.
PAPER = {
    "lan": "time 1.5x less than master-slave (11b), a device's energy 5.8x less than the master's (11c), on average",
    "memory": "of the master linear in N, out of memory (512 MB) at N = 8 (1b); of MDLdroid flat (11a)",
    "table3": "in the table above",
    "fig3": "NeighborSGD (Eq. 2) 3 points under CentralSGD at N = 6, about 5 at N = 9; ChainSGD (Eq. 3) level with it",
    "target": "training 1.5x faster than master-slave (11b)",
    "fig1a": "of sEMG, HAR and OPPO, HAR with AlexNet and OPPO with both models empty 3,500 mAh",
    "fig1c": "160 ms in memory, 47,307 ms from files at N = 8; linear in N",
    "fig1d": "0.6x more memory when training and agent run together than for either alone",
    "fig11": "time 1.5x less than master-slave, whose time has a U over N (11b); energy 5.8x less (11c), on average",
    "fig11d": "reading a batch from its file takes by far the longest",
    "fig12": "falls with N; 1-E40 2.5 points better than 1-E20, on average",
    "fig13": "battery 2x to 8.5x less, time 2x (to 3.5x) less than one device; more rounds an epoch: up to 2x the time",
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


def run_figure_1d(given: argparse.Namespace, kept: Kept) -> None:
    """Of the device that leads: with the network that learns the schedule in a process beside it, and without."""
    without, beside = (
        kept.get(f"re-learning {'on' if on else 'off'}", partial(relearning.measure, 4, 60.0, on))
        for on in (False, True)
    )
    if "failed" in without or "failed" in beside:
        return
    print(f"  training alone {without['peer_rss_mb']:.0f} MB; training {beside['peer_rss_mb']:.0f} MB and learning "
          f"{beside['slot_rss_mb']:.0f} MB, both together {beside['both_pss_mb']:.0f} MB of their own")  # fmt: skip


def _measured(figure: Callable[[argparse.Namespace, accuracy.Get], None]) -> Callable[[argparse.Namespace, Kept], None]:
    return lambda given, kept: figure(given, kept.get)


PARTS: dict[str, Callable[[argparse.Namespace, Kept], None]] = {
    "lan": run_lan,
    "memory": run_lan,
    "target": run_target,
    "table3": _measured(accuracy.table_3),
    "fig3": _measured(accuracy.figure_3),
    "fig1a": _measured(single.figure_1a),
    "fig1c": _measured(sequential.figure_1c),
    "fig1d": run_figure_1d,
    "fig11": _measured(options.figure_11),
    "fig11d": _measured(single.figure_11d),
    "fig12": _measured(options.figure_12),
    "fig13": _measured(options.figure_13),
}
# Run as root: hosts are network namespaces.
_ON_HOSTS = ("lan", "target")


def main(words: Iterable[str] | None = None) -> int:
    given = _parse(words)
    if given.part in _ON_HOSTS and (reason := load_lan().why_not()):
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
    parser.add_argument("--devices", type=int, nargs="+", default=[6], help="of table3 (one) and the figures")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of table3, fig3, fig12")
    parser.add_argument("--mbit", type=float, default=40.0, help="of fig11, fig13: every phone's link, both ways")
    parser.add_argument("--slower", type=float, default=10.0, help="of modelled phones: than one thread here")
    parser.add_argument("--option", default="", help="10-E20 is ten rounds in each of 20 epochs")
    parser.add_argument("--split", default="subject")
    parser.add_argument("--training", default="{}", help="training settings as JSON")
    parser.add_argument("--target", type=float, default=0.9, help="accuracy")
    parser.add_argument("--flower", default="", help="python of an environment of its own, with flwr")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(None if words is None else list(words))


if __name__ == "__main__":
    sys.exit(main())
