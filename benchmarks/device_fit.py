"""Remakes the constants of the device models from recordings of real phones, and says how well they fit.

    python -m benchmarks device_fit DATA_DIR

DATA_DIR holds phone_traces/phone_traces.csv.gz and device_profiles/*.csv. Each constant is fitted to all phones but one
and judged on that one, for every phone; "error" is the mean absolute error there, "baseline" that of the plainest guess
(docs/device-models.md names it). "code" is what mdl/devices/usage.py and sim/timing/scenario.py use. Only
aggregates are printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.phones.traces import (
    CHARGING,
    DISCHARGING,
    HEAT_STEP_S,
    PLATEAU_LAG_S,
    Array,
    Phone,
    cpu_correlation,
    curve_points,
    drain_windows,
    heat_steps,
    loaded_share,
    read_column,
    read_phones,
    stay_curve,
    stay_share,
    stretches_s,
)
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.devices import usage
from mdl.sim.timing import scenario as devices

# Each fit takes what was measured on some phones and gives one constant or a few.


def fit_shares(phones: Sequence[Phone]) -> dict[str, Any]:
    """Share of readings above the threshold, by what the screen says, and close to another load."""
    enough = [phone for phone in phones if len(phone.at_s) > 900]
    off = [phone for phone in enough if np.count_nonzero(~phone.in_use) >= 300]
    code, kinds = usage.BUSY_SHARES, usage.UsageKind
    return {
        "busy_share_sync": _judge([loaded_share(phone, False) for phone in off], code[kinds.SYNC]),
        "busy_share_interactive": _judge([loaded_share(phone, True) for phone in enough], code[kinds.INTERACTIVE]),
        "busy_share_call": _judge([stay_share(phone, PLATEAU_LAG_S)[0] for phone in enough], code[kinds.CALL]),
    }


def fit_sigma(phones: Sequence[Phone]) -> dict[str, Any]:
    """Sigma of the interactive kind: how much likelier a loaded phone is still loaded after 5-30 s than after 60 s."""
    curves = [curve for phone in phones if (curve := stay_curve(phone))]
    grid = np.arange(0.3, 2.01, 0.05)
    held_out, baseline = [], []
    for index, curve in enumerate(curves):
        sigma, plateau = _best_sigma(curves[:index] + curves[index + 1 :], grid), curve[PLATEAU_LAG_S]
        held_out.append(np.mean([abs(_stay_law(sigma, lag, plateau) - share) for lag, share in curve_points(curve)]))
        baseline.append(np.mean([abs(plateau - share) for _, share in curve_points(curve)]))
    own = [_best_sigma([curve], grid) for curve in curves]
    return {
        "interactive_sigma": _row(
            _best_sigma(curves, grid), usage.INTERACTIVE_SIGMA, own, float(np.mean(held_out)), float(np.mean(baseline))
        )
        | {"phones": len(curves)}
    }


def fit_battery(phones: Sequence[Phone]) -> dict[str, Any]:
    """Drain idle, more in use, and charging, in percent an hour; the slope of CPU is a check of the given power."""
    tables = [table for phone in phones if len(table := drain_windows(phone, DISCHARGING)) >= 4]
    codes = {
        "drain_idle_percent_an_hour": devices.IDLE_PERCENT_AN_HOUR,
        "drain_in_use_percent_an_hour": devices.IN_USE_PERCENT_AN_HOUR,
    }
    found = _drain_rows(codes, [table[:, :2] for table in tables])
    with_cpu = _drain_rows({**codes, "drain_cpu_percent_an_hour": devices.CPU_PERCENT_AN_HOUR}, tables)
    charging = [float(np.median(-table[:, 0])) for phone in phones if len(table := drain_windows(phone, CHARGING))]
    return with_cpu | found | {"charging_percent_an_hour": _judge(charging, devices.CHARGING_PERCENT_AN_HOUR)}


def _drain_rows(codes: dict[str, float], tables: Sequence[Array]) -> dict[str, Any]:
    fitted = _drain_law(tables)
    errors, constants, squared, total = [], [], 0.0, 0.0
    for index, table in enumerate(tables):
        others = [*tables[:index], *tables[index + 1 :]]
        law, known = _drain_law(others), np.concatenate(others)[:, 0]
        rest = table[:, 0] - law[0] - table[:, 1:] @ law[1:]
        errors.append(float(np.mean(np.abs(rest))))
        constants.append(float(np.mean(np.abs(table[:, 0] - np.median(known)))))
        squared += float(np.sum(rest**2))
        total += float(np.sum((table[:, 0] - np.mean(known)) ** 2))
    own = np.asarray([_drain_law([table]) for table in tables if len(table) >= 10])
    shared = {"windows": int(sum(map(len, tables))), "r2_held_out": round(1.0 - squared / total, 3)}
    return {
        name: _row(float(fitted[k]), code, own[:, k], float(np.mean(errors)), float(np.mean(constants))) | shared
        for k, (name, code) in enumerate(codes.items())
    }


def fit_heat(phones: Sequence[Phone]) -> dict[str, Any]:
    """First-order heat: time constant in minutes, warming by full CPU and by use, temperature at rest."""
    tables = [table for phone in phones if len(table := heat_steps(phone)) >= 10]
    full = _heat_law(tables)
    errors, constants, squared, total = [], [], 0.0, 0.0
    for index, table in enumerate(tables):
        slopes = _slopes(tables[:index] + tables[index + 1 :])
        centred = table - table.mean(axis=0)
        rest = centred[:, 0] - centred[:, 1:] @ slopes
        errors.append(float(np.mean(np.abs(rest))))
        constants.append(float(np.mean(np.abs(centred[:, 0]))))
        squared += float(np.sum(rest**2))
        total += float(np.sum(centred[:, 0] ** 2))
    own = np.asarray([_heat_law([table]) for table in tables])
    names = ("heat_minutes", "heat_cpu_celsius", "heat_use_celsius", "rest_celsius")
    codes = (devices.HEAT_MINUTES, devices.HEAT_CPU_CELSIUS, devices.HEAT_USE_CELSIUS, devices.REST_CELSIUS)
    return {
        name: _row(full[k], codes[k], own[:, k], float(np.mean(errors)), float(np.mean(constants)))
        | {"steps": int(sum(map(len, tables))), "r2_held_out": round(1.0 - squared / total, 3)}
        for k, name in enumerate(names)
    }


def check_classes(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Spread of the drawn speeds beside real ones, each divided by its median; "distance" is Kolmogorov's."""
    rng = np.random.default_rng(seed)
    classes = [devices.draw_class(rng) for _ in range(20_000)]
    links = np.asarray([devices.draw_link_mb_s(found, rng) for found in classes])
    merges = np.asarray([devices.draw_merge_mb_s(found, rng) for found in classes])
    profiles = folder / "device_profiles"
    pairs = read_column(profiles / "p2p_links.csv", "throughput_avg_kBps")
    spreads = read_column(profiles / "p2p_links.csv", "throughput_std_kBps")
    benchmark = read_column(profiles / "ai_benchmark_phones.csv", "CPU_F_AI_Score")
    network = profiles / "phone_network_speed.csv"
    up, down = read_column(network, "up_mean"), read_column(network, "down_mean")
    cuts = np.cumsum((0.0, *devices.CLASS_SHARES))[:-1] * len(benchmark)
    groups = np.split(np.sort(benchmark)[::-1], [round(cut) for cut in cuts[1:]])
    return {
        "link_mb_s": _spread(links),
        "p2p_links": _spread(pairs / 1e3) | {"distance": _distance(links, pairs)},
        "network_down": _spread(down) | {"distance": _distance(links, down)},
        "network_up": _spread(up) | {"distance": _distance(links, up)},
        "variation_within_a_p2p_link": round(float(np.median(spreads / pairs)), 3),
        "merge_mb_s": _spread(merges),
        "cpu_float_benchmark": _spread(benchmark) | {"distance": _distance(merges, benchmark)},
        "benchmark_median_by_class": [round(float(np.median(g) / np.median(groups[0])), 3) for g in groups],
        "merge_centre_by_class": [
            round(math.sqrt(low * high / math.prod(devices.MERGE_RANGES_MB_S[0])), 3)
            for low, high in devices.MERGE_RANGES_MB_S
        ],
    }


