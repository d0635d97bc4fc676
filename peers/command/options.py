"""Options that several commands share, their effects, and the headings under which help shows them.

Heavy imports wait until a command runs.

Commands and options stand under headings, each with one whole sentence, without rich's boxes. A heading is typer's
`rich_help_panel`. Typer groups by it only if rich draws the help, and loading rich takes longer than all else that
`mdl --help` does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

from mdl.config import LARGEST_SEED, MANY
from mdl.data.sources import source_forms
from mdl.learning.built_in import model_forms
from mdl.scheduler.policies.registry import name_policies

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.peers.edge.relearner import ChosenPolicy
    from mdl.protocol.delta import Contributor
    from mdl.transport.trust.keys import Mesh

logger = logging.getLogger(__name__)

# The headings of `mdl --help`, in its order.
MESH = "Mesh"
DATA = "Data and models"
SCHEDULE = "Schedule"
LOOK = "Look inside"
PERSONAL = "Personal models and recommendation"
MACHINE = "This machine"
COMMANDS = (MESH, DATA, SCHEDULE, LOOK, PERSONAL, MACHINE)

# The headings of options that not every user needs first; options without a heading stand above them.
MEETING = "Meeting the other devices"
ROUNDS = "Rounds and model"
LIMITS = "Limits of this device"
OUTPUT = "Output and settings"
OPTIONS = (MEETING, ROUNDS, LIMITS, OUTPUT)

_WHOLE = 1_000  # characters of a sentence, so that it is not cut
_WIDEST = 30  # the width of a left column, equal to click's


class CommandGroup(typer.Typer):
    """A group of commands of `mdl`."""

    def __init__(self, about: str | None = None) -> None:
        super().__init__(
            cls=_Group,
            help=about,
            no_args_is_help=True,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Add a command, as typer.Typer does, with help in groups."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class _Group(TyperGroup):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in COMMANDS}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command.hidden:
                continue
            heading = command.rich_help_panel or "Commands"
            found.setdefault(heading, []).append((name, command.get_short_help_str(_WHOLE)))
        _write(found, formatter)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", "Options")}
    for each in command.get_params(ctx):
        usual = "Arguments" if each.param_type_name == "argument" else "Options"
        if record := each.get_help_record(ctx):
            found.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(record)
    _write(found, formatter)


def _write(found: Mapping[str, Sequence[tuple[str, str]]], formatter: Any) -> None:
    """Write all headings with their entries; the right column begins at one place."""
    longest = max((len(name) for rows in found.values() for name, _ in rows), default=0)
    for heading, rows in found.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(min(longest, _WIDEST)), told) for name, told in rows])


# The homes of codes, of models and metrics, and of windows.
_KEPT_IN = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
# No machine has more cores; each process takes a hundred megabytes.
MOST_PROCESSES = 256

MeshName = Annotated[
    str | None, typer.Option("--mesh", help="Use the mesh of this name; this machine must know its code.")
]
Code = Annotated[
    str | None,
    typer.Option(
        help="Read the join code from @FILE; by default MDL_CODE holds it, or mdl asks. A code typed here shows in "
        "`ps`.",
        rich_help_panel=MEETING,
    ),
]
Join = Annotated[
    list[str] | None,
    typer.Option(help="Dial the member at HOST:PORT, where multicast is blocked.", rich_help_panel=MEETING),
]
Listen = Annotated[
    str | None, typer.Option(help="Listen on this IP address or interface; on all by default.", rich_help_panel=MEETING)
]
Port = Annotated[
    int | None, typer.Option(help="Listen on this TCP port; 7300 or any free one by default.", rich_help_panel=MEETING)
]
Interface = Annotated[
    list[str] | None,
    typer.Option(help="Announce this device, and look for others, on this network interface.", rich_help_panel=MEETING),
]
Loopback = Annotated[
    bool | None, typer.Option("--loopback", help="Meet peers on this machine only.", rich_help_panel=MEETING)
]
Insecure = Annotated[
    bool | None,
    typer.Option("--insecure", help="Switch encryption off; only with --loopback.", rich_help_panel=MEETING),
]
DataSpec = Annotated[str | None, typer.Option("--data", help=f"Use this data: {', '.join(source_forms())}.")]
Model = Annotated[
    str | None,
    typer.Option(help=f"Use this model: {', '.join(model_forms())}."),
]
OwnModel = Annotated[
    str | None,
    typer.Option("--model", help="Build this model, not the one that the file names; module:function for your own."),
]
Split = Annotated[
    str | None, typer.Option(help="Share the data out by subject, iid or dirichlet:ALPHA.", rich_help_panel=ROUNDS)
]
Policy = Annotated[
    str | None,
    typer.Option(
        help=f"Order the aggregations by {name_policies()}; or by FILE.safetensors, or package.module:factory.",
        rich_help_panel=ROUNDS,
    ),
]
ExchangeBy = Annotated[
    str | None,
    typer.Option(
        "--exchange",
        help="Send each device's work by shares (in segments, by bandwidth), chain (whole, from device to device, "
        "as the policy orders) or auto. With auto, a small model goes by chain with a defence or over 100 devices. "
        "The default is chain with --policy, else auto.",
        rich_help_panel=ROUNDS,
    ),
]
CompressBy = Annotated[
    str | None,
    typer.Option(
        "--compress",
        help="Round segments, with error feedback: none, int8 or int4 (3.8 or 6.5 times fewer "
        "bytes). With auto, the speed of the links chooses none, int8 or int4.",
        rich_help_panel=ROUNDS,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Pass so many times over each device's data; 5 by default, with --until at most 100.", max=MANY),
]
Until = Annotated[
    list[str] | None,
    typer.Option(
        help="End the run of the whole mesh at the first of these, with commas: accuracy=0.93, f1=, r2=, mae=, "
        "rounds=N, minutes=N, no-better=N.",
        rich_help_panel=ROUNDS,
    ),
]
Every = Annotated[
    str | None,
    typer.Option(help="Begin a round at most once in 90s, 10m, 1h or 1d; at once by default.", rich_help_panel=ROUNDS),
]
CloudAt = Annotated[
    str | None, typer.Option("--cloud", help="Let the cloud at HOST:PORT teach this mesh.", rich_help_panel=MEETING)
]
Name = Annotated[str | None, typer.Option(help="Give this device a name; the host's by default.")]
Shard = Annotated[
    str | None, typer.Option(help="Hold only share I of N of the data, written I/N.", rich_help_panel=ROUNDS)
]
Seed = Annotated[int | None, typer.Option(help="Draw every random choice from this seed.", rich_help_panel=ROUNDS)]
When = Annotated[
    str | None,
    typer.Option(
        help="Train only while all these hold, with commas: idle, charging, wifi, battery>50, hours=22-6, file:PATH."
    ),
]
OwnRounds = Annotated[
    int | None,
    typer.Option(help="End after so many rounds, with the whole mesh if this device leads it; 0 goes on until Ctrl-C."),
]
MaxMemory = Annotated[
    float | None,
    typer.Option(
        help="Let mdl take so many MB at most; without room for another device's work it receives none.",
        rich_help_panel=LIMITS,
    ),
]
MaxBatteryShare = Annotated[
    float | None,
    typer.Option(
        help="Use so many percent of a full charge at most from this start on; then this device leaves.",
        rich_help_panel=LIMITS,
    ),
]
Out = Annotated[Path | None, typer.Option(help="Write the results to this run directory.", rich_help_panel=OUTPUT)]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Read settings from this TOML file; options override it.", rich_help_panel=OUTPUT),
]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Set one setting, written key=value: training.learning_rate=0.01.", rich_help_panel=OUTPUT
    ),
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Start anew, and set aside what an earlier run left here.", rich_help_panel=ROUNDS),
]
Run = Annotated[
    str,
    typer.Option(
        help="Use this run of the mesh; each run has its own devices, rounds and model.", rich_help_panel=MEETING
    ),
]
Init = Annotated[
    Path | None,
    typer.Option(
        "--init",
        help="Begin with these parameters: a .safetensors, or the directory of an earlier run.",
        rich_help_panel=ROUNDS,
    ),
]
Family = Annotated[str, typer.Option(help="Draw scenarios of paper, hetero, dynamic, dying or varied.")]
CsvFile = Annotated[Path | None, typer.Option("--csv", help="Also write each result as a row of a CSV file.")]
FirstSeed = Annotated[int, typer.Option(help="Begin with this seed.", min=0, max=LARGEST_SEED)]
PlanPolicy = Annotated[str, typer.Option(help=f"Play under this policy: {name_policies()}.")]
Processes = Annotated[
    int | None, typer.Option(help="Start so many processes; one a core by default.", min=1, max=MOST_PROCESSES)
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        help="Write log lines of this level and above on stderr: debug, info (the default), warning or error.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Write no line for each step, like --log-level warning.", rich_help_panel=OUTPUT)
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.", rich_help_panel=OUTPUT)
]


def check_choice(name: str, value: str, valid: tuple[str, ...]) -> None:
    """Raise ConfigError that names all valid choices. name: the option, or the place of the value."""
    from mdl.errors import ConfigError

    if value not in valid:
        raise ConfigError(f"{name} {value!r}: expected one of {', '.join(valid)}")


def log_at(level: str | None, quiet: bool) -> str:
    """Set the lines that the user wants to read while a long command runs; return the level."""
    from mdl.errors import ConfigError
    from mdl.peers.view.plain import log_from

    if quiet and level:
        raise ConfigError("--quiet is --log-level warning: give one of them")
    level = level or ("warning" if quiet else "info")
    log_from(level)
    return level


def finite(value: float | None) -> float | None:
    """Refuse NaN in an option with a range: some versions of typer let it pass."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is not a number")
    return value


