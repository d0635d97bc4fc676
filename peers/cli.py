"""The command `mdl`. Each command reads its options, calls one function elsewhere, and prints; heavy imports wait.

Exit codes: 0 done, 2 the user's input is wrong, 3 no mesh or peers found, 4 the run failed, 130 interrupted.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.errors import MdlError

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.delta import Contributor
    from peers.node import Ended
    from transport.keys import MeshKeys

app = typer.Typer(
    help="Train one model together on the devices you have: no server, and the data never leaves the device.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
mesh_app = typer.Typer(help="Make and list meshes: a mesh is a name and a join code.", no_args_is_help=True)
app.add_typer(mesh_app, name="mesh")

MeshName = Annotated[str | None, typer.Option("--mesh", help="Name of a mesh whose code is known on this machine.")]
Code = Annotated[str | None, typer.Option(help="Join code, from `mdl mesh new`; also read from MDL_CODE.")]
Join = Annotated[list[str] | None, typer.Option(help="HOST:PORT of a member, where multicast is blocked.")]
Listen = Annotated[str | None, typer.Option(help="IP address to listen on; all by default.")]
Port = Annotated[int | None, typer.Option(help="TCP port to listen on; any free one by default.")]
Interface = Annotated[list[str] | None, typer.Option(help="Announce on this network interface.")]
Loopback = Annotated[bool | None, typer.Option("--loopback", help="Meet peers on this machine only.")]
Insecure = Annotated[bool | None, typer.Option("--insecure", help="No encryption; for loopback only.")]
DataSpec = Annotated[str | None, typer.Option("--data", help="motion, uci-har:PATH, csv:PATH?..., npz:PATH, pkg:make.")]
Model = Annotated[str | None, typer.Option(help="lenet, alexnet, cnn-lstm, or package.module:factory.")]
Split = Annotated[str | None, typer.Option(help="Who holds what: subject, iid or dirichlet:ALPHA.")]
Policy = Annotated[str | None, typer.Option(help="Who aggregates with whom: greedy, fifo, tree or ring.")]
Seed = Annotated[int | None, typer.Option(help="Every random choice follows from it.")]
Out = Annotated[Path | None, typer.Option(help="Run directory for results.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file; options override it.")]
Assign = Annotated[list[str] | None, typer.Option("--set", help="key=value, e.g. training.learning_rate=0.01.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]


@app.command()
def up(
    peers: Annotated[int, typer.Option("-n", "--peers", help="How many peer processes.")] = 4,
    data: DataSpec = None,
    model: Model = None,
    epochs: Annotated[int, typer.Option(help="Passes over each device's data.")] = 5,
    rounds_per_epoch: Annotated[int | None, typer.Option(help="Aggregations in each epoch.")] = None,
    policy: Policy = None,
    split: Split = None,
    seed: Seed = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also train alone and central.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check each global delta against the central mean.")] = False,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Train on a mesh of real peer processes on this machine, with a live view."""
    from peers.up import run_up

    overrides: dict[str, object] = {
        "data.spec": data,
        "data.split": split,
        "model.name": model,
        "training.rounds_per_epoch": rounds_per_epoch,
        "round.policy": policy,
        "seed": seed,
    }
    settings = _load(config, overrides, assign)
    result = run_up(settings, peers, epochs, out, baselines=baselines, verify=verify, quiet=as_json)
    if as_json:
        _print_json(result)


