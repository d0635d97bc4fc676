"""Configuration: strict TOML, overridable on the command line, saved beside the results. Importing it imports no torch.

An unknown key is an error that names the closest valid key; a wrong value names the key, the value and what is valid.
"""

from __future__ import annotations

import difflib
import math
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from mdl.errors import ConfigError, DataError
from mdl.files import write_bytes
from mdl.reading import LARGEST_TOML_BYTES, LONGEST_TOML_LINE, decode_toml, read_text


def _require(holds: bool, key: str, value: float, valid: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value}: it must be {valid}")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table of the configuration."""


class MeshSection(Section, frozen=True):
    """How this node meets the others. listen: an IP address; empty for all interfaces. port 0: any free one."""

    listen: str = ""
    port: int = 0
    join: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    loopback: bool = False
    insecure: bool = False


class DataSection(Section, frozen=True):
    """spec: see `mdl data inspect --help`; empty if none is given. split, shard: which part of it this device holds."""

    spec: str = ""
    split: str = "subject"
    shard: str = "1/1"


class ModelSection(Section, frozen=True):
    name: str = "lenet"


class TrainingSettings(Section, frozen=True):
    """How a device trains. Raises ConfigError that names the first value out of range.

    learning_rate: at the start; `cosine` lets it fall to 1 % over planned_rounds, step by step.
    seed: of this device: derive it from the run's seed and the peer, or all devices drop out the same units.
    """

    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: float = 0.002
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 32
    rounds_per_epoch: int = 1
    planned_rounds: int = 5
    schedule: Literal["constant", "cosine"] = "cosine"
    label_smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("batch_size", "rounds_per_epoch", "planned_rounds"):
            _require(getattr(self, key) >= 1, f"training.{key}", getattr(self, key), "at least 1")
        _require(0 < self.learning_rate < math.inf, "training.learning_rate", self.learning_rate, "above 0")
        _require(0 <= self.momentum < 1, "training.momentum", self.momentum, "from 0 to below 1")
        _require(0 <= self.weight_decay < math.inf, "training.weight_decay", self.weight_decay, "at least 0")
        _require(0 <= self.label_smoothing < 1, "training.label_smoothing", self.label_smoothing, "from 0 to below 1")
        _require(self.seed >= 0, "training.seed", self.seed, "at least 0")


class RoundSection(Section, frozen=True):
    """rounds 0: until stopped. theta: what a device weighs, 1 each ("peer") or its windows ("samples"). eta: Alg. 1.

    deadline_s: a round does not wait longer than this for devices that still train, if a share `quorum` of its members
    is ready; what they train is in a later round (0: it waits for all).
    relearn: the policy dqn goes on learning beside the mesh, from the rounds it has really had (3.3.3).
    """

    rounds: int = 0
    min_peers: int = 2
    policy: str = "dqn"
    theta: Literal["peer", "samples"] = "peer"
    eta: float = 1.0
    keep_deltas: bool = False
    relearn: bool = True
    deadline_s: float = 0.0
    quorum: float = 0.75

    def __post_init__(self) -> None:
        _require(self.rounds >= 0, "round.rounds", self.rounds, "0 (until stopped) or more")
        _require(self.min_peers >= 1, "round.min_peers", self.min_peers, "at least 1")
        _require(0 < self.eta <= 2, "round.eta", self.eta, "above 0, at most 2")
        _require(0 <= self.deadline_s < math.inf, "round.deadline_s", self.deadline_s, "0 (none) or more")
        _require(0 < self.quorum <= 1, "round.quorum", self.quorum, "above 0, at most 1")


class BusySection(Section, frozen=True):
    """When a device counts as busy, so that its aggregations come last (3.3.1): any of these is enough.

    in_use: somebody is using it. cpu_percent: of other processes; 100 = never. battery_percent: below, and not
    charging. free_memory_mb: below.
    """

    in_use: bool = True
    cpu_percent: float = 90.0
    battery_percent: float = 5.0
    free_memory_mb: float = 64.0

    def __post_init__(self) -> None:
        _require(0 < self.cpu_percent <= 100, "busy.cpu_percent", self.cpu_percent, "above 0, at most 100 (never)")
        _require(0 <= self.battery_percent < 100, "busy.battery_percent", self.battery_percent, "from 0 to below 100")
        _require(0 <= self.free_memory_mb < math.inf, "busy.free_memory_mb", self.free_memory_mb, "at least 0")


class DeviceSection(Section, frozen=True):
    """What this device cannot find out by itself. in_use_file: it counts as in use as long as this file exists."""

    in_use_file: str = ""


class FaultSection(Section, frozen=True):
    """When somebody counts as lost. lost_after_s: the longest silence; on a good network a shorter one is enough.

    stall_s: a transfer of which nothing has come for so long is given up. partition_s: how long a group that is cut off
    from the majority of its mesh waits for it; then it trains on by itself ("continue") or goes on waiting ("wait").
    """

    lost_after_s: float = 4.0
    stall_s: float = 10.0
    partition_s: float = 15.0
    on_partition: Literal["continue", "wait"] = "continue"

    def __post_init__(self) -> None:
        _require(1 <= self.lost_after_s < math.inf, "faults.lost_after_s", self.lost_after_s, "at least 1")
        _require(1 <= self.stall_s < math.inf, "faults.stall_s", self.stall_s, "at least 1")
        _require(0 <= self.partition_s < math.inf, "faults.partition_s", self.partition_s, "at least 0")


