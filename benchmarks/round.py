"""One averaging round from the last delta ready to the round closed: mdl beside others and beside what the links allow.

mdl runs as its own processes, encrypted, with discovery, staging, closing and file caches; its local training is one
number in a vector of any size. The others average the same vector, without any fault handling. All take turns.

    python -m benchmarks round 4x40@5 8x40@5 3x40+10@5 24+16+12+8+4+2@5 4~40@5     # as root: hosts with limited links
    python -m benchmarks round 4@46.4 8@46.4 8@0.25 --plans chain,shares            # loopback
    python -m benchmarks round 4x40@5 --beside hivemind=../hm/bin/python,flower=../fl/bin/python
    python -m benchmarks round 4x40@5 --plans shares --others '' --train-s 2        # whole rounds, also with overlap
    python -m benchmarks round 4x24@5 --others '' --rounds 12 --fall 1              # a link that falls, and comes back

A case is LINKS@MB: `3x40+10@5` is three hosts of 40 Mbit/s and one of 10, and 5 MB; `4~40@5` four that share a channel
of 40 Mbit/s; `8@46.4` eight processes on loopback. Gloo and hivemind encrypt nothing; ring, chain and mdl do, but on
loopback with `--set mesh.insecure=true`.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.links.places import Case, read_all, why_not_package
from benchmarks.tool.hosts import need_hosts
from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import (
    Namespace,
    Parser,
    add_rounds,
    add_runs,
    add_settings,
    case,
    need_more_rounds,
    one_of,
)
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.spread import quartiles
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.config import Exchange
from mdl.files.figures import read_run
from mdl.transport.trust.keys import new_join_code

# The first rounds show the links, and fill caches and buffers; the first one is told apart, and neither counts.
WARM_UP = 2
PLAIN = ("gloo", "ring", "chain")
OVERLAP = ", overlap"
BESIDE = {"hivemind": "hivemind", "flower": "flwr"}
# A whole run of one system; a mesh of 16 on two cores takes a minute to start.
PATIENCE_S = 400.0


def add_options(parser: Parser) -> None:
    parser.add_argument("cases", nargs="+", type=case, metavar="LINKS@MB")
    parser.add_argument("--plans", default="", help="round.exchange of mdl, separated by commas; '': as it comes")
    parser.add_argument("--others", default=",".join(PLAIN), help="gloo, ring, chain; '' for none")
    parser.add_argument("--beside", default="", help="hivemind=PYTHON,flower=PYTHON: environments of their own")
    add_rounds(parser, 8)
    add_runs(parser, 3)
    parser.add_argument(
        "--fall", type=float, help="Mbit/s of the first host's link in the middle third of mdl's rounds"
    )
    parser.add_argument("--train-s", type=float, default=0.0, help="a device trains so long: whole rounds are measured")
    add_settings(parser)
    parser.add_argument("--code", type=Path, default=ROOT, help="a source tree of mdl")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure all systems in all cases, in turns. Raises ConfigError."""
    need_more_rounds(given.rounds, WARM_UP)
    plans = [f"mdl {plan}" for plan in one_of("--plans", given.plans, get_args(Exchange))] or ["mdl"]
    others = one_of("--others", given.others, PLAIN)
    given.beside = dict(pair.partition("=")[::2] for pair in given.beside.split(",") if pair)
    one_of("--beside", ",".join(given.beside), tuple(BESIDE))
    if any(place.bound_s for place in given.cases):
        need_hosts()
    systems = plans + ([f"{plan}{OVERLAP}" for plan in plans] if given.train_s else []) + others
    for name, python in given.beside.items():
        if reason := why_not_package(python, BESIDE[name]):
            print(f"round: {name} is left out: {python}: {reason}", file=sys.stderr)
        else:
            systems.append(name)
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {place.text: {} for place in given.cases}
    for number, (place, system) in in_turns(given.runs, itertools.product(given.cases, systems)):
        try:
            done = _measure(place, system, given)
        except (RuntimeError, TimeoutError) as error:
            done = {"failed": str(error)[-300:]}
        measured[place.text].setdefault(system, []).append(done)
        told = done.get("failed") or f"{quartiles(done['seconds'], 4)}, round 1 {done['first_s']:.4f} s"
        if given.fall and "seconds" in done:
            told += f", each from round {WARM_UP + 1} on: {[round(second, 2) for second in done['seconds']]}"
        print(f"run {number}, {place.text}, {system}: {told}", file=sys.stderr, flush=True)
    found = {place.text: _summarise(place, measured[place.text]) for place in given.cases}
    for place in given.cases:
        _show(place, found[place.text])
    sheet.tell({"cases": found})
    sheet.all = measured


