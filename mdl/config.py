"""Configuration: strict TOML, overridable on the command line, saved beside the results. Importing it imports no torch.

An unknown key is an error that names the closest valid key; a wrong value names the key, the value and what is valid.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
import tomli_w

from mdl.assignments import put, put_assignment
from mdl.bounds import printable
from mdl.ends import EndSection
from mdl.errors import ConfigError, DataError
from mdl.hints import did_you_mean, explain
from mdl.reading import LARGEST_TOML_BYTES, decode_toml, read_bytes
from mdl.section import LONGEST_S, MANY, MEMBERS, Many, Range, Section, Seed
from mdl.writing import write_bytes


class MeshSection(Section, frozen=True):
    """How this node meets the others.

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
    """Which windows this device trains on.

    spec: as `mdl data inspect --help` says, motion or csv:PATH; "": none is given.
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
    """What is trained.

    name: lenet, fcn, alexnet, cnn-lstm, cnn with its sizes, or a user's own package.module:factory.
    """

    table: ClassVar[str] = "model"
    name: str = "lenet"


class TrainingSettings(Section, frozen=True):
    """How a device trains.

    optimizer: sgd, or adam (AdamW).
    learning_rate: at the start.
    momentum: of sgd, or beta1 of adam.
    weight_decay: per step.
    batch_size: windows a step, or of one of its `accumulate` parts.
    accumulate: batches whose gradients make up one step.
    precision: of the forward pass; parameters and what travels stay float32.
    device: where it trains and tests: cpu, cuda, mps, or auto for what is here.
    rounds_per_epoch: rounds that one pass over the device's windows is cut into.
    planned_rounds: rounds over which `cosine` falls, if the run has no number of its own; 0: it does not fall then.
    schedule: constant, or cosine: the learning rate falls to 1 %, step by step.
    label_smoothing: share of a label that goes to the other classes.
    rotate_deg: standard deviation of the angle by which a window's axes are turned whenever it is trained on; 0: none.
    batch_norm: of all devices together (shared), or each its own (FedBN): then the same on all devices.
    proximal: mu of FedProx: holds what a device learns near the model it began the round with; 0: nothing does.
    overlap: train for the next round, from what this device has learned, while this round's deltas travel.
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
Compress: TypeAlias = Literal["none", "float16", "int8", "int4", "ternary", "auto"]


class RoundSection(Section, frozen=True):
    """How rounds go; the agent's device decides where devices differ.

    rounds: the run's last round; 0: until it is stopped.
    min_peers: devices that must be there before a round is opened.
    policy: who aggregates with whom, by the name of a policy (scheduler/policies/registry.py).
    exchange: deltas go whole from hop to hop ("chain") or in segments ("shares"); "auto": by the links.
    compress: segments in 2 (float16), 3.9 (int8), 7.1 (int4) or 17 (ternary) times fewer bytes; auto: by the links.
    theta: what a device weighs in the mean: 1 each ("peer"), or its windows ("samples").
    eta: step along the global delta (Algorithm 1), also of the outer optimizer.
    outer: of rounds: none, or nesterov over the global deltas (DiLoCo); the same on all devices, as eta.
    outer_momentum: of nesterov.
    keep_deltas: each device writes its own and the global delta of each round; `mdl up --verify` sets it.
    relearn: the policy dqn goes on learning beside the mesh, from the rounds it has really had (3.3.3).
    deadline_s: seconds; a round does not wait longer for devices that still train, what they train is in a later one.
    quorum: share of the members that must be ready before deadline_s counts.
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
    deadline_s: Annotated[float, Range(0, LONGEST_S, "0: none")] = 0.0
    quorum: Annotated[float, Range(0, 1, above=True)] = 0.75
    every_s: Annotated[float, Range(0, LONGEST_S, "0: at once")] = 0.0


class BusySection(Section, frozen=True):
    """When a device counts as busy, so that its aggregations come last (3.3.1): any of these is enough.

    in_use: somebody is using it.
    cpu_percent: other processes take more of the processor than this.
    battery_percent: the battery has less than this, and is not charging.
    free_memory_mb: less than this is free, in megabytes.
    """

    table: ClassVar[str] = "busy"
    in_use: bool = True
    cpu_percent: Annotated[float, Range(0, 100, "100: never", above=True)] = 90.0
    battery_percent: Annotated[float, Range(0, 100, below=True)] = 5.0
    free_memory_mb: Annotated[float, Range(0, MANY)] = 64.0


class DeviceSection(Section, frozen=True):
    """What this device cannot find out by itself.

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
    """When a device counts as lost, and what those do that are cut off.

    lost_after_s: seconds; the longest silence; on a good network a shorter one is enough.
    stall_s: seconds; a transfer of which nothing has come for so long is given up.
    partition_s: seconds that a group which is cut off from the majority of its mesh waits for it.
    on_partition: what such a group does then: train on by itself ("continue"), or go on waiting ("wait") until most of
        its devices are here. These go on after partition_s, also where too many of them were started anew in the middle
        of a round to know what they had agreed to.
    """

    table: ClassVar[str] = "faults"
    lost_after_s: Annotated[float, Range(1, LONGEST_S)] = 4.0
    stall_s: Annotated[float, Range(1, LONGEST_S)] = 10.0
    partition_s: Annotated[float, Range(0, LONGEST_S)] = 15.0
    on_partition: Literal["continue", "wait"] = "continue"


