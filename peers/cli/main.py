"""The command `mdl`. Each command reads its options, calls one function elsewhere, and prints; heavy imports wait.

Exit codes: 0 done, 2 the user's input is wrong, 3 no mesh or peers found, 4 the run failed, 130 interrupted.

A failed command is reported here, for all commands: one line on stderr, with `--json` one object on stdout, and an exit
code. Every end of a command comes to `run_guarded` as an exception, or as the exit code it asked for.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mdl.bounds import printable
from mdl.config import MEMBERS
from mdl.descriptors import RAISE_IT
from mdl.errors import MdlError, StorageError, UnfinishedError
from mdl.peers import interrupts
from mdl.peers.cli.invite import Invited, be_let_in
from mdl.peers.command.options import (
    MESH,
    AsJson,
    Assign,
    CloudAt,
    Code,
    CommandGroup,
    CompressBy,
    ConfigFile,
    DataSpec,
    Epochs,
    Every,
    ExchangeBy,
    Fresh,
    Init,
    Insecure,
    Interface,
    Join,
    Listen,
    LogLevel,
    Loopback,
    MaxBatteryShare,
    MaxMemory,
    MeshName,
    Model,
    Name,
    Out,
    OwnRounds,
    Policy,
    Port,
    Quiet,
    Run,
    Seed,
    Shard,
    Split,
    Until,
    When,
    choose,
    device_overrides,
    end,
    find_mesh,
    identified,
    load_settings,
    log_at,
    mesh_overrides,
    need_data,
    need_home,
    print_json,
    round_overrides,
)
from mdl.peers.command.web import MetricsPort, Web, WebLan, page_beside, web_overrides, with_port
from mdl.peers.interrupts import INTERRUPTED
from mdl.peers.view.plain import log_plainly
from mdl.transport.limits import FloodFilter

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.peers.edge.device import Device
    from mdl.peers.edge.node import CloudLine, Ended
    from mdl.peers.edge.relearner import ChosenPolicy
    from mdl.protocol.delta import Contributor
    from mdl.transport.trust.keys import Mesh

logger = logging.getLogger(__name__)

# The longest line that says what is wrong: paths and choices fit.
_LONGEST = 4_000
# Shortens a word that typer repeats: a user need not read more of an invalid value.
_LONGEST_WORD = re.compile(r"(\S{80})\S+?(['\":.,;]*)(?=\s|$)")


@dataclass(frozen=True)
class Failure:
    """error: the line for the user.

    hint: what to do next, "" if nothing helps. result: the results that exist anyway.
    """

    error: str
    hint: str
    exit_code: int
    result: dict[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return self.result | {"error": self.error, "hint": self.hint, "exit_code": self.exit_code}


def run_guarded(command: Callable[[], int | None], as_json: bool) -> int:
    """Run a command to its end; return the exit code. as_json: a failure is the last line of stdout too."""
    try:
        interrupts.allow()
        failure = _run_and_catch(command)
        interrupts.hurry()
    except KeyboardInterrupt:  # while another failure was put into words
        failure = _describe_code(INTERRUPTED)
    if failure:
        with contextlib.suppress(OSError):  # a log on a full disk
            print(f"mdl: {failure.error}", file=sys.stderr, flush=True)
        _print_last(json.dumps(failure.as_dict()) if as_json else "")
    code = failure.exit_code if failure else 0
    interrupts.end(code)
    return code


def _run_and_catch(command: Callable[[], int | None]) -> Failure | None:
    try:
        code = command() or 0
        sys.stdout.flush()
        return _describe_code(code) if code else None
    except BaseException as error:  # noqa: BLE001 - nothing is further out
        return describe_failure(error)


def describe_failure(error: BaseException) -> Failure:
    """Describe the end of a command in the user's words; print a traceback if only a bug can be its cause."""
    match error:
        case UnfinishedError():
            return Failure(_one_line(str(error)), error.hint, error.exit_code, error.result)
        case MdlError():
            return Failure(_one_line(str(error)), error.hint, error.exit_code)
        case KeyboardInterrupt() | typer.Abort():
            return _describe_code(INTERRUPTED)
        case OSError():
            return _describe_refusal(error)
        case MemoryError():
            return Failure("out of memory", "a smaller model, batch or data set needs less", 4)
        case SystemExit():  # typer raises it for a closed pipe; commands raise errors
            return _describe_refusal(BrokenPipeError())
    if hasattr(error, "format_message"):
        return _describe_usage(error)
    traceback.print_exception(error)
    told = _one_line(f"{type(error).__name__}: {error}")
    return Failure(told, "a bug in mdl: please report it with the traceback on stderr", 4)


def _describe_code(code: int) -> Failure:
    """Describe a command that has said all, or was interrupted."""
    return Failure("interrupted" if code == INTERRUPTED else f"failed with code {code}", "", code)


