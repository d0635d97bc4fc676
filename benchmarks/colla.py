"""Colla on places: device training, cloud training, warm start and Colla, in one process, three cycles.

    python benchmarks/colla.py --data "STUDENTLIFE/*.csv.gz" --out benchmarks/results/colla.json

Prints a table of Table 1's figures, writes all of them as JSON after every seed, and their distribution as SVG beside
it. With --tune the test days are left out of sight: the days before them are cut the same way. Places are cells of a
fixed grid; no cell, person or time is printed, only how often predictions were right. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.colla_baselines import guess_markov, guess_tree, unseen_share
from benchmarks.colla_plot import draw_cdf
from benchmarks.colla_recipe import Client, Person, Recipe, UnifiedKind, run_colla, split_people, train_alone
from mdl.cloud.classroom import Classroom, Cycle, accuracy_of
from mdl.cloud.model_kinds import RecurrentKind
from mdl.cloud.recurrent import CLOUD_SIZE, DEVICE_SIZE, count_parameters
from mdl.data.readers.places import PlaceLog, PlaceOptions, read_stays
from mdl.errors import MdlError

# Who competes in Table 1; the others stand beside them.
RIVALS = ("DT", "CT", "DT-ws")
COLLA = "Colla"
# Devices are told apart by their sequences: below 100, below 300, and above.
SIZES = (0, 100, 300, 1_000_000)
# What the warm start would be worth if the cloud had all days of all devices.
POOLED = "DT-ws, all days pooled"
# (grouped, customised last layer): Fig. 9 and Fig. 10 leave one out at a time.
VARIANTS = {COLLA: (True, True), "Colla, one group": (False, True), "Colla, unified last layer": (True, False)}


def main() -> int:
    options = _parse_options()
    torch.set_num_threads(1)
    try:
        recipe = msgspec.convert(_merge(msgspec.to_builtins(Recipe()), json.loads(options.set)), Recipe)
        log = read_stays(options.data, PlaceOptions(utc_offset=options.utc_offset))
        result: dict[str, Any] = {"seeds": []}
        for seed in options.seeds:
            result["seeds"].append(measure_seed(log, recipe, seed, options))
            result = summarise(result["seeds"], recipe, log, options)
            _write(result, options.out)
    except (MdlError, msgspec.ValidationError) as error:
        print(f"colla: {error}", file=sys.stderr)
        return 2
    print(show_table(result))
    return 0


def measure_seed(log: PlaceLog, recipe: Recipe, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One draw of the cloud's people: every method's accuracies by device and cycle, and what Colla cost."""
    started = time.process_time()
    data, people = split_people(log, recipe, seed, options.tune)
    people = people[: options.devices]
    kind = RecurrentKind(log.places)
    base = Classroom(kind, *data, recipe.teaching, seed).bootstrap()
    cycles = range(1, recipe.cycles + 1)
    methods: dict[str, list[list[float]]] = {
        "Markov": [[guess_markov(_seen(person, cycle, recipe), person) for person in people] for cycle in cycles],
        "tree": [[guess_tree(_seen(person, cycle, recipe), person, seed) for person in people] for cycle in cycles],
        "CT": [[accuracy_of(kind, base.large, *person.test) for person in people]] * recipe.cycles,
        "CT small": [[accuracy_of(kind, base.small, *person.test) for person in people]] * recipe.cycles,
    }
    for name, start in (("DT", None), ("DT-ws", base.small)):
        methods[name] = [_train_everybody(kind, people, start, recipe, cycle, seed) for cycle in cycles]
    if options.variants:
        pooled = _pool(data, people, recipe)
        settings = msgspec.structs.replace(recipe.teaching, rows=len(pooled[1]))
        informed = Classroom(kind, *pooled, settings, seed).bootstrap().small
        methods[POOLED] = [_train_everybody(kind, people, informed, recipe, cycle, seed) for cycle in cycles]
    colla: dict[str, Any] = {}
    for name, (grouped, customized) in VARIANTS.items():
        if name != COLLA and not options.variants:
            continue
        own_kind = kind if customized else UnifiedKind(log.places)
        settings = msgspec.structs.replace(recipe.teaching, groups=grouped and recipe.teaching.groups)
        classroom = Classroom(own_kind, *data, settings, seed)
        methods[name], clients, taught = run_colla(classroom, own_kind, base, people, recipe, seed)
        colla[name] = _describe_costs(methods[name], clients, taught)
    sizes = [[len(_seen(person, cycle, recipe)[1]) for person in people] for cycle in cycles]
    figures = {
        "seed": seed,
        "devices": len(people),
        "cloud_sequences": min(len(data[1]), recipe.teaching.rows),
        "device_sequences": sizes,
        "unseen_share": mean(unseen_share(_seen(person, recipe.cycles, recipe), person) for person in people),
        "methods": {
            name: [[round(value, 4) for value in values] for values in after] for name, after in methods.items()
        },
        "table": {name: _describe(after[-1]) for name, after in methods.items()},
        "colla": colla,
        "over_warm_start": [
            _pair(taught, alone) for taught, alone in zip(methods[COLLA], methods["DT-ws"], strict=True)
        ],
        "wins": _count_wins({name: after[-1] for name, after in methods.items()}, [*RIVALS, COLLA]),
        "cpu_s": round(time.process_time() - started, 1),
    }
    print(json.dumps({"seed": seed, "table": figures["table"], "cpu_s": figures["cpu_s"]}), file=sys.stderr, flush=True)
    return figures


