"""Rounds of real processes over a link that is long, or that loses frames, beside what plain TCP makes of it.

Hosts in network namespaces behind a switch in user space (tests/integration/slow_switch.py), so it needs root and
iproute2. No training: the deltas are sent around and nothing else. Another checkout is measured in turn with this one.

    python -m benchmarks slow_link --delay-ms 300 --loss 0 --seconds 60
    python -m benchmarks slow_link --delay-ms 0 --loss 20 --seconds 90 --also ../before
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.tool.hosts import need_hosts
from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_runs, add_settings
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.spread import median
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.transport.trust.keys import new_join_code

TESTS = Path("tests") / "integration"
# A mesh that has not closed its first round by then is told as one that closed none.
PATIENCE_S = 120.0
# How much longer than asked for plain TCP is measured, until a delta that is under way has arrived.
TCP_PATIENCE_S = 30.0
_SETTINGS = ("round.exchange=chain",)
# Longer than any pause of TCP's before it takes its window for outdated, as between the rounds of a mesh.
IDLE_S = 3.0
# One value after the other over one connection, answered with a byte each.
_RECEIVE = """
import socket, sys
listener = socket.create_server(("0.0.0.0", 9999))
print("ready", flush=True)
connection, _ = listener.accept()
size, got = int(sys.argv[1]), 0
while data := connection.recv(65536):
    got += len(data)
    if got == size:
        got = 0
        connection.sendall(b"k")
"""
_SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 9999))
size, idle_s, end = int(sys.argv[2]), float(sys.argv[3]), time.monotonic() + float(sys.argv[4])
while time.monotonic() < end:
    begun = time.monotonic()
    connection.sendall(bytes(size))
    connection.recv(1)
    print(time.monotonic() - begun, flush=True)
    time.sleep(idle_s)
"""


def add_options(parser: Parser) -> None:
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--values", type=int, default=100_000, help="of a delta, 4 bytes each")
    parser.add_argument("--mbit", type=float, default=40.0)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--loss", type=float, default=0.0, help="percent of the frames")
    parser.add_argument(
        "--flap", type=float, nargs=2, default=(1.0, 0.0), metavar=("UP_S", "DOWN_S"), help="of one host"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="from the end of the first round on")
    add_runs(parser, 1)
    parser.add_argument("--congestion", default="reno", help="net.ipv4.tcp_congestion_control of the hosts")
    add_settings(parser)
    parser.add_argument("--also", type=Path, help="another checkout")
    parser.add_argument("--keep", type=Path, help="a folder for what the nodes say")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure this checkout, another one and plain TCP, in turns. Raises ConfigError."""
    lan = need_hosts()
    trees = {"here": ROOT} if given.also is None else {"also": given.also.resolve(), "here": ROOT}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    plain: list[float] = []
    for number, (name, tree) in in_turns(given.runs, trees.items()):
        bad = {"delay_s": given.delay_ms / 1e3, "loss": given.loss / 100, "flap_s": tuple(given.flap)}
        with lan.Lan(given.peers, given.mbit, **bad) as net:
            for host in range(given.peers):
                net.sysctl(host, f"net.ipv4.tcp_congestion_control={given.congestion}")
            plain += _measure_tcp(net, 4 * given.values, given.seconds / 4)
            results[name].append(_measure_mesh(net, tree, given))
        print(f"run {number}, {name}: {_describe(results[name][-1])}", file=sys.stderr, flush=True)
    told, tcp = {name: _summarise(runs) for name, runs in results.items()}, _spread(plain)
    rows = [(name, *(one[key] for key in ("rounds_a_minute", "median_s", "longest_s"))) for name, one in told.items()]
    rows.append(("plain TCP, one delta", None, tcp["median"], tcp["longest"]))
    show(("", "rounds a minute", "median pause, s", "longest"), rows)
    sheet.tell({"tcp_s": tcp, "trees": told})


def _measure_tcp(net: Any, size_bytes: int, seconds: float) -> list[float]:
    """How long a delta takes over one connection, after it was idle."""
    receiver = net.start(0, "-c", _RECEIVE, size_bytes)
    receiver.stdout.readline()
    sender = net.start(1, "-c", _SEND, net.hosts[0], size_bytes, IDLE_S, seconds)
    try:
        told, _ = sender.communicate(timeout=seconds + TCP_PATIENCE_S)
    except subprocess.TimeoutExpired:
        sender.kill()
        told = sender.communicate()[0] + f"{seconds + TCP_PATIENCE_S}\n"  # at least
    receiver.kill()
    return [float(line) for line in told.split()]


def _measure_mesh(net: Any, tree: Path, given: Namespace) -> dict[str, Any]:
    """One mesh: when its devices stood at another round; the first one's time counts from when the last was ready."""
    ready: list[float] = []
    stood: list[list[float]] = [[] for _ in range(given.peers)]
    folder = given.keep or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    os.environ["PYTHONPATH"] = str(tree)
    code, begun = new_join_code("slow"), time.monotonic()
    for host in range(given.peers):
        home = folder / f"{tree.name}-{host}"
        home.mkdir(exist_ok=True)
        os.environ |= {"HOME": str(home), "XDG_STATE_HOME": str(home)}
        words = (code, f"d{host}", home, "--values", given.values, "--set", *(given.set or _SETTINGS))
        process = net.start(host, tree / TESTS / "fault_node.py", *words, stderr=(home / "log").open("w"))
        threading.Thread(target=_note, args=(process.stdout, stood[host], ready), daemon=True).start()
    while not any(stood) and time.monotonic() < begun + PATIENCE_S:
        time.sleep(0.1)
    first = min((times[0] for times in stood if times), default=time.monotonic())
    time.sleep(given.seconds)
    pauses = []
    for times in stood:
        ends = [first, *(at for at in times if first < at), time.monotonic()]
        pauses.append([later - earlier for earlier, later in itertools.pairwise(ends)])
    begun = max(ready, default=begun)
    last = max(times[0] if times else inf for times in stood)
    return {"first_round_s": first - begun, "last_in_s": last - begun, "pauses_s": pauses}


def _note(lines: Any, stood: list[float], ready: list[float]) -> None:
    for line in lines:
        told = json.loads(line)
        if "stands" in told:
            stood.append(time.monotonic())
        elif "ready" in told:
            ready.append(time.monotonic())


def _summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    devices = [pauses for run in runs for pauses in run["pauses_s"]]
    rounds = sum(len(pauses) - 1 for pauses in devices)
    return {
        "first_round_s": [round(run["first_round_s"], 1) for run in runs],
        "last_in_s": [round(run["last_in_s"], 1) for run in runs],
        "rounds_a_minute": round(60 * rounds / sum(map(sum, devices)), 1),
        "median_s": median((pause for pauses in devices for pause in pauses), 1),
        "longest_s": round(max(max(pauses) for pauses in devices), 1),
        "longest_by_device_s": [[round(max(pauses), 1) for pauses in run["pauses_s"]] for run in runs],
    }


def _describe(run: dict[str, Any]) -> str:
    told = _summarise([run])
    return f"{told['rounds_a_minute']} rounds a minute, pauses of {told['median_s']} s, {told['longest_s']} s at most"


def _spread(times: list[float]) -> dict[str, Any]:
    if not times:
        return {"median": inf, "longest": inf, "deltas": 0}
    return {"median": median(times, 2), "longest": round(max(times), 2), "deltas": len(times)}
