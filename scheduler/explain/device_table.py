"""The devices of a shown schedule, as policies see them: links, merges, use, battery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from mdl.devices.scenario import Scenario
from mdl.devices.usage import UsageKind
from mdl.scheduler.explain.recorded_round import RealRound

_MOST_SHOWN = 64


class ShownDevice(msgspec.Struct, frozen=True):
    """link_mb_s, merge_mb_s: MB/s, None until a hop has shown them. battery_percent: None on mains.
    owns: segments, of a round in segments; else None.
    """

    device: str
    ready_s: float | None
    link_mb_s: float | None
    merge_mb_s: float | None
    kind: str
    battery_percent: float | None
    owns: int | None = None


def real_devices(real: RealRound) -> tuple[ShownDevice, ...]:
    """List the devices as the agent knew them at the end of the round, or knows them now."""
    owns = real.exchange.owns if real.exchange else {}
    return tuple(
        ShownDevice(
            *(each.peer_id, each.ready_s, each.link_mb_s, each.merge_mb_s, _name_kind(each.kind)),
            *(each.battery_percent, owns.get(each.peer_id)),
        )
        for each in real.devices
    )


def scenario_devices(
    scenario: Scenario, names: Sequence[str], owns: Mapping[str, int] | None = None
) -> tuple[ShownDevice, ...]:
    """List the devices of a scenario. owns: device -> segments, if it is played in segments."""
    known = owns or {}
    return tuple(
        ShownDevice(
            *(name, each.ready_s, each.link_mb_s, each.merge_mb_s, _name_kind(each.kind)),
            *(each.battery_percent, known.get(name)),
        )
        for name, each in zip(names, scenario.devices, strict=True)
    )


def draw_devices(devices: Sequence[ShownDevice]) -> Table:
    table = Table(box=None, pad_edge=False, title="devices", title_justify="left", title_style="bold")
    table.add_column("device", no_wrap=True)
    for column in ("ready s", "link MB/s", "merge MB/s", "battery"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("use", no_wrap=True)
    segments = sum(each.owns or 0 for each in devices)
    if segments:
        table.add_column("owns", justify="right", no_wrap=True)
    for each in devices[:_MOST_SHOWN]:
        table.add_row(
            each.device,
            "" if each.ready_s is None else f"{each.ready_s:.3f}",
            _tell_rate(each.link_mb_s),
            _tell_rate(each.merge_mb_s),
            "mains" if each.battery_percent is None else f"{each.battery_percent:.0f} %",
            each.kind,
            *((_tell_share(each.owns, segments),) if segments else ()),
        )
    if len(devices) > _MOST_SHOWN:
        table.add_row("...", "", "", "", "", f"{len(devices) - _MOST_SHOWN} more; all are in --json")
    return table


def _tell_share(owns: int | None, segments: int) -> str:
    return "" if owns is None else f"{owns} ({owns / segments:.0%})"


def _tell_rate(mb_s: float | None) -> str:
    return "not known" if mb_s is None else f"{mb_s:.3g}" if mb_s < 1000.0 else f"{mb_s:.0f}"


def _name_kind(kind: int) -> str:
    return UsageKind(kind).name.lower() if 0 <= kind < len(UsageKind) else "unknown"
