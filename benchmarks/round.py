"""One averaging round from the last delta ready to the round closed: mdl beside others and beside what the links allow.

mdl runs as its own processes, encrypted, with discovery, staging, closing and file caches; its local training is one
number in a vector of any size. The others average the same vector, without any fault handling. All take turns.

    python benchmarks/round.py 4x40@5 8x40@5 3x40+10@5 24+16+12+8+4+2@5 4~40@5     # as root: hosts with limited links
    python benchmarks/round.py 4@46.4 8@46.4 8@0.25 --plans chain,shares            # loopback
    python benchmarks/round.py 4x40@5 --beside hivemind=../hm/bin/python,flower=../fl/bin/python
    python benchmarks/round.py 4x40@5 --plans shares --others '' --train-s 2        # whole rounds, also with overlap

A case is LINKS@MB: `3x40+10@5` is three hosts of 40 Mbit/s and one of 10, and 5 MB; `4~40@5` four that share a channel
of 40 Mbit/s; `8@46.4` eight processes on loopback. Gloo and hivemind encrypt nothing; ring, chain and mdl do, but on
loopback with `--set mesh.insecure=true`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.helpers import load_lan
from benchmarks.links.places import Case, parse_case, read_all
from mdl.config import Exchange
from mdl.files.round_lines import read_run
from mdl.transport.trust.keys import new_join_code

HERE = Path(__file__).resolve().parents[1]
# The first rounds show the links, and fill caches and buffers; they are played, and not counted.
WARM_UP = 2
PLAIN = ("gloo", "ring", "chain")
OVERLAP = ", overlap"
BESIDE = {"hivemind": "hivemind", "flower": "flwr"}
# A whole run of one system; a mesh of 16 on two cores takes a minute to start.
PATIENCE_S = 400.0


def main() -> int:
    given = _parse()
    lan = load_lan()
    if any(case.bound_s for case in given.cases) and (reason := lan.why_not()):
        print(f"round: {reason}", file=sys.stderr)
        return 2
    plans = [f"mdl {plan}" if plan else "mdl" for plan in given.plans]
    systems = plans + ([f"{plan}{OVERLAP}" for plan in plans] if given.train_s else []) + given.others
    systems += [name for name in given.beside if _is_there(name, given.beside[name])]
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {case.text: {} for case in given.cases}
    for run in range(given.runs):
        for case in given.cases:
            for system in systems:
                try:
                    done = _measure(case, system, given)
                except (RuntimeError, TimeoutError) as error:
                    done = {"failed": str(error)[-300:]}
                measured[case.text].setdefault(system, []).append(done)
                told = done.get("failed") or _quartiles(done["seconds"])
                print(f"run {run}, {case.text}, {system}: {told}", file=sys.stderr, flush=True)
    report = {
        "command": " ".join(sys.argv),
        "cases": {case.text: _summarise(case, measured[case.text]) for case in given.cases},
    }
    for case in given.cases:
        _print_table(case, report["cases"][case.text])  # type: ignore[index]
    print(json.dumps(report))
    if given.out:
        given.out.write_text(json.dumps(report | {"all": measured}, indent=1) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="LINKS@MB")
    parser.add_argument("--plans", default="", help="round.exchange of mdl, separated by commas; '': as it comes")
    parser.add_argument("--others", default=",".join(PLAIN), help="gloo, ring, chain; '' for none")
    parser.add_argument("--beside", default="", help="hivemind=PYTHON,flower=PYTHON: environments of their own")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--train-s", type=float, default=0.0, help="a device trains so long: whole rounds are measured")
    parser.add_argument("--set", nargs="*", default=[], help="key=value of mdl's configuration")
    parser.add_argument("--code", type=Path, default=HERE, help="a source tree of mdl")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    try:
        given.cases = [parse_case(text) for text in given.cases]
    except ValueError as error:
        parser.error(str(error))
    if given.rounds <= WARM_UP:
        parser.error(f"--rounds {given.rounds}: the first {WARM_UP} only warm up and are not counted; take more")
    given.plans = given.plans.split(",")
    if strange := set(given.plans) - {"", *get_args(Exchange)}:
        parser.error(f"--plans {min(strange)}: choose from {', '.join(get_args(Exchange))}")
    given.others = [name for name in given.others.split(",") if name]
    given.beside = dict(pair.partition("=")[::2] for pair in given.beside.split(",") if pair)
    if unknown := [*(set(given.others) - set(PLAIN)), *(given.beside.keys() - BESIDE.keys())]:
        parser.error(f"{unknown[0]}: --others knows {', '.join(PLAIN)}; --beside {', '.join(BESIDE)}")
    return given


def _is_there(name: str, python: str) -> bool:
    """Whether an environment has what its name says; else a line for the user."""
    try:
        found = subprocess.run([python, "-c", f"import {BESIDE[name]}"], capture_output=True, text=True, timeout=120)
        reason = "" if found.returncode == 0 else (found.stderr.splitlines() or ["it failed"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        print(f"round: {name} is left out: {python}: {reason}", file=sys.stderr)
    return not reason


def _measure(case: Case, system: str, given: argparse.Namespace) -> dict[str, Any]:
    """One run of one system: the seconds of each round that counts. Raises RuntimeError, TimeoutError."""
    more = 1 if system == "flower" else 0
    with tempfile.TemporaryDirectory() as folder, case.open(more) as net:
        before = _sent_bytes(net)
        if system.startswith("mdl"):
            seconds, is_right = _run_mdl(net, case, system, Path(folder), given), True
        else:
            seconds, is_right = _run_other(net, case, system, Path(folder), given)
        after = _sent_bytes(net)
    if len(seconds) <= WARM_UP:
        raise RuntimeError(f"only {len(seconds)} rounds")
    least = len(seconds) * 2 * (case.size - 1) * 4 * case.values
    wasted = round((after - before) / least, 3)
    return {"seconds": seconds[WARM_UP:], "bytes_over_least": wasted, "is_right": is_right}


def _run_mdl(net: Any, case: Case, system: str, folder: Path, given: argparse.Namespace) -> list[float]:
    code, node = new_join_code("bench"), given.code / "tests" / "integration" / "fault_node.py"
    settings = [f"round.min_peers={case.size}", f"round.rounds={given.rounds}", "round.policy=greedy"]
    settings += ["round.keep_deltas=false", "faults.lost_after_s=30"]
    plan = system.removeprefix("mdl").removesuffix(OVERLAP).strip()
    settings += ["training.overlap=true"] if system.endswith(OVERLAP) else []
    settings += [f"round.exchange={plan}"] if plan else []
    settings += [] if case.bound_s else ["mesh.loopback=true"]
    os.environ["PYTHONPATH"] = str(given.code)
    words = ["--values", case.values, *(["--train-s", given.train_s] if given.train_s else [])]
    words += ["--set", *settings, *given.set]
    log = (folder / "log").open("w+")
    devices = [
        net.start(host, node, code, f"dev{host}", folder, *words, stderr=log.fileno()) for host in range(case.size)
    ]
    read_all(devices, PATIENCE_S)
    told = read_run(folder)
    if not told:
        log.seek(0)
        raise RuntimeError(f"no round was closed: {log.read()[-300:]}")
    phases = ("total",) if given.train_s else ("aggregate", "broadcast", "apply")
    return [sum(line.seconds.get(phase, 0.0) for phase in phases) for line in told]


def _run_other(net: Any, case: Case, system: str, folder: Path, given: argparse.Namespace) -> tuple[list[float], bool]:
    """Also whether all values were the mean."""
    size = case.size + (system == "flower")
    hosts = net.hosts if case.bound_s else ["127.0.0.1"] * size
    ports = range(29_000, 29_000 + 2 * size) if case.bound_s else _free_ports(2 * size)
    name = {"hivemind": "hivemind_device.py", "flower": "flower_device.py"}.get(system)
    script = HERE / "benchmarks" / "links" / (name or "rival.py")
    words: list[object] = ["--hosts", ",".join(hosts), "--ports", ",".join(map(str, ports))]
    words += ["--values", case.values, "--rounds", given.rounds]
    if name is None:
        is_open = system == "gloo" or "mesh.insecure=true" in given.set
        words = [system, *words, *([] if is_open else ["--code", new_join_code("bench")])]
    if system == "hivemind":
        words += ["--folder", folder]
    os.environ |= {"GLOO_SOCKET_IFNAME": "eth0" if case.bound_s else "lo", "OMP_NUM_THREADS": "1"}
    python = given.beside.get(system, sys.executable)
    log = (folder / "log").open("w+")
    devices = [
        net.start(host, script, *words, "--rank", host, stderr=log.fileno(), python=python) for host in range(size)
    ]
    told = [json.loads(text.splitlines()[-1]) for text in read_all(devices, PATIENCE_S) if text]
    if len(told) < case.size:
        log.seek(0)
        raise RuntimeError(f"{case.size - len(told)} devices said nothing: {log.read()[-300:]}")
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


def _summarise(case: Case, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    systems: dict[str, Any] = {}
    for system, done in runs.items():
        seconds = [second for run in done for second in run.get("seconds", ())]
        if not seconds:
            systems[system] = {"failed": done[-1].get("failed")}
            continue
        wasted = float(np.median([run["bytes_over_least"] for run in done if "seconds" in run]))
        systems[system] = {
            "median_and_quartiles_s": _quartiles(seconds),
            "rounds": len(seconds),
            "of_bound": round(float(np.median(seconds)) / case.bound_s, 2) if case.bound_s else None,
            "wrong_runs": sum(not run.get("is_right", True) for run in done),
            "bytes_over_least": round(wasted, 3),
        }
    return {"bound_s": case.bound_s and round(case.bound_s, 3), "systems": systems}


def _quartiles(seconds: list[float]) -> list[float]:
    return [round(float(value), 4) for value in np.percentile(seconds, [50, 25, 75])]


def _print_table(case: Case, told: dict[str, Any]) -> None:
    bound = f"bound {told['bound_s']:.2f} s" if told["bound_s"] else "loopback"
    print(f"{case.text}: {case.size} devices, {case.megabytes:g} MB, {bound}")
    print(f"  {'':14} {'median s':>9} {'quartiles':>19} {'x bound':>8} {'x gloo':>7} {'bytes x least':>14}")
    gloo = told["systems"].get("gloo", {}).get("median_and_quartiles_s", [None])[0]
    for system, one in told["systems"].items():
        if "failed" in one:
            print(f"  {system:14} failed: {one['failed']}")
            continue
        median, low, high = one["median_and_quartiles_s"]
        bound, beside = (f"{one['of_bound']:.2f}" if one["of_bound"] else ""), (f"{median / gloo:.2f}" if gloo else "")
        quartiles = f"{low:.4f} to {high:.4f}"
        sent = f"{one['bytes_over_least']:.3f}" + (" wrong values" if one["wrong_runs"] else "")
        print(f"  {system:14} {median:9.4f} {quartiles:>19} {bound:>8} {beside:>7} {sent:>14}")


if __name__ == "__main__":
    sys.exit(main())
