"""The interface of a participation rule: which devices take part in a round, and when the round closes. Pure.

A round is open while devices train. Again and again a rule sees all devices (`RoundSeen`) and answers: wait, until when
and for which devices (`Wait`), or close with these devices (`Close`). Both say why in one clause, which people read.
Devices that are left out train on. They get the result in the background, and bring the sum of their work later.
A rule sees what an agent may know: never when a busy time ends.
"""

from __future__ import annotations

from math import inf
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from mdl.bounds import first_few
from mdl.devices.usage import UsageKind

# `DeviceSeen.took_part` looks back on so many rounds.
LOOKED_BACK = 10
# A round of one device would merge nothing.
LEAST_MEMBERS = 2


class DeviceSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One device at one moment of a round.

    device_id: its name.
    progress: its work that no round holds yet, in local periods; from 1.0 on it can give.
    ready_in_s: the expected seconds until it can give; 0.0: it can give now.
    kind: the kind of use by its owner.
    busy_for_s: for how long this use has kept it from working; 0.0: it works.
    link_mb_s: the speed of its link, as last measured.
    link_spread: the standard deviation of the last measurements over their mean.
    battery_percent: of a full charge.
    charging: it is on its charger.
    celsius: temperature of its battery; None: not known.
    base_age: rounds that have closed since the parameters that its oldest work began from.
    took_part: its rounds among the last `LOOKED_BACK`.
    left_out: rounds in a row, up to now, that closed without it.
    able_at_s: seconds after the round opened at which it could give; None: it cannot yet.
    is_new: nobody has seen it train, so `ready_in_s` is a guess.
    """

    device_id: str
    progress: float
    ready_in_s: float
    link_mb_s: float
    kind: UsageKind = UsageKind.IDLE
    busy_for_s: float = 0.0
    link_spread: float = 0.0
    battery_percent: float = 100.0
    charging: bool = False
    celsius: float | None = None
    base_age: int = 0
    took_part: int = 0
    left_out: int = 0
    able_at_s: float | None = None
    is_new: bool = False

    @property
    def can_give(self) -> bool:
        return self.ready_in_s <= 0.0


class RoundSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An open round.

    number: from 1.
    open_s: seconds that it is open.
    size_mb: of a delta.
    latency_s: of a message.
    devices: those that may still take part.
    members: the number that the round was opened with; 0: these.
    """

    number: int
    open_s: float
    size_mb: float
    latency_s: float
    devices: tuple[DeviceSeen, ...]
    members: int = 0

    @property
    def opened_with(self) -> int:
        return self.members or len(self.devices)

    def able(self) -> list[DeviceSeen]:
        """Return the devices that can give now."""
        return [device for device in self.devices if device.can_give]

    def enough_at_s(self, needed: int) -> float | None:
        """Return the seconds after the opening at which so many devices could give; None: they cannot yet."""
        at_s = sorted(each.able_at_s or 0.0 for each in self.able())
        return at_s[needed - 1] if len(at_s) >= needed else None


class Wait(msgspec.Struct, frozen=True):
    """Wait for these devices. until_s: since the round opened; the rule is asked again then, or when a device changes.

    inf: until a device changes.
    """

    until_s: float
    devices: tuple[str, ...]
    reason: str


class Close(msgspec.Struct, frozen=True):
    """Close with these devices, which can all give.

    drop_times, drop_extra_s: the exchange may take its planned time so many times, and so many seconds more. Devices
    that hold it up longer are dropped from it. inf: none ever is.
    kept: these are never dropped.
    """

    devices: tuple[str, ...]
    reason: str
    drop_times: float = inf
    drop_extra_s: float = 0.0
    kept: tuple[str, ...] = ()


Decision: TypeAlias = Wait | Close


class ParticipationRule(Protocol):
    """The rule of a mesh. It may remember; each mesh gets a fresh one."""

    @property
    def name(self) -> str: ...

    def decide(self, seen: RoundSeen) -> Decision:
        """Answer for an open round. Raise nothing: a rule that cannot close waits."""
        ...


@runtime_checkable
class HearsRounds(Protocol):
    """A rule that learns from the mesh's own rounds."""

    def hear(self, seconds: float, worth: float) -> None:
        """Hear of a round that has ended: its seconds from opening to result, and its worth; 0.0: abandoned."""
        ...


def tell_close(seen: RoundSeen, members: int, left_out_at_most: float) -> str:
    """Tell a close in one clause, with the device that would have kept it waiting longest.

    "closed at 2.0 s with 5 of 9: e needs about 14 s more (in use for 40 s); its work comes with a later round, at the
    latest round 21".
    """
    told = f"closed at {seen.open_s:.1f} s with {members} of {len(seen.devices)}"
    missing = sorted((each for each in seen.devices if not each.can_give), key=lambda each: -each.ready_in_s)
    if not missing:
        return told
    last, more = missing[0], len(missing) - 1
    latest = max(seen.number + 1.0, seen.number + left_out_at_most - last.left_out)
    bound = "" if left_out_at_most == inf else f", at the latest round {latest:.0f}"
    others = f" and {more} more need{'s' if more == 1 else ''} less" if more else ""
    return f"{told}: {_tell_need(last)}{others}; its work comes with a later round{bound}"


def tell_wait(seen: RoundSeen, waited_for: list[DeviceSeen], why: str) -> str:
    """Tell a wait: "waits for d, e: 2 of 9 can give, 3 are needed"."""
    names = first_few([each.device_id for each in waited_for])
    return f"waits for {names}: {len(seen.able())} of {len(seen.devices)} can give, {why}"


def _tell_need(device: DeviceSeen) -> str:
    use = f" (in use for {device.busy_for_s:.0f} s)" if device.busy_for_s > 0.0 else ""
    return f"{device.device_id} needs about {device.ready_in_s:.0f} s more{use}"
