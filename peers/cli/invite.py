"""`mdl mesh invite` and `mdl mesh join`: a join code handed over by three words. `mdl mesh show`: the code itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.config import LONGEST_S
from mdl.peers.command.options import AsJson, Interface, finite, need_data, print_json, tell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Interface

    from mdl.config import Config
    from mdl.transport.discovery.directory import Address

AsQr = Annotated[bool, typer.Option("--qr", help="Also show a QR code, for a camera; needs segno, of mdl[web].")]
At = Annotated[str | None, typer.Option(help="Dial HOST:PORT that the inviting device shows, where it is not found.")]
Here = Annotated[bool, typer.Option("--loopback", help="Meet another user of this machine only.")]
Wait = Annotated[
    float, typer.Option(help="Look so many seconds for the inviting device.", min=0.1, max=LONGEST_S, callback=finite)
]
Invited = Annotated[
    str | None, typer.Option("--invite", help="Type the three words, in quotes, that mdl mesh invite shows.")
]
_LOOK_S = 10.0


def invite(
    mesh: Annotated[
        str | None, typer.Argument(help="Name a mesh with a code known here; the only one by default.")
    ] = None,
    port: Annotated[int, typer.Option(help="Wait at this TCP port; any free one by default.", min=0, max=65_535)] = 0,
    interface: Interface = None,
    loopback: Here = False,
    as_json: AsJson = False,
) -> None:
    """Let one device in, by three words.

    The words are good for five minutes; `mdl mesh join` on that device takes them.
    """
    from mdl.errors import ConfigError, MeshNotFoundError, UnfinishedError
    from mdl.peers.edge.identity import find_code

    code = find_code(mesh, None)
    import socket
    import time
    from contextlib import ExitStack

    from mdl.transport.discovery.mdns import announced, is_near
    from mdl.transport.links.inviting import serve
    from mdl.transport.trust.invitation import Invitation
    from mdl.transport.trust.keys import draw_words

    own, words = _own(interface, loopback), draw_words()
    invitation = Invitation(words, code, time.monotonic())
    with ExitStack() as open_things:
        try:
            listener = socket.create_server(("127.0.0.1" if loopback else "0.0.0.0", port), backlog=8)
        except OSError as error:
            raise ConfigError(f"--port {port}: {error.strerror or error}; 0 takes any that is free") from None
        open_things.enter_context(listener)
        number = listener.getsockname()[1]
        try:
            open_things.enter_context(announced(number, own))
        except MeshNotFoundError as error:
            tell(f"mdl: the other device will not find this one: {error}")
        if as_json:
            tell(words)
        else:
            print(words, flush=True)
        places = " or ".join(f"{each.ip}:{number}" for each in own)
        tell(f"on the other device, within five minutes: mdl mesh join {words}\nnot found there: --at {places}")
        why = serve(invitation, listener, lambda host: is_near(host, _own(interface, loopback)), tell)
    told: dict[str, object] = {"mesh": code.partition(":")[0], "taken": invitation.was_taken}
    if not invitation.was_taken:
        raise UnfinishedError(
            f"nobody was let in: {why}", 4 if not invitation.tries_left else 3, told, "mdl mesh invite shows new words"
        )
    if as_json:
        print_json(told)


def join(
    words: Annotated[
        list[str] | None, typer.Argument(help="Type the three words; mdl asks if they are missing.")
    ] = None,
    at: At = None,
    wait: Wait = _LOOK_S,
    interface: Interface = None,
    loopback: Here = False,
    as_json: AsJson = False,
) -> None:
    """Come into a mesh, by three words.

    `mdl mesh invite` shows them on a device of the mesh.
    """
    from mdl.errors import ConfigError

    if not words and (sys.stdin is None or not sys.stdin.isatty()):
        raise ConfigError("no words are given: type the three that mdl mesh invite shows")
    said = " ".join(words) if words else input("three words: ")
    name, file = take_code(said, at, wait, interface, loopback)
    if as_json:
        print_json({"mesh": name, "file": file})
        return
    tell(f"this device knows mesh {name} now ({file}): mdl peer --mesh {name} --data ...")


def be_let_in(said: str | None, mesh: str | None, settings: Config) -> str | None:
    """Return the mesh to train in: the one that these words open, or without words the named one.

    Raises ConfigError, also if the words are of another mesh than the named one.
    """
    from mdl.errors import ConfigError

    if not said:
        return mesh
    need_data(settings)  # an invitation is good once
    section = settings.mesh
    name, _ = take_code(said, interface=section.interfaces or None, loopback=section.loopback)
    if mesh and mesh.partition("/")[0] != name:
        raise ConfigError(f"--mesh {mesh}: the invitation was into {name!r}; its code is known here now")
    return mesh or name


def take_code(
    said: str,
    at: str | None = None,
    wait_s: float = _LOOK_S,
    interface: Sequence[str] | None = None,
    loopback: bool = False,
) -> tuple[str, str]:
    """Find the inviting device by these words, and remember the join code; return the mesh's name, and the file.

    Raises ConfigError for invalid or wrong words, MeshNotFoundError if no device invites.
    """
    from mdl.peers.edge.identity import remember_code
    from mdl.transport.links.inviting import accept
    from mdl.transport.trust.keys import parse_words

    words, own = parse_words(said), _own(interface, loopback)
    code = accept(words, _find(at, own, wait_s))
    return code.partition(":")[0], str(remember_code(code))


def show(
    mesh: Annotated[
        str | None, typer.Argument(help="Name a mesh with a code known here; the only one by default.")
    ] = None,
    qr: AsQr = False,
    as_json: AsJson = False,
) -> None:
    """Show the join code of a mesh."""
    from mdl.peers.edge.identity import find_code

    code = find_code(mesh, None)
    drawn = draw_qr(code) if qr else ""
    if as_json:
        print_json({"mesh": code.partition(":")[0], "code": code})
        return
    print(f"{drawn}{code}")


def draw_qr(code: str) -> str:
    """Return lines for a terminal, dark on light if the terminal is light on dark. Raises ConfigError without segno."""
    from io import StringIO

    from mdl.errors import ConfigError

    try:
        import segno
    except ImportError:
        raise ConfigError("--qr needs segno: pip install 'mdl[web]'") from None
    drawn = StringIO()
    segno.make(code, micro=False).terminal(out=drawn, compact=True)
    return drawn.getvalue()


def _own(interface: Sequence[str] | None, loopback: bool) -> list[IPv4Interface]:
    from mdl.transport.discovery.interfaces import LOOPBACK, of_ipv4, usable_interfaces

    return [LOOPBACK] if loopback else of_ipv4(usable_interfaces(interface))


def _find(at: str | None, own: list[IPv4Interface], wait_s: float) -> Address:
    from mdl.errors import ConfigError, MeshNotFoundError
    from mdl.transport.discovery.directory import parse_address
    from mdl.transport.discovery.mdns import find_invitations, is_near

    if at:
        address = parse_address(at, "--at")
        if not is_near(address.host, own):
            networks = ", ".join(str(each.network) for each in own) or "none"
            raise ConfigError(
                f"--at {at}: not on a network of this device ({networks}); an invitation reaches only those"
            )
        return address
    found = find_invitations(own, wait_s)
    if not found:
        raise MeshNotFoundError(
            "no invitation is open on this network: run mdl mesh invite on a device of the mesh, or give --at HOST:PORT"
        )
    if len(found) > 1:  # a wrong one would cost a try there, and give a guess to an impostor
        places = ", ".join(f"{each.host}:{each.port}" for each in found)
        raise ConfigError(f"several invitations are open here ({places}): give --at and the one that the device shows")
    return found[0]