def describe(phones: Sequence[Phone]) -> dict[str, Any]:
    """What the recordings tell beside the constants: stretches in use and free, and how long a load is remembered."""
    used = [stretches_s(phone, phone.in_use, True) for phone in phones]
    free = [stretches_s(phone, phone.in_use, False) for phone in phones]
    loads = [stretches_s(phone, phone.loaded() & phone.in_use, True) for phone in phones]
    hot = np.concatenate([phone.celsius for phone in phones]) >= devices.HEAT_LIMIT_CELSIUS
    return {
        "phones": len(phones),
        "readings": int(sum(len(phone.at_s) for phone in phones)),
        "share_in_use_median": round(float(np.median([phone.in_use.mean() for phone in phones])), 3),
        "in_use_stretch_s": _quartiles([float(np.median(found)) for found in used if len(found) >= 5]),
        "free_stretch_s": _quartiles([float(np.median(found)) for found in free if len(found) >= 5]),
        "loaded_stretch_s": _quartiles([float(np.median(found)) for found in loads if len(found) >= 5]),
        "cpu_autocorrelation": {
            f"{lag}_s": round(float(np.median([cpu_correlation(phone, lag) for phone in phones])), 3)
            for lag in (10, 60)
        },
        "share_above_heat_limit": round(float(np.mean(hot)), 3),
    }


