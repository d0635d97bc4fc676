"""Round times of real peers on a shaped LAN, policy against policy: network namespaces, so it needs root and iproute2.

Six devices with links from fast to slow Wi-Fi; one is busy half of the time: somebody uses it, and its link with it.
The devices' places in the order of their names change from run to run, since tree and ring go by place.

    python -m benchmarks lan_round --policies dqn,greedy,tree,ring --runs 3 --out lan_round.json
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.tool.hosts import load_helper, need_hosts
from benchmarks.tool.options import Namespace, Parser, add_model, add_rounds, add_runs
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.spread import quartiles
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.sim.timing.iteration import Iteration
from mdl.transport.trust.keys import new_join_code

MBIT = (24.0, 16.0, 12.0, 8.0, 4.0, 2.0)
# Which of them is busy half of the time, and what is left of its link meanwhile.
BUSY, BUSY_MBIT, BUSY_S = 2, 1.0, (2.0, 6.0)
AGENT_MBIT = 100.0
# The first rounds show the links; they are played, and not counted.
WARM_UP = 3
_KEYS = ("total_s", "aggregate_s", "measured_over_predicted")
DATA = "motion?people=6&test_people=2&windows=40"
# A part of what a link carries is headers.
_PAYLOAD = 0.95


def add_options(parser: Parser) -> None:
    parser.add_argument("--policies", default="dqn,greedy,tree,ring")
    add_runs(parser, 3, "how often the devices change places")
    add_rounds(parser, 12)
    parser.add_argument("--seed", type=int, default=0)
    add_model(parser)
    parser.add_argument("--no-busy", action="store_true", help="nobody uses a device: to compare with the timing model")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure the policies in turns. Raises ConfigError."""
    lan, policies = need_hosts(), given.policies.split(",")
    results: dict[str, list[dict[str, Any]]] = {policy: [] for policy in policies}
    for number, policy in in_turns(given.runs, policies):
        places = np.random.default_rng([given.seed, number]).permutation(len(MBIT)).tolist()
        results[policy] += _run(lan, policy, places, given, [given.seed, number])
        print(f"run {number}, {policy}: {_describe(results[policy])}", file=sys.stderr, flush=True)
    found = _summarise(results)
    rows = [(policy, *(told[key][0] for key in _KEYS), told["rounds"]) for policy, told in found.items()]
    show(("medians", "round, s", "aggregation, s", "of the timing model's", "rounds"), rows)
    sheet.tell({"mbit": MBIT, "rounds": given.rounds, "policies": found})
    sheet.all = results


def _run(lan: ModuleType, policy: str, places: list[int], given: Namespace, seed: list[int]) -> list[Any]:
    """One mesh from start to end; its rounds after the warm-up."""
    product = load_helper("product")
    code = new_join_code("bench")
    mbit = [MBIT[place] for place in places]
    with tempfile.TemporaryDirectory() as folder, lan.Lan(len(MBIT) + 1, [*mbit, AGENT_MBIT]) as net:
        homes = [
            product.Home(Path(folder) / f"host-{i}", Path(folder) / "cache", ("ip", "netns", "exec", net.names[i]))
            for i in range(len(net.names))
        ]
        try:
            agent = homes[-1].start(
                "agent", "--code", code, "--rounds", given.rounds, "--min-peers", len(MBIT), "--policy", policy,
                "--exchange", "chain",
                "--set", "busy.cpu_percent=100", "--set", "faults.stall_s=60", "--out", Path(folder) / "run",
            )  # fmt: skip
            in_use = [Path(folder) / f"in-use-{i}" for i in range(len(MBIT))]
            for i in range(len(MBIT)):
                homes[i].start(
                    "peer", "--code", code, "--data", DATA, "--model", given.model, "--shard", f"{i + 1}/{len(MBIT)}",
                    "--name", f"dev{i}", "--set", f"device.in_use_file={in_use[i]}",
                )  # fmt: skip
            ended = threading.Event()
            user = threading.Thread(target=_use, args=(net, in_use, places, seed, ended))
            if not given.no_busy:
                user.start()
            try:
                if agent.end(60.0 * given.rounds):
                    raise RuntimeError(agent.told[-2000:])
            finally:
                ended.set()
                if not given.no_busy:
                    user.join()
        finally:
            for home in homes:
                home.close()
        # A device that does not hear the agent for a while leads the next rounds, and has their lines.
        lines = [line for path in Path(folder).rglob("metrics.jsonl") for line in product.read_lines(path)]
    rounds = {line["round"]: line for line in lines if _is_whole(line)}
    return [_describe_round(rounds[number], mbit) for number in sorted(rounds) if number > WARM_UP]