def load_settings(path: Path | None, overrides: dict[str, object], assign: list[str] | None) -> Config:
    """Return the settings, after all checks that are possible before anything starts."""
    from mdl.config import load_config

    settings = load_config(path, overrides, assign or [])
    if settings.mesh.listen:
        from mdl.transport.discovery.interfaces import host_to_listen_on

        host_to_listen_on(settings.mesh.listen)
    if settings.device.when or overrides.get("device.when") is not None:
        from mdl.devices.gate import parse_when

        parse_when(settings.device.when)
    return settings


def choose(settings: Config, policy: str | None) -> ChosenPolicy:
    """Return the policy of this node if it leads. policy: from the command line, which alone may name a function."""
    from mdl.own import own_policy
    from mdl.peers.edge.relearner import choose_policy

    return choose_policy(settings, own_policy(policy) if policy else None)


def need_home() -> None:
    """Raise ConfigError if this user has no home directory and no variable names another place.

    Else files would go into a folder called "~", wherever the command was started.
    """
    from mdl.errors import ConfigError

    missing = [name for name in _KEPT_IN if not os.environ.get(name)]
    if missing and os.path.expanduser("~") == "~":
        raise ConfigError(f"this user has no home directory: set HOME, or {', '.join(missing)}, to a folder of its own")


