"""What strangers on the network cost a mesh: memory of each member, and round times, attacked and not, in turn.

An agent and two devices on hosts of their own (network namespaces of 1 Gbit/s: root, iproute2), a stranger with raw
sockets on a fourth: 10,000 connections, a slow-loris, 1 GB of garbage at both ports of a member, forged mDNS.

    python benchmarks/outsiders.py --repeats 2 --out benchmarks/results/outsiders.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from transport.trust.keys import MeshKeys, new_join_code

PORT = 5750
OUTSIDER = Path(__file__).resolve().parents[1] / "tests" / "integration" / "outsider.py"
DATA = "motion?people=2&test_people=1&windows=400"
# What a stranger does, and how much of it.
ATTACKS = {"connections": 10_000, "slow": 20, "garbage": 1024, "mdns": 20_000}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--calm", type=float, default=15.0, help="seconds before each attack")
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--share", type=float, default=1.0, help="of the attacks' size")
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lan = load_helper("lan")
    if reason := lan.why_not():
        print(f"outsiders: {reason}", file=sys.stderr)
        return 2
    phases = _run(lan, given)
    report = {"command": " ".join(sys.argv), "attacks": _summarise(phases)}
    for kind, told in report["attacks"].items():  # type: ignore[attr-defined]
        print(kind, told, file=sys.stderr)
    print(json.dumps(report))
    if given.out:
        given.out.write_text(json.dumps(report | {"all": phases}, indent=1) + "\n")
    return 0


def _run(lan: ModuleType, given: argparse.Namespace) -> list[dict[str, Any]]:
    """One mesh; attacked and left alone in turn."""
    product = load_helper("product")
    code = new_join_code("bench")
    phases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, lan.Lan(4, 1000) as net:
        homes = [
            product.Home(Path(folder) / f"host-{i}", Path(folder) / "cache", ("ip", "netns", "exec", net.names[i]))
            for i in range(3)
        ]
        try:
            run = Path(folder) / "run"
            commands = [homes[0].start("agent", "--code", code, "--port", PORT, "--min-peers", 2, "--out", run)]
            for i in (1, 2):
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
            if not product.until(lambda: len(product.read_lines(metrics)) >= 5):
                raise RuntimeError(commands[0].told[-2000:])
            targets = [f"{net.hosts[i]}:{port}" for i in (0, 1) for port in (PORT, PORT + 1)]
            mark = MeshKeys.from_code(code).fingerprint
            for _ in range(given.repeats):
                for kind in given.attacks.split(","):
                    phases.append(_watch(commands, metrics, product, kind, "calm", partial(time.sleep, given.calm)))
                    amount = max(1, round(ATTACKS[kind] * given.share))
                    act = partial(_attack, net, kind, amount, [mark] if kind == "mdns" else targets)
                    phases.append(_watch(commands, metrics, product, kind, "attacked", act))
        finally:
            for home in homes:
                home.close()
    return phases


def _attack(net: Any, kind: str, amount: int, said: list[str]) -> None:
    """On a host of its own; on the same processors, though, which it leaves to the mesh."""
    outsider = net.start(3, OUTSIDER, kind, amount, *said)
    psutil.Process(outsider.pid).nice(19)
    print(outsider.stdout.readline().strip(), file=sys.stderr, flush=True)


def _watch(commands: list[Any], metrics: Path, product: ModuleType, kind: str, phase: str, act: Any) -> dict[str, Any]:
    """Rounds that ended while something went on, and what each process has in memory after it."""
    before, began = len(product.read_lines(metrics)), time.monotonic()
    rss_before = [_rss_mb(each) for each in commands]
    act()
    lines = product.read_lines(metrics)[before:]
    if any(each.code is not None for each in commands):
        raise RuntimeError("a member has ended")
    return {
        "kind": kind,
        "phase": phase,
        "seconds": time.monotonic() - began,
        "rounds": [line["seconds"]["total"] for line in lines],
        "grown_mb": [_rss_mb(each) - was for each, was in zip(commands, rss_before, strict=True)],
    }


def _rss_mb(command: Any) -> float:
    return float(psutil.Process(command.process.pid).memory_info().rss / (1 << 20))


def _summarise(phases: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each attack: the median round, calm and attacked, and the most that a member has grown by."""
    told = {}
    for kind in dict.fromkeys(phase["kind"] for phase in phases):
        calm, attacked = (
            [phase for phase in phases if phase["kind"] == kind and phase["phase"] == each]
            for each in ("calm", "attacked")
        )
        medians = [statistics.median([s for phase in each for s in phase["rounds"]]) for each in (calm, attacked)]
        told[kind] = {
            "rounds": [sum(len(phase["rounds"]) for phase in each) for each in (calm, attacked)],
            "median_s": [round(median, 4) for median in medians],
            "slower_percent": round(100 * (medians[1] / medians[0] - 1), 1),
            "grown_mb": [[round(mb, 1) for mb in phase["grown_mb"]] for phase in attacked],
            "grown_mb_calm": [[round(mb, 1) for mb in phase["grown_mb"]] for phase in calm],
        }
    return told


def load_helper(name: str) -> ModuleType:
    """Of the integration tests: the network `lan`, the commands `product`."""
    return importlib.import_module(f"tests.integration.{name}")


if __name__ == "__main__":
    sys.exit(main())
