"""`mdl schedule what-if`: a scenario with a device changed, and the effect on the chain."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import UsageKind
from mdl.errors import ConfigError, did_you_mean
from mdl.own import Own
from mdl.scheduler.explain.draw_chart import choose_decimals, tell_hop
from mdl.scheduler.explain.watched_play import Bench, play_named
from mdl.scheduler.policies.registry import SHARES_BY
from mdl.scheduler.study.play import PlayedScenario

_PERIOD = re.compile(r"(-?\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)")
# Room for a hundred busy periods.
_LONGEST_CHANGE = 1000


@dataclass(frozen=True)
class Assignment:
    """One assignment. `where` is the user's text, for errors and for display."""

    where: str
    index: int
    field: str
    value: object


@dataclass(frozen=True)
class PolicyOnBoth:
    """One policy on the original scenario, and on the changed one."""

    policy: str
    before: PlayedScenario
    after: PlayedScenario

    @property
    def same_hops(self) -> int:
        """The number of hops that are in both, at any time."""
        return len(set(_pairs(self.before)) & set(_pairs(self.after)))


def parse_changes(assignments: Sequence[str], names: Sequence[str]) -> list[Assignment]:
    """Parse DEVICE.FIELD=VALUE each. Raises ConfigError that names the valid choices."""
    if not assignments:
        raise ConfigError("--set is missing: expected DEVICE.FIELD=VALUE, e.g. --set 2.link=0.5")
    if too_long := [text for text in assignments if len(text) > _LONGEST_CHANGE]:
        raise ConfigError(f"--set {too_long[0][:40]}...: {len(too_long[0])} characters; expected DEVICE.FIELD=VALUE")
    return [_parse(text, names) for text in assignments]


def apply_changes(scenario: Scenario, changes: Sequence[Assignment]) -> Scenario:
    """Apply changes; a device that is made busy and has no kind of use gets one: policies go by it."""
    devices = list(scenario.devices)
    for change in changes:
        devices[change.index] = msgspec.structs.replace(devices[change.index], **{change.field: change.value})
    kinds = {change.index for change in changes if change.field == "kind"}
    for index in {change.index for change in changes if change.field == "busy"} - kinds:
        devices[index] = _with_kind(devices[index])
    return msgspec.structs.replace(scenario, scenario_id=f"{scenario.scenario_id} changed", devices=tuple(devices))


def play_both(
    scenario: Scenario, changed: Scenario, policies: Sequence[str | Own], names: Sequence[str]
) -> list[PolicyOnBoth]:
    bench = Bench()
    return [
        PolicyOnBoth(str(name), play_named(scenario, name, bench, names)[0], play_named(changed, name, bench, names)[0])
        for name in policies
    ]


def describe_outcomes(
    title: str, changes: Sequence[Assignment], outcomes: Sequence[PolicyOnBoth], names: Sequence[str]
) -> dict[str, Any]:
    return {
        "source": title,
        "changes": [change.where for change in changes],
        "policies": [
            {
                "policy": each.policy,
                "before": _describe(each.before, names),
                "after": _describe(each.after, names),
                "everywhere_s": [round(each.before.everywhere_s, 6), round(each.after.everywhere_s, 6)],
                "makespan_change_percent": _change_percent(each),
                "same_hops": each.same_hops,
                "first_different_hop": _first_difference(each),
            }
            for each in outcomes
        ],
    }


def show_outcomes(
    title: str, changes: Sequence[Assignment], outcomes: Sequence[PolicyOnBoth], names: Sequence[str], console: Console
) -> None:
    console.print(Text(f"{title}; changed: {', '.join(change.where for change in changes)}", style="bold"))
    for each in outcomes:
        console.print()
        console.print(_draw(each, names) if each.policy not in SHARES_BY else "in segments: no hops")
        console.print(_sum_up(each))
    fields = {change.field for change in changes}
    if "battery_percent" in fields and "dies_at_s" not in fields:
        console.print("a battery level changes what a policy expects; to let a device fail: --set DEVICE.dies=SECONDS")


# -- changes ----------------------------------------------------------------------------------------------------------


def _number(low: float, high: float, exclusive: bool = False) -> Callable[[str], float]:
    """Make a reader for a number of this range."""

    def read(text: str) -> float:
        value = float(text)
        if not (low < value if exclusive else low <= value) or not value <= high:
            raise ValueError
        return value

    return read


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _kind(text: str) -> UsageKind:
    by_name = {kind.name.lower(): kind for kind in UsageKind}
    return by_name[text.lower()] if text.lower() in by_name else UsageKind(int(text))


def _periods(text: str) -> tuple[tuple[float, float], ...]:
    if text == "none":
        return ()
    periods = []
    for part in text.split(","):
        match = _PERIOD.fullmatch(part.strip())
        if match is None:
            raise ValueError
        periods.append((float(match[1]), float(match[2])))
    edges = [edge for period in periods for edge in period]
    if any(later <= earlier for earlier, later in pairwise(edges)):
        raise ValueError
    return tuple(periods)


def _dying(text: str) -> float | None:
    return None if text == "none" else _number(0.0, 1e6)(text)


