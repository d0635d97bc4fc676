"""Configuration: strict TOML, overridable on the command line, saved beside the results. Importing it imports no torch.

An unknown key is an error that names the closest valid key; a wrong value names the key, the value and what is valid.
"""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

import msgspec
import tomli_w

from mdl.errors import ConfigError, DataError
from mdl.hints import did_you_mean
from mdl.reading import LARGEST_TOML_BYTES, LONGEST_TOML_LINE, decode_toml, read_text
from mdl.writing import write_bytes

# Of rounds, windows, people and the like: far beyond any run, and no sum of them leaves 64 bits.
MANY = 1_000_000_000
# As many as a mesh may have.
MEMBERS = 1024
# 11 days: longer than anybody waits, and a timer of 32 bits in milliseconds still holds it.
LONGEST_S = 1_000_000
# What TOML can write, and every random generator takes.
LARGEST_SEED = 2**63 - 1
# Digits of a number that an error repeats.
_SHOWN_DIGITS = 24


class Range(msgspec.Struct, frozen=True):
    """What a number may be, both ends included, unless it must be above the low or below the high one.

    note: what a special value means.
    """

    low: float
    high: float
    note: str = ""
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """False for what is not a number, too."""
        return (self.low < value or (value == self.low and not self.above)) and (
            value < self.high or (value == self.high and not self.below)
        )

    def __str__(self) -> str:
        low, high = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{low} {self.low}, {high} {self.high}" + (f" ({self.note})" if self.note else "")