def summarise(
    seeds: list[dict[str, Any]], recipe: Recipe, log: PlaceLog, options: argparse.Namespace
) -> dict[str, Any]:
    """The medians over the seeds, and the figures of each."""
    table = {
        name: {key: median(seed["table"][name][key] for seed in seeds) for key in ("mean", "median")}
        for name in seeds[0]["table"]
    }
    for name in [*RIVALS, COLLA]:
        table[name]["best_share"] = median(seed["wins"][name] for seed in seeds)
    relative = [
        seed["table"][COLLA]["median"] / max(seed["table"][name]["median"] for name in RIVALS) - 1 for seed in seeds
    ]
    kind = RecurrentKind(log.places)
    return {
        "data": "studentlife_gps, cells of a fixed grid" if options.utc_offset else "places",
        "tuning": options.tune,
        "places": len(log.places),
        "parameters": {
            CLOUD_SIZE: count_parameters(kind.build_large(0)),
            DEVICE_SIZE: count_parameters(kind.build_small(0)),
        },
        "table": table,
        "by_sequences": _split_by_size(seeds),
        "colla_median_over_best_rival": [round(value, 4) for value in relative],
        "paper": {"median_over_rivals": 0.21, "best_share": 0.68, "data": "private campus WiFi set, not this one"},
        "recipe": msgspec.to_builtins(recipe),
        "seeds": seeds,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread used, torch {torch.__version__}",
    }


def show_table(result: dict[str, Any]) -> str:
    lines = [f"{'':28}{'best on':>9}{'mean':>9}{'median':>9}"]
    for name, row in result["table"].items():
        best = f"{row['best_share']:.0%}" if "best_share" in row else ""
        lines.append(f"{name:28}{best:>9}{row['mean']:9.3f}{row['median']:9.3f}")
    return "\n".join([*lines, f"Colla's median over the best of {', '.join(RIVALS)}: {_percent(result)}"])


def _train_everybody(
    kind: RecurrentKind, people: list[Person], start: nn.Module | None, recipe: Recipe, cycle: int, seed: int
) -> list[float]:
    return [
        accuracy_of(kind, train_alone(kind, person, start, recipe, cycle, seed + number), *person.test)
        for number, person in enumerate(people)
    ]


