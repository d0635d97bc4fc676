"""The command `mdl`. Each command reads its options, calls one function elsewhere, and prints; heavy imports wait.

Exit codes: 0 done, 2 the user's input is wrong, 3 no mesh or peers found, 4 the run failed, 130 interrupted.
"""

from __future__ import annotations

import gc
import logging
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mdl.config import MEMBERS
from mdl.peers.cli.failure import run_guarded
from mdl.peers.cli.headings import MESH, CommandGroup
from mdl.peers.cli.invite import Invited, be_let_in
from mdl.peers.cli.options import (
    AsJson,
    Assign,
    CloudAt,
    Code,
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
from mdl.peers.cli.web import MetricsPort, Web, WebLan, page_beside, web_overrides, with_port
from mdl.peers.view.plain import log_plainly
from mdl.transport.limits import FloodFilter

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.peers.edge.node import Ended
    from mdl.peers.edge.policy_choice import ChosenPolicy
    from mdl.protocol.delta import Contributor

logger = logging.getLogger(__name__)

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
    from mdl.peers.cli.forks import begun_nursery

    with begun_nursery(peers) as nursery:  # it imports torch meanwhile
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
    from mdl.peers.edge.naming import under_a_free_name
    from mdl.peers.edge.node import Ended, run_trainer
    from mdl.peers.edge.small.limits import check_limit
    from mdl.peers.edge.small.memory import set_up_heap
    from mdl.peers.edge.small.threads import leave_a_core
    from mdl.peers.edge.small.waiting import wait_for_others
    from mdl.peers.sharing.node import heeding

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

            return me, directory, run_trainer(*met, found, directory, Begin(*begin), policy, name_classes, gone)

    me, directory, ended = under_a_free_name(found, name, train)
    _report(ended, directory)
    end(ended, {"peer": me.peer_id, "mesh": found.name, "run_dir": str(directory)}, as_json, _tell(ended, directory))


def _report(ended: Ended, directory: Path) -> None:
    """Write the report of a finished run; after Ctrl-C no user wants to wait for pictures."""
    if ended.round_id and not (ended.exit_code or ended.problem):
        from mdl.peers.report.after import report_on

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
    from mdl.peers.edge.naming import under_a_free_name
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
    """Run the command; every end becomes one line and an exit code (`peers/cli/failure.py`)."""
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