Seed: TypeAlias = Annotated[int, Range(0, LARGEST_SEED)]
Many: TypeAlias = Annotated[int, Range(1, MANY)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table of the configuration. Every number has a `Range` in its type; ConfigError names the first
    one that is out of it.
    """

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, valid in ranges_of(type(self)).items():
            if not valid.holds(value := getattr(self, name)):
                key = f"{self.table}.{name}".lstrip(".")
                raise ConfigError(f"{key} is {str(value)[:_SHOWN_DIGITS]}: it must be {valid}")


@cache
def ranges_of(section: type[Section]) -> dict[str, Range]:
    """The range of every number of a table, by its key."""
    hints = get_type_hints(section, include_extras=True).items()
    found = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints)
    return {name: note for name, notes in found for note in notes if isinstance(note, Range)}


class MeshSection(Section, frozen=True):
    """How this node meets the others. listen: an IP address or interface; empty: all. port 0: any free one."""

    table: ClassVar[str] = "mesh"
    listen: str = ""
    port: Annotated[int, Range(0, 65535, "0: any free one")] = 0
    join: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    loopback: bool = False
    insecure: bool = False


class DataSection(Section, frozen=True):
    """spec: see `mdl data inspect --help`; empty if none is given. split, shard: which part of it this device holds."""

    table: ClassVar[str] = "data"
    spec: str = ""
    split: str = "subject"
    shard: str = "1/1"


class ModelSection(Section, frozen=True):
    table: ClassVar[str] = "model"
    name: str = "lenet"


class TrainingSettings(Section, frozen=True):
    """How a device trains.

    learning_rate: at the start; `cosine` lets it fall to 1 % over planned_rounds, step by step.
    seed: of this device: derive it from the run's seed and the peer, or all devices drop out the same units.
    """

    table: ClassVar[str] = "training"
    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: Annotated[float, Range(0, 1000, above=True)] = 0.002
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.9
    weight_decay: Annotated[float, Range(0, 1000)] = 0.0
    batch_size: Many = 32
    rounds_per_epoch: Many = 1
    planned_rounds: Many = 5
    schedule: Literal["constant", "cosine"] = "cosine"
    label_smoothing: Annotated[float, Range(0, 1, below=True)] = 0.0
    seed: Seed = 0


class RoundSection(Section, frozen=True):
    """rounds 0: until stopped. theta: what a device weighs, 1 each ("peer") or its windows ("samples"). eta: Alg. 1.

    deadline_s: a round does not wait longer than this for devices that still train, if a share `quorum` of its members
    is ready; what they train is in a later round (0: it waits for all).
    relearn: the policy dqn goes on learning beside the mesh, from the rounds it has really had (3.3.3).
    """

    table: ClassVar[str] = "round"
    rounds: Annotated[int, Range(0, MANY, "0: until stopped")] = 0
    min_peers: Annotated[int, Range(1, MEMBERS)] = 2
    policy: str = "dqn"
    theta: Literal["peer", "samples"] = "peer"
    eta: Annotated[float, Range(0, 2, above=True)] = 1.0
    keep_deltas: bool = False
    relearn: bool = True
    deadline_s: Annotated[float, Range(0, LONGEST_S, "0: none")] = 0.0
    quorum: Annotated[float, Range(0, 1, above=True)] = 0.75


class BusySection(Section, frozen=True):
    """When a device counts as busy, so that its aggregations come last (3.3.1): any of these is enough.

    in_use: somebody is using it. cpu_percent: of other processes; 100 = never. battery_percent: below, and not
    charging. free_memory_mb: below.
    """

    table: ClassVar[str] = "busy"
    in_use: bool = True
    cpu_percent: Annotated[float, Range(0, 100, "100: never", above=True)] = 90.0
    battery_percent: Annotated[float, Range(0, 100, below=True)] = 5.0
    free_memory_mb: Annotated[float, Range(0, MANY)] = 64.0


class DeviceSection(Section, frozen=True):
    """What this device cannot find out by itself. in_use_file: it counts as in use as long as this file exists."""

    table: ClassVar[str] = "device"
    in_use_file: str = ""


class FaultSection(Section, frozen=True):
    """When somebody counts as lost. lost_after_s: the longest silence; on a good network a shorter one is enough.

    stall_s: a transfer of which nothing has come for so long is given up. partition_s: how long a group that is cut off
    from the majority of its mesh waits for it; then it trains on by itself ("continue") or goes on waiting ("wait").
    """

    table: ClassVar[str] = "faults"
    lost_after_s: Annotated[float, Range(1, LONGEST_S)] = 4.0
    stall_s: Annotated[float, Range(1, LONGEST_S)] = 10.0
    partition_s: Annotated[float, Range(0, LONGEST_S)] = 15.0
    on_partition: Literal["continue", "wait"] = "continue"


class CloudSection(Section, frozen=True):
    """Learning with a cloud (Colla). address: HOST:PORT of one, empty for none.

    people: training people of the data set who are the cloud's, and no device's. upload_every: rounds from one upload
    of the mesh's model to the next. lesson_every: rounds from one that has the teacher's term in its loss to the next.
    teacher_weight: lambda, the teacher's part of the loss; temperature: softens what it says. warm_start_s: a device
    that has no model yet waits so long for the cloud's and starts from it; 0: it starts from its own.
    Of the cloud itself: large: its model. updates: of different pupils that start a cycle; patience_s: or so long after
    the first. synchronous: cycles wait for all pupils. keep: the share of pupils' models that teach. groups: by kind.
    """

    table: ClassVar[str] = "cloud"
    address: str = ""
    people: Annotated[int, Range(0, MANY, "0: none")] = 0
    upload_every: Many = 5
    lesson_every: Many = 1
    teacher_weight: Annotated[float, Range(0, 1)] = 0.4
    temperature: Annotated[float, Range(0, 1000, above=True)] = 2.0
    warm_start_s: Annotated[float, Range(0, LONGEST_S, "0: none")] = 10.0
    large: str = ""
    updates: Annotated[int, Range(1, MEMBERS)] = 2
    patience_s: Annotated[float, Range(0, LONGEST_S)] = 30.0
    synchronous: bool = False
    keep: Annotated[float, Range(0, 1, above=True)] = 1.0
    groups: bool = True


class Config(Section, frozen=True):
    """All of it. seed: every random choice of a run follows from it."""

    seed: Seed = 0
    mesh: MeshSection = MeshSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSettings = TrainingSettings()
    round: RoundSection = RoundSection()
    busy: BusySection = BusySection()
    device: DeviceSection = DeviceSection()
    faults: FaultSection = FaultSection()
    cloud: CloudSection = CloudSection()


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
        text = read_text(path, LARGEST_TOML_BYTES, "a configuration in TOML")
    except DataError as error:
        raise ConfigError(f"cannot read {error}") from None
    try:
        return decode_toml(text, str(path))
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
            hint = did_you_mean(key, fields, f"did you mean {prefix}{{}}? ")
            raise ConfigError(f"{where}: unknown key {prefix}{key}; {hint}valid: {', '.join(fields)}")
        kind = fields[key]
        if isinstance(kind, type) and issubclass(kind, Section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {prefix}{key} is a table, got {reprlib.repr(value)}")
            _check_keys(value, kind, f"{prefix}{key}.", where)
