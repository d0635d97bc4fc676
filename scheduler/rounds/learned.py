"""A participation rule learned on `mdl/Rounds-v0`: what it sees and may choose, its network in NumPy, its file. Pure.

A round is a table of numbers (`observe`). The choices are numbered: 0 waits, k from 1 on closes with the first k
devices of the exact plan's order, and the last one closes with the plan's best set of devices that can give now.

The file is a safetensors file, never a pickle. Arrays, float32: `layer0.weight` (outputs, inputs), `layer0.bias`
(outputs,), then `layer1` and so on; ReLU between layers. Metadata, one JSON object under the key `mdl`: `kind`
"rounds-dqn", `max_n` devices at most, and `columns`, those of the table. The maker may add more.

Every participation rule: those that come with mdl, by name and bounds, and learned ones, by their file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log, log1p
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mdl.data.sources import split_options
from mdl.devices.usage import expected_rest_s
from mdl.errors import ConfigError, did_you_mean
from mdl.reading import shorten
from mdl.scheduler.policies.qnet_numpy import PolicyFileError, read_policy
from mdl.scheduler.rounds.participation import (
    LEAST_MEMBERS,
    LOOKED_BACK,
    Bandit,
    BestRatio,
    Bounds,
    CloseAfter,
    Decision,
    DeviceSeen,
    Half,
    ParticipationRule,
    RoundSeen,
    WaitFor,
    best_set,
    close_with,
    in_plan_order,
    plan_exchange,
    tell_wait,
)
from mdl.writing import write_bytes

Floats = npt.NDArray[np.float32]

# The columns of an observation. The first describe the row's device, those from `open_s` on the round, in each row.
COLUMNS = (
    *("exists", "can_give", "closes", "progress", "ready_in_s", "busy", "busy_for_s", "rest_s", "link", "link_spread"),
    *("battery", "charging", "base_age", "took_part", "left_out", "owed"),
    *("open_s", "exchange_s", "devices", "able", "best_now", "best_later", "best_later_in_s"),
)
# No value is beyond it.
BOUND = 20.0
# Seconds are told as log(1 + s), links as log(MB/s), ages in tens of rounds.
_TENS = 10.0


@dataclass(frozen=True)
class Choices:
    """observation: float32 (max_n * F,), row after row. valid: bool (max_n + 2,), the choices that are possible.

    order: the devices that can give, in the plan's order. best: the plan's best set of them.
    """

    observation: Floats
    valid: npt.NDArray[np.bool_]
    order: list[DeviceSeen]
    best: tuple[DeviceSeen, ...]

    def members(self, choice: int) -> list[DeviceSeen]:
        """Return the devices that a choice closes with; none: it waits, as one that is not possible does."""
        if not choice or not self.valid[choice]:
            return []
        return list(self.best) if choice == len(self.valid) - 1 else self.order[:choice]


def observe(seen: RoundSeen, bounds: Bounds, max_n: int) -> Choices:
    """Return the choices of an open round of at most max_n devices."""
    most = bounds.left_out_at_most
    owed = sum(each.left_out >= most for each in seen.devices)
    order = in_plan_order(seen.able(), most)
    now, later = best_set(seen, most, now=True), best_set(seen, most)
    best = now.devices if now else ()
    valid = np.zeros(max_n + 2, np.bool_)
    valid[0] = True
    least = max(LEAST_MEMBERS, owed)
    if sum(each.left_out >= most for each in order) == owed and len(order) >= least:
        valid[least : len(order) + 1] = True
        valid[-1] = owed <= sum(each.left_out >= most for each in best)
    rates = [each.link_mb_s for each in seen.devices]
    exchange_s = plan_exchange(rates, [True] * len(rates), seen.size_mb, seen.latency_s).seconds
    later_ratio = later.ratio if later else 0.0
    about = (
        log1p(seen.open_s),
        log1p(exchange_s),
        log(len(seen.devices)),
        len(order) / len(seen.devices),
        now.ratio / later_ratio if now and later_ratio else 0.0,
        len(later.devices) / len(seen.devices) if later else 0.0,
        log1p(later.close_in_s) if later else 0.0,
    )
    table = np.zeros((max_n, len(COLUMNS)), np.float32)
    rest = sorted((each for each in seen.devices if not each.can_give), key=lambda each: each.ready_in_s)
    for row, device in enumerate([*order, *rest]):
        table[row] = (*_describe(device, bool(valid[row + 1]), most), *about)
    return Choices(np.clip(table, -BOUND, BOUND).reshape(-1), valid, order, best)


def valid_choices(observations: Floats) -> npt.NDArray[np.bool_]:
    """Return the possible choices, bool (B, max_n + 2), of a batch of observations; the best set counts as possible."""
    closes = observations.reshape(len(observations), -1, len(COLUMNS))[:, :, COLUMNS.index("closes")] > 0
    best = closes.any(axis=1, keepdims=True)
    return np.concatenate([np.ones_like(best), closes, best], axis=1)


def best_ratio_choices(observations: Floats) -> npt.NDArray[np.int64]:
    """Return the choices (B,) of the rule `best-ratio` in a batch of observations: the best set, or a wait for one."""
    table = observations.reshape(len(observations), -1, len(COLUMNS))
    waits = table[:, 0, COLUMNS.index("best_later_in_s")] > 0.0
    closes = valid_choices(observations)[:, -1] & ~waits
    return np.where(closes, table.shape[1] + 1, 0).astype(np.int64)


def _describe(device: DeviceSeen, closes: bool, most: float) -> tuple[float, ...]:
    is_busy = device.busy_for_s > 0.0
    return (
        1.0,
        float(device.can_give),
        float(closes),
        device.progress,
        log1p(device.ready_in_s),
        float(is_busy),
        log1p(device.busy_for_s),
        log1p(expected_rest_s(device.kind, device.busy_for_s)) if is_busy else 0.0,
        log(device.link_mb_s),
        device.link_spread,
        device.battery_percent / 100.0,
        float(device.charging),
        device.base_age / _TENS,
        device.took_part / LOOKED_BACK,
        device.left_out / _TENS,
        float(device.left_out >= most),
    )


Layer = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
ROUNDS_DQN: Literal["rounds-dqn"] = "rounds-dqn"
# A wait of the environment lasts this long at most, so that a policy may close because of the time alone.
LONGEST_WAIT_S = 2.0
_MOST_DEVICES, _MOST_LAYERS = 256, 8
_METADATA_KEY = "mdl"


class _Kept(msgspec.Struct):
    """A file's description of its network."""

    kind: Literal["rounds-dqn"]
    max_n: Annotated[int, msgspec.Meta(ge=2, le=_MOST_DEVICES)]
    columns: list[str]


