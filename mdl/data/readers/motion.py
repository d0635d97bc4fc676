"""Synthetic motion data: six activities of different people, made from a seed. NOT a recording of anybody.

One person's data is not enough by design: cadence, vigour, the shape of a step, the phone's place in the pocket and
the sensor's noise and bias belong to the person. Test people never appear in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.config import LARGEST_SEED
from mdl.data.readers.uci_har import CHANNELS, UNITS
from mdl.data.windows import DataSet, make_windows, take_windows
from mdl.errors import ConfigError

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
RATE_HZ = 50
WINDOW = 128
STEP = 64
DESCRIPTION = "SYNTHETIC motion data made by mdl from a seed; no recording of any person"
# Each activity is done twice, with a pause between: two stretches that share no sample.
_BOUTS = 2
_HARMONICS = 3
# Ways to carry a phone: three turns about the vertical, each also upside down. People share them out evenly, so that a
# handful of people has not seen all of them, and two dozen have.
_PLACEMENTS = 6

Array = NDArray[np.float64]


# Some 2 GB in the making.
_MOST_WINDOWS = 200_000


class MotionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """people: to train on; test_people: to test on; windows: of each person, over all activities."""

    people: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 24
    test_people: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 12
    windows: Annotated[int, msgspec.Meta(ge=12, le=10_000)] = 120
    channels: Annotated[int, msgspec.Meta(ge=6, le=9)] = 9
    seed: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)] | None = None


@dataclass(frozen=True)
class _Gait:
    """One way of moving: steps a second, vigour in g, share of each harmonic, lead of the forward push over the
    vertical one (rad), and mean lean of the trunk (rad)."""

    cadence_hz: float
    vigour_g: float
    harmonics: tuple[float, float, float]
    push_rad: float
    lean_rad: float


# Level walking, climbing (slow, soft, leaning forward) and descending (quick, hard heel strike, leaning back).
_GAITS = (
    _Gait(1.85, 0.26, (1.0, 0.45, 0.15), 1.6, 0.0),
    _Gait(1.5, 0.22, (1.0, 0.2, 0.05), 0.2, 0.16),
    _Gait(2.05, 0.32, (0.8, 0.75, 0.5), 3.0, -0.1),
)
# Posture of the trunk against upright while sitting, standing, lying: rotation about the lateral axis, in rad.
_POSTURES = (0.9, 0.05, 1.5)


def make_motion(options: MotionOptions, seed: int) -> DataSet:
    """Make synthetic windows of 128 samples at 50 Hz, half overlapping; the same for the same options and seed.

    Nine channels in the order of UCI HAR: body acceleration x y z (g), angular velocity x y z (rad/s), total
    acceleration x y z (g); six channels leave out the body acceleration.
    """
    if options.channels not in (6, 9):
        raise ConfigError(f"motion: channels={options.channels}; valid: 6, 9")
    seed = seed if options.seed is None else options.seed
    count = options.people + options.test_people
    if count * options.windows > _MOST_WINDOWS:
        raise ConfigError(f"motion: {count} people of {options.windows} windows; at most {_MOST_WINDOWS} are made")
    people = [
        _record(np.random.default_rng([seed, person]), person % _PLACEMENTS, options.windows) for person in range(count)
    ]
    x = np.concatenate([windows for windows, _, _ in people])[:, 9 - options.channels :]
    y = np.concatenate([labels for _, labels, _ in people])
    subject = np.repeat(np.arange(count), [len(labels) for _, labels, _ in people])
    bouts = len(ACTIVITIES) * _BOUTS
    group = np.concatenate([bout + bouts * person for person, (_, _, bout) in enumerate(people)])
    windows = make_windows(x, y, subject, group)
    test = subject >= options.people
    return DataSet(
        "motion", take_windows(windows, ~test), take_windows(windows, test), ACTIVITIES, "subject",
        synthetic=True, description=DESCRIPTION, channels=CHANNELS[9 - options.channels :],
        rate_hz=RATE_HZ, channel_units=UNITS[9 - options.channels :],
    )  # fmt: skip


def _record(
    rng: np.random.Generator, placement: int, windows: int
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Make one person's windows (n, 9, 128), labels and bout numbers."""
    person = _draw_person(rng, placement)
    bouts = len(ACTIVITIES) * _BOUTS
    shares = np.full(bouts, windows // bouts) + (np.arange(bouts) < windows % bouts)
    cut = [
        np.lib.stride_tricks.sliding_window_view(_move(rng, person, bout // _BOUTS, int(share)), WINDOW, axis=0)[::STEP]
        for bout, share in enumerate(shares)
    ]
    bout_of = np.repeat(np.arange(bouts), shares)
    return np.concatenate(cut), bout_of // _BOUTS, bout_of


@dataclass(frozen=True)
class _Person:
    cadence: float
    vigour: float
    harmonics: Array  # (axes, harmonics): factors on the usual share of each
    phases: Array  # (axes, harmonics), rad
    mounting: Array  # (3, 3): from body (vertical, forward, lateral) to phone axes
    posture: Array  # (3,): error of this person's postures, rad
    sway_g: float
    noise_g: float
    bias_rad_s: Array  # (3,)


def _draw_person(rng: np.random.Generator, placement: int) -> _Person:
    return _Person(
        cadence=rng.uniform(0.9, 1.1),
        vigour=rng.lognormal(0.0, 0.22),
        harmonics=rng.uniform(0.7, 1.3, (6, _HARMONICS)),
        phases=rng.uniform(-0.5, 0.5, (6, _HARMONICS)),
        mounting=_draw_mounting(rng, placement),
        posture=rng.normal(0.0, 0.12, 3),
        sway_g=rng.uniform(0.004, 0.012),
        noise_g=rng.uniform(0.01, 0.04),
        bias_rad_s=rng.normal(0.0, 0.02, 3),
    )


def _draw_mounting(rng: np.random.Generator, placement: int) -> Array:
    """Draw a rotation: one of the placements, turned in the pocket by up to 17 degrees and tipped by up to 15."""
    flip = np.diag([-1.0, -1.0, 1.0]) if placement % 2 else np.eye(3)
    turn = _rotate(0, (placement // 2) * 2 * np.pi / 3 + rng.uniform(-0.3, 0.3))
    return _rotate(2, rng.uniform(-0.26, 0.26)) @ _rotate(1, rng.uniform(-0.26, 0.26)) @ turn @ flip


def _rotate(axis: int, angle_rad: float) -> Array:
    first, second = [index for index in range(3) if index != axis]
    matrix = np.eye(3)
    matrix[[first, second], [first, second]] = np.cos(angle_rad)
    matrix[first, second], matrix[second, first] = -np.sin(angle_rad), np.sin(angle_rad)
    return matrix


def _move(rng: np.random.Generator, person: _Person, activity: int, windows: int) -> Array:
    """Make one bout of one activity: (samples, 9) in phone axes."""
    samples = (windows - 1) * STEP + WINDOW
    body, turn, lean_rad = (_walk if activity < 3 else _rest)(rng, person, activity, samples)
    gravity = _rotate(2, lean_rad)[:, 0]
    noise = rng.normal(0.0, person.noise_g, (samples, 3))
    acceleration = (body + noise) @ person.mounting.T
    angular = (turn + rng.normal(0.0, 2 * person.noise_g, (samples, 3))) @ person.mounting.T + person.bias_rad_s
    return np.concatenate([acceleration, angular, acceleration + person.mounting @ gravity], axis=1)


def _walk(rng: np.random.Generator, person: _Person, activity: int, samples: int) -> tuple[Array, Array, float]:
    gait = _GAITS[activity]
    # Cadence and vigour wander within a bout, as in a real walk.
    cadence_hz = gait.cadence_hz * person.cadence * (1 + 0.05 * _wander(rng, samples))
    phase = 2 * np.pi * np.cumsum(cadence_hz) / RATE_HZ + rng.uniform(0, 2 * np.pi)
    vigour_g = gait.vigour_g * person.vigour * rng.lognormal(0, 0.1) * (1 + 0.15 * _wander(rng, samples))
    order = np.arange(1, _HARMONICS + 1)
    lead = np.zeros((6, 1))
    lead[[1, 4], 0] = gait.push_rad
    waves = np.sin(phase[:, None, None] * order + person.phases + lead) * (person.harmonics * gait.harmonics)
    # Sway to the side and hip rotation run at half the step frequency: left, then right.
    stride = np.sin(phase[:, None] / 2 + person.phases[3:, 0])
    body = vigour_g[:, None] * np.stack([waves[:, 0].sum(1), 0.6 * waves[:, 1].sum(1), 0.5 * stride[:, 2]], axis=1)
    turn = vigour_g[:, None] * (2.5 * stride * person.harmonics[3:, 0] + 1.2 * waves[:, 3:].sum(2))
    return body, turn, gait.lean_rad + 0.5 * float(person.posture[1]) + rng.normal(0, 0.04)


def _rest(rng: np.random.Generator, person: _Person, activity: int, samples: int) -> tuple[Array, Array, float]:
    posture = activity - 3
    calm = (0.7, 1.6, 0.4)[posture]
    sway = np.stack([_wander(rng, samples) for _ in range(3)], axis=1)
    breath = np.sin(2 * np.pi * rng.uniform(0.2, 0.35) * np.arange(samples) / RATE_HZ + rng.uniform(0, 2 * np.pi))
    body = person.sway_g * (calm * sway + 0.5 * breath[:, None] * np.array([0.3, 1.0, 0.1]))
    lean_rad = _POSTURES[posture] + float(person.posture[posture]) + rng.normal(0, 0.05)
    return body, 2 * person.sway_g * calm * np.roll(sway, 7, axis=0), lean_rad


def _wander(rng: np.random.Generator, samples: int) -> Array:
    """Draw a slow random walk around 0 of about unit size: random values a second apart, joined up."""
    knots = samples // RATE_HZ + 2
    return np.interp(np.arange(samples) / RATE_HZ, np.arange(knots), rng.normal(0.0, 1.0, knots))
