"""Configuration: strict TOML, overridable on the command line, saved beside the results. Importing it imports no torch.

An unknown key is an error that names the closest valid key; a wrong value names the key, the value and what is valid.
`Section` is the base of every table, a struct of numbers with ranges. `EndSection` has the conditions that end a run,
with their notation: `--until accuracy=0.93`, `--every 10m`. `put_assignment` takes `--set training.learning_rate=0.01`.
"""

from __future__ import annotations

import math
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

import msgspec
import tomli_w

from mdl.bounds import printable
from mdl.errors import ConfigError, DataError, did_you_mean, explain
from mdl.reading import LARGEST_TOML_BYTES, LONGEST_TOML_LINE, decode_toml, read_bytes
from mdl.task import Targets
from mdl.writing import write_bytes

# The limit for rounds, windows, people and the like: far beyond any run, and no sum of them leaves 64 bits.
MANY = 1_000_000_000
MEMBERS = 1024  # the most that a mesh may have
# 11 days: longer than anybody waits, and a timer of 32 bits in milliseconds still holds it.
LONGEST_S = 1_000_000
LARGEST_SEED = 2**63 - 1  # the largest that TOML can write; every random generator takes it
_SHOWN_DIGITS = 24  # digits of a number that an error repeats


class Range(msgspec.Struct, frozen=True):
    """The valid values of a number, both ends included, unless it must be above the low or below the high one.

    note: the meaning of a special value.
    """

    low: float
    high: float
    note: str = ""
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """Return True if the value lies in the range; NaN does not."""
        return (self.low < value or (value == self.low and not self.above)) and (
            value < self.high or (value == self.high and not self.below)
        )

    def __str__(self) -> str:
        low, high = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{low} {self.low}, {high} {self.high}" + (f" ({self.note})" if self.note else "")


