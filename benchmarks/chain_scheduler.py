"""The Chain-scheduler measured: MDLdroid's Fig. 6, 8, 9 and 10 made again, and what it gains on unequal, used devices.

    python -m benchmarks chain_scheduler --part all
    python -m benchmarks chain_scheduler --part cells --cell "dynamic 9" --policies greedy-risk,greedy,dp,dqn

Parts: eq7 (the reward, its exact optimum, and DQNs trained on it), phi (Eq. 8), fig6 (DGE, fast and slow), fig8
(TDGE, DGE and TGE), fig9 (re-learning), fig10 (latency and energy against Tree and Ring), cells (families and N
against the optimum), energy (20 rounds), dying (what is lost), quorum (a round without its slowest), detaching (of
hops that stand still), times (of a decision), speed (of the environments), networks (policy files against the shipped
one, also on ways of drawing that nothing was trained on; not part of all). The file of --out gets each part as it
comes, the paper's figure beside ours ("paper..."), and Fig. 6, 8 and 10 beside it as SVG. Test seeds 0 to 299 are for
judging only; training draws from 1,000,000 up.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.chain.mesh import (
    LITERAL,
    Keep,
    measure_cells,
    measure_dying,
    measure_energy,
    measure_figure_10,
    measure_times,
)
from benchmarks.chain.networks import measure_networks
from benchmarks.chain.options import measure_detaching, measure_quorum
from benchmarks.chain.paper import (
    measure_decay,
    measure_phi,
    measure_relearning,
    measure_reward,
    measure_speed,
    measure_strategies,
)
from benchmarks.chain.plot import draw_scheduler
from benchmarks.tool.options import Namespace, Parser, add_runs
from benchmarks.tool.sheet import Sheet
from mdl.errors import ConfigError, MdlError
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.training.dqn import PHI

_NETWORKS = Path(tempfile.gettempdir()) / "mdl-paper-dqn"
_POLICIES = "tree,ring,fifo,greedy-risk,greedy,dp,dqn,eq7,paper"

PARTS: dict[str, Callable[[Namespace, Keep], dict[str, Any]]] = {
    "eq7": lambda options, keep: measure_reward(options.dqns, options.networks, keep),
    "phi": lambda options, keep: measure_phi(),
    "fig6": lambda options, keep: measure_decay(options.runs, keep),
    "fig8": lambda options, keep: measure_strategies(options.runs, _sizes(options), options.phi, keep),
    "fig9": lambda options, keep: measure_relearning(options.runs, _sizes(options), keep),
    "fig10": lambda options, keep: measure_figure_10(
        options.runs, _names(options, literal=True), options.networks, keep
    ),
    "cells": lambda options, keep: measure_cells(options.count, _names(options), options.cell or [], keep),
    "energy": lambda options, keep: measure_energy(options.meshes, _names(options)),
    "dying": lambda options, keep: measure_dying(options.count, _names(options)),
    "quorum": lambda options, keep: measure_quorum(options.count),
    "detaching": lambda options, keep: measure_detaching(options.count),
    "times": lambda options, keep: measure_times(_names(options)),
    "speed": lambda options, keep: measure_speed(),
    "networks": lambda options, keep: measure_networks(
        options.count, options.network or [], options.cell or [], options.recordings, keep
    ),
}
# Takes files that only who asks for it has.
_ASKED_ONLY = ("networks",)


def add_options(parser: Parser) -> None:
    parser.add_argument("--part", action="append", choices=["all", "plot", *PARTS], help="may be given several times")
    parser.add_argument("--policies", default=_POLICIES, help="names; for fig10 also eq7 and paper")
    parser.add_argument("--count", type=int, default=300, help="scenarios of a cell (of gauges at N >= 32 a third)")
    parser.add_argument("--cell", action="append", help='such as "hetero 9"; all by default')
    parser.add_argument("--network", type=Path, action="append", help="a policy file, for --part networks")
    parser.add_argument("--recordings", type=Path, help="the folder that phone_traces lies in, for --part networks")
    add_runs(parser, 50, "runs of Fig. 6, 8, 9 and 10 for each N")
    parser.add_argument("--sizes", default="3,4,5,6,7,8,9", help="N of Fig. 8 and 9")
    parser.add_argument("--phi", type=float, default=PHI, help="of the threshold (Eq. 8), for Fig. 8")
    parser.add_argument("--dqns", type=int, default=4, help="DQNs for each N of eq7")
    parser.add_argument("--networks", type=Path, default=_NETWORKS, help="where their policy files are, and come to")
    parser.add_argument("--meshes", type=int, default=20, help="meshes that live for 20 rounds")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure the parts that are asked for, into what the file of --out has already. Raises ConfigError."""
    asked = options.part or ["all"]
    if {"all", "fig10"} & set(asked) and not {"tree", "ring"} <= set(options.policies.split(",")):
        raise ConfigError("--part fig10 compares with tree and ring: name them in --policies too")
    sheet.tell(sheet.before())
    every = [part for part in PARTS if part not in _ASKED_ONLY]
    for part in every if "all" in asked else [part for part in asked if part in PARTS]:
        _measure(part, options, sheet)
    if options.out:
        options.out.with_suffix(".svg").write_text(draw_scheduler(sheet.figures))


def _measure(part: str, options: Namespace, sheet: Sheet) -> None:
    """Run one part; what is there is written as it comes, so that an interrupted part keeps it."""
    began_s = time.process_time()
    asked = f"--part {part} {_settings(part, options)}".strip()

    def keep(found: dict[str, Any]) -> None:
        told = {"asked": asked, "cpu_s": round(time.process_time() - began_s, 1)}
        sheet.tell({part: _merge(sheet.figures.get(part, {}), found) | told})
        sheet.save()

    keep(PARTS[part](options, keep))


def _names(options: Namespace, *, literal: bool = False) -> list[str]:
    """Those of the asked policies that are there; with `literal`, the paper's own variant too."""
    found = []
    for name in options.policies.split(","):
        if name in LITERAL:
            found += [name] if literal else []
            continue
        try:
            make_policy(name)
        except (MdlError, ImportError, OSError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def _sizes(options: Namespace) -> list[int]:
    return [int(each) for each in options.sizes.split(",")]


def _settings(part: str, options: Namespace) -> str:
    given = {
        "eq7": f"--dqns {options.dqns}",
        "fig6": f"--runs {options.runs}",
        "fig8": f"--runs {options.runs} --sizes {options.sizes} --phi {options.phi:g}",
        "fig9": f"--runs {options.runs} --sizes {options.sizes}",
        "fig10": f"--runs {options.runs}",
        "cells": f"--count {options.count}",
        "energy": f"--meshes {options.meshes}",
        "dying": f"--count {options.count}",
        "quorum": f"--count {options.count}",
        "detaching": f"--count {options.count}",
        "networks": " ".join(
            [f"--count {options.count}", *(f"--network {path.name}" for path in options.network or [])]
        ),
    }
    return given.get(part, "")


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New figures replace old ones; what was not measured now stays."""
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(old.get(key), dict)
        merged[key] = _merge(old[key], value) if both else value
    return merged