@app.command()
def peer(
    mesh: MeshName = None,
    code: Code = None,
    data: DataSpec = None,
    model: Model = None,
    name: Annotated[str | None, typer.Option(help="This peer's name; the host's by default.")] = None,
    shard: Annotated[str | None, typer.Option(help="I/N: hold one share of the data only.")] = None,
    split: Split = None,
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    insecure: Insecure = None,
    seed: Seed = None,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Train on this device, together with the other peers of the mesh."""
    overrides: dict[str, object] = {
        "data.spec": data,
        "data.shard": shard,
        "data.split": split,
        "model.name": model,
        "seed": seed,
    }
    overrides |= _mesh_overrides(join, listen, port, interface, loopback, insecure)
    settings = _load(config, overrides, assign)
    from peers.node import run_trainer

    keys, mesh_name = _find_keys(mesh, code, settings)
    with _identified(mesh_name, name, out) as (me, directory):
        ended = run_trainer(settings, me, keys, mesh_name, directory)
    saved = f"the model of round {ended.round_id} is in {directory / 'global.safetensors'}"
    print(saved if ended.round_id else "no round was finished, nothing is saved", file=sys.stderr)
    _end(ended, {"peer": me.peer_id, "mesh": mesh_name, "run_dir": str(directory)}, as_json)


@app.command()
def agent(
    mesh: MeshName = None,
    code: Code = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after so many rounds; 0 goes on until Ctrl-C.")] = None,
    min_peers: Annotated[int | None, typer.Option(help="How many must be there before the first round.")] = None,
    policy: Policy = None,
    name: Annotated[str, typer.Option(help="This agent's name.")] = "agent",
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    insecure: Insecure = None,
    out: Out = None,
    config: ConfigFile = None,
    assign: Assign = None,
    as_json: AsJson = False,
) -> None:
    """Order the aggregations of a mesh (the mobile agent); holds no data and no model."""
    overrides: dict[str, object] = {"round.rounds": rounds, "round.min_peers": min_peers, "round.policy": policy}
    overrides |= _mesh_overrides(join, listen, port, interface, loopback, insecure)
    settings = _load(config, overrides, assign)
    from peers.node import run_agent

    keys, mesh_name = _find_keys(mesh, code, settings)
    with _identified(mesh_name, name, out) as (me, directory):
        ended = run_agent(settings, me, keys, mesh_name, directory)
    print(f"{ended.round_id} rounds ordered; what they gave is in {directory / 'metrics.jsonl'}", file=sys.stderr)
    _end(ended, {"agent": me.peer_id, "mesh": mesh_name, "run_dir": str(directory)}, as_json)


@app.command()
def peers(
    mesh: MeshName = None,
    code: Code = None,
    wait: Annotated[float, typer.Option(help="Seconds to look around.")] = 3.0,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Show who is in the mesh, what each is doing, and the hops of the open round."""
    settings = _load(None, _mesh_overrides(join, None, None, interface, loopback, None), None)
    from peers.watch import look_around

    keys, mesh_name = _find_keys(mesh, code, settings)
    result = look_around(settings.mesh, keys, mesh_name, wait, watch=watch, quiet=as_json)
    if as_json:
        _print_json(result)


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Argument(help="global.safetensors, or the run directory that holds it.")],
    data: DataSpec = None,
    as_json: AsJson = False,
) -> None:
    """Test a trained model on the test windows of a data set."""
    from peers.inference import evaluate_model, show_evaluation

    result = evaluate_model(model, data)
    if as_json:
        _print_json(result)
    else:
        show_evaluation(result)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="global.safetensors, or the run directory that holds it.")],
    data: DataSpec = None,
    limit: Annotated[int, typer.Option(help="How many windows to show.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Classify windows with a trained model."""
    from peers.inference import predict_windows, show_predictions

    result = predict_windows(model, data, limit)
    if as_json:
        _print_json(result)
    else:
        show_predictions(result)


@mesh_app.command("new")
def new_mesh(
    name: Annotated[str, typer.Argument(help="a-z, 0-9 and '-', for example home.")], as_json: AsJson = False
) -> None:
    """Make a mesh: prints its join code, which every other device needs once."""
    from peers.identity import known_meshes, remember_code
    from transport.keys import new_join_code

    if name in known_meshes():
        from mdl.errors import ConfigError

        raise ConfigError(f"mesh {name!r} exists already; `mdl mesh list` shows its code")
    code = new_join_code(name)
    path = remember_code(code)
    if as_json:
        _print_json({"mesh": name, "code": code, "file": str(path)})
        return
    print(code)
    print(f"remembered in {path}; on the other devices: mdl peer --code {code}", file=sys.stderr)


@mesh_app.command("list")
def list_meshes(as_json: AsJson = False) -> None:
    """Show the meshes whose codes are known to this user."""
    from peers.identity import known_meshes

    known = known_meshes()
    if as_json:
        _print_json({"meshes": [{"mesh": name, "code": code} for name, code in known.items()]})
        return
    for name, code in known.items():
        print(f"{name:<16} {code}")
    if not known:
        print("no meshes yet; `mdl mesh new NAME` makes one", file=sys.stderr)


def main() -> None:
    """Entry point: runs the command and turns errors into one line and an exit code."""
    _add_data_commands()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except MdlError as error:
        print(f"mdl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own usage errors
            print(f"mdl: {error.format_message()}", file=sys.stderr)
            sys.exit(2)
        raise
    finally:
        gc.freeze()  # or the interpreter's last collection walks through all of torch: 0.5 to 2 s after Ctrl-C


def _add_data_commands() -> None:
    from peers.cli_data import app as data_app

    app.add_typer(data_app, name="data")
    from peers.cli_sim import app as sim_app
    from peers.cli_sim import replay

    app.add_typer(sim_app, name="sim")
    app.command("replay")(replay)
    from peers.cli_scheduler import app as scheduler_app

    app.add_typer(scheduler_app, name="scheduler")
    from peers.cli_schedule import app as schedule_app

    app.add_typer(schedule_app, name="schedule")


def _load(path: Path | None, overrides: dict[str, object], assign: list[str] | None) -> Config:
    from mdl.config import load_config

    return load_config(path, overrides, assign or [])


def _mesh_overrides(
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


def _find_keys(mesh: str | None, code: str | None, settings: Config) -> tuple[MeshKeys | None, str]:
    from mdl.errors import ConfigError
    from peers.identity import find_code, remember_code
    from transport.keys import MeshKeys

    if settings.mesh.insecure and not settings.mesh.loopback:
        raise ConfigError("--insecure: without a join code only on this machine; add --loopback")
    if settings.mesh.insecure:
        print("mdl: --insecure: nothing is encrypted, and anyone on this machine can join", file=sys.stderr)
        return None, mesh or "insecure"
    found = find_code(mesh, code)
    keys = MeshKeys.from_code(found)
    if code:
        remember_code(found)
    return keys, keys.name


@contextmanager
def _identified(mesh_name: str, name: str | None, out: Path | None) -> Iterator[tuple[Contributor, Path]]:
    from peers.identity import claim_identity, release_identity, state_home

    me, directory = claim_identity(state_home(mesh_name), name, out)
    try:
        yield me, directory
    finally:
        release_identity(directory)


def _end(ended: Ended, result: dict[str, object], as_json: bool) -> None:
    if as_json:
        _print_json(result | asdict(ended))
    if ended.problem:
        print(f"mdl: {ended.problem}", file=sys.stderr)
    if ended.problem or ended.exit_code:
        raise typer.Exit(ended.exit_code or 4)


def _print_json(result: object) -> None:
    print(json.dumps(result))


if __name__ == "__main__":
    main()