class LearnedRule:
    """Make the choice that a network values most, among those that are possible.

    A mesh of more devices than the network has learned on follows the rule `third`.
    """

    def __init__(self, name: str, layers: Sequence[Layer], max_n: int, bounds: Bounds) -> None:
        self.name, self.layers, self.max_n, self.bounds = name, tuple(layers), max_n, bounds
        self._beyond = CloseAfter(name, bounds)

    def decide(self, seen: RoundSeen) -> Decision:
        if len(seen.devices) > self.max_n:
            return self._beyond.decide(seen)
        choices = observe(seen, self.bounds, self.max_n)
        missing = [each for each in seen.devices if not each.can_give]
        valid = choices.valid
        if not missing and valid[1:].any():  # nothing is left to wait for
            valid[0] = False
        choice = int(np.where(valid, self.values(choices.observation), -np.inf).argmax())
        if members := choices.members(choice):
            return close_with(seen, members, self.bounds)
        told = tell_wait(seen, missing, "the network values a wait more than any close")
        return WaitFor(seen.open_s + LONGEST_WAIT_S, tuple(each.device_id for each in missing), told)

    def values(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the value of each choice."""
        values = observation
        for number, (weight, bias) in enumerate(self.layers):
            values = weight @ values + bias
            if number + 1 < len(self.layers):
                values = np.maximum(values, 0.0)
        return values


def save_rounds_policy(path: Path, layers: Sequence[Layer], max_n: int, metadata: dict[str, object]) -> None:
    """Save a network; metadata: any JSON object (command, seed, evaluation). Raises MdlError if the disk refuses."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, (weight, bias) in enumerate(layers):
        arrays[f"layer{number}.weight"] = np.ascontiguousarray(weight)
        arrays[f"layer{number}.bias"] = np.ascontiguousarray(bias)
    kept = {"kind": ROUNDS_DQN, "max_n": max_n, "columns": list(COLUMNS)}
    write_bytes(path, save(arrays, {_METADATA_KEY: json.dumps({**metadata, **kept})}))


def load_rounds_policy(path: Path, bounds: Bounds) -> LearnedRule:
    """Load a rule. Raises PolicyFileError (one line: the file, the problem) for anything but finite fitting layers."""
    arrays, metadata = read_policy(path)
    try:
        kept = msgspec.convert(metadata, _Kept)
    except msgspec.ValidationError as error:
        raise PolicyFileError(f"{path}: no policy of rounds ({shorten(error)}); expected kind {ROUNDS_DQN}") from None
    if kept.columns != list(COLUMNS):
        raise PolicyFileError(f"{path}: its network sees other columns than this version; train it again")
    count = len(arrays) // 2
    names = [(f"layer{number}.weight", f"layer{number}.bias") for number in range(count)]
    if not 1 <= count <= _MOST_LAYERS or set(arrays) != {name for pair in names for name in pair}:
        raise PolicyFileError(f"{path}: {len(arrays)} arrays; expected weight and bias of 1 to {_MOST_LAYERS} layers")
    layers = [(arrays[weight], arrays[bias]) for weight, bias in names]
    inputs = kept.max_n * len(COLUMNS)
    for number, (weight, bias) in enumerate(layers):
        fits = weight.ndim == 2 and weight.shape[1] == inputs and bias.shape == weight.shape[:1]
        if not fits or not weight.dtype == bias.dtype == np.float32:
            raise PolicyFileError(f"{path}: layer {number} is not of float32 numbers with {inputs} inputs")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise PolicyFileError(f"{path}: layer {number} holds numbers that are not finite")
        inputs = len(bias)
    if inputs != kept.max_n + 2:
        raise PolicyFileError(f"{path}: {inputs} values; expected {kept.max_n + 2}, one for each choice")
    return LearnedRule(str(path), layers, kept.max_n, bounds)


# Waits and rounds beyond these are mistakes.
_LONGEST_S, _MOST_ROUNDS = 3600.0, 1000.0
# Name -> its class and bounds. `all` is the paper: no device is left out or dropped.
RULES: dict[str, tuple[Callable[[str, Bounds], ParticipationRule], Bounds]] = {
    "third": (CloseAfter, Bounds()),
    "all": (CloseAfter, Bounds(wait_for=1.0, grace_s=0.0, left_out_at_most=inf, drop_times=inf)),
    "deadline": (CloseAfter, Bounds(wait_for=0.5, grace_s=8.0)),
    "k-of-n": (CloseAfter, Bounds(wait_for=5.0 / 9.0, grace_s=0.0)),
    "half": (Half, Bounds(wait_for=0.51)),
    "best-ratio": (BestRatio, Bounds(wait_for=0.0, grace_s=0.0)),
    "bandit": (Bandit, Bounds()),
}
# Bound -> the least and the most; `inf` is valid for the last two, and means that there is none.
_RANGES = {
    "wait_for": (0.0, 1.0),
    "grace_s": (0.0, _LONGEST_S),
    "drop_extra_s": (0.0, _LONGEST_S),
    "left_out_at_most": (1.0, _MOST_ROUNDS),
    "drop_times": (1.0, _MOST_ROUNDS),
}


def make_rule(text: str) -> ParticipationRule:
    """Make a fresh rule of a name, of a name with bounds (`third?wait_for=0.5&grace_s=1`), or of a policy file.

    Raises ConfigError with the closest valid name or bound, and DataError for a file that holds no rule.
    """
    if text.endswith(".safetensors"):
        return load_rounds_policy(Path(text), Bounds())
    name, given = split_options(text, "rule")
    if name not in RULES:
        raise ConfigError(f"unknown rule {name[:80]!r}{did_you_mean(name, RULES)} (valid: {', '.join(RULES)})")
    make, bounds = RULES[name]
    for option, value in given.items():
        if option not in _RANGES:
            hint = did_you_mean(option, _RANGES)
            raise ConfigError(f"rule {name!r}: unknown bound {option[:80]!r}{hint} (valid: {', '.join(_RANGES)})")
        bounds = msgspec.structs.replace(bounds, **{option: _parse(name, option, value)})
    return make(text, bounds)


def _parse(name: str, option: str, value: str) -> float:
    low, high = _RANGES[option]
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if number == inf and option in ("left_out_at_most", "drop_times"):
        return number
    if not (isfinite(number) and low <= number <= high):
        raise ConfigError(f"rule {name!r}: {option}={value[:24]!r}: expected a number from {low:g} to {high:g}")
    return number
