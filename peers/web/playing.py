"""Draws a finished round again, or plays it with another policy or other devices. Reads no file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mdl.errors import ConfigError, DataError
from mdl.peers.view.schedule_source import Playable, as_playable, draw_subject
from mdl.peers.view.snapshot import ChartPart, chart_part
from mdl.protocol.status_messages import RoundSummary
from mdl.scheduler.explain.chart import Delay
from mdl.scheduler.explain.device_table import ShownDevice
from mdl.scheduler.explain.recorded_round import RealRound, finished_round
from mdl.scheduler.explain.what_if import apply_changes, parse_changes

# A play of so many devices takes a fraction of a second; the member trains meanwhile.
_MOST_DEVICES = 64
_MOST_CHANGES = 64


class ReplayedRound(msgspec.Struct, frozen=True):
    """A round as it was recorded.

    round: its number.
    policy: that made the decisions; "": not known.
    chart: the activities of all devices.
    devices: their properties, as far as they are known.
    delays: each device that waited, for which other one, and why.
    """

    round: int
    policy: str
    chart: ChartPart
    devices: tuple[ShownDevice, ...]
    delays: tuple[Delay, ...]


class WhatIf(msgspec.Struct, frozen=True):
    """A round rebuilt as a scenario and played twice under one policy.

    round: its number.
    policy: that orders it.
    changes: as they were asked for.
    before: as the devices were.
    after: as they were changed.
    devices: after the change.
    estimates: devices that the round went on without, and why; then the assumptions, in words.
    """

    round: int
    policy: str
    changes: tuple[str, ...]
    before: ChartPart
    after: ChartPart
    devices: tuple[ShownDevice, ...]
    estimates: tuple[str, ...]


def find_round(rounds: Sequence[RoundSummary], number: int, where: str, policy: str) -> RealRound:
    """Return the round. Raises DataError if it is not there, or tells no schedule."""
    found = next((summary for summary in rounds if summary.round == number), None)
    if found is None or not found.devices:
        raise DataError(f"round {number} is not known here with its schedule")
    return finished_round(found, where, policy)


def replay(real: RealRound) -> ReplayedRound:
    drawn = draw_subject(real, None, "")
    return ReplayedRound(real.number, drawn.policy, chart_part(drawn.chart), drawn.devices, drawn.chart.delays)


def what_if(real: RealRound, policy: str, assignments: Sequence[str], policies: Sequence[str]) -> WhatIf:
    """Play a round with changed devices.

    assignments: DEVICE.FIELD=VALUE, as `mdl schedule what-if --set` takes them. Raises ConfigError or DataError.
    """
    if policy not in policies:
        raise ConfigError(f"policy {policy[:40]!r}: expected one of {', '.join(policies)}")
    if len(real.devices) > _MOST_DEVICES:
        raise ConfigError(
            f"{len(real.devices)} devices: at most {_MOST_DEVICES} are played here; mdl schedule takes more"
        )
    if len(assignments) > _MOST_CHANGES:
        raise ConfigError(f"{len(assignments)} changes: at most {_MOST_CHANGES}")
    scene = as_playable(real)
    changed = scene
    if assignments:
        changed_scenario = apply_changes(scene.scenario, parse_changes(assignments, scene.names))
        changed = Playable(scene.title, changed_scenario, scene.names, scene.estimates)
    before, after = (draw_subject(each, policy, policy) for each in (scene, changed))
    charts = chart_part(before.chart), chart_part(after.chart)
    left_out = tuple(f"{line}: not played here" for line in scene.lost)
    return WhatIf(real.number, policy, tuple(assignments), *charts, after.devices, (*left_out, *scene.estimates))