def fit(folder: Path) -> dict[str, Any]:
    """Every fitted constant beside the one in the code, the check of the classes, and what else the recordings tell."""
    phones = read_phones(folder)
    constants = fit_shares(phones) | fit_sigma(phones) | fit_battery(phones) | fit_heat(phones)
    return {"constants": constants, "classes": check_classes(folder), "recordings": describe(phones)}


def _best_sigma(curves: Sequence[dict[int, float]], grid: Array) -> float:
    def loss(sigma: float) -> float:
        return sum(
            (_stay_law(sigma, lag, curve[PLATEAU_LAG_S]) - share) ** 2
            for curve in curves
            for lag, share in curve_points(curve)
        )

    return float(grid[int(np.argmin([loss(float(sigma)) for sigma in grid]))])


def _stay_law(sigma: float, lag_s: float, plateau: float) -> float:
    """P(loaded after lag | loaded): the same period lasts, or it is over and another is met as often as after 60 s."""
    lasting, at_plateau = _rest_survival(sigma, lag_s), _rest_survival(sigma, PLATEAU_LAG_S)
    again = max(0.0, (plateau - at_plateau) / (1.0 - at_plateau))
    return lasting + (1.0 - lasting) * again


def _rest_survival(sigma: float, lag_s: float) -> float:
    """P(rest of a period met at an arbitrary instant > lag) for the log-normal with the given median."""
    deviation = math.log(lag_s / usage.INTERACTIVE_MEDIAN_S) / sigma
    mean_s = usage.INTERACTIVE_MEDIAN_S * math.exp(sigma**2 / 2.0)
    return _tail(deviation - sigma) - lag_s / mean_s * _tail(deviation)


def _tail(deviation: float) -> float:
    return math.erfc(deviation / math.sqrt(2.0)) / 2.0


