"""`mdl scheduler eval`: a policy file or a named policy on scenarios, as a table against greedy and the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError
from mdl.peers.view.console import PlainConsole
from mdl.scheduler.paper.policy import is_paper_dqn, load_paper_dqn
from mdl.scheduler.policies.fixed import FollowOrder
from mdl.scheduler.policies.qnet_numpy import NumpyQ, load_weights
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.judging import Judged, judge_network, judge_policy
from mdl.scheduler.study.optimal import solve


def judge(policy: str, scenarios: list[Scenario]) -> Judged:
    """Play a policy file, or a policy by name. Raises DataError or ConfigError if it is neither."""
    path = Path(policy)
    if path.suffix != ".safetensors" and not path.is_file():
        named = make_policy(policy)
        return judge_policy(policy, lambda: named, scenarios)
    if not is_paper_dqn(path):
        return judge_network(path.name, NumpyQ(load_weights(path)[0]), scenarios)
    network, _ = load_paper_dqn(path)
    if network.n != len(scenarios[0].devices):
        raise ConfigError(f"--n {len(scenarios[0].devices)}: {path} answers for {network.n} devices only")
    return judge_policy(path.name, lambda: FollowOrder("paper", network.order), scenarios)


def judge_optimum(scenarios: list[Scenario]) -> Judged:
    """Return the exact optimum with full information, N up to 12."""
    return Judged("optimum", tuple(solve(scenario).makespan_s for scenario in scenarios))


def describe(judged: Judged, others: list[Judged]) -> dict[str, object]:
    """Return one row of the table: means, spread, and percent over each of the others but the first."""
    row: dict[str, object] = {
        "policy": judged.name,
        "mean_s": round(judged.mean_s, 3),
        "interval95_s": round(judged.interval_s, 3),
        "lost": judged.lost,
        "energy_j2": round(judged.energy_variance, 3) if judged.energy_variances else None,
        "quits": judged.quits,
    }
    for other in others[1:]:
        row[f"over_{other.name}_percent"] = round(100.0 * (judged.mean_s / other.mean_s - 1.0), 2)
    return row


def list_makespans(judged: Sequence[Judged], scenarios: Sequence[Scenario]) -> list[dict[str, object]]:
    """Return the rows that `--csv` writes, one for each scenario and policy."""
    return [
        {"scenario": scenario.scenario_id, "policy": each.name, "makespan_s": round(seconds, 6)}
        for each in judged
        for scenario, seconds in zip(scenarios, each.makespans_s, strict=True)
    ]


def print_rows(rows: list[dict[str, object]], title: str) -> None:
    table = Table(title=title, box=None, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_percent", " %").replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    PlainConsole().print(table)