def _measure(place: Case, system: str, given: Namespace) -> dict[str, Any]:
    """One run of one system: the seconds of each round that counts. Raises RuntimeError, TimeoutError."""
    more = 1 if system == "flower" else 0
    with tempfile.TemporaryDirectory() as folder, place.open(more) as net:
        before = _sent_bytes(net)
        if system.startswith("mdl"):
            seconds, is_right = _run_mdl(net, place, system, Path(folder), given), True
        else:
            seconds, is_right = _run_other(net, place, system, Path(folder), given)
        after = _sent_bytes(net)
    if len(seconds) <= WARM_UP:
        raise RuntimeError(f"only {len(seconds)} rounds")
    least = len(seconds) * 2 * (place.size - 1) * 4 * place.values
    wasted = round((after - before) / least, 3)
    return {"first_s": seconds[0], "seconds": seconds[WARM_UP:], "bytes_over_least": wasted, "is_right": is_right}


def _run_mdl(net: Any, place: Case, system: str, folder: Path, given: Namespace) -> list[float]:
    code, node = new_join_code("bench"), given.code / "tests" / "integration" / "fault_node.py"
    settings = [f"round.min_peers={place.size}", f"round.rounds={given.rounds}", "round.policy=greedy"]
    settings += ["round.keep_deltas=false", "faults.lost_after_s=30"]
    plan = system.removeprefix("mdl").removesuffix(OVERLAP).strip()
    settings += ["training.overlap=true"] if system.endswith(OVERLAP) else []
    settings += [f"round.exchange={plan}"] if plan else []
    settings += [] if place.bound_s else ["mesh.loopback=true"]
    os.environ["PYTHONPATH"] = str(given.code)
    words = ["--values", place.values, *(["--train-s", given.train_s] if given.train_s else [])]
    words += ["--set", *settings, *given.set]
    log = (folder / "log").open("w+")
    devices = [
        net.start(host, node, code, f"dev{host}", folder, *words, stderr=log.fileno()) for host in range(place.size)
    ]
    with _falling(net, place, folder, given):
        read_all(devices, PATIENCE_S)
    told = read_run(folder)
    if not told:
        log.seek(0)
        raise RuntimeError(f"no round was closed: {log.read()[-300:]}")
    phases = ("total",) if given.train_s else ("aggregate", "broadcast", "apply")
    return [sum(line.seconds.get(phase, 0.0) for phase in phases) for line in told]


@contextmanager
def _falling(net: Any, place: Case, folder: Path, given: Namespace) -> Iterator[None]:
    """Slow the first host's link down after a third of the rounds, until two thirds are closed."""
    is_over = threading.Event()

    def watch() -> None:
        for part, mbit in ((1, given.fall), (2, place.mbit[0])):
            while len(read_run(folder)) < part * given.rounds // 3:
                if is_over.wait(0.2):
                    return
            net.limit(0, mbit)

    watching = threading.Thread(target=watch)
    if given.fall and place.mbit:
        watching.start()
    try:
        yield
    finally:
        is_over.set()
        if watching.ident:
            watching.join()


