"""A SOURCE on the command line, and the drawings of its rounds: a scenario, a run directory, or the live mesh.

A real round is drawn as it was recorded, a scenario as it is played under a policy. `recorded_scenarios` makes a mesh's
own log something to train on: `recorded:FILE` of `mdl scheduler train --scenarios`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mdl.config import Compress
from mdl.devices.scenario import Scenario, load_scenarios
from mdl.errors import ConfigError, DataError
from mdl.files.figures import read_rounds
from mdl.own import Own
from mdl.protocol.status_messages import RoundSummary
from mdl.scheduler.explain.chart import Chart, Exchanged, SeenDevice, chart_round
from mdl.scheduler.explain.draw_chart import ShownDevice, real_devices, scenario_devices
from mdl.scheduler.explain.recorded_round import (
    RealRound,
    chart_real,
    finished_round,
    live_round,
    pick_round,
    read_policy,
    read_real_rounds,
    rebuild,
    tell_lost,
)
from mdl.scheduler.explain.watched_play import Bench, chart_play, check_policy, play_watched
from mdl.scheduler.policies.registry import SHARES_BY
from mdl.scheduler.study.play import play_segments
from mdl.sim.timing.scenario import FAMILIES, draw_scenario

if TYPE_CHECKING:
    from mdl.config import MeshSection
    from mdl.protocol.status_messages import MeshStatus
    from mdl.transport.trust.keys import Mesh


_RECORDED = "recorded:"


def parse_recorded(text: str) -> Path:
    """Return the path that `recorded:FILE` names. Raises ConfigError for another text, or if nothing is there."""
    path = Path(text.removeprefix(_RECORDED))
    if not text.startswith(_RECORDED) or not text.removeprefix(_RECORDED):
        raise ConfigError(f"--scenarios {text[:80]!r}: expected recorded:FILE, a run directory or its metrics.jsonl")
    if not path.exists():
        raise ConfigError(f"--scenarios {text[:80]!r}: no such file or directory")
    return path


def recorded_rounds(path: Path) -> list[RoundSummary]:
    """Read the rounds of a run directory or of a metrics.jsonl. Raises DataError if it has none."""
    if path.is_dir():
        return read_real_rounds(path)
    rounds = {summary.round: summary for summary in read_rounds(path)}
    if not rounds:
        raise DataError(f"{path}: no finished round in it")
    return [rounds[number] for number in sorted(rounds)]


def recorded_scenarios(path: Path) -> list[Scenario]:
    """Return a log's rounds as scenarios; a file may hold scenarios itself (`mdl schedule scenarios`).

    A round that tells too little is left out. Raises DataError if none is left.
    """
    if path.is_file():
        try:
            return load_scenarios(path)
        except DataError:
            pass
    found, why = [], ""
    for summary in recorded_rounds(path):
        try:
            found.append(rebuild(finished_round(summary, str(path))).scenario)
        except DataError as error:
            why = str(error)
    if not found:
        raise DataError(why)
    return found


Look = Callable[[], RealRound]
_FAMILY = re.compile(r"([a-z]+):(\d{1,9}):(\d{1,18})")
_MOST_DEVICES = 256
# Linux opens no longer path.
_LONGEST_PATH = 4096


@dataclass(frozen=True)
class Playable:
    """A scenario with its title and names. estimates: the assumptions, if it was rebuilt from a real round.

    number: of that round. lost: the devices that it went on without, and why.
    """

    title: str
    scenario: Scenario
    names: tuple[str, ...]
    estimates: tuple[str, ...] = ()
    number: int = 1
    lost: tuple[str, ...] = ()


# The subject of a drawing: a real round, finished or open, or a scenario.
Subject: TypeAlias = RealRound | Playable


def find_subject(source: str | None, index: int, round_number: int | None, look: Look) -> Subject:
    """Return the subject that a source names. look: asks the live mesh, if the source is None.

    index: of the scenario in a file. round_number: of the round in a run directory, None for the last. Raises
    ConfigError if the source names nothing.
    """
    if source is None:
        return look()
    if len(source) > _LONGEST_PATH:
        raise ConfigError(f"{source[:40]!r}...: no file has a name of {len(source)} characters")
    path = Path(source)
    if path.is_dir():
        return pick_round(path, round_number)
    if round_number is not None:
        raise ConfigError(f"--round {round_number}: only a run directory has rounds, and {source!r} is none")
    family = _FAMILY.fullmatch(source)
    if path.is_file() and not family:
        return _pick_scenario(path, index)
    if not family:
        raise ConfigError(
            f"{source!r}: no such file or directory; expected a scenario file, a run directory, or "
            f"FAMILY:N:SEED, e.g. dynamic:9:17 (families: {', '.join(FAMILIES)})"
        )
    n = int(family[2])
    if n > _MOST_DEVICES:
        raise ConfigError(f"{source!r}: at most {_MOST_DEVICES} devices can be shown, not {n}")
    return _plain(draw_scenario(family[1], n, int(family[3])))


def as_playable(subject: Subject) -> Playable:
    """Return the subject as a scenario; a real round is rebuilt as one."""
    if isinstance(subject, Playable):
        return subject
    rebuilt = rebuild(subject)
    title = f"rebuilt from {subject.title}"
    return Playable(title, rebuilt.scenario, rebuilt.names, rebuilt.estimates, subject.number, tell_lost(subject))


def looker(
    mesh: str | None,
    code: str | None,
    join: list[str] | None,
    interface: list[str] | None,
    loopback: bool | None,
    wait_s: float,
) -> Look:
    """Return a function that looks at the live mesh when it is called."""

    def look() -> RealRound:
        from mdl.config import load_config
        from mdl.peers.edge.identity import find_code
        from mdl.transport.trust.keys import Mesh

        overrides: dict[str, object] = {
            "mesh.join": join or None,
            "mesh.interfaces": interface or None,
            "mesh.loopback": loopback,
        }
        settings = load_config(None, overrides, [])
        return _look_at_mesh(Mesh.from_code(find_code(mesh, code)), settings.mesh, wait_s)

    return look


def draw_scenarios(
    family: str, n: int, count: int, seed_from: int, path: Path | None
) -> tuple[str, int, Iterable[Scenario]]:
    """Return a description, the count, and the scenarios, drawn when they are needed."""
    if path is not None:
        loaded = load_scenarios(path)
        return str(path), len(loaded), loaded
    draw_scenario(family, n, seed_from)  # raises before anything is played
    seeds = range(seed_from, seed_from + count)
    return (
        f"{family}, {n} devices, seeds {seeds[0]} to {seeds[-1]}",
        count,
        (draw_scenario(family, n, s) for s in seeds),
    )


def run_scenarios(directory: Path) -> tuple[str, int, list[Scenario]]:
    """Do the same as `draw_scenarios` with a run's rounds by hops, each rebuilt. Raises DataError if there is none."""
    policy, found, why = read_policy(directory), [], f"{directory}: all of its rounds went in segments, without hops"
    for summary in read_real_rounds(directory):
        if summary.shares:
            continue
        try:
            found.append(rebuild(finished_round(summary, str(directory), policy)).scenario)
        except DataError as error:
            why = str(error)
    if not found:
        raise DataError(why)
    return f"rounds of {directory}", len(found), found