Seed: TypeAlias = Annotated[int, Range(0, LARGEST_SEED)]
Many: TypeAlias = Annotated[int, Range(1, MANY)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table. Every number has a `Range` in its type; ConfigError names the first one out of its range."""

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, valid in ranges_of(type(self)).items():
            if not valid.holds(value := getattr(self, name)):
                key = f"{self.table}.{name}".lstrip(".")
                raise ConfigError(f"{key} is {str(value)[:_SHOWN_DIGITS]}: it must be {valid}")


@cache
def ranges_of(section: type[Section]) -> dict[str, Range]:
    """Return the range of every number of a table, by its key."""
    hints = get_type_hints(section, include_extras=True).items()
    notes = ((name, note) for name, hint in hints for note in getattr(hint, "__metadata__", ()))
    return {name: note for name, note in notes if isinstance(note, Range)}


_ENDS: dict[str, tuple[str, type[int] | type[float]]] = {
    "accuracy": ("end.accuracy", float),
    "f1": ("end.f1", float),
    "r2": ("end.r2", float),
    "mae": ("end.mae", float),
    "rounds": ("round.rounds", int),
    "minutes": ("end.minutes", float),
    "no-better": ("end.no_better", int),
}
# The ends that a model's tests decide, and the targets that each one needs.
GOALS: dict[str, tuple[Targets, ...]] = {
    "accuracy": ("classes",),
    "f1": ("classes", "labels"),
    "r2": ("numbers",),
    "mae": ("numbers",),
}
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class EndSection(Section, frozen=True):
    """Conditions that end the mesh for all; the agent's device decides. Any one is enough, and so is `round.rounds`.

    accuracy: of the mesh's model on the test windows of all devices, for classes only; 0: none.
    f1: likewise, the micro F1 of labels, or the macro F1 of classes; 0: none.
    r2: likewise, for numbers: the mean R2 over all of them; 0: none.
    mae: likewise, for numbers: the greatest mean absolute error that any of them may have, in its unit; 0: none.
    minutes: since the first round of this start was opened; 0: any.
    no_better: rounds without a better model (`MEASURES`), by the training loss where no device tests; 0: any.
    """

    table: ClassVar[str] = "end"
    accuracy: Annotated[float, Range(0, 1, "0: none")] = 0.0
    f1: Annotated[float, Range(0, 1, "0: none")] = 0.0
    r2: Annotated[float, Range(0, 1, "0: none")] = 0.0
    mae: Annotated[float, Range(0, MANY, "0: none")] = 0.0
    minutes: Annotated[float, Range(0, LONGEST_S, "0: any")] = 0.0
    no_better: Annotated[int, Range(0, MANY, "0: any")] = 0

    def __bool__(self) -> bool:
        return bool(self.goals or self.minutes or self.no_better)

    @property
    def goals(self) -> dict[str, float]:
        """The test results that a model has to reach, by the names of `GOALS`."""
        return {name: goal for name in GOALS if (goal := getattr(self, name))}

    def check(self, targets: Targets, data: str) -> None:
        """Raise ConfigError for a goal that models of such data (its name) cannot be measured by."""
        for name in self.goals:
            if targets not in GOALS[name]:
                valid = " or ".join(f"{goal}=N" for goal, kinds in GOALS.items() if targets in kinds)
                raise ConfigError(f"--until {name}: {data} has {targets}; expected {valid}, or no-better=N")


def until_settings(texts: Iterable[str]) -> dict[str, float]:
    """Parse any number of texts like `accuracy=0.93,no-better=5` into settings by their dotted keys.

    Raises ConfigError in one line; the configuration checks the ranges.
    """
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    found: dict[str, float] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if name not in _ENDS or not equals:
            hint = did_you_mean(name, _ENDS, "did you mean {}? ")
            raise ConfigError(f"--until {part[:40]!r}: {hint}expected {', '.join(f'{end}=N' for end in _ENDS)}")
        key, kind = _ENDS[name]
        if key in found:
            raise ConfigError(f"--until {name} is given twice")
        try:
            found[key] = kind(value)
        except ValueError:
            whole = "a whole number" if kind is int else "a number"
            raise ConfigError(f"--until {part[:40]!r}: {value[:24]!r} is not {whole}") from None
    return found


def parse_period(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `1.5h` or `1d`. Raises ConfigError."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"--every {text[:24]!r}: expected a number and its unit, for example 90s, 10m, 1.5h or 1d")
    return seconds


def put_assignment(values: dict[str, Any], assignment: str) -> None:
    """Put `key=value` into nested tables. Raises ConfigError in one line for any other text."""
    key, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigError(f"--set {assignment!r}: expected key=value, for example training.learning_rate=0.01")
    put(values, key.strip(), _parse_value(text.strip()))


def put(values: dict[str, Any], key: str, value: object) -> None:
    """Put a value at a dotted key. Raises ConfigError if a part of the key is a value already."""
    if len(key) > LONGEST_TOML_LINE:
        raise ConfigError(f"--set {key[:40]}...: no key has {len(key)} characters")
    *tables, name = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key}: {table} is a value, not a table")
    values[name] = value


def _parse_value(text: str) -> object:
    """Return a TOML value; any other text stays a string, so that names need no quotes on a command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (RecursionError, ValueError):
        raise ConfigError(f"--set {text[:40]}...: nested too deep, or a number of too many digits") from None


class MeshSection(Section, frozen=True):
    """The connection of this node to the others.

    listen: an IP address or interface of this machine; "": all of them.
    port: TCP port to listen on; 0: 7300 or any free one, or 7777 for a cloud.
    join: HOST:PORT of members, where multicast is blocked.
    interfaces: network interfaces to announce on and look at; empty: the usual ones.
    scan: where multicast finds nobody, look for members at port 7300 of the own subnet, once.
    loopback: meet peers on this machine only (127.0.0.1).
    insecure: no encryption; allowed on loopback only.
    """

    table: ClassVar[str] = "mesh"
    listen: str = ""
    port: Annotated[int, Range(0, 65535, "0: any free one")] = 0
    join: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    scan: bool = True
    loopback: bool = False
    insecure: bool = False


class DataSection(Section, frozen=True):
    """The windows that this device trains on.

    spec: an expression that `mdl data inspect --help` explains, like motion or csv:PATH; "": none is given.
    split: how the windows are cut into shares: subject, iid or dirichlet:ALPHA.
    shard: I/N: this device holds share I of N.
    tell_values: tell the mesh each channel's mean, deviation and range, to one significant digit.
    """

    table: ClassVar[str] = "data"
    spec: str = ""
    split: str = "subject"
    shard: str = "1/1"
    tell_values: bool = True


class ModelSection(Section, frozen=True):
    """The model that the mesh trains.

    name: a built-in model, as lenet, or a user's own package.module:factory.
    """

    table: ClassVar[str] = "model"
    name: str = "lenet"


class TrainingSettings(Section, frozen=True):
    """The settings of training on a device.

    optimizer: sgd, or adam (AdamW).
    learning_rate: at the start.
    momentum: of sgd, or beta1 of adam.
    weight_decay: per step.
    batch_size: windows in a step, or in one of its `accumulate` parts.
    accumulate: batches that make up one step together.
    precision: of the forward pass; parameters and what travels stay float32.
    device: the place for training and tests: cpu, cuda, mps, or auto: a GPU if one is here.
    rounds_per_epoch: rounds that one pass over the device's windows is cut into.
    planned_rounds: rounds over which `cosine` falls, if the run has no number of its own; 0: it does not fall then.
    schedule: constant, or cosine: the learning rate falls to 1 %, step by step.
    label_smoothing: share of a label that goes to the other classes.
    rotate_deg: standard deviation of the angle by which a window's axes are turned each time it is trained on; 0: none.
    batch_norm: of all devices together (shared), or each its own (FedBN); it must be the same on all devices.
    proximal: mu of FedProx: keeps a device's model near the one it began the round with; 0: off.
    overlap: train for the next round, from this device's own result, while this round's deltas travel.
    seed: of this device: derive it from the run's seed and the peer, or all devices drop out the same units.
    """

    table: ClassVar[str] = "training"
    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: Annotated[float, Range(0, 1000, above=True)] = 0.002
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.9
    weight_decay: Annotated[float, Range(0, 1000)] = 0.0
    batch_size: Many = 32
    accumulate: Many = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu"
    rounds_per_epoch: Many = 1
    planned_rounds: Annotated[int, Range(0, MANY, "0: those of the run")] = 0
    schedule: Literal["constant", "cosine"] = "cosine"
    label_smoothing: Annotated[float, Range(0, 1, below=True)] = 0.0
    rotate_deg: Annotated[float, Range(0, 180, "0: none")] = 0.0
    batch_norm: Literal["shared", "own"] = "shared"
    proximal: Annotated[float, Range(0, 1000)] = 0.0
    overlap: bool = False
    seed: Seed = 0


Exchange: TypeAlias = Literal["chain", "shares", "auto"]
Rule: TypeAlias = Literal["half", "best-ratio"]
Compress: TypeAlias = Literal["none", "int8", "int4", "auto"]


class RoundSection(Section, frozen=True):
    """The settings of rounds; the agent's device decides where devices differ.

    rounds: the run's last round; 0: until it is stopped.
    min_peers: devices that must be there before a round is opened.
    policy: the name of a policy that pairs devices for aggregation (scheduler/policies/registry.py).
    exchange: deltas go whole from hop to hop ("chain") or in segments ("shares"); "auto": in segments, but a small
        model hop by hop if the defence judges deltas, or with more than 100 devices.
    compress: segments in 3.8 (int8) or 6.5 (int4) times fewer bytes; auto: by the links.
    theta: a device's weight in the mean: 1 each ("peer"), or its windows ("samples").
    eta: step along the global delta (Algorithm 1), also of the outer optimizer.
    outer: the outer optimizer: none, or nesterov over the global deltas (DiLoCo); eta and outer: same on all devices.
    outer_momentum: of nesterov.
    keep_deltas: each device writes its own and the global delta of each round; `mdl up --verify` sets it.
    relearn: the policy dqn goes on learning beside the mesh, from its real rounds (3.3.3).
    rule: decides which devices a round waits for: half (by time) or best-ratio (work that is worth the time).
    wait_for: share of a round's devices that it waits for; 1: all. The work of the others comes with a later round.
    grace_s: seconds; the others have so long after these are ready; with half, a quarter of the time of these at least.
    left_out_at_most: rounds running that go on without a device; then it is waited for.
    every_s: seconds; a round begins at most once in each such period; 0: at once.
    """

    table: ClassVar[str] = "round"
    rounds: Annotated[int, Range(0, MANY, "0: until stopped")] = 0
    min_peers: Annotated[int, Range(1, MEMBERS)] = 2
    policy: str = "dqn"
    exchange: Exchange = "auto"
    compress: Compress = "none"
    theta: Literal["peer", "samples"] = "peer"
    eta: Annotated[float, Range(0, 2, above=True)] = 1.0
    outer: Literal["none", "nesterov"] = "none"
    outer_momentum: Annotated[float, Range(0, 1, above=True, below=True)] = 0.9
    keep_deltas: bool = False
    relearn: bool = True
    rule: Rule = "half"
    wait_for: Annotated[float, Range(0, 1, "1: all", above=True)] = 0.51
    grace_s: Annotated[float, Range(0, LONGEST_S)] = 2.0
    left_out_at_most: Annotated[int, Range(0, MANY)] = 9
    every_s: Annotated[float, Range(0, LONGEST_S, "0: at once")] = 0.0


class BusySection(Section, frozen=True):
    """Conditions under which a device counts as busy, so that its aggregations come last (3.3.1): any one is enough.

    in_use: somebody is using it.
    cpu_percent: other processes take more of the processor than this.
    battery_percent: the battery has less than this, and is not charging; such a device also trains nothing.
    free_memory_mb: less than this is free, in megabytes.
    """

    table: ClassVar[str] = "busy"
    in_use: bool = True
    cpu_percent: Annotated[float, Range(0, 100, "100: never", above=True)] = 90.0
    battery_percent: Annotated[float, Range(0, 100, below=True)] = 5.0
    free_memory_mb: Annotated[float, Range(0, MANY)] = 64.0


class DeviceSection(Section, frozen=True):
    """Facts about this device that mdl cannot find out.

    in_use_file: path; the device counts as in use as long as this file exists; "": none.
    when: the device trains only while these conditions hold (`mdl/devices/gate.py`); "": always.
    max_memory_mb: megabytes that mdl may take here (M_max of Eq. 4): without room for a delta it receives none; 0: any.
    max_battery_share: percent of a full charge that one start of mdl may use (B_max of Eq. 4); then the device leaves.
    """

    table: ClassVar[str] = "device"
    in_use_file: str = ""
    when: str = ""
    max_memory_mb: Annotated[float, Range(0, MANY, "0: any")] = 0.0
    max_battery_share: Annotated[float, Range(0, 100, "100: all of it", above=True)] = 100.0


class FaultSection(Section, frozen=True):
    """Limits after which a device counts as lost, and the behaviour of devices that are cut off.

    lost_after_s: seconds; the longest silence; on a good network a shorter one is enough.
    stall_s: seconds; a transfer without progress for so long is given up.
    partition_s: seconds that a group which is cut off from the majority of its mesh waits for it.
    on_partition: the group's next step: train on by itself ("continue"), or go on waiting ("wait") until most of
        the mesh's devices are here. With most of them here it goes on after partition_s, even if too many were
        restarted in mid-round to know what they had agreed to.
    """

    table: ClassVar[str] = "faults"
    lost_after_s: Annotated[float, Range(1, LONGEST_S)] = 4.0
    stall_s: Annotated[float, Range(1, LONGEST_S)] = 10.0
    partition_s: Annotated[float, Range(0, LONGEST_S)] = 15.0
    on_partition: Literal["continue", "wait"] = "continue"


class DefenceSection(Section, frozen=True):
    """A device's defence against deltas that would spoil the model (docs/faults.md, "A member that lies").

    check: partial sums are judged before they are merged: by length, by angle, and by their effect on a loss.
    test_windows: windows of this device's own for that loss; 0: no loss is taken.
    quarantine: a device that several others refuse is left out of rounds for a while; the agent's device decides.
    """

    table: ClassVar[str] = "defence"
    check: bool = False
    test_windows: Annotated[int, Range(0, 4096, "0: none")] = 64
    quarantine: bool = True


class CloudSection(Section, frozen=True):
    """Learning with a cloud (Colla). The first seven settings are a device's, those from `large` on the cloud's own.

    address: HOST:PORT of the cloud; "": none.
    people: training people of the data set for the cloud alone, and no device; the same on devices and the cloud.
    upload_every: rounds from one upload of the mesh's model to the next.
    lesson_every: rounds from one with the teacher's term in its loss to the next.
    label_weight: lambda, the hard label's part of the loss; the teacher has the rest (Eq. 3).
    temperature: softens the teacher's answers.
    warm_start_s: seconds that a device without a model waits for the cloud's, to start from it; 0: it does not.
    large: the cloud's model; "": the usual one for its data.
    updates: number of updates, from different pupils, that start a cycle.
    patience_s: seconds after the first update; then a cycle starts with fewer.
    synchronous: cycles wait for all pupils that are there, and the pupils wait for the cycle.
    keep: share of the pupils' models that teach, the best ones.
    groups: pupils are grouped by their answers, and taught by group.
    preset: "measured", or "paper" for Colla's own settings; of a device by itself and of the cloud alike.
    update: learning of a single device: same-whole, same-fc, customisation, customised-whole; "": by the preset.
    store: for a recommending cloud: postgresql://USER@HOST:PORT/DATABASE, or @FILE with that; "": SQLite beside it.
    """

    table: ClassVar[str] = "cloud"
    address: str = ""
    people: Annotated[int, Range(0, MANY, "0: none")] = 0
    upload_every: Many = 5
    lesson_every: Many = 1
    label_weight: Annotated[float, Range(0, 1)] = 0.5
    temperature: Annotated[float, Range(0, 1000, above=True)] = 2.0
    warm_start_s: Annotated[float, Range(0, LONGEST_S, "0: none")] = 10.0
    large: str = ""
    updates: Annotated[int, Range(1, MEMBERS)] = 2
    patience_s: Annotated[float, Range(0, LONGEST_S)] = 30.0
    synchronous: bool = False
    keep: Annotated[float, Range(0, 1, above=True)] = 1.0
    groups: bool = True
    preset: str = "measured"
    update: str = ""
    store: str = ""


class WebSection(Section, frozen=True):
    """The page about the mesh that this node serves.

    port: TCP port of the page; 0: none.
    lan: other devices of the network may open it, with the token that is printed; else this machine alone.
    metrics_port: TCP port of /metrics for Prometheus; 0: none.
    """

    table: ClassVar[str] = "web"
    port: Annotated[int, Range(0, 65535, "0: none")] = 0
    lan: bool = False
    metrics_port: Annotated[int, Range(0, 65535, "0: none")] = 0


class Config(Section, frozen=True):
    """The whole configuration of a node.

    seed: every random choice of a run follows from it.
    mesh: the connection of this node to the others.
    data: the windows that it trains on.
    model: the model that the mesh trains.
    training: settings of training.
    round: settings of rounds.
    end: conditions that end the mesh.
    busy: conditions under which a device comes last.
    device: facts that mdl cannot find out by itself.
    faults: limits after which a device counts as lost.
    defence: against devices that lie about what they have learned.
    cloud: learning with a cloud.
    web: the page that it serves.
    """

    seed: Seed = 0
    mesh: MeshSection = MeshSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    training: TrainingSettings = TrainingSettings()
    round: RoundSection = RoundSection()
    end: EndSection = EndSection()
    busy: BusySection = BusySection()
    device: DeviceSection = DeviceSection()
    faults: FaultSection = FaultSection()
    defence: DefenceSection = DefenceSection()
    cloud: CloudSection = CloudSection()
    web: WebSection = WebSection()


def load_config(path: Path | None, overrides: Mapping[str, object], assignments: Iterable[str] = ()) -> Config:
    """Load a file, then `key=value` assignments (`--set`), then overrides by dotted key; None overrides nothing.

    Raises ConfigError in one line: the file, the key, the value and what would be valid.
    """
    values = _read_toml(path) if path else {}
    where = str(path) if path else "command line"
    for assignment in assignments:
        put_assignment(values, assignment)
    for key, value in overrides.items():
        if value is not None:
            put(values, key, value)
    _check_keys(values, Config, "", where)
    try:
        return msgspec.convert(values, Config, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, Config)}") from None
    except UnicodeEncodeError as error:  # a path may have any bytes, a choice may not
        raise ConfigError(f"{where}: '{printable(error.object)}' is no UTF-8: expected one of the choices") from None


def save_config(config: Config, path: Path) -> None:
    """Write the configuration as TOML, so that `--config` reads the same one again.

    A path that is not valid UTF-8 keeps its bytes.
    """
    write_bytes(path, show_config(config).encode(errors="surrogateescape"))


def show_config(config: Config) -> str:
    return tomli_w.dumps(msgspec.to_builtins(config, builtin_types=()))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = read_bytes(path, LARGEST_TOML_BYTES, "a configuration in TOML")
    except DataError as error:
        raise ConfigError(f"cannot read {error}") from None
    try:
        return decode_toml(content.decode(errors="surrogateescape"), str(path))
    except DataError as error:
        raise ConfigError(str(error)) from None


def _check_keys(values: Mapping[str, Any], section: type[msgspec.Struct], prefix: str, where: str) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(section)}
    for key, value in values.items():
        if key not in fields:
            hint = did_you_mean(key, fields, f"did you mean {prefix}{{}}? ")
            raise ConfigError(f"{where}: unknown key {prefix}{key}; {hint}valid: {', '.join(fields)}")
        if isinstance(kind := fields[key], type) and issubclass(kind, Section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {prefix}{key} is a table, got {reprlib.repr(value)}")
            _check_keys(value, kind, f"{prefix}{key}.", where)