def _run_other(net: Any, place: Case, system: str, folder: Path, given: Namespace) -> tuple[list[float], bool]:
    """Also whether all values were the mean."""
    size = place.size + (system == "flower")
    hosts = net.hosts if place.bound_s else ["127.0.0.1"] * size
    ports = range(29_000, 29_000 + 2 * size) if place.bound_s else _free_ports(2 * size)
    name = {"hivemind": "hivemind_device.py", "flower": "flower_device.py"}.get(system)
    script = ROOT / "benchmarks" / "links" / (name or "rival.py")
    is_open = system == "gloo" or "mesh.insecure=true" in given.set
    told_all = {"kind": system, "hosts": hosts, "ports": list(ports), "values": place.values, "rounds": given.rounds,
                "code": "" if is_open else new_join_code("bench"), "folder": str(folder)}  # fmt: skip
    os.environ |= {"GLOO_SOCKET_IFNAME": "eth0" if place.bound_s else "lo", "OMP_NUM_THREADS": "1"}
    python = given.beside.get(system, sys.executable)
    log = (folder / "log").open("w+")
    devices = [
        net.start(host, script, json.dumps(told_all | {"rank": host}), stderr=log.fileno(), python=python)
        for host in range(size)
    ]
    told = [json.loads(text.splitlines()[-1]) for text in read_all(devices, PATIENCE_S) if text]
    if len(told) < place.size:
        log.seek(0)
        raise RuntimeError(f"{place.size - len(told)} devices said nothing: {log.read()[-300:]}")
    ends = np.max([device["ends"] for device in told], axis=0)
    starts = np.max([device["starts"] for device in told], axis=0)
    return [float(each) for each in ends - starts], all(device["is_right"] for device in told)


def _free_ports(count: int) -> list[int]:
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in with_ports]
    for listener in with_ports:
        listener.close()
    return ports


def _sent_bytes(net: Any) -> int:
    """By all hosts so far, frames and all; on loopback by whoever uses it."""
    where = "/sys/class/net/{}/statistics/tx_bytes"
    if not hasattr(net, "names"):
        return int(Path(where.format("lo")).read_text())
    words = [["ip", "netns", "exec", name, "cat", where.format("eth0")] for name in net.names]
    return sum(int(subprocess.run(each, capture_output=True, text=True, check=True).stdout) for each in words)


def _summarise(place: Case, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    systems: dict[str, Any] = {}
    for system, done in runs.items():
        seconds = [second for run in done for second in run.get("seconds", ())]
        if not seconds:
            systems[system] = {"failed": done[-1].get("failed")}
            continue
        wasted = float(np.median([run["bytes_over_least"] for run in done if "seconds" in run]))
        systems[system] = {
            "median_and_quartiles_s": quartiles(seconds, 4),
            "rounds": len(seconds),
            "round_1_s": round(float(np.median([run["first_s"] for run in done if "seconds" in run])), 4),
            "of_bound": round(float(np.median(seconds)) / place.bound_s, 2) if place.bound_s else None,
            "wrong_runs": sum(not run.get("is_right", True) for run in done),
            "bytes_over_least": round(wasted, 3),
        }
    return {"bound_s": place.bound_s and round(place.bound_s, 3), "systems": systems}


def _show(place: Case, told: dict[str, Any]) -> None:
    bound = f"bound {told['bound_s']:.2f} s" if told["bound_s"] else "loopback"
    gloo, rows = told["systems"].get("gloo", {}).get("median_and_quartiles_s", [None])[0], []
    for system, one in told["systems"].items():
        if "failed" in one:
            rows.append((system, f"failed: {one['failed']}", *[None] * 5))
            continue
        median, low, high = one["median_and_quartiles_s"]
        of_bound = f"{one['of_bound']:.2f}" if one["of_bound"] else None
        beside = f"{median / gloo:.2f}" if gloo else None
        sent = f"{one['bytes_over_least']:.3f}" + (" wrong values" if one["wrong_runs"] else "")
        first, middle = f"{one['round_1_s']:.4f}", f"{low:.4f} to {high:.4f}"
        rows.append((system, first, f"{median:.4f}", middle, of_bound, beside, sent))
    head = ("", "round 1 s", "median s", "quartiles", "x bound", "x gloo", "bytes x least")
    show(head, rows, f"{place.text}: {place.size} devices, {place.megabytes:g} MB, {bound}")