class DefenceSection(Section, frozen=True):
    """What a device does about others whose deltas would spoil the model (docs/faults.md, "A member that lies").

    check: partial means are judged before they are merged: by length, by angle, and by what they do to a loss.
    test_windows: of this device's own, that the loss is taken of; 0: it is not.
    quarantine: who is refused by several others is left out of rounds for a while; the agent's device decides.
    """

    table: ClassVar[str] = "defence"
    check: bool = False
    test_windows: Annotated[int, Range(0, 4096, "0: none")] = 64
    quarantine: bool = True


class CloudSection(Section, frozen=True):
    """Learning with a cloud (Colla). The first seven are a device's, those from `large` on the cloud's own.

    address: HOST:PORT of the cloud; "": none.
    people: training people of the data set who are the cloud's, and no device's; of a device and of the cloud alike.
    upload_every: rounds from one upload of the mesh's model to the next.
    lesson_every: rounds from one that has the teacher's term in its loss to the next.
    label_weight: lambda, the hard label's part of the loss; the teacher has the rest (Eq. 3).
    temperature: softens what the teacher says.
    warm_start_s: seconds that a device without a model waits for the cloud's, to start from it; 0: it does not.
    large: the cloud's model; "": the usual one for its data.
    updates: of different pupils, that start a cycle.
    patience_s: seconds after the first update, when a cycle starts with fewer.
    synchronous: cycles wait for all pupils that are there, and they for the cycle.
    keep: share of the pupils' models that teach, the best ones.
    groups: pupils are grouped by what they answer, and taught by group.
    preset: "measured", or "paper" for Colla's own settings; of a device by itself and of the cloud alike.
    update: how a device by itself learns: same-whole, same-fc, customisation, customised-whole; "": by the preset.
    store: of a cloud that recommends: postgresql://USER@HOST:PORT/DATABASE, or @FILE with that; "": SQLite beside it.
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
    """All of it.

    seed: every random choice of a run follows from it.
    mesh: how this node meets the others.
    data: which windows it trains on.
    model: what is trained.
    training: how it trains.
    round: how rounds go.
    end: when the mesh ends by itself.
    busy: when a device comes last.
    device: what it cannot find out by itself.
    faults: when a device counts as lost.
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
    """File, then `key=value` assignments (`--set`), then overrides by dotted key; None overrides nothing.

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

    A path that is no UTF-8 is written as the bytes it has.
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
