"""`mdl web`, and the page beside another command (`--web`): opens it, and prints its address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.peers.command.options import (
    LOOK,
    OUTPUT,
    AsJson,
    Code,
    Interface,
    Join,
    Loopback,
    MeshName,
    find_mesh,
    load_settings,
    mesh_overrides,
    print_json,
    tell,
)

if TYPE_CHECKING:
    from mdl.config import Config
    from mdl.peers.web.opening import Opened
    from mdl.peers.web.sources import SnapshotSource
    from mdl.transport.trust.keys import Mesh

DEFAULT_PORT = 8420  # equal to that of peers/web/opening.py, which has more to import
_MOST_PORT = 65535

Web = Annotated[
    int | None,
    typer.Option(
        "--web",
        metavar="[PORT]",
        min=1,
        max=_MOST_PORT,
        help=f"Serve a page about the mesh; at {DEFAULT_PORT} by default.",
    ),
]
WebLan = Annotated[
    bool | None,
    typer.Option(
        "--web-lan", help="Let other devices open the page, with the token that is printed.", rich_help_panel=OUTPUT
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(help="Serve /metrics for Prometheus at this TCP port.", min=1, max=_MOST_PORT, rich_help_panel=OUTPUT),
]


def with_port(words: Sequence[str]) -> list[str]:
    """Return the command line with `--web 8420` in place of `--web` alone."""
    found = list(words)
    for at, word in enumerate(words):
        if word == "--web" and not (at + 1 < len(words) and words[at + 1].isdecimal()):
            found[at] = f"--web={DEFAULT_PORT}"
    return found


def web_overrides(web: int | None, web_lan: bool | None, metrics_port: int | None) -> dict[str, object]:
    return {"web.port": web, "web.lan": web_lan, "web.metrics_port": metrics_port}


@contextmanager
def page_beside(
    settings: Config, mesh: Mesh, source: str, cloud: Path | None = None
) -> Iterator[Callable[[tuple[str, ...]], None]]:
    """Serve the configured page about a node in this process; do nothing if none is configured.

    Yields a function that takes the class names. source: the node's name. cloud: a cloud's run directory; its node is
    in no mesh.
    """
    if not (settings.web.port or settings.web.metrics_port):
        yield lambda names: None
        return
    from mdl.peers.web.opening import PageWanted, page_of, page_of_mesh

    wanted = PageWanted.of(settings.web)
    if cloud is None:
        with page_of_mesh(mesh, settings.mesh, wanted, source, _known_code(mesh)) as opened:
            tell(f"mdl: {opened.tell()}")
            yield opened.name_classes
        return
    from mdl.peers.web.sources import OwnCloud

    with page_of(OwnCloud(mesh.name, cloud / "cycles.jsonl"), mesh, wanted) as opened:
        tell(f"mdl: {opened.tell()}")
        yield opened.name_classes


def web(
    run: Annotated[
        Path | None,
        typer.Argument(help="Show this run directory of `mdl up`; by default the live mesh.", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help=f"Serve at this TCP port; {DEFAULT_PORT} or the next free one by default, 0 takes any.",
            min=0,
            max=_MOST_PORT,
        ),
    ] = None,
    lan: Annotated[
        bool, typer.Option("--lan", help="Let other devices open it, with the token that is printed.")
    ] = False,
    metrics_port: MetricsPort = None,
    mesh: MeshName = None,
    code: Code = None,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Serve a page about a mesh, until Ctrl-C.

    It shows devices, the open round, what was learned, and schedules played again.
    """
    from mdl.peers.interrupts import handled, interrupt
    from mdl.peers.web.opening import PageWanted, page_of, page_of_mesh

    settings = load_settings(None, mesh_overrides(join, None, None, interface, loopback, None), None)
    wanted = PageWanted(DEFAULT_PORT if port is None else port, lan, metrics_port, port is None)
    with handled(interrupt):
        if run is not None:
            with page_of(_directory(run), None, wanted) as opened:
                _stay(opened, lan, as_json)
        else:
            found = find_mesh(mesh, code, settings)
            with page_of_mesh(found, settings.mesh, wanted, "web", _known_code(found)) as opened:
                _stay(opened, lan, as_json)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=LOOK)(web)


def _directory(run: Path) -> SnapshotSource:
    from mdl.peers.web.opening import need_libraries

    need_libraries()
    from mdl.peers.web.sources import RunDirectory

    return RunDirectory(run)


def _stay(opened: Opened, lan: bool, as_json: bool) -> None:
    """Stay until Ctrl-C, or until there is no network to hear the mesh on."""
    if as_json:
        print_json({"url": opened.url, "metrics_url": opened.metrics_url, "token": opened.token,
                    "token_file": str(opened.token_path or "")})  # fmt: skip
    else:
        print(opened.url)
        if lan:
            from mdl.peers.web.opening import draw_code

            print(draw_code(opened.url))
        if opened.metrics_url:
            print(f"metrics: {opened.metrics_url}")
    import sys

    sys.stdout.flush()
    opened.wait(threading.Event())


def _known_code(mesh: Mesh) -> str:
    """Return this user's join code of the mesh: the page shows it on this device alone."""
    from mdl.errors import ConfigError
    from mdl.peers.edge.identity import find_code

    if mesh.keys is None:
        return ""
    try:
        return find_code(mesh.name, None)
    except ConfigError:
        return ""  # given by a file, and not remembered
