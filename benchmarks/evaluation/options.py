"""What MDLdroid weighs up: N, aggregations an epoch and epochs, by accuracy (Fig. 12), battery (13) and time (14).

Accuracy is of real training in one process. Time and battery are modelled (`modelled.py`): the machines of the product
in virtual time, on phones that are alike and `--slower` times as slow as a thread of this machine.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import msgspec

from benchmarks.evaluation.accuracy import HEAD, OFF_RECIPE, Get, cells, load
from benchmarks.evaluation.modelled import SYSTEMS, Phone, battery_percent, play
from benchmarks.evaluation.rounds import Option, over_seeds, parse_option, train
from benchmarks.evaluation.single import windows_a_second
from benchmarks.tool.table import show
from mdl.config import TrainingSettings
from mdl.data import DataSet
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model

OPTIONS = ("1-E20", "2-E20", "10-E20", "1-E30", "1-E40")


def figure_12(given: argparse.Namespace, get: Get) -> None:
    """Accuracy by option and number of devices; the same recipe for all."""
    data = load(given)
    settings = msgspec.convert(OFF_RECIPE, TrainingSettings)
    for text in _options(given):
        rows = []
        for size in given.devices:
            key = f"{data.name} {given.model} {text} N={size} seeds={given.seeds}"
            one = get(key, partial(_train, data, given, size, parse_option(text), settings))
            rows.append(cells(f"N = {size}", one))
        show(HEAD, rows, f"{data.name}, {given.model}, {text}, seeds {given.seeds}")


def _train(
    data: DataSet, given: argparse.Namespace, size: int, option: Option, settings: TrainingSettings
) -> dict[str, Any]:
    return over_seeds([train(data, given.model, size, option, "chain", settings, seed) for seed in given.seeds])


def figure_11(given: argparse.Namespace, get: Get) -> None:
    """Fig. 11b, 11c: 20 epochs of one aggregation each, by system: seconds, and joules of radio of the busiest."""
    data, speed, values = _phone(given, get)
    rows = []
    for size in given.devices:
        told = {
            system: get(_key(data, given, system, size, speed, "1-E20"),
                        partial(_run, data, given, system, size, values, speed, "1-E20"))
            for system in SYSTEMS
        }  # fmt: skip
        base = told["master"]
        for system, one in told.items():
            less: tuple[str | None, str | None] = None, None
            if system != "master" and size > 1:
                radio = base["radio_busiest_j"] / one["radio_busiest_j"]
                less = f"{base['seconds'] / one['seconds']:.2f}", f"{radio:.2f}"
            seconds, joules = f"{one['seconds']:.0f}", f"{one['radio_busiest_j']:.0f}"
            rows.append((f"N = {size}, {system}", seconds, less[0], joules, less[1]))
    where = f"{data.name}, {given.model}, 1-E20, {speed:.0f} windows/s, links of {given.mbit:g} Mbit/s"
    show(("", "s", "x less", "J of radio, busiest", "x less"), rows, where)


def figure_13(given: argparse.Namespace, get: Get) -> None:
    """Fig. 13, 14: battery and seconds by option and number of devices, beside one device alone with that option."""
    data, speed, values = _phone(given, get)
    rows = []
    for text in _options(given):
        alone: dict[str, Any] | None = None
        for size in given.devices:
            one = get(_key(data, given, "chain", size, speed, text),
                      partial(_run, data, given, "chain", size, values, speed, text))  # fmt: skip
            alone = alone or one
            seconds, joules = (f"{alone[key] / one[key]:.2f}" for key in ("seconds", "busiest_j"))
            battery = f"{one['battery_percent']:.2f}"
            told = (f"{one['seconds']:.0f}", seconds, f"{one['busiest_j']:.0f}", battery, joules)
            rows.append((f"{text}, N = {size}", *told))
    where = f"{data.name}, {given.model}, chain, {speed:.0f} windows/s, links of {given.mbit:g} Mbit/s"
    show(("", "s", "x less than alone", "J, busiest", "battery, %", "x less than alone"), rows, where)


def _phone(given: argparse.Namespace, get: Get) -> tuple[DataSet, float, int]:
    """(data, windows a second of one phone, values of the model)."""
    data = load(given)
    speed = get(f"{data.name} {given.model} windows_s", lambda: {"here": windows_a_second(data, given.model)})
    model = FlatModel(build_model(given.model, data.shape[0], data.shape[1], len(data.classes), seed=0))
    return data, speed["here"] / given.slower, int(model.values().size)


def _run(
    data: DataSet, given: argparse.Namespace, system: str, size: int, values: int, speed: float, text: str
) -> dict[str, Any]:
    option = parse_option(text)
    windows = len(data.train) / size / option.rounds_per_epoch
    one = play(system, size, values, Phone(speed, given.mbit / 8.0), windows)
    return {
        "seconds": round(option.rounds * one.seconds, 1),
        "busiest_j": round(option.rounds * one.busiest_j, 1),
        "radio_busiest_j": round(option.rounds * max(one.radio_j), 1),
        "battery_percent": round(battery_percent(option.rounds * one.busiest_j), 3),
    }


def _key(data: DataSet, given: argparse.Namespace, system: str, size: int, speed: float, text: str) -> str:
    return f"{data.name} {given.model} {system} {text} N={size} {given.mbit:g} Mbit/s {speed:.0f} windows/s"


def _options(given: argparse.Namespace) -> list[str]:
    return [given.option] if given.option else list(OPTIONS)
