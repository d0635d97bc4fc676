"""`mdl data`: lists the data sets, fetches one, and looks inside. Slow imports wait until they are used.

`mdl data share`, `accept` and `unshare` share data between one person's devices.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mdl.config import LARGEST_SEED, LONGEST_S
from mdl.data.sources import source_forms
from mdl.peers.command.options import (
    AsJson,
    CommandGroup,
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
from mdl.peers.command.progress import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from mdl.data.readers.catalogue import PublicSet
    from mdl.peers.sharing import Meeting
    from mdl.protocol.sharing_messages import Offer

app = CommandGroup("List, fetch, inspect and share data sets.")

_LARGEST_BAR = 24
# Enough for every subject of the known sets; a longer list says how many more there are.
_SHOWN_SUBJECTS = 40
# Shown entries of a log of interactions.
_SHOWN_USERS, _SHOWN_ITEMS = 5, 5
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


@app.command("list")
def list_sets(as_json: AsJson = False) -> None:
    """List everything that --data can name."""
    from mdl.data.readers.catalogue import PUBLIC_SETS, data_home

    held = {known.name: _find_kept(known.name) for known in PUBLIC_SETS}
    if as_json:
        sets = [
            {"name": known.name, "title": known.title, "page": known.page, "licence": known.licence,
             "size_bytes": known.size_bytes, "path": str(held[known.name]) if held[known.name] else None}
            for known in PUBLIC_SETS
        ]  # fmt: skip
        sources = [{"form": form, "about": about} for form, about in source_forms().items()]
        print(json.dumps({"sources": sources, "sets": sets, "data_home": str(data_home())}))
        return
    public = {known.name: known for known in PUBLIC_SETS}
    width = max(map(len, source_forms()))
    for form, about in source_forms().items():
        print(f"{form:<{width}}  {about}")
        if known := public.get(form.partition("[")[0]):
            print(f"{'':<{width}}  {known.size_bytes / 1e6:.0f} MB; {known.licence}")
            print(f"{'':<{width}}  {held[known.name] or f'not here: mdl data get {known.name}'}")


@app.command("get")
def get_set(
    name: Annotated[str, typer.Argument(help="Fetch the data set of this name, from `mdl data list`.")],
    source: Annotated[Path | None, typer.Option("--from", help="Take this file instead of downloading.")] = None,
    folder: Annotated[Path | None, typer.Option("--to", help="Keep it here instead of in the data directory.")] = None,
    sha256: Annotated[str, typer.Option(help="Expect this SHA-256 (hex) instead of the recorded one.")] = "",
    as_json: AsJson = False,
) -> None:
    """Fetch a public data set, or take your own copy.

    It comes from its official page. Either is checked before it is kept.
    """
    from mdl.data.readers.catalogue import data_home, find_public_set

    known = find_public_set(name)
    home = folder or data_home()
    kept = _take(known, source, home, sha256) if source else _download(known, home, sha256)
    spec = name if folder is None else f"{name}:{kept}"
    if as_json:
        print(json.dumps({"name": name, "path": str(kept), "spec": spec}))
        return
    print(f"{known.title}: kept in {kept}")
    print(f"licence: {known.licence}")
    print(f"cite: {known.cite}")
    print(f"use it with: --data {spec}")


@app.command("inspect")
def inspect_set(
    spec: Annotated[
        str,
        typer.Argument(help=f"Inspect this data, as --data names it: {', '.join(source_forms())}."),
    ],
    seed: Annotated[
        int,
        typer.Option(
            help="Draw the synthetic `motion` from this seed; other data does not change.", min=0, max=LARGEST_SEED
        ),
    ] = 0,
    cache: Annotated[Path | None, typer.Option(help="Keep parsed windows in this folder.")] = None,
    task: Annotated[
        Literal["recommend"] | None,
        typer.Option(help="With recommend, read a log of users and items: csv:PATH or movielens:PATH."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a data set, class by class.

    It lists shapes, classes, subjects, balance, and findings about the data.
    """
    from mdl.data import default_cache_dir, describe_data, read_data
    from mdl.data.describe import draw_classes
    from mdl.data.readers.unlabelled import describe_unlabelled
    from mdl.own import own_data

    if task:
        _inspect_log(spec, as_json)
        return
    own, home = own_data(spec), cache or default_cache_dir()
    if isinstance(own, str) and (plain := describe_unlabelled(own, home)) is not None:
        print(json.dumps(plain.values) if as_json else "\n".join(plain.lines))
        return
    data = read_data(own, home, seed)
    found = describe_data(data)
    if as_json:
        print(json.dumps(found))
        return
    _show(found)
    from mdl.peers.view.plain import plain_lines

    for line in draw_classes(data):
        print(plain_lines(line))


