"""MDLdroid's evaluation remade, part by part, the paper's figure beside what is measured here.

    python -m benchmarks mdldroid lan 3x40@5 6x40@5 9x40@5 --rounds 6         # as root: Fig. 11b, 11c
    python -m benchmarks mdldroid memory 2@46.4 4@46.4 9@46.4                 # Fig. 1b, 11a
    python -m benchmarks mdldroid target --data uci-har:PATH --flower FL/bin/python    # as root: seconds to 90 %
    python -m benchmarks mdldroid table3 --data uci-har:PATH                  # its four columns, in one process
    python -m benchmarks mdldroid fig3 --data uci-har:PATH --devices 6 9      # Eq. 1 to 3 as means of deltas
    python -m benchmarks mdldroid fig1a --data uci-har:PATH                   # time and battery of one device alone
    python -m benchmarks mdldroid fig1c --devices 2 4 8 16 20                 # models from files, one after the other
    python -m benchmarks mdldroid fig1d                                       # training and learning the schedule
    python -m benchmarks mdldroid fig11 --data uci-har:PATH --devices 1 2 3 4 5 6 7 8 9   # 11b, 11c, modelled
    python -m benchmarks mdldroid fig11d --data uci-har:PATH                  # where the time of a batch goes
    python -m benchmarks mdldroid fig12 --data uci-har:PATH --devices 1 3 6 9 # accuracy of the five options
    python -m benchmarks mdldroid fig13 --data uci-har:PATH --devices 1 3 6 9 # 13, 14: their battery and time, modelled

Fig. 6 and 8 to 10 are parts of `python -m benchmarks chain_scheduler`. The file of --out keeps what is measured, and a
later call leaves out what is in it.
The master with slaves (`benchmarks/evaluation/star.py`) has the links, messages and mathematics of the mesh.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import relearning
from benchmarks.evaluation import accuracy, lan, options, sequential, single, target
from benchmarks.links.places import parse_case, why_not_package
from benchmarks.tool.hosts import need_hosts
from benchmarks.tool.options import Namespace, Parser, add_data, add_model, add_rounds, add_seeds, case
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.errors import ConfigError

_RSS_OF = ("peer_rss_mb", "slot_rss_mb", "both_pss_mb")
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
    """Figures of a part from earlier calls, by key; written after each new figure."""

    def __init__(self, sheet: Sheet, part: str) -> None:
        self._sheet = sheet
        sheet.tell(sheet.before())
        sheet.tell({part: sheet.figures.get(part, {})})
        self.mine: dict[str, Any] = sheet.figures[part]

    def get(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Measured unless it is known; what failed is tried again by the next call."""
        if key not in self.mine:
            try:
                self.mine[key] = measure()
            except (RuntimeError, TimeoutError) as error:
                lan.complain(f"{key}: {error}")
                return {"failed": str(error)[-300:]}
            lan.complain(f"{key}: {json.dumps(self.mine[key])[:200]}")
            self._sheet.save()
        return dict(self.mine[key])


def run_lan(given: Namespace, kept: Kept) -> None:
    for place in given.cases or [parse_case(text) for text in ("3x40@5", "6x40@5", "9x40@5")]:
        results = {}
        for system in given.systems.split("|"):
            results[system] = kept.get(f"{place.text} {system}", partial(lan.measure, place, system, given.rounds))
        lan.show(place, results)


def run_target(given: Namespace, kept: Kept) -> None:
    if not given.data:
        raise ConfigError("target needs --data, as in --data uci-har:PATH")
    systems = given.systems.split("|")
    if not given.flower or (problem := why_not_package(given.flower, "flwr")):
        reason = problem if given.flower else "give --flower PYTHON, of an environment of its own with flwr"
        lan.complain(f"Flower is left out: {reason}")
    else:
        systems.append("flower")
    place = given.cases[0] if given.cases else parse_case("6x40@1")
    name = f"{place.text.partition('@')[0]} {given.model} {given.training}"
    results = {}
    for system in systems:
        results[system] = kept.get(f"{name} {system}", partial(target.measure, place, system, given))
    target.show(place, results)


def run_figure_1d(given: Namespace, kept: Kept) -> None:
    """Of the device that leads: with the network that learns the schedule in a process beside it, and without."""
    without, beside = (
        kept.get(f"re-learning {'on' if on else 'off'}", partial(relearning.measure, 4, 60.0, on))
        for on in (False, True)
    )
    if "failed" in without or "failed" in beside:
        return
    alone, learns = f"{without['peer_rss_mb']:.0f}", [f"{beside[key]:.0f}" for key in _RSS_OF]
    show(("MB", "training alone", "training", "and learning", "both, of their own"), [("", alone, *learns)])


def _measured(figure: Callable[[Namespace, accuracy.Get], None]) -> Callable[[Namespace, Kept], None]:
    return lambda given, kept: figure(given, kept.get)


PARTS: dict[str, Callable[[Namespace, Kept], None]] = {
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


def add_options(parser: Parser) -> None:
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("cases", nargs="*", type=case, metavar="LINKS@MB", help="as of `round`; of lan, memory, target")
    parser.add_argument("--systems", default="master|mesh, chain|mesh, shares", help=" | ".join(lan.SYSTEMS))
    add_rounds(parser, 6)
    add_data(parser, "")
    add_model(parser)
    parser.add_argument("--devices", type=int, nargs="+", default=[6], help="of table3 (one) and the figures")
    add_seeds(parser, (0,))
    parser.add_argument("--mbit", type=float, default=40.0, help="of fig11, fig13: every phone's link, both ways")
    parser.add_argument("--slower", type=float, default=10.0, help="of modelled phones: than one thread here")
    parser.add_argument("--option", default="", help="10-E20 is ten rounds in each of 20 epochs")
    parser.add_argument("--split", default="subject")
    parser.add_argument("--training", default="{}", help="training settings as JSON")
    parser.add_argument("--target", type=float, default=0.9, help="accuracy")
    parser.add_argument("--flower", default="", help="python of an environment of its own, with flwr")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure what the file of --out lacks of a part. Raises ConfigError, DataError."""
    if given.part in _ON_HOSTS:
        need_hosts()
    os.environ["OMP_NUM_THREADS"] = "1"
    PARTS[given.part](given, Kept(sheet, given.part))
    print(f"paper: {PAPER[given.part]}")
