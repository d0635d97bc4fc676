"""`mdl data`: lists the data sets, fetches one, and looks inside. Slow imports wait until they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mdl.data.sources import source_forms
from mdl.peers.cli.headings import App
from mdl.peers.cli.options import AsJson, finite
from mdl.peers.cli.progress import progress_bar
from mdl.section import LARGEST_SEED

if TYPE_CHECKING:
    from rich.table import Table

    from mdl.data.readers.catalogue import PublicSet

app = App("List, fetch, inspect and share data sets.")

_LARGEST_BAR = 24
# Enough for every subject of the known sets; a longer list says how many more there are.
_SHOWN_SUBJECTS = 40
# Shown entries of a log of interactions.
_SHOWN_USERS, _SHOWN_ITEMS = 5, 5


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
    from mdl.peers.view.plain import plain_lines
    from mdl.recommend.readers import preview_interactions, read_titles

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

    from mdl.peers.view.console import PlainConsole
    from mdl.peers.view.plain import plain_lines
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
