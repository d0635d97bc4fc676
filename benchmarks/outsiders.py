"""What strangers on the network cost a mesh: memory and processor time of each member, and round times.

An agent and two devices on hosts of their own (network namespaces of 1 Gbit/s: root, iproute2), a stranger with raw
sockets on a fourth: 10,000 connections, a slow-loris, 1 GB of garbage at both ports of the agent and of a device,
forged mDNS. Calm and attacked in turn; between them the stranger does the same to a plain listener on a fifth host
("beside"), for all share this machine's processors: what rounds lose by that is not the members' cost. The kernel's
part of receiving counts as the stranger's processor time, as these networks hand packets over in its thread.

    python -m benchmarks outsiders --runs 2 --out outsiders.json
    python -m benchmarks outsiders --runs 1 --alone   # an agent that waits for devices: memory and processor alone
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from benchmarks.tool.hosts import load_helper, need_hosts
from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_data, add_runs, one_of
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.transport.trust.keys import MeshKeys, new_join_code

PORT = 5750
OUTSIDER = ROOT / "tests" / "integration" / "outsider.py"
DATA = "motion?people=2&test_people=1&windows=400"
# What a stranger does, and how much of it.
ATTACKS = {"connections": 10_000, "slow": 20, "garbage": 1024, "mdns": 20_000}


def add_options(parser: Parser) -> None:
    add_runs(parser, 2, "how often each attack comes")
    parser.add_argument("--calm", type=float, default=15.0, help="seconds before each attack")
    add_data(parser, DATA)
    parser.add_argument("--share", type=float, default=1.0, help="of the attacks' size")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="some of them, separated by commas")
    parser.add_argument(
        "--alone", action="store_true", help="an agent that waits; no rounds, nothing else to be busy with"
    )


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure one mesh, attacked and left alone in turns. Raises ConfigError."""
    lan, attacks = need_hosts(), one_of("--attacks", given.attacks, list(ATTACKS))
    phases = _run(lan, given, attacks)
    found = _summarise(phases)
    rows = [
        (f"{kind}, {phase}", told["rounds"], told["median_s"], told["used"], told["stranger_used"])
        for kind, each in found.items()
        for phase, told in each.items()
        if "rounds" in told
    ]
    show(("", "rounds", "median s", "processor of each", "of the stranger"), rows)
    sheet.tell({"attacks": found})
    sheet.all = phases


def _run(lan: ModuleType, given: Namespace, attacks: list[str]) -> list[dict[str, Any]]:
    """One mesh; attacked and left alone in turn."""
    product = load_helper("product")
    code = new_join_code("bench")
    phases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, lan.Lan(5, 1000) as net:
        homes = [
            product.Home(Path(folder) / f"host-{i}", Path(folder) / "cache", ("ip", "netns", "exec", net.names[i]))
            for i in range(3)
        ]
        try:
            run = Path(folder) / "run"
            commands = [homes[0].start("agent", "--code", code, "--port", PORT, "--min-peers", 2, "--out", run)]
            for i in () if given.alone else (1, 2):
                commands.append(
                    homes[i].start(
                        "peer",
                        "--code",
                        code,
                        "--data",
                        given.data,
                        "--shard",
                        f"{i}/2",
                        "--name",
                        f"p{i}",
                        "--port",
                        PORT,
                    )
                )
            metrics = run / "metrics.jsonl"
            begun = "is the agent now" if given.alone else "round 5,"
            if not product.until(lambda: begun in commands[0].told):
                raise RuntimeError(commands[0].told[-2000:])
            targets = [f"{net.hosts[i]}:{port}" for i in range(len(commands))[:2] for port in (PORT, PORT + 1)]
            mark = MeshKeys.from_code(code).fingerprint
            beside = [f"{net.hosts[4]}:{port}" for port in range(PORT, PORT + len(targets))]
            net.start(4, OUTSIDER, "sink", 256, *beside).stdout.readline()
            for _, kind in in_turns(given.runs, attacks):
                amount = max(1, round(ATTACKS[kind] * given.share))
                at = [mark] if kind == "mdns" else targets
                acts = {"calm": partial(_rest, given.calm), "beside": partial(_attack, net, kind, amount, beside)}
                if kind == "mdns" or given.alone:
                    del acts["beside"]  # it is said to all; nobody has less of a processor by it
                for phase, act in (acts | {"attacked": partial(_attack, net, kind, amount, at)}).items():
                    phases.append(_watch(commands, metrics, product, kind, phase, act))
        finally:
            for home in homes:
                home.close()
    return phases


