"""Sharing data between one person's devices: `mdl data share`, `accept` and `unshare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mdl.peers.cli.options import (
    AsJson,
    Interface,
    Join,
    Listen,
    Loopback,
    MaxMemory,
    Name,
    Port,
    confirm,
    device_overrides,
    finite,
    load_settings,
    mesh_overrides,
    print_json,
    tell,
)
from mdl.section import LONGEST_S

if TYPE_CHECKING:
    from mdl.devices.offer import Offer
    from mdl.peers.sharing.node import Meeting

Mesh = Annotated[str, typer.Option("--mesh", help="Name the mesh of the devices as `mdl mesh list` shows it.")]
With = Annotated[
    str,
    typer.Option("--with", help="Give windows to these devices of yours: names or words of their keys, with commas."),
]
From = Annotated[str, typer.Option("--from", help="Accept windows from this device of yours: its name or words.")]
Wait = Annotated[
    float, typer.Option(help="Wait so many seconds for a device's answer.", min=1, max=LONGEST_S, callback=finite)
]
Speed = Annotated[
    float | None,
    typer.Option(
        help="Say how many windows it trains a second; measured by default.", min=0.001, max=1e9, callback=finite
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def register(app: typer.Typer) -> None:
    """Add the commands. Call this once: each call would add them again."""
    for command in (share, accept, unshare):
        app.command()(command)


def share(
    spec: Annotated[str, typer.Argument(help="Share this data, written as for `--data`.")],
    mesh: Mesh,
    devices: With,
    speed: Speed = None,
    wait: Wait = 60.0,
    yes: Yes = False,
    name: Name = None,
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Give windows to your other devices.

    Each gets as many as its speed, memory and battery allow; nobody else is offered any.
    """
    from mdl.data import default_cache_dir, load_data
    from mdl.data.spec import split_names
    from mdl.errors import ConfigError, MeshNotFoundError, UnfinishedError
    from mdl.own import own_data
    from mdl.peers.edge.membership import open_membership
    from mdl.peers.sharing.named import Named
    from mdl.peers.sharing.node import give

    meeting = _meeting(mesh, name, join, listen, port, interface, loopback)
    named = Named(open_membership(meeting.keys()), split_names(devices))
    if not named.names:
        raise ConfigError("--with: name at least one device, as `mdl mesh members` shows them")
    data = load_data(own_data(spec), default_cache_dir())
    told = ", ".join(f"{each} ({named.words_of(each)})" for each in sorted(named.names))
    confirm(f"give windows of {data.name} ({len(data.train)} to train with) to {told}?", yes, "nothing was shared")
    ended = give(meeting, data, named, _offer(speed, None), wait)
    result = {
        "mesh": mesh,
        "shares": [{"device": each.name, "train": each.train, "test": each.test} for each in ended.shares],
        "kept": ended.kept,
        "missing": list(ended.missing),
    }
    for each in ended.shares:
        tell(f"{each.name}: {each.train} windows to train with, {each.test} to test")
    if ended.finish.exit_code == 3:
        raise MeshNotFoundError(
            f"{ended.finish.problem} within {wait:g} s; on each of them: mdl data accept --mesh {mesh} --from DEVICE"
        )
    if ended.finish.exit_code:
        problem = ended.finish.problem or "interrupted"
        raise UnfinishedError(problem, ended.finish.exit_code, result, f"mdl data unshare --mesh {mesh} takes all back")
    tell(f"this device: {ended.kept} windows; now on each: mdl peer --mesh {mesh} --data shared:{mesh}")
    if as_json:
        print_json(result)


def accept(
    mesh: Mesh,
    source: From,
    once: Annotated[bool, typer.Option("--once", help="End when the windows are here.")] = False,
    speed: Speed = None,
    max_memory: MaxMemory = None,
    name: Name = None,
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Accept windows from another device of yours, until Ctrl-C.

    They are deleted when that device takes them back.
    """
    from mdl.errors import UnfinishedError
    from mdl.peers.edge.membership import open_membership
    from mdl.peers.sharing.named import Named
    from mdl.peers.sharing.node import delete_if_out, take

    meeting = _meeting(mesh, name, join, listen, port, interface, loopback, max_memory)
    delete_if_out(mesh)
    named = Named(open_membership(meeting.keys()), [source])
    tell(f"windows are accepted from {source} ({named.words_of(source)}) alone; Ctrl-C ends")
    finish, is_here = take(meeting, named, _offer(speed, max_memory), once)
    result = {"mesh": mesh, "from": named.words_of(source), "held": is_here}
    if finish.exit_code:
        raise UnfinishedError(finish.problem or "interrupted", finish.exit_code, result)
    if is_here:
        tell(f"train with them: mdl peer --mesh {mesh} --data shared:{mesh}")
    if as_json:
        print_json(result)


def unshare(
    mesh: Mesh,
    devices: Annotated[
        str, typer.Option("--with", help="Take back from these devices alone: names, with commas.")
    ] = "",
    wait: Wait = 15.0,
    name: Name = None,
    join: Join = None,
    listen: Listen = None,
    port: Port = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Take shared windows back: your other devices delete them.

    A device that is away deletes them when it is met again.
    """
    from mdl.data.spec import split_names
    from mdl.errors import ConfigError, UnfinishedError
    from mdl.peers.sharing.files import read_shares
    from mdl.peers.sharing.node import end_shares, take_back

    meeting = _meeting(mesh, name, join, listen, port, interface, loopback)
    meeting.keys()
    wanted = set(split_names(devices))
    there = {each.name for each in read_shares(mesh)}
    if wanted - there or not there:
        what = f"nothing is shared with {', '.join(sorted(wanted - there))}" if there else "nothing is shared"
        raise ConfigError(f"{what} in mesh {mesh}{'; there is ' if there else ''}{', '.join(sorted(there))}")
    end_shares(mesh, lambda each: not wanted or each.name in wanted)
    ended = take_back(meeting, wait)
    left = sorted(each.name for each in read_shares(mesh) if each.is_ended)
    result = {"mesh": mesh, "not_yet": left}
    if ended.finish.exit_code:
        raise UnfinishedError(ended.finish.problem or "interrupted", ended.finish.exit_code, result)
    if left:
        tell(f"not reached: {', '.join(left)}; the next `mdl data unshare` or `share` that meets them tells them")
    else:
        tell("all of them have deleted what they had")
    if as_json:
        print_json(result)


def _meeting(
    mesh: str,
    name: str | None,
    join: list[str] | None,
    listen: str | None,
    port: int | None,
    interface: list[str] | None,
    loopback: bool | None,
    max_memory: float | None = None,
) -> Meeting:
    from mdl.peers.sharing.node import Meeting

    overrides = mesh_overrides(join, listen, port, interface, loopback, None) | device_overrides(None, max_memory, None)
    return Meeting(mesh, load_settings(None, overrides, None).mesh, name)


def _offer(speed: float | None, memory_mb: float | None) -> Offer:
    from mdl.devices.offer import Offer
    from mdl.peers.edge.sampler import Sampler
    from mdl.peers.sharing.speed import measure_speed

    resources = Sampler().last()
    windows_s = measure_speed() if speed is None else speed
    tell(f"this device trains {windows_s:,.0f} windows a second")
    return Offer(windows_s, int((memory_mb or 0.0) * 1e6), resources.battery_percent, resources.charging)
