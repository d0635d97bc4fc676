"""`mdl schedule replay`: the recorded rounds of a run, played again under other policies on the timing model.

The model's time for the recorded hops is shown beside the measured time: if the two are far apart, the model says
little about this run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from mdl.errors import DataError
from mdl.own import Own
from mdl.scheduler.explain.recorded_round import (
    Rebuilt,
    RecordedOrder,
    finished_round,
    read_policy,
    read_real_rounds,
    rebuild,
)
from mdl.scheduler.explain.watched_play import Bench, play_watched
from mdl.scheduler.policies.chain import Policy
from mdl.scheduler.study.play import PlayedScenario

RECORDED = "recorded"
_MOST_ROUNDS_SHOWN = 12


@dataclass(frozen=True)
class RoundReplay:
    """One round. measured_s: from its opening until one holder had all. played: by policy, `recorded` among them."""

    number: int
    rebuilt: Rebuilt
    played: dict[str, PlayedScenario]

    @property
    def ready_s(self) -> float:
        """The time at which the last device held its delta: no policy can finish before."""
        return max(device.ready_s for device in self.rebuilt.scenario.devices)


@dataclass(frozen=True)
class ReplayedRun:
    """A replayed run. left_out: round number -> the reason why it is left out."""

    run: str
    recorded_policy: str
    rounds: tuple[RoundReplay, ...]
    left_out: dict[int, str]


def replay_run(directory: Path, number: int | None, policies: Sequence[str | Own]) -> ReplayedRun:
    """Play all rounds that can be rebuilt. Raises DataError if no round can, or the wanted one cannot.

    Each policy goes on with the energy that its own devices have spent in the rounds before.
    """
    summaries = [each for each in read_real_rounds(directory) if number is None or each.round == number]
    if not summaries:
        raise DataError(f"{directory}: no round {number} in it")
    where, recorded_policy = str(directory), read_policy(directory)
    bench, left_out, rounds = Bench(), {}, []
    spent: dict[str, dict[str, float]] = {}
    for summary in summaries:
        if summary.shares:
            left_out[summary.round] = (
                f"{where}: round {summary.round} went in segments: it has no hops to play again; "
                "mdl schedule what-if compares it with chains"
            )
            continue
        try:
            rebuilt = rebuild(finished_round(summary, where, recorded_policy))
        except DataError as error:
            left_out[summary.round] = str(error)
            continue
        played = {RECORDED: _play(rebuilt, RecordedOrder(rebuilt.pairs), spent.setdefault(RECORDED, {}))}
        for name in policies:
            own_spent = spent.setdefault(str(name), {})
            played[str(name)] = _play(rebuilt, bench.policy(name, rebuilt.scenario), own_spent)
        rounds.append(RoundReplay(summary.round, rebuilt, played))
    if not rounds:
        raise DataError(next(iter(left_out.values())))
    return ReplayedRun(where, recorded_policy, tuple(rounds), left_out)


def describe_replay(replay: ReplayedRun) -> dict[str, Any]:
    policies = list(replay.rounds[0].played)
    return {
        "run": replay.run,
        "recorded_policy": replay.recorded_policy,
        "rounds": [_describe_round(each) for each in replay.rounds],
        "left_out": {str(number): why for number, why in replay.left_out.items()},
        "measured_s_mean": round(fmean(each.rebuilt.measured_s for each in replay.rounds), 6),
        "last_ready_s_mean": round(fmean(each.ready_s for each in replay.rounds), 6),
        "policies": [_sum_up(replay, name) for name in policies],
        "estimated": list(dict.fromkeys(text for each in replay.rounds for text in each.rebuilt.estimates)),
    }


def list_replay(replay: ReplayedRun) -> list[dict[str, object]]:
    """List the rows of `--csv`: one for each round and policy."""
    return [
        {
            "round": each.number,
            "policy": name,
            "makespan_s": round(played.makespan_s, 6),
            "measured_s": round(each.rebuilt.measured_s, 6),
            "last_ready_s": round(each.ready_s, 6),
            "devices": len(each.rebuilt.names),
        }
        for each in replay.rounds
        for name, played in each.played.items()
    ]


def show_replay(replay: ReplayedRun, console: Console) -> None:
    described = describe_replay(replay)
    count = len(replay.rounds)
    policy = f" under {replay.recorded_policy}" if replay.recorded_policy else ""
    title = f"{replay.run}: {count} round{'' if count == 1 else 's'}{policy}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in ("one holder after s", "since all were ready", "against recorded"):
        table.add_column(column, justify="right")
    measured_s, ready_s = described["measured_s_mean"], described["last_ready_s_mean"]
    table.add_row("measured", f"{measured_s:.3f}", f"{max(0.0, measured_s - ready_s):.3f}", "", style="bold")
    for row in described["policies"]:
        against = f"{row['against_recorded_s']:+.3f} s, {row['against_recorded_percent']:+.1f} %"
        against = "" if row["policy"] == RECORDED else against
        name = "recorded hops on the model" if row["policy"] == RECORDED else row["policy"]
        table.add_row(name, f"{row['makespan_s']:.3f}", f"{row['after_ready_s']:.3f}", against)
    console.print(table)
    if 1 < count <= _MOST_ROUNDS_SHOWN:
        console.print()
        console.print(_draw_rounds(replay))
    console.print("\nestimated, so take it with care:")
    for text in described["estimated"]:
        console.print(f"- {text}")
    for number, why in replay.left_out.items():
        console.print(f"- round {number} is left out: {why}")


def _play(rebuilt: Rebuilt, policy: Policy, spent: dict[str, float]) -> PlayedScenario:
    """Play a rebuilt round. spent: joules by device, taken over and written back."""
    devices = tuple(
        msgspec.structs.replace(device, energy_j=spent.get(name, 0.0))
        for name, device in zip(rebuilt.names, rebuilt.scenario.devices, strict=True)
    )
    scenario = msgspec.structs.replace(rebuilt.scenario, devices=devices)
    played, _ = play_watched(scenario, policy, explains=False, names=rebuilt.names)
    spent |= dict(zip(rebuilt.names, played.energy_j, strict=True))
    return played


def _sum_up(replay: ReplayedRun, name: str) -> dict[str, Any]:
    own_s = fmean(each.played[name].makespan_s for each in replay.rounds)
    recorded_s = fmean(each.played[RECORDED].makespan_s for each in replay.rounds)
    after_s = fmean(max(0.0, each.played[name].makespan_s - each.ready_s) for each in replay.rounds)
    return {
        "policy": name,
        "makespan_s": round(own_s, 6),
        "after_ready_s": round(after_s, 6),
        "against_recorded_s": round(own_s - recorded_s, 6),
        "against_recorded_percent": round(100.0 * (own_s / recorded_s - 1.0), 3) if recorded_s > 0 else 0.0,
    }


def _describe_round(each: RoundReplay) -> dict[str, Any]:
    return {
        "round": each.number,
        "devices": len(each.rebuilt.names),
        "measured_s": round(each.rebuilt.measured_s, 6),
        "last_ready_s": round(each.ready_s, 6),
        "size_mb": round(each.rebuilt.scenario.size_mb, 6),
        "makespan_s": {name: round(played.makespan_s, 6) for name, played in each.played.items()},
    }


def _draw_rounds(replay: ReplayedRun) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("round", justify="right")
    for name in ("measured", *replay.rounds[0].played):
        table.add_column(name, justify="right", no_wrap=True)
    for each in replay.rounds:
        played = [f"{played.makespan_s:.3f}" for played in each.played.values()]
        table.add_row(str(each.number), f"{each.rebuilt.measured_s:.3f}", *played)
    return table
