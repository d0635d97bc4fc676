"""Policy files against the shipped one and against greedy, on the same fresh scenarios, with paired intervals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from benchmarks.chain.held_out import draw_held_out, read_recordings
from benchmarks.chain.mesh import Keep
from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError
from mdl.scheduler.policies.greedy import Greedy
from mdl.scheduler.policies.learned import SHIPPED
from mdl.scheduler.policies.qnet_numpy import NumpyQ, load_weights
from mdl.scheduler.study.judging import judge_network, judge_policy, less_time
from mdl.sim.timing.scenario import draw_scenario

_SIZES = (*range(3, 10), 16, 32, 64)
_CELLS = tuple((family, n) for family in ("paper", "hetero", "dynamic", "dying", "varied") for n in _SIZES)
_HELD_OUT = tuple((way, n) for way in ("heavy", "together", "recorded") for n in (9, 16))
_SHIPPED = "shipped"
# Seeds that nothing else uses: 0 to 299 judge, 500,000 up tune, 1,000,000 up train.
_FIRST_SEED = 900_000


def measure_networks(
    count: int, paths: Sequence[Path], cells: Sequence[str], recordings: Path | None, keep: Keep
) -> dict[str, Any]:
    """By cell: percent less time than greedy of each network and of files than the shipped one,
    each with half of its paired 95 % interval. cells: such as "dynamic 16"; none means all."""
    with as_file(files("mdl.scheduler") / "data" / SHIPPED) as shipped:
        networks = {_SHIPPED: NumpyQ(load_weights(shipped)[0])}
    networks |= {path.stem: NumpyQ(load_weights(path)[0]) for path in paths}
    found: dict[str, Any] = {}
    for cell, draw in _draws(cells, recordings):
        scenarios = [draw(_FIRST_SEED + number) for number in range(count)]
        greedy = judge_policy("greedy", Greedy, scenarios)
        judged = {name: judge_network(name, network, scenarios) for name, network in networks.items()}
        row: dict[str, Any] = {"greedy_s": round(greedy.mean_s, 3), "scenarios": count}
        for name, each in judged.items():
            row[name] = {"less_than_greedy_percent": less_time(each, greedy), "lost": each.lost}
            if name != _SHIPPED:
                row[name]["less_than_shipped_percent"] = less_time(each, judged[_SHIPPED])
        found[cell] = row
        keep({"by_cell": found})
        print(f"networks: {cell} done", file=sys.stderr, flush=True)
    return {"by_cell": found, "first_seed": _FIRST_SEED}


def _draws(cells: Sequence[str], recordings: Path | None) -> list[tuple[str, Callable[[int], Scenario]]]:
    """How to draw each cell that is asked for; `recorded` is left out where no recordings are given."""
    wanted = [(cell, held) for held, all_cells in ((False, _CELLS), (True, _HELD_OUT)) for cell in all_cells]
    names = {f"{family} {n}" for (family, n), _ in wanted}
    if unknown := [cell for cell in cells if cell not in names]:
        raise ConfigError(f"--cell {unknown[0]!r}: expected a family and N, such as 'dynamic 16' or 'heavy 9'")
    phones = read_recordings(recordings) if recordings else []
    found: list[tuple[str, Callable[[int], Scenario]]] = []
    for (family, n), held in wanted:
        name = f"{family} {n}"
        if (cells and name not in cells) or (family == "recorded" and not phones):
            continue
        if held:
            found.append((name, lambda seed, way=family, n=n: draw_held_out(way, n, seed, phones)))  # type: ignore[misc]
        else:
            found.append((name, lambda seed, family=family, n=n: draw_scenario(family, n, seed)))  # type: ignore[misc]
    return found