class CloudSection(Section, frozen=True):
    """Learning with a cloud (Colla). address: HOST:PORT of one, empty for none.

    people: training people of the data set who are the cloud's, and no device's. upload_every: rounds from one upload
    of the mesh's model to the next. lesson_every: rounds from one that has the teacher's term in its loss to the next.
    teacher_weight: lambda, the teacher's part of the loss; temperature: softens what it says. warm_start_s: a device
    that has no model yet waits so long for the cloud's and starts from it; 0: it starts from its own.
    Of the cloud itself: large: its model. updates: of different pupils that start a cycle; patience_s: or so long after
    the first. synchronous: cycles wait for all pupils. keep: the share of pupils' models that teach. groups: by kind.
    """

    address: str = ""
    people: int = 0
    upload_every: int = 5
    lesson_every: int = 1
    teacher_weight: float = 0.4
    temperature: float = 2.0
    warm_start_s: float = 10.0
    large: str = ""
    updates: int = 2
    patience_s: float = 30.0
    synchronous: bool = False
    keep: float = 1.0
    groups: bool = True

    def __post_init__(self) -> None:
        for key in ("upload_every", "lesson_every", "updates"):
            _require(getattr(self, key) >= 1, f"cloud.{key}", getattr(self, key), "at least 1")
        _require(self.people >= 0, "cloud.people", self.people, "0 (none) or more")
        _require(0 <= self.teacher_weight <= 1, "cloud.teacher_weight", self.teacher_weight, "from 0 to 1")
        _require(0 < self.temperature < math.inf, "cloud.temperature", self.temperature, "above 0")
        _require(0 <= self.warm_start_s < math.inf, "cloud.warm_start_s", self.warm_start_s, "0 (none) or more")
        _require(0 <= self.patience_s < math.inf, "cloud.patience_s", self.patience_s, "at least 0")
        _require(0 < self.keep <= 1, "cloud.keep", self.keep, "above 0, at most 1")


class Config(Section, frozen=True):
    """All of it. seed: every random choice of a run follows from it."""

    seed: int = 0
    mesh: MeshSection = MeshSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSettings = TrainingSettings()
    round: RoundSection = RoundSection()
    busy: BusySection = BusySection()
    device: DeviceSection = DeviceSection()
    faults: FaultSection = FaultSection()
    cloud: CloudSection = CloudSection()

    def __post_init__(self) -> None:
        _require(self.seed >= 0, "seed", self.seed, "at least 0")


def load_config(path: Path | None, overrides: Mapping[str, object], assignments: Iterable[str] = ()) -> Config:
    """File, then `key=value` assignments (`--set`), then overrides by dotted key; None overrides nothing.

    Raises ConfigError in one line: the file, the key, the value and what would be valid.
    """
    values = _read_toml(path) if path else {}
    where = str(path) if path else "command line"
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment!r}: expected key=value, for example training.learning_rate=0.01")
        _put(values, key.strip(), _parse_value(text.strip()))
    for key, value in overrides.items():
        if value is not None:
            _put(values, key, value)
    _check_keys(values, Config, "", where)
    try:
        return msgspec.convert(values, Config, strict=True)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise ConfigError(f"{where}: {place.rstrip('`') or 'configuration'}: {reason}") from None


def save_config(config: Config, path: Path) -> None:
    """Write the configuration as TOML, so that `--config` reads the same one again."""
    write_bytes(path, show_config(config).encode())


def show_config(config: Config) -> str:
    return tomli_w.dumps(msgspec.to_builtins(config, builtin_types=()))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return decode_toml(read_text(path, LARGEST_TOML_BYTES, "a configuration in TOML"), str(path))
    except DataError as error:
        raise ConfigError(str(error)) from None


def _parse_value(text: str) -> object:
    """A TOML value; what is none is a string, so that nobody has to quote names on a command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (RecursionError, ValueError):
        raise ConfigError(f"--set {text[:40]}...: nested too deep, or a number of too many digits") from None


def _put(values: dict[str, Any], key: str, value: object) -> None:
    if len(key) > LONGEST_TOML_LINE:
        raise ConfigError(f"--set {key[:40]}...: no key has {len(key)} characters")
    *tables, name = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key}: {table} is a value, not a table")
    values[name] = value


def _check_keys(values: Mapping[str, Any], section: type[msgspec.Struct], prefix: str, where: str) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(section)}
    for key, value in values.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean {prefix}{close[0]}? " if close else ""
            raise ConfigError(f"{where}: unknown key {prefix}{key}; {hint}valid: {', '.join(fields)}")
        kind = fields[key]
        if isinstance(kind, type) and issubclass(kind, Section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {prefix}{key} is a table, got {reprlib.repr(value)}")
            _check_keys(value, kind, f"{prefix}{key}.", where)