def need_data(settings: Config) -> None:
    """Raise ConfigError unless the settings name their data, before anything is written for this device."""
    from mdl.data.sources import parse_spec

    parse_spec(settings.data.spec)


def mesh_overrides(
    join: list[str] | None,
    listen: str | None,
    port: int | None,
    interface: list[str] | None,
    loopback: bool | None,
    insecure: bool | None,
) -> dict[str, object]:
    return {
        "mesh.join": join or None,
        "mesh.listen": listen,
        "mesh.port": port,
        "mesh.interfaces": interface or None,
        "mesh.loopback": loopback,
        "mesh.insecure": insecure,
    }


def round_overrides(
    policy: str | None, exchange: str | None, compress: str | None, until: list[str] | None, every: str | None
) -> dict[str, object]:
    from mdl.config import parse_period, until_settings

    if policy and not compress:
        exchange = exchange or "chain"  # a policy orders hops
    how: dict[str, object] = {"round.policy": policy, "round.exchange": exchange, "round.compress": compress}
    return how | {"round.every_s": parse_period(every) if every else None} | until_settings(until or [])


def device_overrides(when: str | None, memory_mb: float | None, battery_share: float | None) -> dict[str, object]:
    return {"device.when": when, "device.max_memory_mb": memory_mb, "device.max_battery_share": battery_share}


