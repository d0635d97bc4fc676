"""A SOURCE on the command line: a scenario, a round of a run directory, or the live mesh."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mdl.devices.scenario import Scenario, load_scenarios
from mdl.errors import ConfigError, DataError
from mdl.scheduler.explain.recorded_round import (
    RealRound,
    finished_round,
    live_round,
    pick_round,
    read_policy,
    read_real_rounds,
    rebuild,
    tell_lost,
)
from mdl.sim.timing.scenario import FAMILIES, draw_scenario

if TYPE_CHECKING:
    from mdl.config import MeshSection
    from mdl.protocol.status_messages import MeshStatus, RoundSummary
    from mdl.transport.trust.keys import Mesh

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