def _drain_law(tables: Sequence[Array]) -> Array:
    """(drain with all inputs at 0, slopes): slopes by least absolute deviations within phones, the rest by medians."""
    centred = np.concatenate([table - table.mean(axis=0) for table in tables])
    target, inputs = centred[:, 0], centred[:, 1:]
    roots = np.ones(len(centred))
    for _ in range(50):
        slopes = np.linalg.lstsq(inputs * roots[:, None], target * roots, rcond=None)[0]
        roots = 1.0 / np.sqrt(np.maximum(np.abs(target - inputs @ slopes), 1e-2))
    at_zero = float(np.median([np.median(table[:, 0] - table[:, 1:] @ slopes) for table in tables]))
    return np.asarray([at_zero, *slopes], dtype=np.float64)


def _slopes(tables: Sequence[Array]) -> Array:
    """Slopes within phones: each phone has its own level (place, case and sensor differ)."""
    centred = np.concatenate([table - table.mean(axis=0) for table in tables])
    return np.asarray(np.linalg.lstsq(centred[:, 1:], centred[:, 0], rcond=None)[0], dtype=np.float64)


def _heat_law(tables: Sequence[Array]) -> tuple[float, float, float, float]:
    slopes = _slopes(tables)
    cooling = min(max(-float(slopes[0]), 1e-3), 0.999)
    cpu, used = float(slopes[1]) / cooling, float(slopes[2]) / cooling
    rest = [np.mean(t[:, 1] + t[:, 0] / cooling - cpu * t[:, 2] - used * t[:, 3]) for t in tables]
    return -HEAT_STEP_S / 60.0 / math.log(1.0 - cooling), cpu, used, float(np.median(rest))


def _judge(values: Sequence[float], code: float) -> dict[str, Any]:
    """A constant that is the median over phones, and its error on each phone left out."""
    others = [float(np.median([*values[:index], *values[index + 1 :]])) for index in range(len(values))]
    error = float(np.mean(np.abs(np.asarray(others) - values)))
    return _row(float(np.median(values)), code, values, error, None) | {"phones": len(values)}


def _row(
    fitted: float, code: float, per_phone: Sequence[float] | Array, error: float, baseline: float | None
) -> dict[str, Any]:
    return {
        "fitted": round(fitted, 3),
        "code": round(code, 3),
        "quartiles_over_phones": _quartiles(per_phone),
        "error_held_out": round(error, 3),
        "error_baseline": None if baseline is None else round(baseline, 3),
    }


def _quartiles(values: Sequence[float] | Array) -> list[float]:
    return [round(float(value), 3) for value in np.percentile(np.asarray(values), (25, 50, 75))]


def _spread(values: Array) -> dict[str, float]:
    low, middle, high = (float(value) for value in np.percentile(values, (5, 50, 95)))
    return {
        "median": round(middle, 3),
        "p95_over_p5": round(high / low, 2),
        "sigma_of_log": round(float(np.std(np.log(values))), 3),
    }


def _distance(drawn: Array, real: Array) -> float:
    drawn, real = np.sort(drawn / np.median(drawn)), np.sort(real / np.median(real))
    at = np.concatenate((drawn, real))
    below = [np.searchsorted(values, at, side="right") / len(values) for values in (drawn, real)]
    return round(float(np.max(np.abs(below[0] - below[1]))), 3)


def add_options(parser: Parser) -> None:
    parser.add_argument("data_dir", type=Path)


def run(given: Namespace, sheet: Sheet) -> None:
    """Fit all constants."""
    found = fit(given.data_dir)
    keys = ("fitted", "code", "quartiles_over_phones", "error_held_out", "error_baseline", "r2_held_out")
    rows = [(name, *(row.get(key) for key in keys)) for name, row in found["constants"].items()]
    show(("constant", "fitted", "code", "quartiles", "error", "baseline", "R2"), rows)
    for name in ("classes", "recordings"):
        show((name, ""), found[name].items())
    sheet.tell(found)