def _describe_usage(error: Any) -> Failure:
    """Describe typer's own errors: an unknown command or option, an invalid value, no command."""
    path, told = error.ctx.command_path if error.ctx else "mdl", error.format_message()
    if told.startswith("Usage:"):  # no command was given: print the help
        print(told, file=sys.stderr)
        told = f"{path}: no command is given"
    return Failure(_one_line(_LONGEST_WORD.sub(r"\1...\2", told)), f"{path} --help lists what is valid", 2)


def _describe_refusal(error: OSError) -> Failure:
    """Describe an unexpected refusal of the system: a full disk, a place without permission."""
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, BrokenPipeError):
        return Failure("nobody reads the output any more", "", 4)
    if error.errno == errno.EMFILE:
        return Failure(_one_line(f"{where}{reason}"), RAISE_IT, 4)
    told = StorageError(where, error)
    return Failure(_one_line(f"{where}{reason}"), told.hint, told.exit_code)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()), _LONGEST)


def _print_last(text: str) -> None:
    """Print on stdout, unless that is what failed; leave nothing there for the interpreter's end to fail on."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = CommandGroup()


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"mdl {version('mdl')}")
        raise typer.Exit


@app.callback()
def take_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one model together on the devices you have: no server, and the data never leaves the device."""


@app.command(rich_help_panel=MESH)
def up(
    peers: Annotated[int, typer.Option("-n", "--peers", help="Start so many peer processes.", max=MEMBERS)] = 4,
    data: DataSpec = None,
    model: Model = None,
    epochs: Epochs = None,
    rounds_per_epoch: Annotated[int | None, typer.Option(help="Aggregate so many times in each epoch.")] = None,
    policy: Policy = None,
    exchange: ExchangeBy = None,
    compress: CompressBy = None,
    until: Until = None,
    every: Every = None,
    split: Split = None,
    seed: Seed = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also train alone and central, to compare.")] = False,
    cloud: Annotated[bool, typer.Option("--cloud", help="Start a cloud, too, that teaches the mesh.")] = False,
    donors: Annotated[
        int | None, typer.Option(help="Give the cloud the data of so many training people; a quarter by default.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check each round's result, to the bit, against a central sum.")
    ] = False,
    web: Web = None,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train on a mesh of processes on this machine.

    A terminal shows a live view; elsewhere a line a round is printed.
    """
    level = log_at(log_level, quiet)
    from mdl.peers.launch.nursery import begun_nursery

    with begun_nursery(Path(__file__).with_name("forks.py"), peers) as nursery:  # it imports torch meanwhile
        from mdl.own import own_policy
        from mdl.peers.launch.up import run_up

        overrides: dict[str, object] = {"data.spec": data, "data.split": split, "model.name": model, "seed": seed}
        overrides |= {"training.rounds_per_epoch": rounds_per_epoch, "cloud.people": donors, "web.port": web}
        overrides |= round_overrides(policy, exchange, compress, until, every)
        settings = load_settings(config, overrides, assign)
        result = run_up(
            *(settings, peers, epochs, out),
            policy=own_policy(policy) if policy else None,
            cloud=cloud,
            baselines=baselines,
            verify=verify,
            as_json=as_json,
            log_level=level,
            nursery=nursery,
        )
    if as_json:
        print_json(result)


@app.command(rich_help_panel=MESH)
def peer(
    mesh: MeshName = None,
    code: Code = None,
    invitation: Invited = None,
    data: DataSpec = None,
    model: Model = None,
    name: Name = None,
    shard: Shard = None,
    split: Split = None,
    policy: Policy = None,
    exchange: ExchangeBy = None,
    compress: CompressBy = None,
    until: Until = None,
    every: Every = None,
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    insecure: Insecure = None,
    cloud: CloudAt = None,
    when: When = None,
    rounds: OwnRounds = None,
    max_memory: MaxMemory = None,
    max_battery_share: MaxBatteryShare = None,
    web: Web = None,
    web_lan: WebLan = None,
    metrics_port: MetricsPort = None,
    seed: Seed = None,
    run: Run = "",
    init: Init = None,
    fresh: Fresh = False,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train on this device, together with the mesh's other devices."""
    log_at(log_level, quiet)
    overrides: dict[str, object] = {"data.spec": data, "data.shard": shard, "data.split": split, "model.name": model}
    overrides |= {"round.rounds": rounds, "cloud.address": cloud, "seed": seed}
    overrides |= device_overrides(when, max_memory, max_battery_share) | web_overrides(web, web_lan, metrics_port)
    overrides |= round_overrides(policy, exchange, compress, until, every)
    overrides |= mesh_overrides(join, listen, port, interface, loopback, insecure)
    settings = load_settings(config, overrides, assign)
    chosen, mesh = choose(settings, policy), be_let_in(invitation, mesh, settings)
    _train_here(settings, chosen, (mesh, code, run), name, out, (fresh, init), as_json)


def _train_here(
    settings: Config,
    policy: ChosenPolicy,
    mesh: tuple[str | None, str | None, str],
    name: str | None,
    out: Path | None,
    begin: tuple[bool, Path | None],
    as_json: bool,
) -> None:
    from mdl.peers.edge.membership import under_a_free_name
    from mdl.peers.edge.node import Ended, run_trainer, wait_for_others
    from mdl.peers.edge.small import check_limit, leave_a_core, set_up_heap
    from mdl.peers.sharing import heeding

    check_limit()
    set_up_heap()
    leave_a_core()
    found = find_mesh(mesh[0], mesh[1], settings, mesh[2])
    need_data(settings)

    def train(host: str) -> tuple[Contributor, Path, Ended]:
        with (
            identified(found.name, name, out, host) as (me, directory),
            page_beside(settings, found, me.peer_id) as name_classes,
            heeding(settings.data.spec, settings.mesh, me.peer_id) as gone,
        ):
            met = wait_for_others(settings, me, found, directory, any(begin))
            if not met:
                return me, directory, Ended("", 130, 0, 0)
            from mdl.peers.edge.resume import Begin  # imports torch

            ended = run_trainer(*met, found, directory, Begin(*begin), policy, name_classes, gone, _open_cloud)
            return me, directory, ended

    me, directory, ended = under_a_free_name(found, name, train)
    _report(ended, directory)
    end(ended, {"peer": me.peer_id, "mesh": found.name, "run_dir": str(directory)}, as_json, _tell(ended, directory))


def _open_cloud(config: Config, me: Contributor, mesh: Mesh, device: Device) -> CloudLine:
    from mdl.peers.colla.edge import CloudSide

    return CloudSide(config, me, mesh, device)


def _report(ended: Ended, directory: Path) -> None:
    """Write the report of a finished run; after Ctrl-C no user wants to wait for pictures."""
    if ended.round_id and not (ended.exit_code or ended.problem):
        from mdl.peers.view.report import report_on

        for line in report_on(directory):
            logger.info("%s", line)


def _tell(ended: Ended, directory: Path) -> str:
    """Return in words where the models are."""
    if not ended.round_id:
        return "no round was finished, nothing is saved"
    best = f", the best one, of round {ended.best_round}, in best.safetensors" * bool(ended.best_round)
    missed = f"; the best one, of round {ended.missed_best}, is on devices that were there" * bool(ended.missed_best)
    return f"the model of round {ended.round_id} is in {directory / 'global.safetensors'}{missed or best}"


@app.command(rich_help_panel=MESH)
def agent(
    mesh: MeshName = None,
    code: Code = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after so many rounds; 0 goes on until Ctrl-C.")] = None,
    min_peers: Annotated[int | None, typer.Option(help="Wait for so many devices before the first round.")] = None,
    policy: Policy = None,
    exchange: ExchangeBy = None,
    compress: CompressBy = None,
    until: Until = None,
    every: Every = None,
    name: Annotated[str | None, typer.Option(help="Give this agent a name; agent by default.")] = None,
    run: Run = "",
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    insecure: Insecure = None,
    web: Web = None,
    web_lan: WebLan = None,
    metrics_port: MetricsPort = None,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Order the aggregations of a mesh, without data or model."""
    log_at(log_level, quiet)
    overrides: dict[str, object] = {"round.rounds": rounds, "round.min_peers": min_peers}
    overrides |= round_overrides(policy, exchange, compress, until, every) | web_overrides(web, web_lan, metrics_port)
    overrides |= mesh_overrides(join, listen, port, interface, loopback, insecure)
    settings = load_settings(config, overrides, assign)
    from mdl.peers.edge.membership import under_a_free_name
    from mdl.peers.edge.node import run_agent

    chosen = choose(settings, policy)
    found = find_mesh(mesh, code, settings, run)

    def lead(own_name: str) -> tuple[Contributor, Path, Ended]:
        with identified(found.name, own_name, out) as (me, directory), page_beside(settings, found, me.peer_id):
            return me, directory, run_agent(settings, me, found, directory, chosen)

    me, directory, ended = under_a_free_name(found, name, lead, "agent")
    told = f"{ended.round_id} rounds ordered; their results are in {directory / 'metrics.jsonl'}"
    end(ended, {"agent": me.peer_id, "mesh": found.name, "run_dir": str(directory)}, as_json, told)


def main() -> None:
    """Run the command; every end becomes one line and an exit code (`peers/cli/main.py`)."""
    log_plainly().addFilter(FloodFilter())
    try:
        sys.exit(run_guarded(_run, as_json="--json" in sys.argv))
    finally:
        gc.freeze()  # else the interpreter's last collection walks through all of torch: 0.5 to 2 s after Ctrl-C


def _run() -> int | None:
    need_home()
    code: int | None = whole().main(with_port(sys.argv[1:]), standalone_mode=False, prog_name="mdl")
    return code


@cache
def whole() -> Any:
    """Return the click command of all commands, built once: that takes 0.1 to 0.2 s."""
    add_groups()
    return typer.main.get_command(app)


@cache
def add_groups() -> None:
    """Add the commands that other modules have."""
    from mdl.peers.cli.groups import add_to

    add_to(app)