def _rest(seconds: float) -> float:
    time.sleep(seconds)
    return 0.0


def _attack(net: Any, kind: str, amount: int, said: list[str]) -> float:
    """On a host of its own; on the same processors, though, which it leaves to the mesh. Processor seconds used."""
    started = net.start(3, OUTSIDER, kind, amount, *said)
    outsider = psutil.Process(started.pid)
    outsider.nice(19)
    print(started.stdout.readline().strip(), file=sys.stderr, flush=True)
    return float(sum(outsider.cpu_times()[:2]))


def _watch(commands: list[Any], metrics: Path, product: ModuleType, kind: str, phase: str, act: Any) -> dict[str, Any]:
    """Rounds that ended while something went on, what each process has grown by and used of a processor.

    Of the devices without their thread that trains: its share is what all others leave it.
    """
    before, began = len(product.read_lines(metrics)), time.monotonic()
    rss_before, used_before = [_rss_mb(each) for each in commands], [_used_s(each) for each in commands]
    stranger_s = act()
    seconds = time.monotonic() - began
    lines = product.read_lines(metrics)[before:]
    used = [
        [now_s - was.get(thread, 0.0) for thread, now_s in _used_s(each).items()]
        for each, was in zip(commands, used_before, strict=True)
    ]
    if any(each.code is not None for each in commands) or (not lines and commands[1:]):
        raise RuntimeError(f"a member has ended, or no round has ({kind}, {phase}): a larger --share or --calm?")
    return {
        "kind": kind,
        "phase": phase,
        "seconds": seconds,
        "rounds": [line["seconds"]["total"] for line in lines],
        "grown_mb": [_rss_mb(each) - was for each, was in zip(commands, rss_before, strict=True)],
        "used": [sum(each) / seconds for each in (used[0], *(sorted(each)[:-1] for each in used[1:]))],
        "stranger_used": stranger_s / seconds,
    }


def _rss_mb(command: Any) -> float:
    return float(psutil.Process(command.process.pid).memory_info().rss / (1 << 20))


def _used_s(command: Any) -> dict[int, float]:
    """Processor seconds of each of its threads until now."""
    return {each.id: each.user_time + each.system_time for each in psutil.Process(command.process.pid).threads()}


def _summarise(phases: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each attack and phase: rounds, their median, and what each member (agent, p1, p2) has grown by and used."""
    told: dict[str, Any] = {}
    for kind in dict.fromkeys(phase["kind"] for phase in phases):
        told[kind] = {}
        for name in dict.fromkeys(phase["phase"] for phase in phases if phase["kind"] == kind):
            of_it = [phase for phase in phases if (phase["kind"], phase["phase"]) == (kind, name)]
            rounds = [seconds for phase in of_it for seconds in phase["rounds"]]
            used = [statistics.mean(each) for each in zip(*(phase["used"] for phase in of_it), strict=True)]
            told[kind][name] = {
                "rounds": len(rounds),
                "median_s": round(statistics.median(rounds or [0.0]), 4),
                "used": [round(each, 3) for each in used],
                "stranger_used": round(statistics.mean(phase["stranger_used"] for phase in of_it), 3),
                "grown_mb": [[round(mb, 1) for mb in phase["grown_mb"]] for phase in of_it],
            }
        if calm_s := told[kind]["calm"]["median_s"]:
            slower = {name: each["median_s"] / calm_s - 1 for name, each in told[kind].items() if name != "calm"}
            told[kind]["slower_percent"] = {name: round(100 * share, 1) for name, share in slower.items()}
    return told
