"""The constants that the learned policy was trained under: everything that the network sees is made with them. Pure.

They belong to the weights. Greedy has its own constants, some of the same value: tuning greedy must not change the
input of a network that is shipped or re-learned on a device. The shipped policy must be trained again after a change of
a constant here, of a usage constant in `mdl.devices.usage`, or of a formula in `mdl.scheduler.policies.features` or
`mdl.scheduler.policies.layout` (then FORMULAS rises). A policy file names the constants and their hash; a file with
others is refused.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from mdl.bounds import first_few
from mdl.devices import usage
from mdl.reading import shorten

# Rises when a column of the observation, or the layout, gets another meaning under the same constants.
FORMULAS = 1
# Policy files from before the stamp do not name their constants: all were made under those of this hash.
UNSTAMPED_HASH = "01ad81b24b29d7f8"
_SHOWN = 3


class LayoutConstants(msgspec.Struct, frozen=True):
    """Constants of the layout (`mdl.scheduler.policies.layout`); times, costs, energy in median-link transfers.

    rush: periods of use come this much more often than over a whole day: rounds run while people are about.
    exposed_transfers: a receiver is exposed to its user for its own transfer and so many typical ones before it.
    waiting_counts: time of waiting counts so many times: an expected end may come late, and a pair that works is no
        longer in the way.
    late_saves: a device costs so much less in the order of senders for each unit of time that it comes later.
    low_battery_percent: a device on battery below this should lose its load early.
    low_battery_transfers: it costs so much more then. Measured on the dying family (docs/results.md).
    energy_transfers: each unit of energy above the mean makes a device so much costlier, and it sends earlier.
    energy_of_a_round: one round alone takes no device further from the mean than so much.
    earlier_counts: energy beyond that was left by earlier rounds, and counts so many times.
    most_energy: energies further from the mean than so much look alike.
    max_gaps: gaps that are kept of one receiver's time.
    """

    rush: float = 2.0
    exposed_transfers: float = 3.0
    waiting_counts: float = 2.0
    late_saves: float = 0.6
    low_battery_percent: float = 15.0
    low_battery_transfers: float = 2.0
    energy_transfers: float = 0.02
    energy_of_a_round: float = 12.0
    earlier_counts: float = 2.0
    most_energy: float = 50.0
    max_gaps: int = 6


class ObservationConstants(msgspec.Struct, frozen=True):
    """Constants of the observation (`mdl.scheduler.policies.features`).

    longest: times beyond so many median transfers look alike.
    unknown_merge: ten times the merge time, in transfers, of a device that has not merged yet.
    nearly_empty_percent: a device on battery below this is close to its end.
    age_step_s, age_steps: the table of mean rests of busy periods, by their age.
    """

    longest: float = 12.0
    unknown_merge: float = 0.2
    nearly_empty_percent: float = 5.0
    age_step_s: float = 0.05
    age_steps: int = 600


LAYOUT = LayoutConstants()
OBSERVATION = ObservationConstants()


def seen_constants() -> dict[str, Any]:
    """Return all constants by name, as JSON values: of the layout, of the observation, and the assumptions on use.

    Only written constants are included. The last digits of a table computed from them differ between machines.
    """
    beliefs = {
        "sync_range_s": list(usage.SYNC_RANGE_S),
        "interactive_median_s": usage.INTERACTIVE_MEDIAN_S,
        "interactive_sigma": usage.INTERACTIVE_SIGMA,
        "call_range_s": list(usage.CALL_RANGE_S),
        "bimodal_short_s": usage.BIMODAL_SHORT_S,
        "bimodal_long_range_s": list(usage.BIMODAL_LONG_RANGE_S),
        "bimodal_long_share": usage.BIMODAL_LONG_SHARE,
        "once_range_transfers": list(usage.ONCE_RANGE_TRANSFERS),
        "busy_shares": {kind.name.lower(): share for kind, share in usage.BUSY_SHARES.items()},
    }
    return {
        "formulas": FORMULAS,
        **msgspec.structs.asdict(LAYOUT),
        **msgspec.structs.asdict(OBSERVATION),
        **beliefs,
    }


def hash_constants(constants: dict[str, Any]) -> str:
    """Hash to hex, 64 bits: enough to tell two sets of constants apart; it protects no secret."""
    return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()[:16]


def stamp() -> dict[str, object]:
    """Return the stamp of a policy file: the constants it was trained under, and their hash."""
    constants = seen_constants()
    return {"hash": hash_constants(constants), "constants": constants}


def describe_difference(found: object) -> str:
    """Describe how a policy file's stamp differs from ours: "rush 3.0 there, 2.0 here"; empty if it does not.

    found: the stamp as read, None if the file has none.
    """
    ours = seen_constants()
    if found is None:
        return "" if hash_constants(ours) == UNSTAMPED_HASH else "it does not name them, so it is of an older version"
    if not isinstance(found, dict):
        return f"{shorten(found)} is no stamp"
    if found.get("hash") == hash_constants(ours):
        return ""
    theirs = found.get("constants")
    known = theirs if isinstance(theirs, dict) else {}
    other = [
        f"{name} {shorten(known[name])} there, {value} here"
        for name, value in ours.items()
        if name in known and known[name] != value
    ]
    return first_few(other, _SHOWN) if other else "it does not say which"
