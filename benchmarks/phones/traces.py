"""Recordings of phones as `device_fit` takes them: sessions, loads, windows of drain and steps of heat.

Reads phone_traces/phone_traces.csv.gz and columns of device_profiles/*.csv; keeps nothing.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SESSION_GAP_S = 30.0  # a longer silence between two readings starts a new session
STRETCH_GAP_S = 12.0  # readings of one stretch follow each other at the sampling interval (5 or 10 s)
LAGS_S = (5, 10, 20, 30)
PLATEAU_LAG_S = 60
WINDOW_S = 1800.0
SHORTEST_WINDOW_S = 900.0
HEAT_STEP_S = 600.0
CHARGING, DISCHARGING = 2, 3


@dataclass(frozen=True)
class Phone:
    """Readings of one phone in time order: seconds, CPU 0..1, in use, level %, status, battery temperature."""

    at_s: Array
    cpu: Array
    in_use: NDArray[np.bool_]
    level: Array
    status: NDArray[np.int64]
    celsius: Array

    def sessions(self) -> list[NDArray[np.int64]]:
        """Indices of uninterrupted readings with one charging status."""
        ends = (np.diff(self.at_s) > SESSION_GAP_S) | (np.diff(self.status) != 0)
        return np.split(np.arange(len(self.at_s)), np.flatnonzero(ends) + 1)

    def loaded(self) -> NDArray[np.bool_]:
        """Readings above half of the headroom this phone usually has in use: what "CPU" means differs by phone."""
        return self.cpu >= (1.0 + float(np.median(self.cpu[self.in_use]))) / 2.0


def read_phones(folder: Path) -> list[Phone]:
    """The phones of phone_traces, in the order of the file."""
    rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    with gzip.open(folder / "phone_traces" / "phone_traces.csv.gz", "rt") as lines:
        for row in csv.DictReader(lines):
            rows[row["device"]].append(
                (
                    float(row["Timestamp"]) / 1e3,
                    float(row["usage"]) / 100.0,
                    float(row["isInteractive"] == "true"),
                    float(row["level"]),
                    float(row["status"]),
                    float(row["temperature"]),
                )
            )
    tables = [np.asarray(sorted(found, key=lambda reading: reading[0])).T for found in rows.values()]
    return [Phone(t[0], t[1], t[2] > 0.5, t[3], t[4].astype(np.int64), t[5]) for t in tables]


def read_column(path: Path, name: str) -> Array:
    """The positive values of one column of a csv file."""
    with path.open() as lines:
        values = np.asarray([float(row[name]) for row in csv.DictReader(lines)])
    return values[values > 0.0]


def loaded_share(phone: Phone, in_use: bool) -> float:
    """Share of the readings in use (or not) that are loaded."""
    return float(np.mean(phone.loaded()[phone.in_use == in_use]))


def stay_share(phone: Phone, lag_s: int) -> tuple[float, int]:
    """P(loaded after lag_s | loaded), both readings in use, and from how many readings."""
    loaded = phone.loaded()
    later, near = _later(phone, lag_s)
    fits = near & loaded & phone.in_use & phone.in_use[later]
    return (float(np.mean(loaded[later][fits])) if fits.any() else math.nan), int(np.count_nonzero(fits))


def stay_curve(phone: Phone) -> dict[int, float]:
    """P(loaded after lag | loaded) by lag in seconds, where 50 readings or more tell; empty without the plateau."""
    found = {lag: stay_share(phone, lag) for lag in (*LAGS_S, PLATEAU_LAG_S)}
    curve = {lag: share for lag, (share, count) in found.items() if count >= 50}
    return curve if PLATEAU_LAG_S in curve and len(curve) > 1 else {}


def curve_points(curve: dict[int, float]) -> list[tuple[int, float]]:
    """The lags below the plateau with their shares."""
    return [(lag, curve[lag]) for lag in LAGS_S if lag in curve]


def drain_windows(phone: Phone, status: int) -> Array:
    """Per half hour of a session: drain in percent an hour, share of time in use, mean CPU."""
    rows = []
    for session in phone.sessions():
        length_s = float(phone.at_s[session[-1]] - phone.at_s[session[0]])
        if phone.status[session[0]] != status:
            continue
        for part in np.array_split(session, max(1, int(length_s // WINDOW_S))):
            seconds = float(phone.at_s[part[-1]] - phone.at_s[part[0]])
            if seconds >= SHORTEST_WINDOW_S:
                drop = float(phone.level[part[0]] - phone.level[part[-1]])
                rows.append((drop * 3600.0 / seconds, phone.in_use[part].mean(), phone.cpu[part].mean()))
    return np.asarray(rows).reshape(-1, 3)


def heat_steps(phone: Phone) -> Array:
    """Per 10 minutes without a gap: change of temperature, temperature before, mean CPU, share in use."""
    rows, start = [], 0
    breaks = np.concatenate(([0], np.cumsum(np.diff(phone.at_s) > SESSION_GAP_S)))
    cpu, used = (np.concatenate(([0.0], np.cumsum(column))) for column in (phone.cpu, phone.in_use))
    while start < len(phone.at_s):
        end = int(np.searchsorted(phone.at_s, phone.at_s[start] + HEAT_STEP_S))
        if end == len(phone.at_s):
            break
        if breaks[end] != breaks[start]:
            start += 1
            continue
        count = end - start
        change = phone.celsius[end] - phone.celsius[start]
        rows.append((change, phone.celsius[start], (cpu[end] - cpu[start]) / count, (used[end] - used[start]) / count))
        start = end
    return np.asarray(rows).reshape(-1, 4)


def stretches_s(phone: Phone, flags: NDArray[np.bool_], wanted: bool) -> list[float]:
    """Lengths in seconds of stretches that begin and end within a session."""
    found = []
    for session in np.split(np.arange(len(flags)), np.flatnonzero(np.diff(phone.at_s) > STRETCH_GAP_S) + 1):
        runs = np.split(session, np.flatnonzero(np.diff(flags[session])) + 1)
        found += [float(phone.at_s[run[-1] + 1] - phone.at_s[run[0]]) for run in runs[1:-1] if flags[run[0]] == wanted]
    return found


def cpu_correlation(phone: Phone, lag_s: float) -> float:
    """Correlation of the CPU readings with those lag_s later."""
    later, near = _later(phone, lag_s)
    return float(np.corrcoef(phone.cpu[near], phone.cpu[later][near])[0, 1])


def _later(phone: Phone, lag_s: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    later = np.minimum(np.searchsorted(phone.at_s, phone.at_s + lag_s - 0.6), len(phone.at_s) - 1)
    return later, np.abs(phone.at_s[later] - phone.at_s - lag_s) < 0.6
