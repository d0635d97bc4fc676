"""Colla on places: device training, cloud training, warm start and Colla, in one process, three cycles.

    python benchmarks/colla.py --data "STUDENTLIFE/*.csv.gz" --out benchmarks/results/colla.json

Prints a table of Table 1's figures, writes all of them as JSON after every seed, and their distribution as SVG beside
it. With --tune the test days are left out of sight: the days before them are cut the same way. Places are cells of a
fixed grid; no cell, person or time is printed, only how often predictions were right. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np
import torch
from colla_plot import draw_cdf
from colla_recipe import (
    Client,
    Cloud,
    Person,
    Recipe,
    accuracy,
    run_colla,
    split_people,
    train_alone,
)

from mdl.data.places import PlaceLog, PlaceOptions, read_stays
from mdl.data.visits import FIRST_PLACE_CODE
from mdl.errors import MdlError
from mdl.grouping import Grouping
from mdl.recurrent import CLOUD_SIZE, DEVICE_SIZE, build_recurrent, count_parameters

# Who competes in Table 1; the others stand beside them.
RIVALS = ("DT", "CT", "DT-ws")
COLLA = "Colla"
# (grouped, customised last layer): Fig. 9 and Fig. 10 leave one out at a time.
VARIANTS = {COLLA: (True, True), "Colla, one group": (False, True), "Colla, unified last layer": (True, False)}


def main() -> int:
    options = _parse_options()
    torch.set_num_threads(1)
    try:
        recipe = msgspec.convert(json.loads(options.set), Recipe)
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
    """One draw of the cloud's people: every method's accuracies by device, and what Colla cost."""
    started = time.process_time()
    data, people = split_people(log, recipe, seed, options.tune)
    people = people[: options.devices]
    places = len(log.places)
    cloud = Cloud(places, data, recipe, seed)
    last = recipe.cycles
    methods: dict[str, list[float]] = {
        "Markov": [guess_markov(person, last) for person in people],
        "tree": [guess_tree(person, last, seed) for person in people],
        "CT": [accuracy(cloud.base, person.test) for person in people],
        "CT small": [accuracy(cloud.base_small, person.test) for person in people],
    }
    for name, start in (("DT", None), ("DT-ws", cloud.base_small)):
        methods[name] = [
            accuracy(train_alone(person, places, start, recipe, last, seed + number), person.test)
            for number, person in enumerate(people)
        ]
    colla: dict[str, Any] = {}
    for name, (grouped, customized) in VARIANTS.items():
        if name != COLLA and not options.variants:
            continue
        accuracies, clients, groupings = run_colla(cloud, people, recipe, seed, grouped=grouped, customized=customized)
        methods[name] = accuracies[-1]
        colla[name] = _describe_costs(accuracies, clients, groupings)
    figures = {
        "seed": seed,
        "devices": len(people),
        "cloud_sequences": len(data[1]),
        "device_sequences": sorted(len(person.seen(last)[1]) for person in people),
        "unseen_share": mean(_unseen_share(person, last) for person in people),
        "methods": {name: [round(value, 4) for value in values] for name, values in methods.items()},
        "table": {name: _describe(values) for name, values in methods.items()},
        "colla": colla,
        "wins": _count_wins(methods, [*RIVALS, COLLA]),
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
    every = build_recurrent(CLOUD_SIZE, len(log.places), range(len(log.places)), 0)
    small = build_recurrent(DEVICE_SIZE, len(log.places), range(len(log.places)), 0)
    return {
        "data": "studentlife_gps, cells of a fixed grid" if options.utc_offset else "places",
        "tuning": options.tune,
        "places": len(log.places),
        "parameters": {CLOUD_SIZE: count_parameters(every), DEVICE_SIZE: count_parameters(small)},
        "table": table,
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


def guess_markov(person: Person, cycle: int) -> float:
    """First order: the place that most often followed the last one; the most frequent place after an unknown one."""
    x, y = person.seen(cycle)
    follows: dict[int, Counter[int]] = {}
    for here, there in zip(_last_places(x), y.tolist(), strict=True):
        follows.setdefault(here, Counter())[there] += 1
    anywhere = Counter(y.tolist())
    x_test, y_test = person.test
    guesses = [follows.get(here, anywhere).most_common(1)[0][0] for here in _last_places(x_test)]
    return float(np.mean(np.array(guesses) == y_test.numpy()))


def guess_tree(person: Person, cycle: int, seed: int) -> float:
    """A decision tree on the six features of the last stay; leaves of at least five."""
    from sklearn.tree import DecisionTreeClassifier

    x, y = person.seen(cycle)
    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=seed).fit(x[:, :, -1].numpy(), y.numpy())
    return float(tree.score(person.test[0][:, :, -1].numpy(), person.test[1].numpy()))


def _last_places(x: torch.Tensor) -> list[int]:
    return [int(code) - FIRST_PLACE_CODE for code in x[:, 0, -1]]


def _unseen_share(person: Person, cycle: int) -> float:
    """Test stays at places that the person never went to before: wrong for every model that knows only its own."""
    return float(1 - np.isin(person.test[1].numpy(), person.seen(cycle)[1].numpy()).mean())


def _describe(values: list[float]) -> dict[str, float]:
    return {"mean": round(mean(values), 4), "median": round(median(values), 4)}


def _describe_costs(accuracies: list[list[float]], clients: list[Client], groupings: list[Grouping]) -> dict[str, Any]:
    cycles = range(len(accuracies))
    return {
        "cycles": [_describe(values) for values in accuracies],
        "upload_bytes": [_spread([client.upload_bytes[cycle] for client in clients]) for cycle in cycles],
        "update_cpu_s": [_spread([round(client.update_cpu_s[cycle], 3) for client in clients]) for cycle in cycles],
        "groups": [sorted(Counter(grouping.groups).values()) for grouping in groupings],
        "silhouettes": [{str(k): score for k, score in grouping.silhouettes.items()} for grouping in groupings],
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
    pooled = {name: [value for seed in result["seeds"] for value in seed["methods"][name]] for name in shown}
    out.with_suffix(".svg").write_text(draw_cdf(f"Next place, {len(result['seeds'])} seeds, last cycle", pooled))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="file, folder or glob of CSV with fixes, or times and places")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--devices", type=int, default=100, help="at most so many, to try something out")
    parser.add_argument("--utc-offset", type=float, default=-4.0)
    parser.add_argument("--variants", action=argparse.BooleanOptionalAction, default=True, help="Fig. 9 and Fig. 10")
    parser.add_argument("--tune", action="store_true", help="leave the test days out of sight")
    parser.add_argument("--set", default="{}", help='parts of the recipe as JSON, for example {"cycles": 2}')
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