def _pool(
    data: tuple[torch.Tensor, torch.Tensor], people: list[Person], recipe: Recipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a cloud would have if all devices gave it their days (not the test): no exchange of models can tell more."""
    parts = [data, *(person.seen(recipe.cycles) for person in people)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def _pair(values: list[float], others: list[float]) -> dict[str, float]:
    """The mean difference over the devices, and its standard error."""
    differences = np.array(values) - np.array(others)
    error = differences.std(ddof=1) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    return {"mean": round(float(differences.mean()), 4), "standard_error": round(float(error), 4)}


def _split_by_size(seeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """After each cycle, the devices by how many sequences they had: mean accuracy of each method, all seeds pooled."""
    rows = []
    for cycle in range(len(seeds[0]["device_sequences"])):
        for low, high in pairwise(SIZES):
            values: dict[str, list[float]] = {}
            for seed in seeds:
                for name, after in seed["methods"].items():
                    held = zip(after[cycle], seed["device_sequences"][cycle], strict=True)
                    values.setdefault(name, []).extend(value for value, size in held if low <= size < high)
            if devices := len(values[COLLA]):
                means = {name: round(mean(found), 4) for name, found in values.items()}
                rows.append({"cycle": cycle + 1, "sequences_from": low, "devices": devices, "mean": means})
    return rows


def _seen(person: Person, cycle: int, recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    return person.seen(cycle, recipe.device_rows)


def _describe(values: list[float]) -> dict[str, float]:
    return {"mean": round(mean(values), 4), "median": round(median(values), 4)}


def _describe_costs(accuracies: list[list[float]], clients: list[Client], taught: list[Cycle]) -> dict[str, Any]:
    cycles = range(len(accuracies))
    return {
        "cycles": [_describe(values) for values in accuracies],
        "upload_bytes": [_spread([client.upload_bytes[cycle] for client in clients]) for cycle in cycles],
        "download_bytes": [_spread([client.download_bytes[cycle] for client in clients]) for cycle in cycles],
        "update_cpu_s": [_spread([round(client.update_cpu_s[cycle], 3) for client in clients]) for cycle in cycles],
        "groups": [sorted(Counter(cycle.groups.values()).values()) for cycle in taught],
        "silhouettes": [{str(k): score for k, score in cycle.silhouettes.items()} for cycle in taught],
        "left_out": [len(cycle.left_out) for cycle in taught],
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "max": max(values)}


def _count_wins(methods: dict[str, list[float]], names: list[str]) -> dict[str, float]:
    """The share of devices on which each method is the best; several methods that tie all count."""
    columns = list(zip(*(methods[name] for name in names), strict=True))
    return {name: round(mean(column[at] == max(column) for column in columns), 4) for at, name in enumerate(names)}


def _percent(result: dict[str, Any]) -> str:
    return ", ".join(f"{value:+.1%}" for value in result["colla_median_over_best_rival"])


def _write(result: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    shown = ("Markov", *RIVALS, COLLA)
    pooled = {name: [value for seed in result["seeds"] for value in seed["methods"][name][-1]] for name in shown}
    out.with_suffix(".svg").write_text(draw_cdf(f"Next place, {len(result['seeds'])} seeds, last cycle", pooled))


def _merge(whole: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The whole with these parts changed, table by table."""
    changed = {key: _merge(whole[key], part) if isinstance(part, dict) else part for key, part in parts.items()}
    return whole | changed


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="file, folder or glob of CSV with fixes, or times and places")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--devices", type=int, default=100, help="at most so many, to try something out")
    parser.add_argument("--utc-offset", type=float, default=-4.0)
    parser.add_argument(
        "--variants", action=argparse.BooleanOptionalAction, default=True, help="Fig. 9 and 10, and pooled days"
    )
    parser.add_argument("--tune", action="store_true", help="leave the test days out of sight")
    parser.add_argument(
        "--set", default="{}", help='parts of the recipe as JSON, for example {"teaching": {"keep": 0.7}}'
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