def find_mesh(name: str | None, code: str | None, settings: Config, run: str = "", remember: bool = True) -> Mesh:
    """Return the mesh of this name or join code, or a run of it (NAME/RUN); ask a user that gave neither.

    remember: keep the code that was given. Raises ConfigError.
    """
    from mdl.errors import ConfigError, MdlError
    from mdl.peers.edge.identity import find_code, remember_code
    from mdl.transport.trust.keys import Mesh, name_run

    name, _, of_name = (name or "").partition("/")
    name, run = name or None, run or of_name
    if settings.mesh.insecure and not settings.mesh.loopback:
        raise ConfigError("--insecure works on this machine alone: add --loopback")
    if settings.mesh.insecure:
        tell("mdl: --insecure: nothing is encrypted, and anyone on this machine can join")
        plain = name or "insecure"
        return Mesh(name_run(plain, run) if run else plain, None)
    asked: list[str] = []

    def ask(question: str) -> str:
        from getpass import getpass

        asked.append(question)
        return getpass(question)

    found = find_code(name, code, ask if sys.stdin is not None and sys.stdin.isatty() else None)
    mesh = Mesh.from_code(found, run)
    if remember and (code or asked):
        try:
            remember_code(found)
        except MdlError as error:  # training does not need it
            logger.warning("the join code is not remembered, give it again next time: %s", error)
    return mesh


@contextmanager
def identified(mesh: str, name: str | None, out: Path | None, host: str = "") -> Iterator[tuple[Contributor, Path]]:
    """Claim an identity, and release it at the end. host: used instead of this host's name, if no name is given."""
    from mdl.peers.edge.identity import claim_identity, release_identity, state_home

    me, directory = claim_identity(state_home(mesh), name, out, host)
    try:
        yield me, directory
    finally:
        release_identity(directory)


def tell(text: str) -> None:
    """Print a line on stderr. A closed terminal or a full disk costs the line, not the command."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class HasEnded(Protocol):
    """A dataclass that says how a node ended."""

    @property
    def problem(self) -> str: ...

    @property
    def exit_code(self) -> int: ...


def end(ended: HasEnded, result: dict[str, object], as_json: bool, saved: str) -> None:
    """Say how a node ended and what is saved, and end the command with its exit code."""
    from mdl.errors import UnfinishedError

    told = result | asdict(cast(Any, ended))
    tell(saved)
    if ended.problem or ended.exit_code:
        raise UnfinishedError(ended.problem or "interrupted", ended.exit_code or 4, told, saved)
    if as_json:
        print_json(told)


def print_json(result: object) -> None:
    print(json.dumps(result))


def confirm(question: str, yes: bool, otherwise: str) -> None:
    """Go on only if the user agrees. yes: said already.

    Raises ConfigError with `otherwise`, or if no user can be asked.
    """
    from mdl.errors import ConfigError

    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(f"{question} nobody can be asked here: add --yes")
    if not typer.confirm(question, err=True):
        raise ConfigError(otherwise)
