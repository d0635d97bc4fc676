"""Colla by the paper's protocol (SEC 2019, section 5), in one process: Table 1, Fig. 5 to 7, 9, 11 to 14.

    python -m benchmarks colla --data "STUDENTLIFE/*.csv.gz" --out colla.json

The first quarter of everybody's record is the cloud's; the rest is cut in four, a device trains on one part and is
tested on the next, three times. All figures are written as JSON after every seed, with the paper's beside them, and the
distribution of accuracies as SVG. Seeds that the file at --out already has are not run again, nor are the variants and
costs that it has.
--initial 5 18 49 is Fig. 6 and 7: --drawn devices, and a cloud that begins with the first part of so many people's
records, the most active ones'. --clusters 100 is places by clusters of the cloud's fixes. --tune leaves the last test
out of sight. --donors N is the other protocol: N people give the cloud all of their days, and the others none. No cell,
person or time is printed, only how often predictions were right. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.next_place.costs import measure_costs
from benchmarks.next_place.initial import describe_initial, draw_devices, measure_initial
from benchmarks.next_place.methods import Outcome, Recipe, count_all, hide_time, preset_recipe, run_alone, run_central
from benchmarks.next_place.methods import run_colla as run_taught
from benchmarks.next_place.plot import draw_cdf
from benchmarks.next_place.record import Device, Examples, cut_record, first_parts, join, read_clustered, split_donors
from benchmarks.next_place.table import COLLA, EXTENDED, PAPER, describe_variants, show_tables, summarise
from benchmarks.tool.options import Namespace, Parser, add_data, add_seeds
from benchmarks.tool.sheet import Sheet
from mdl.data.readers.places import PlaceLog, PlaceOptions, read_stays
from mdl.errors import ConfigError
from mdl.peers.colla.model.classroom import Classroom, suggest
from mdl.peers.colla.model.model_kinds import RecurrentKind

_WITHOUT_TIME = "DT, RNN without time"
# Of the cloud's teaching: no groups (Fig. 9a); so many groups as Fig. 9b has; the best 70 % teach (Fig. 14).
_VARIANTS: dict[str, dict[str, Any]] = {
    "one group": {"groups": False},
    "best 70 % teach": {"keep": 0.7},
    **{f"{count} groups": {"group_counts": (count,)} for count in (2, 3, 5)},
}


def add_options(parser: Parser) -> None:
    add_data(parser, what="file, folder or glob of CSV with fixes, or times and places")
    add_seeds(parser)
    parser.add_argument("--devices", type=int, default=100, help="at most so many, the most active ones")
    parser.add_argument("--initial", type=int, nargs="+", default=[], help="people whose first part the cloud has")
    parser.add_argument("--drawn", type=int, default=8, help="devices of --initial, drawn for each seed")
    parser.add_argument("--donors", type=int, default=0, help="people who are the cloud's: the others give it nothing")
    parser.add_argument("--cell", type=float, default=150.0, help="metres of a place, for fixes")
    parser.add_argument("--clusters", type=int, default=0, help="places are clusters of so many of the cloud's fixes")
    parser.add_argument("--people", type=int, default=3, help="who have been to a cluster, at least")
    parser.add_argument("--rest", choices=("grid", "nowhere"), default="grid", help="where fixes of no cluster are")
    parser.add_argument("--utc-offset", type=float, default=-4.0)
    parser.add_argument("--preset", default="measured", help="measured, or paper for the settings of 4.2")
    parser.add_argument("--variants", action=argparse.BooleanOptionalAction, default=True, help="Fig. 5, 9 and 14")
    parser.add_argument("--costs", action=argparse.BooleanOptionalAction, default=True, help="Fig. 11 to 13")
    parser.add_argument("--tune", action="store_true", help="leave the days of the last test out of sight")
    parser.add_argument("--set", default="{}", help='parts of the recipe as JSON, for example {"prior": 0.3}')


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure what the file of --out lacks. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    log = _read_log(options)
    recipe = _read_recipe(options, log)
    devices = cut_record(log, recipe.steps, options.tune, options.devices)
    sheet.tell(_resume(options, recipe, sheet.before()))
    result = sheet.figures
    for seed in options.seeds:
        if seed not in [found["seed"] for found in result["seeds"]]:
            result["seeds"].append(measure_seed(log, devices, recipe, seed, options))
            sheet.tell(summarise(result["seeds"]))
            _save(sheet, options)
        if options.variants:
            found = result.setdefault("variants", {}).setdefault(str(seed), {})
            keep = functools.partial(_save, sheet, options)
            measure_variants(log, devices, recipe, seed, options, found, keep)
            result["variants_table"] = describe_variants(result["seeds"], result["variants"])
            _save(sheet, options)
    if options.initial:
        measure_sizes(log, devices, recipe, options, sheet)
    if options.costs and "costs" not in result:
        result["costs"] = measure_costs(log.places, devices, recipe)
        _save(sheet, options)
    show_tables(result)


def _read_log(options: Namespace) -> PlaceLog:
    places = PlaceOptions(utc_offset=options.utc_offset, cell=options.cell, active=1, rest=options.rest)
    log = read_stays(options.data, places)
    if not options.clusters:
        return log
    return read_clustered(options.data, log, places, options.clusters, options.people, options.tune)


def measure_seed(
    log: PlaceLog, everybody: list[Device], recipe: Recipe, seed: int, options: Namespace
) -> dict[str, Any]:
    """Every method's scores by cycle and device. What is random is the models' start, batches, and who donates."""
    started = time.process_time()
    others, devices = split_donors(everybody, options.donors, seed)
    kind = RecurrentKind(log.places, recipe.small, recipe.large)
    donated = _donated(others, devices)
    room = Classroom(kind, *donated, recipe.teaching, seed)
    base = room.bootstrap()
    methods = count_all(devices, seed)
    runs: dict[str, Callable[[], dict[str, Outcome]]] = {
        "Colla": lambda: run_taught(kind, room, base, devices, recipe, seed, {COLLA: 0.0, EXTENDED: recipe.prior}),
        "DT-ws": lambda: run_alone(
            kind, base.small, devices, recipe, seed, {"DT-ws": 0.0, "DT-ws + counts": recipe.prior}
        ),
        "DT": lambda: run_alone(kind, None, devices, recipe, seed, {"DT": 0.0}),
        "CT": lambda: {"CT": run_central(kind, devices, others, recipe, seed)},
    }
    for name, run in runs.items():
        methods |= run()
        print(f"seed {seed}: {name}, {time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True)
    return {
        "seed": seed,
        "devices": len(devices),
        "cloud_sequences": len(donated[1]),
        "device_sequences": [[len(part[1]) for part in device.parts] for device in devices],
        "scores": {name: _scores(outcome) for name, outcome in methods.items()},
        "colla": _describe(methods[COLLA]),
        "cpu_s": round(time.process_time() - started, 1),
    }


def measure_variants(
    log: PlaceLog,
    everybody: list[Device],
    recipe: Recipe,
    seed: int,
    options: Namespace,
    found: dict[str, Any],
    keep: Callable[[], None],
) -> None:
    """Scores of Colla with one thing changed, and of an RNN without time: Fig. 5, 9 and 14. Same start, same draws.

    found: what there is already, by name; keep is called whenever there is more.
    """
    if not (missing := [name for name in (_WITHOUT_TIME, *_VARIANTS) if name not in found]):
        return
    started = time.process_time()
    others, devices = split_donors(everybody, options.donors, seed)
    kind = RecurrentKind(log.places, recipe.small, recipe.large)
    donated = _donated(others, devices)
    base = Classroom(kind, *donated, recipe.teaching, seed).bootstrap()
    for name in missing:
        if name == _WITHOUT_TIME:
            outcomes = run_alone(kind, None, [hide_time(it) for it in devices], recipe, seed, {name: 0.0})
        else:
            room = Classroom(kind, *donated, msgspec.structs.replace(recipe.teaching, **_VARIANTS[name]), seed)
            outcomes = run_taught(kind, room, base, devices, recipe, seed, {name: 0.0})
        found[name] = _scores(outcomes[name])
        keep()
        print(f"seed {seed}: {name}, {time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True)


def measure_sizes(log: PlaceLog, everybody: list[Device], recipe: Recipe, options: Namespace, sheet: Sheet) -> None:
    """Fig. 6 and 7: the sizes that the sheet lacks, written one by one."""
    result = sheet.figures
    given = first_parts(log, recipe.steps, options.tune)
    found = result.setdefault("initial", {}).setdefault(f"{options.drawn} devices", {})
    for seed, size in ((seed, size) for seed in options.seeds for size in options.initial):
        if str(size) in found.setdefault(str(seed), {}):
            continue
        started = time.process_time()
        drawn = draw_devices(everybody, options.drawn, seed)
        found[str(seed)][str(size)] = measure_initial(log.places, drawn, given[:size], recipe, seed)
        result["initial_table"] = describe_initial(found)
        _save(sheet, options)
        print(f"seed {seed}: {size} people, {time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True)


def _donated(others: list[Examples], devices: list[Device]) -> Examples:
    return join([*others, *(device.donated for device in devices)])


def _describe(outcome: Outcome) -> dict[str, Any]:
    return {
        "upload_bytes": outcome.upload_bytes,
        "epochs": outcome.epochs,
        "update_cpu_s": outcome.cpu_s,
        "groups": [len(set(cycle.groups.values())) for cycle in outcome.cycles],
        "silhouettes": [{str(k): round(found, 4) for k, found in it.silhouettes.items()} for it in outcome.cycles],
    }


def _scores(outcome: Outcome) -> list[dict[str, list[float]]]:
    return [
        {"accuracy": [score.accuracy for score in after], "precision": [score.precision for score in after]}
        for after in outcome.scores
    ]


def _read_recipe(options: Namespace, log: PlaceLog) -> Recipe:
    recipe = Recipe()
    if options.preset != "measured":
        recipe = preset_recipe(suggest(RecurrentKind(log.places), options.preset))
    try:
        return msgspec.convert(_merge(msgspec.to_builtins(recipe), json.loads(options.set)), Recipe)
    except (msgspec.ValidationError, json.JSONDecodeError) as error:
        raise ConfigError(f"--set: {error}") from None


def _resume(options: Namespace, recipe: Recipe, before: dict[str, Any]) -> dict[str, Any]:
    fresh = {
        "data": _describe_places(options),
        "tuning": options.tune,
        "donors": options.donors,
        "preset": options.preset,
        "recipe": json.loads(msgspec.json.encode(recipe)),  # as a file has it: lists, not tuples
        "paper": PAPER,
        "seeds": [],
    }
    same = all(before.get(key) == fresh[key] for key in ("data", "tuning", "donors", "recipe"))
    return before if same else fresh


def _describe_places(options: Namespace) -> str:
    cells = f"studentlife_gps, cells of {options.cell:g} m"
    if not options.clusters:
        return cells
    rest = "" if options.rest == "nowhere" else f" and {cells.partition(', ')[2]}"
    return f"studentlife_gps, clusters of {options.clusters} fixes, {options.people} people{rest}"


def _save(sheet: Sheet, options: Namespace) -> None:
    """Write the file of --out, and the picture beside it."""
    sheet.save()
    if not options.out:
        return
    shown, seeds = ("Markov", "DT", "CT", "DT-ws", COLLA, EXTENDED), sheet.figures["seeds"]
    pooled = {name: np.mean([seed["scores"][name][-1]["accuracy"] for seed in seeds], axis=0).tolist()
              for name in shown}  # fmt: skip
    options.out.with_suffix(".svg").write_text(draw_cdf(f"Next place, {len(seeds)} seeds, last cycle", pooled))


def _merge(whole: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The whole with these parts changed, table by table."""
    changed = {key: _merge(whole[key], part) if isinstance(part, dict) else part for key, part in parts.items()}
    return whole | changed
