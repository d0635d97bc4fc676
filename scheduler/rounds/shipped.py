"""The shipped participation rules. Pure.

`third`, `all`, `deadline` and `k-of-n` are one rule (`CloseAfter`) with other bounds. `half` and `best-ratio` are the
rules of a mesh. `mdl.scheduler.rounds.registry` has their names and bounds.
"""

from __future__ import annotations

from math import ceil, inf

import msgspec

from mdl.bounds import first_few
from mdl.scheduler.rounds.exchange_plan import best_set, in_plan_order
from mdl.scheduler.rounds.participation import (
    LEAST_MEMBERS,
    Close,
    Decision,
    DeviceSeen,
    RoundSeen,
    Wait,
    tell_close,
    tell_wait,
)

# Devices that train have this share of the time that the others took, if the grace is shorter: training times of equal
# devices differ by less. A device that nobody has seen train has so many times the grace.
_GRACE, _NEW = 0.25, 5.0


class Bounds(msgspec.Struct, frozen=True):
    """The bounds of a rule.

    wait_for: the share of the devices that must be able to give, 0 to 1; two devices at least.
    grace_s: seconds that a round stays open in any case, unless all can give; `half` and `best-ratio`: seconds that the
    others have once enough can give.
    left_out_at_most: rounds in a row that may close without one device; the next one waits for it. inf: no bound.
    drop_times, drop_extra_s: see `Close`.
    """

    wait_for: float = 1.0 / 3.0
    grace_s: float = 2.0
    left_out_at_most: float = 9.0
    drop_times: float = 2.0
    drop_extra_s: float = 1.0

    def needed(self, n: int) -> int:
        """Return the number of devices that must be able to give."""
        return max(LEAST_MEMBERS, ceil(self.wait_for * n - 1e-9))


class CloseAfter:
    """Close `grace_s` after opening, once enough devices can give, with all that can."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name, self.bounds = name, bounds

    def decide(self, seen: RoundSeen) -> Decision:
        able, n, bounds = seen.able(), len(seen.devices), self.bounds
        needed = bounds.needed(n)
        missing = _missing(seen)
        owed = [each for each in missing if each.left_out >= bounds.left_out_at_most]
        if owed and len(able) < n:
            return wait_for_owed(seen, owed, bounds)
        if len(able) < needed:
            return Wait(inf, _ids(missing), tell_wait(seen, missing, f"{needed} are needed"))
        if missing and seen.open_s < bounds.grace_s:
            return Wait(bounds.grace_s, _ids(missing), tell_wait(seen, missing, f"open until {bounds.grace_s:g} s"))
        return close_with(seen, able, bounds)


class Half:
    """Close once enough devices can give, and the others have had the grace (`_grace_end_s`)."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name, self.bounds = name, bounds

    def decide(self, seen: RoundSeen) -> Decision:
        bounds, able, missing = self.bounds, seen.able(), _missing(seen)
        needed = _needed(seen, bounds)
        if wait := _wait_for_enough(seen, missing, needed, bounds):
            return wait
        end_s = _grace_end_s(seen, missing, needed, max(bounds.grace_s, _GRACE * (seen.enough_at_s(needed) or 0.0)))
        if seen.open_s < end_s:
            return Wait(end_s, _ids(missing), tell_wait(seen, missing, f"open until {end_s:.1f} s"))
        return close_with(seen, able, bounds)


class BestRatio:
    """Close with the set of the exact plan that has the best ratio of worth to time, now or when it can give.

    The others have the grace once enough can give, as with `Half`.
    """

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name, self.bounds = name, bounds

    def decide(self, seen: RoundSeen) -> Decision:
        bounds, missing = self.bounds, _missing(seen)
        needed = _needed(seen, bounds)
        if wait := _wait_for_enough(seen, missing, needed, bounds):
            return wait
        best = best_set(seen, bounds.left_out_at_most, least=needed)
        if best is None:
            return Wait(inf, _ids(missing), tell_wait(seen, missing, "no set can give yet"))
        awaited = [each for each in best.devices if not each.can_give]
        end_s = seen.open_s + best.close_in_s
        if not awaited:
            awaited, end_s = missing, _grace_end_s(seen, missing, needed, bounds.grace_s)
        if seen.open_s < end_s:
            return Wait(end_s, _ids(awaited), tell_wait(seen, awaited, f"a round of {len(best.devices)} is worth it"))
        return close_with(seen, list(best.devices), bounds)


def _needed(seen: RoundSeen, bounds: Bounds) -> int:
    """Return the number of devices that must be able to give, of those that the round was opened with."""
    return min(bounds.needed(seen.opened_with), len(seen.devices))


def _missing(seen: RoundSeen) -> list[DeviceSeen]:
    return [each for each in seen.devices if not each.can_give]


def _wait_for_enough(seen: RoundSeen, missing: list[DeviceSeen], needed: int, bounds: Bounds) -> Wait | None:
    """Wait for devices at the bound, and until enough can give; None: there is no need to."""
    if owed := [each for each in missing if each.left_out >= bounds.left_out_at_most]:
        return wait_for_owed(seen, owed, bounds)
    if missing and len(seen.devices) - len(missing) < needed:
        return Wait(inf, _ids(missing), tell_wait(seen, missing, f"{needed} are needed"))
    return None


def _grace_end_s(seen: RoundSeen, missing: list[DeviceSeen], needed: int, grace_s: float) -> float:
    """Return the seconds after the opening at which the grace of the missing devices ends; 0.0 if none is missing."""
    if not missing:
        return 0.0
    longest_s = grace_s * (_NEW if any(each.is_new for each in missing) else 1.0)
    return (seen.enough_at_s(needed) or 0.0) + longest_s


def mesh_rule(name: str, bounds: Bounds) -> Half | BestRatio:
    """Return a mesh's rule. name: "half" or "best-ratio"."""
    return BestRatio(name, bounds) if name == "best-ratio" else Half(name, bounds)


def wait_for_owed(seen: RoundSeen, owed: list[DeviceSeen], bounds: Bounds) -> Wait:
    """Wait for devices that have been left out as long as the bounds allow."""
    first = owed[0]
    why = f"{first.device_id} was left out of {first.left_out} rounds in a row, the most is {bounds.left_out_at_most:g}"
    return Wait(inf, _ids(owed), tell_wait(seen, owed, why))


def close_with(seen: RoundSeen, members: list[DeviceSeen], bounds: Bounds) -> Close:
    """Close with these devices; those at the bound are kept in the exchange."""
    told = tell_close(seen, len(members), bounds.left_out_at_most)
    if slower := sorted({each.device_id for each in seen.able()} - set(_ids(members))):
        told += f"; without {first_few(slower)}, which would slow it down"
    kept = _ids([each for each in members if each.left_out >= bounds.left_out_at_most])
    order = in_plan_order(members, bounds.left_out_at_most)
    return Close(_ids(order), told, bounds.drop_times, bounds.drop_extra_s, kept)


def _ids(devices: list[DeviceSeen]) -> tuple[str, ...]:
    return tuple(each.device_id for each in devices)
