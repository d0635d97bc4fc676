"""Models of devices: classes of link and merge speed, battery, heat; kinds of use come from mdl.devices.usage.

Each number is given by the scheduling study, fitted to recordings of real phones, or assumed: docs/device-models.md
names its source, and the quality of each fit. Pure: a seeded generator is passed in, no files, no clock.
"""

from __future__ import annotations

import math

import numpy as np

from mdl.devices.power import MERGE_W, RECEIVE_W, SEND_W

# Class 0 is the fastest. Shares and links are given, and so are the outer two merge ranges; the two between follow
# the ratio of CPU benchmark medians of phones cut into the same shares (CPU float test: 1 : 0.53 : 0.14 : 0.08).
CLASS_SHARES = (0.35, 0.35, 0.20, 0.10)
LINK_RANGES_MB_S = ((10.0, 20.0), (5.0, 10.0), (2.0, 4.0), (1.0, 2.0))
MERGE_RANGES_MB_S = ((600.0, 1200.0), (300.0, 600.0), (100.0, 200.0), (50.0, 100.0))

# Assumed: 4,000 mAh at 3.85 V, usual for phones of the recordings' years.
BATTERY_J = 4.0 * 3600.0 * 3.85
JOULES_A_PERCENT = BATTERY_J / 100.0
# Fitted within sessions, in percent of a full battery an hour. "Idle" is a phone with its screen off and a recorder
# that wakes it every few seconds; a phone that sleeps drains less.
IDLE_PERCENT_AN_HOUR = 2.7
IN_USE_PERCENT_AN_HOUR = 10.5
CHARGING_PERCENT_AN_HOUR = 54.0
# Given powers in the same unit. The slope of the recorded CPU (12) is near, but does not carry over phones.
CPU_PERCENT_AN_HOUR = MERGE_W * 3600.0 / JOULES_A_PERCENT
RADIO_PERCENT_AN_HOUR = SEND_W * 3600.0 / JOULES_A_PERCENT

# Fitted: battery temperature follows CPU and use as a first-order system.
HEAT_MINUTES = 24.0
HEAT_CPU_CELSIUS = 11.0
HEAT_USE_CELSIUS = 4.6
REST_CELSIUS = 28.0
# Assumed: the recordings show no clock speed, so they do not tell when a phone slows down and how much.
HEAT_LIMIT_CELSIUS = 40.0
SLOWER_A_CELSIUS = 0.05
SLOWEST_SHARE = 0.5


def draw_class(rng: np.random.Generator) -> int:
    """Draw a device class 0 (fastest) to 3, by CLASS_SHARES."""
    return int(np.searchsorted(np.cumsum(CLASS_SHARES[:-1]), rng.random(), side="right"))


def draw_link_mb_s(device_class: int, rng: np.random.Generator) -> float:
    """Draw a link speed in MB/s, uniform over the range of the class."""
    return float(rng.uniform(*LINK_RANGES_MB_S[device_class]))


def draw_merge_mb_s(device_class: int, rng: np.random.Generator) -> float:
    """Draw a merge speed in MB/s, uniform over the range of the class."""
    return float(rng.uniform(*MERGE_RANGES_MB_S[device_class]))


def drain_percent(seconds: float, cpu_share: float, in_use: bool, radio_share: float) -> float:
    """Return the percent of a full battery that `seconds` cost while not charging.

    cpu_share and radio_share: shares of the time, 0..1, in which our own work keeps the CPU or the radio at full power,
    on top of the owner's use (`in_use`). A hop that is counted by `hop_energy_j` must not be in the shares too.
    """
    an_hour = IDLE_PERCENT_AN_HOUR + (IN_USE_PERCENT_AN_HOUR if in_use else 0.0)
    an_hour += cpu_share * CPU_PERCENT_AN_HOUR + radio_share * RADIO_PERCENT_AN_HOUR
    return an_hour * seconds / 3600.0


def charge_percent(seconds: float) -> float:
    """Return the percent of a full battery that `seconds` on a charger add, use included."""
    return CHARGING_PERCENT_AN_HOUR * seconds / 3600.0


def dies_after_s(battery_percent: float, cpu_share: float, in_use: bool, radio_share: float) -> float:
    """Return the seconds until a device that does not charge falls to 0 %."""
    return max(0.0, battery_percent) / drain_percent(1.0, cpu_share, in_use, radio_share)


def hop_energy_j(transfer_s: float, merge_s: float) -> tuple[float, float]:
    """Return the joules that one hop costs (the sender, the receiver)."""
    return SEND_W * transfer_s, RECEIVE_W * transfer_s + MERGE_W * merge_s


def energy_percent(joules: float) -> float:
    """Convert joules to percent of a full battery."""
    return joules / JOULES_A_PERCENT


def heat_celsius(cpu_share: float, in_use: bool, minutes: float, rest_celsius: float = REST_CELSIUS) -> float:
    """Return the battery temperature after `minutes` of steady load that began at rest: a first-order rise."""
    full = cpu_share * HEAT_CPU_CELSIUS + (HEAT_USE_CELSIUS if in_use else 0.0)
    return rest_celsius + full * -math.expm1(-minutes / HEAT_MINUTES)


def throttle(
    compute_mb_s: float, busy_share: float, minutes: float, in_use: bool = False, rest_celsius: float = REST_CELSIUS
) -> float:
    """Return the compute speed in MB/s after `minutes` at `busy_share` (0..1): less above the (assumed) limit."""
    above = max(0.0, heat_celsius(busy_share, in_use, minutes, rest_celsius) - HEAT_LIMIT_CELSIUS)
    return compute_mb_s * max(SLOWEST_SHARE, 1.0 - SLOWER_A_CELSIUS * above)