def _inspect_log(spec: str, as_json: bool) -> None:
    """Show a log of interactions as it was read: the first users with the first items of each."""
    from mdl.peers.dccl.model.readers import preview_interactions, read_titles
    from mdl.peers.view.plain import plain_lines

    log, told = preview_interactions(spec)
    titles = read_titles(spec)
    first = {
        name: [titles.get(log.titles[item - 1], log.titles[item - 1]) for item in log.of(user)[:_SHOWN_ITEMS]]
        for user, name in enumerate(log.users[:_SHOWN_USERS])
    }
    if as_json:
        counts = {"users": len(log.users), "items": len(log.titles), "interactions": len(log.items)}
        print(json.dumps({**counts, "timed": log.times is not None, "told": told, "first": first}))
        return
    print(told)
    for name, items in first.items():
        print(plain_lines(f"{name[:20]:<20}  {', '.join(items)} ..."))


@app.command("cluster")
def cluster_places(
    spec: Annotated[str, typer.Argument(help='Read positions from places:PATH, as in "places:donated/*.csv".')],
    out: Annotated[Path, typer.Option(help="Write the clusters to this file, for all devices.")] = Path("clusters.csv"),
    smallest: Annotated[
        int, typer.Option(help="Make a cluster of at least so many positions.", min=2, max=1_000_000)
    ] = 100,
    reach: Annotated[
        float,
        typer.Option(
            help="Count positions within so many metres of a cluster's middle.", min=1, max=10_000, callback=finite
        ),
    ] = 50.0,
    people: Annotated[
        int, typer.Option(help="Keep places where at least so many people have been.", min=1, max=1_000_000)
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Find places as clusters of positions.

    Each device then reads its record with places:PATH?clusters=FILE.
    """
    from mdl.data.readers.places import PlaceOptions, find_clusters, read_fixes, write_clusters
    from mdl.data.sources import parse_spec
    from mdl.data.spec import read_options
    from mdl.errors import ConfigError

    given = parse_spec(spec)
    if given.source != "places":
        raise ConfigError(f"data {spec!r}: only places have clusters; expected places:PATH")
    fixes, subjects, _ = read_fixes(given.path, read_options(given, PlaceOptions))
    clusters = find_clusters(fixes, subjects, smallest, reach, people)
    write_clusters(out, clusters)
    if as_json:
        print(json.dumps({"clusters": len(clusters), "positions": len(fixes), "path": str(out)}))
        return
    print(f"{len(clusters)} places in {len(fixes):,} positions: {out}")
    print(f"use it on every device with: --data places:PATH?clusters={out}")


def _find_kept(name: str) -> Path | None:
    from mdl.data.readers.catalogue import find_installed
    from mdl.errors import DataError

    try:
        return find_installed(name)
    except DataError:
        return None


def _take(known: PublicSet, source: Path, home: Path, sha256: str) -> Path:
    """Check a file that the user has, and copy it."""
    import shutil

    from mdl.data.readers.catalogue import check_content
    from mdl.errors import DataError
    from mdl.transport.download import digest_file
    from mdl.writing import write_whole

    if not source.is_file() or source.suffix not in (".zip", ".npz"):
        raise DataError(f"{source}: expected the .zip or .npz file of {known.name}")
    if sha256 and (found := digest_file(source)) != sha256.lower():
        raise DataError(f"{source}: SHA-256 {found}; expected {sha256.lower()}")
    check_content(known.name, source)
    target = home / f"{known.name}{source.suffix}"
    with source.open("rb") as content:
        write_whole(target, lambda file: shutil.copyfileobj(content, file))
    return target


def _download(known: PublicSet, home: Path, sha256: str) -> Path:
    from mdl.data.readers.catalogue import check_content
    from mdl.transport.download import fetch

    with progress_bar(of_bytes=True) as show:
        target = fetch(
            known.url,
            home / f"{known.name}.zip",
            sha256.lower() or known.sha256,
            # Another file than the recorded one may be somewhat larger; the bound only stops endless downloads.
            known.size_bytes * (2 if sha256 else 1),
            lambda done, total: show(known.name, done, total),
        )
    check_content(known.name, target)
    return target


def _show(found: dict[str, Any]) -> None:
    from rich.text import Text

    from mdl.peers.view.plain import plain_lines
    from mdl.peers.view.terminal import PlainConsole
    from mdl.task import describe_rate

    console = PlainConsole()
    mark = "  SYNTHETIC" if found["synthetic"] else ""
    name, told = plain_lines(found["name"]), plain_lines(found["description"])
    console.print(Text.assemble((name, "bold"), (mark, "bold yellow"), f"  {told}"))
    rate = f" at {describe_rate(found['rate_hz'])}" if found["rate_hz"] else ""
    lasts = ""
    if "height" in found:
        size = f"images of {found['channels']} channels x {found['height']} x {found['width']} pixels (height x width)"
    else:
        size = f"windows of {found['channels']} channels x {found['window']} samples{rate}"
        lasts = f"; a window is {found['window'] / found['rate_hz']:.3g} s" if found["rate_hz"] else ""
    console.print(f"{size}{lasts}; test held out by {found['held_out']}")
    if found["channel_names"]:
        console.print(f"channels: {', '.join(found['channel_names'])}")
    for line in found["notes"]:
        console.print(line)
    for line in found["left_out"]:
        console.print(f"left out {line}", style="dim", highlight=False)
    for line in found["warnings"]:
        console.print(f"warning: {line}", style="yellow")
    table = _table_of_numbers(found) if found["targets"] == "numbers" else _table_of_classes(found)
    table.add_section()
    table.add_row("windows", str(found["train"]["windows"]), str(found["test"]["windows"]))
    table.add_row("stretches", str(found["train"]["groups"]), str(found["test"]["groups"]))
    table.add_row("subjects", str(found["train"]["subjects"]), str(found["test"]["subjects"]))
    console.print(table)
    for side in ("train", "test"):
        console.print(
            f"{side} windows by subject: {_list_subjects(found[side]['windows_by_subject'])}", highlight=False
        )
    for key, name in (("channel_mean", "mean"), ("channel_deviation", "deviation")):
        console.print(f"{name} by channel: {'  '.join(f'{value:.3g}' for value in found[key])}")


def _table_of_classes(found: dict[str, Any]) -> Table:
    """Return a table of the windows of each class, or with each label."""
    from rich.table import Table

    what = "label" if found["targets"] == "labels" else "class"
    counts = [found[side][f"windows_by_{what}"] for side in ("train", "test")]
    table, most = Table(what, "train", "test", ""), max(counts[0].values())
    for name in found["classes"]:
        train, test = (each[name] for each in counts)
        table.add_row(name, str(train), str(test), "#" * round(_LARGEST_BAR * train / max(1, most)))
    return table


def _table_of_numbers(found: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table("number", "train", "test", "")
    for name, unit in zip(found["classes"], found.get("units") or [""] * len(found["classes"]), strict=True):
        sides = [found[side]["numbers"][name] for side in ("train", "test")]
        told = (f"{each['mean']:.4g} ± {each['deviation']:.3g}" for each in sides)
        table.add_row(name, *told, f"{unit} {sides[0]['least']:.4g} to {sides[0]['most']:.4g} in training".strip())
    return table


def _list_subjects(counts: dict[str, int]) -> str:
    shown = "  ".join(f"{name}:{count}" for name, count in list(counts.items())[:_SHOWN_SUBJECTS])
    more = len(counts) - _SHOWN_SUBJECTS
    return f"{shown}  and {more} more" if more > 0 else shown


def register_sharing(app: typer.Typer) -> None:
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
    from mdl.peers.sharing import Named, give

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
    from mdl.peers.sharing import Named, delete_if_out, take

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
    from mdl.peers.sharing import end_shares, read_shares, take_back

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
    from mdl.peers.sharing import Meeting

    overrides = mesh_overrides(join, listen, port, interface, loopback, None) | device_overrides(None, max_memory, None)
    return Meeting(mesh, load_settings(None, overrides, None).mesh, name)


def _offer(speed: float | None, memory_mb: float | None) -> Offer:
    from mdl.peers.edge.sampler import Sampler
    from mdl.peers.sharing import measure_speed
    from mdl.protocol.sharing_messages import Offer

    resources = Sampler().last()
    windows_s = measure_speed() if speed is None else speed
    tell(f"this device trains {windows_s:,.0f} windows a second")
    return Offer(windows_s, int((memory_mb or 0.0) * 1e6), resources.battery_percent, resources.charging)