def _use(net: Any, in_use: list[Path], places: list[int], seed: list[int], ended: threading.Event) -> None:
    """Somebody uses the device, and its link, half of the time."""
    host, rng = places.index(BUSY), np.random.default_rng([*seed, 1])
    while not ended.wait(float(rng.uniform(*BUSY_S))):
        in_use[host].touch()
        net.limit(host, BUSY_MBIT)
        stopped = ended.wait(float(rng.uniform(*BUSY_S)))
        net.limit(host, MBIT[BUSY])
        in_use[host].unlink()
        if stopped:
            return


def _is_whole(line: dict[str, Any]) -> bool:
    """Whether its agent has seen all of its hops: who takes over in the middle knows only its own."""
    return bool(sum(hop["outcome"] == "merged" for hop in line["schedule"]) == len(line["contributors"]) - 1)


def _describe_round(line: dict[str, Any], mbit: list[float]) -> dict[str, Any]:
    seconds = line["seconds"]
    hops = [hop for hop in line["schedule"] if hop["outcome"] == "merged"]
    first_s = min((device["ready_s"] for device in line["devices"] if device.get("ready_s") is not None), default=0.0)
    measured_s = max(hop["decided_s"] for hop in hops)
    return {
        "total_s": seconds["total"],
        "aggregate_s": measured_s - first_s,
        "broadcast_s": seconds.get("broadcast", 0.0),
        "predicted_s": _predict(line, hops, mbit) - first_s,
        "hops": [(hop["sender"], hop["receiver"]) for hop in hops],
    }


def _predict(line: dict[str, Any], hops: list[dict[str, Any]], mbit: list[float]) -> float:
    """What the timing model says of the same hops in the same order, with the links as they were shaped."""
    names = sorted({end for hop in hops for end in (hop["sender"], hop["receiver"])})
    ready_s = {device["peer_id"]: device.get("ready_s") or 0.0 for device in line["devices"]}
    devices = tuple(
        ScenarioDevice(ready_s[name], mbit[int(name.removeprefix("dev"))] / 8 * _PAYLOAD, 1000.0) for name in names
    )
    iteration = Iteration(Scenario("lan", "lan", hops[0]["size_bytes"] / 1e6, 0.02, devices))
    left = [(names.index(hop["sender"]), names.index(hop["receiver"])) for hop in hops]
    while left:
        idle = set(iteration.idle())
        engaged: set[int] = set()
        for pair in list(left):
            if set(pair) <= idle and not set(pair) & engaged:
                iteration.start(*pair)
                left.remove(pair)
                idle -= set(pair)
            engaged |= set(pair)  # a device's hops keep their order
        if not iteration.advance():
            break
    return iteration.makespan_s


def _summarise(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        policy: {
            "rounds": len(rounds),
            "total_s": quartiles([one["total_s"] for one in rounds]),
            "aggregate_s": quartiles([one["aggregate_s"] for one in rounds]),
            "measured_over_predicted": quartiles([one["aggregate_s"] / one["predicted_s"] for one in rounds]),
        }
        for policy, rounds in results.items()
        if rounds
    }


def _describe(rounds: list[dict[str, Any]]) -> str:
    total_s = statistics.median(one["total_s"] for one in rounds)
    ratio = statistics.median(one["aggregate_s"] / one["predicted_s"] for one in rounds)
    return f"median round {total_s:.2f} s, aggregation {ratio:.2f} of the timing model's"