def _look_at_mesh(mesh: Mesh, section: MeshSection, wait_s: float) -> RealRound:
    """Ask the agent of a live mesh, as `mdl status` does. Raises MeshNotFoundError after `wait_s`."""
    status, finished = _ask(mesh, section, wait_s)
    return live_round(status, finished)


def _ask(mesh: Mesh, section: MeshSection, wait_s: float) -> tuple[MeshStatus, list[RoundSummary]]:
    from mdl.errors import MeshNotFoundError
    from mdl.peers.view.watch import Watcher

    with Watcher(mesh, section) as watcher:
        watcher.heard.wait(wait_s)
        if watcher.problem:
            raise watcher.problem
        if watcher.status is None:
            raise MeshNotFoundError(
                f"no agent of mesh {mesh.shown!r} answered within {wait_s:g} s; name a run directory or a scenario "
                "instead; mdl status shows the devices that are there"
            )
        return watcher.status, watcher.rounds


def _pick_scenario(path: Path, index: int) -> Playable:
    scenarios = load_scenarios(path)
    if not 0 <= index < len(scenarios):
        raise ConfigError(f"--index {index}: {path} holds {len(scenarios)} scenarios, 0 to {len(scenarios) - 1}")
    return _plain(scenarios[index])


def _plain(scenario: Scenario) -> Playable:
    return Playable(scenario.scenario_id, scenario, tuple(str(index) for index in range(len(scenario.devices))))


@dataclass(frozen=True)
class Drawing:
    """policy: the policy of the decisions, empty if unknown. estimates: the assumptions, in words.

    lost: the devices that a real round went on without, and why.
    """

    chart: Chart
    policy: str
    devices: tuple[ShownDevice, ...]
    is_recorded: bool
    estimates: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def draw_subject(subject: Subject, policy: str | Own | None, usual_policy: str) -> Drawing:
    """Draw a subject: played under `policy`; with None a real round as recorded, a scenario under `usual_policy`.

    A real round is played as the scenario that it is rebuilt as. Raises ConfigError if there is no such policy.
    """
    if policy is None and not isinstance(subject, Playable):
        return Drawing(chart_real(subject), subject.policy, real_devices(subject), True, lost=tell_lost(subject))
    scene, shown = as_playable(subject), policy or usual_policy
    chart = _chart(scene, shown)
    devices = scenario_devices(scene.scenario, scene.names, chart.exchange.owns if chart.exchange else None)
    return Drawing(chart, str(shown), devices, False, scene.estimates)


def _chart(scene: Playable, policy: str | Own) -> Chart:
    """Play the scene, with the alternatives to each decision, if the policy tells them."""
    check_policy(policy)
    if policy in SHARES_BY:
        return _chart_segments(scene, SHARES_BY[str(policy)])
    played, watched = play_watched(scene.scenario, Bench().policy(policy, scene.scenario), names=scene.names)
    lost = f", lost: {', '.join(scene.names[index] for index in played.lost)}" if played.lost else ""
    title = f"{scene.title}, policy {policy}: one holder after {played.makespan_s:.2f} s{lost}"
    return chart_play(title, scene.scenario, played, watched.notes, scene.names)


def _chart_segments(scene: Playable, compress: Compress) -> Chart:
    """Play the scene in segments. The only decision is each device's number of segments."""
    played, plan, start_s = play_segments(scene.scenario, scene.names, compress)
    end_s = played.makespan_s
    title = f"{scene.title}, in segments: everybody has the result after {end_s:.2f} s"
    exchange = None
    if plan:
        exchange = Exchanged(plan.reason, plan.owns, start_s, end_s, plan.bound_s)
    devices = [
        SeenDevice(name, each.ready_s, each.busy, index in played.lost)
        for index, (name, each) in enumerate(zip(scene.names, scene.scenario.devices, strict=True))
    ]
    return chart_round(title, devices, (), end_s, True, exchange)