_ANY = 1e6
# The name in --set -> field of the scenario, its reader, valid values.
_FIELDS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "battery": ("battery_percent", _number(0.0, 100.0), "0 to 100 percent"),
    "charging": ("charging", _flag, "true or false"),
    "link": ("link_mb_s", _number(0.0, _ANY, exclusive=True), "MB/s above 0"),
    "merge": ("merge_mb_s", _number(0.0, _ANY, exclusive=True), "MB/s above 0"),
    "busy": ("busy", _periods, "periods in seconds, e.g. 0-5 or 0-5,8-9, or none"),
    "ready": ("ready_s", _number(0.0, _ANY), "seconds, at least 0"),
    "kind": ("kind", _kind, ", ".join(kind.name.lower() for kind in UsageKind)),
    "class": ("device_class", lambda text: int(_number(0.0, 3.0)(text)), "0 (strongest) to 3"),
    "dies": ("dies_at_s", _dying, "seconds, at least 0, or none"),
    "energy": ("energy_j", _number(0.0, _ANY), "joules, at least 0"),
    "receives": ("may_receive", _flag, "true or false"),
}


def _parse(text: str, names: Sequence[str]) -> Assignment:
    left, equals, value = text.partition("=")
    device, dot, name = left.strip().rpartition(".")
    if not equals or not dot:
        raise ConfigError(f"--set {text!r}: expected DEVICE.FIELD=VALUE, e.g. 2.link=0.5")
    if device not in names:
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise ConfigError(f"--set {text!r}: no device {device!r} (devices: {shown})")
    if name not in _FIELDS:
        hint = did_you_mean(name, _FIELDS)
        raise ConfigError(f"--set {text!r}: unknown field {name!r}{hint} (valid: {', '.join(_FIELDS)})")
    field, read, valid = _FIELDS[name]
    try:
        return Assignment(text, names.index(device), field, read(value.strip()))
    except ValueError:
        raise ConfigError(f"--set {text!r}: {name} {value.strip()!r}: expected {valid}") from None


def _with_kind(device: ScenarioDevice) -> ScenarioDevice:
    if not device.busy or device.kind is not UsageKind.IDLE:
        return device
    once = len(device.busy) == 1 and device.busy[0][0] <= 0.0
    return msgspec.structs.replace(device, kind=UsageKind.ONCE if once else UsageKind.INTERACTIVE)


# -- outcomes ---------------------------------------------------------------------------------------------------------


def _pairs(played: PlayedScenario) -> list[tuple[int, int]]:
    return [(ordered.hop.sender, ordered.hop.receiver) for ordered in played.ordered]


def _first_difference(outcome: PolicyOnBoth) -> int | None:
    """Return the number of the first hop that differs; None if the chain is the same."""
    before, after = _pairs(outcome.before), _pairs(outcome.after)
    for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
        if one != other:
            return number
    return None if len(before) == len(after) else min(len(before), len(after)) + 1


def _change_percent(outcome: PolicyOnBoth) -> float | None:
    before_s = outcome.before.makespan_s
    return round(100.0 * (outcome.after.makespan_s / before_s - 1.0), 3) if before_s > 0 else None


def _sum_up(outcome: PolicyOnBoth) -> str:
    change, difference = _change_percent(outcome), _first_difference(outcome)
    by = "" if change is None else f" ({change:+.1f} %)"
    chain = "the same chain" if difference is None else f"another chain from hop {difference} on"
    lost = f"; lost: {len(outcome.before.lost)} → {len(outcome.after.lost)}" if outcome.after.lost else ""
    text = f"{outcome.before.makespan_s:.2f} s → {outcome.after.makespan_s:.2f} s{by}"
    if outcome.policy in SHARES_BY:
        return f"everybody has the result: {text}{lost}"
    everywhere = f"; everybody has it: {outcome.before.everywhere_s:.2f} s → {outcome.after.everywhere_s:.2f} s"
    hops = f"{outcome.same_hops} of {len(outcome.before.ordered)} hops as before"
    return f"{text}, {chain}, {hops}{lost}{everywhere}"


def _describe(played: PlayedScenario, names: Sequence[str]) -> dict[str, Any]:
    return {
        "makespan_s": round(played.makespan_s, 6),
        "lost": [names[index] for index in played.lost],
        "hops": [
            {
                "sender": names[each.hop.sender],
                "receiver": names[each.hop.receiver],
                "start_s": round(each.hop.start_s, 6),
                "merged_s": round(each.hop.merged_s, 6),
                "reason": each.reason,
            }
            for each in played.ordered
        ],
    }


def _draw(outcome: PolicyOnBoth, names: Sequence[str]) -> Table:
    """Draw both chains side by side; a hop that differs, or takes another time, stands out."""
    table = Table(title=f"policy {outcome.policy}", title_justify="left", box=None, pad_edge=False)
    for column in ("#", "before", "s", "after", "s"):
        table.add_column(column, justify="right" if column in ("#", "s") else "left", no_wrap=True)
    table.add_column("")
    before, after = outcome.before.ordered, outcome.after.ordered
    digits = max(2, choose_decimals(outcome.before.makespan_s))
    for place in range(max(len(before), len(after))):
        left = before[place].hop if place < len(before) else None
        right = after[place].hop if place < len(after) else None
        cells = []
        for hop in (left, right):
            cells.append("" if hop is None else tell_hop(names[hop.sender], names[hop.receiver]))
            cells.append("" if hop is None else f"{hop.start_s:.{digits}f}-{hop.merged_s:.{digits}f}")
        other = cells[0] != cells[2]
        later = cells[1] != cells[3] and not other
        note = Text("another hop", style="yellow") if other else Text("another time" if later else "", style="dim")
        table.add_row(str(place + 1), *cells, note, style="bold" if other else "")
    return table
