"""The devices of a shown schedule, as policies see them: links, merges, use, battery.

`close_round` tells which of them a mesh's round would not wait for, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import msgspec
from rich.table import Table

from mdl.devices.scenario import Scenario
from mdl.devices.usage import UsageKind, periods_begun
from mdl.scheduler.explain.recorded_round import RealRound
from mdl.scheduler.rounds.participation import Close, DeviceSeen, ParticipationRule, RoundSeen

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


@dataclass(frozen=True)
class CloseDecision:
    """The close of a round. at_s: since it opened. left_out: names. told: the rule's reason, in a sentence."""

    at_s: float
    left_out: tuple[str, ...]
    told: str


def close_round(scenario: Scenario, names: Sequence[str], rule: ParticipationRule, number: int = 1) -> CloseDecision:
    """Ask a rule about the scenario's round until it closes. number: of the round.

    No device was left out of a round before. A device that dies before it can give takes no part.
    """
    at_s = 0.0
    while True:
        seen = _see(scenario, names, at_s, number)
        decision = rule.decide(seen)
        if isinstance(decision, Close):
            out = tuple(each.device_id for each in seen.devices if each.device_id not in decision.devices)
            return CloseDecision(at_s, out, decision.reason)
        coming = [each.ready_in_s for each in seen.devices if each.ready_in_s > 0.0]
        later_s = min([decision.until_s, *(at_s + seconds for seconds in coming)])
        if later_s in (inf, at_s) or later_s < at_s:
            return CloseDecision(at_s, (), f"open: {decision.reason}")
        at_s = later_s


def _see(scenario: Scenario, names: Sequence[str], at_s: float, number: int) -> RoundSeen:
    devices = []
    for name, device in zip(names, scenario.devices, strict=True):
        if device.dies_at_s is not None and device.dies_at_s <= device.ready_s:
            continue
        is_ready = device.ready_s <= at_s
        place = periods_begun(device.busy, at_s)
        is_busy = place > 0 and device.busy[place - 1][1] > at_s
        devices.append(
            DeviceSeen(
                device_id=name,
                progress=float(is_ready),
                ready_in_s=0.0 if is_ready else device.ready_s - at_s,
                link_mb_s=device.link_mb_s,
                kind=device.kind,
                busy_for_s=max(1e-6, at_s - device.busy[place - 1][0]) if is_busy else 0.0,
                battery_percent=device.battery_percent,
                charging=device.charging,
                able_at_s=device.ready_s if is_ready else None,
            )
        )
    return RoundSeen(
        number=number,
        open_s=at_s,
        size_mb=scenario.size_mb,
        latency_s=scenario.latency_s,
        devices=tuple(devices),
        members=len(scenario.devices),
    )


def describe_closed(before: CloseDecision, after: CloseDecision) -> dict[str, object]:
    """Return what `--json` prints of the round without and with the changes."""
    return {
        name: {"at_s": round(each.at_s, 6), "left_out": list(each.left_out), "told": each.told}
        for name, each in (("before", before), ("after", after))
    }


def tell_closed(before: CloseDecision, after: CloseDecision) -> list[str]:
    """Tell the round without and with the changes, one line each; a single line if they are the same."""
    if before == after:
        return [f"the round, as before: {_tell(before)}"]
    return [f"the round before: {_tell(before)}", f"the round now: {_tell(after)}"]


def _tell(closed: CloseDecision) -> str:
    out = f" (left out: {', '.join(closed.left_out)})" if len(closed.left_out) > 1 else ""
    return f"{closed.told}{out}"
