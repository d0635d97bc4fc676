"""A mesh beside a master with slaves, and Flower, on hosts with limited links: seconds, joules and memory of rounds.

Figures come from what each device has told (`device.py`): a round is from the last delta ready to the result applied
everywhere. Joules are modelled: bytes of the device's network interface at the rate of its link, with the power of
sending and receiving of `mdl.devices.energy`; beside them its seconds of processor, at the power of a full one.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.links.places import Case, read_all
from benchmarks.tool import table
from mdl.devices.energy import MERGE_W, RECEIVE_W, SEND_W
from mdl.peers.edge.identity import CODE_VARIABLE
from mdl.transport.trust.keys import new_join_code

HERE = Path(__file__).resolve().parent
# The first rounds show the links, and fill caches and buffers; they are played, and not counted.
WARM_UP = 2
# By the name in the table: what `device.py` is told.
SYSTEMS: dict[str, dict[str, str]] = {
    "master": {"system": "master"},
    "master, running": {"system": "running"},
    "mesh, chain": {"system": "mesh", "exchange": "chain"},
    "mesh, shares": {"system": "mesh", "exchange": "shares"},
    "mesh, shares int8": {"system": "mesh", "exchange": "shares", "compress": "int8"},
}
_PATIENCE_S = 400.0

Told = list[dict[str, Any]]


def run_devices(case: Case, system: str, asked: dict[str, Any], folder: Path) -> Told:
    """What each device of one run told. Raises RuntimeError, TimeoutError."""
    os.environ |= {CODE_VARIABLE: new_join_code("evaluation"), "OMP_NUM_THREADS": "1"}
    asked = {**SYSTEMS[system], "size": case.size, "folder": str(folder), **asked}
    log = (folder / "log").open("w+")
    with case.open() as net:
        devices = [
            net.start(rank, HERE / "device.py", json.dumps(asked | {"rank": rank}), stderr=log.fileno())
            for rank in range(case.size)
        ]
        said = read_all(devices, _PATIENCE_S)
    told = [json.loads(text.splitlines()[-1]) for text in said if text]
    if len(told) < case.size or any(each["problem"] for each in told):
        log.seek(0)
        raise RuntimeError(f"{case.size - len(told)} devices said nothing: {log.read()[-400:]}")
    return told


def measure(case: Case, system: str, rounds: int) -> dict[str, Any]:
    """One run of rounds of noise. Raises RuntimeError, TimeoutError."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {"rounds": rounds, "values": case.values, "interface": "eth0" if case.mbit else "lo"}
        told = run_devices(case, system, asked, Path(folder))
    return summarise(told, case.mbit[0] if case.mbit else 0.0)


def summarise(told: Told, mbit: float) -> dict[str, Any]:
    """Of rounds that count: seconds of each, and by device joules a round and memory. mbit: of each link; 0: none."""
    rounds = min(len(each["applied"]) for each in told)
    if rounds <= WARM_UP:
        raise RuntimeError(f"only {rounds} rounds, of which {WARM_UP} warm up")
    seconds = round_seconds(told)[WARM_UP:]
    radio = [joules_of_radio(each, mbit) for each in told] if mbit else []
    cpu = [MERGE_W * _each_round(each["cpu"]) for each in told]
    extra = [max(each["extra_bytes"][WARM_UP:], default=0) for each in told]
    size = 4 * told[0]["values"]
    return {
        "rounds": len(seconds),
        "seconds": [round(each, 4) for each in seconds],
        "round_s_median": round(statistics.median(seconds), 3),
        "radio_j_busiest": round(max(radio), 3) if radio else None,
        "radio_j_mean": round(statistics.fmean(radio), 3) if radio else None,
        "cpu_j_busiest": round(max(cpu), 3),
        "memory_mb_busiest": round(max(extra) / 1e6, 1),
        "memory_deltas_busiest": round(max(extra) / size, 2),
    }


def round_seconds(told: Told) -> list[float]:
    """From the last delta ready to the last result applied."""
    rounds = min(min(len(each["applied"]), len(each["ready"])) for each in told)
    return [
        max(each["applied"][number] for each in told) - max(each["ready"][number] for each in told)
        for number in range(rounds)
    ]


def joules_of_radio(told: dict[str, Any], mbit: float) -> float:
    """Of one device, a round, modelled: so long as its bytes take on its link."""
    bytes_a_second = mbit * 1e6 / 8
    sent, received = _each_round(told["sent"]), _each_round(told["received"])
    return (SEND_W * sent + RECEIVE_W * received) / bytes_a_second


def _each_round(count: list[float]) -> float:
    """Mean growth of a counter that was read as each round began and at the end, over the rounds that count."""
    return (count[-1] - count[WARM_UP]) / (len(count) - 1 - WARM_UP)


def least_seconds(case: Case) -> dict[str, float]:
    """What links allow: a master takes in all, then gives to all; it could do both at once; a mesh shares the work.

    Of loopback, which has no rate, nothing.
    """
    if not case.mbit:
        return {}
    one = 8 * case.megabytes / min(case.mbit)
    others = case.size - 1
    return {"master": 2 * others * one, "master in segments": others * one, "mesh": case.bound_s or 0.0}


def show(case: Case, results: dict[str, dict[str, Any]]) -> None:
    bounds = ", ".join(f"{name} at least {s:.2f} s" for name, s in least_seconds(case).items())
    base, rows = results.get("master", {}), []
    for system, one in results.items():
        if "failed" in one:
            rows.append((system, f"failed: {one['failed']}", *[None] * 7))
            continue
        faster = f"{base['round_s_median'] / one['round_s_median']:.2f}" if base.get("rounds") else None
        radio = one["radio_j_busiest"]
        less = f"{base['radio_j_busiest'] / radio:.2f}" if base.get("rounds") and radio else None
        joules = (f"{radio:.2f}", less, f"{one['radio_j_mean']:.2f}") if radio else (None, None, None)
        memory = f"{one['memory_mb_busiest']:.1f}", f"{one['memory_deltas_busiest']:.2f}"
        rows.append((system, f"{one['round_s_median']:.2f}", faster, *joules, f"{one['cpu_j_busiest']:.2f}", *memory))
    head = ("", "round s", "x faster", "radio J", "x less", "mean J", "CPU J", "memory MB", "deltas")
    table.show(head, rows, f"{case.text}: {bounds or 'loopback'}")


def complain(text: str) -> None:
    print(f"mdldroid: {text}", file=sys.stderr, flush=True)
