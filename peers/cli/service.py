"""`mdl service`: a peer, an agent or a cloud that starts with the machine, by systemd, launchd or Windows."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mdl.config import MANY
from mdl.errors import ConfigError
from mdl.peers.command.options import AsJson, CommandGroup, print_json, tell

if TYPE_CHECKING:
    from mdl.peers.service import Service

app = CommandGroup("Run a command as a service, from boot on.")

_SYSTEMS = ("systemd", "launchd", "windows")
_OF_PLATFORMS = {"darwin": "launchd", "win32": "windows"}
# Commands that run until they are told to end, or until a run is over.
_MAY_SERVE = ("peer", "agent", "cloud", "learn")
# They would stand in a file that every user may read, or are good once.
_SECRETS = ("--invite",)
# Finds user:password@ of an address, or password= of one.
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@|\bpassword\s*=", re.IGNORECASE)

Name = Annotated[
    str | None,
    typer.Argument(help="Name a service as `mdl service status` lists it; the only one by default.", metavar="[NAME]"),
]


@app.command("install")
def install(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(help="Write the command after --: peer --mesh home --data ... and all its options.")
    ],
    name: Annotated[str | None, typer.Option(help="Name the service; the command and the mesh by default.")] = None,
    run_as: Annotated[
        str, typer.Option("--as", help="Run it as this user, if root installs it; by default as a made-up one.")
    ] = "",
    memory: Annotated[
        int | None,
        typer.Option(help="Let it take so many MB at most; 60 % of this machine's by default.", min=1, max=MANY),
    ] = None,
    only_print: Annotated[
        bool, typer.Option("--print", "--dry-run", help="Show the unit, and change nothing.")
    ] = False,
    system: Annotated[
        str, typer.Option(help=f"Print for {', '.join(_SYSTEMS)}; by default for this machine's.", metavar="NAME")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Start a command of mdl now and with the machine.

    Root installs a service of the machine; other users install one of their own.

    For example: mdl service install -- peer --mesh home --data 'csv:/home/pi/walk.csv?label=activity' --when idle
    """
    from mdl.peers.service import install, is_system, lingers, need_systemd, plan

    given = _check(command, context.find_root().command)
    system = _choose_system(system, only_print, run_as, memory)
    if not only_print:
        need_systemd()
    of_machine = is_system() and system == "systemd"
    command, store = _without_store(command, of_machine)
    if store and system != "systemd":
        raise ConfigError(
            "service: --store holds the address itself, and this system has no safe place for it: write it to a file, "
            "and give --store @FILE"
        )
    words, mesh, code = _with_code(command, given, of_machine)
    out = (given["out"],) if given.get("out") else ()
    service, secret = plan(_name(name, command[0], mesh), words, code, run_as, memory, out, store, of_machine)
    if only_print:
        text, hint = _write(service, system)
        if as_json:
            print_json({"unit": service.unit if system == "systemd" else service.label, "text": text})
        else:
            print(text, end="")
            if hint:
                tell(hint)
        return
    file = install(service, secret, store)
    if as_json:
        print_json(
            {"unit": service.unit, "file": str(file), "threads": service.threads, "memory_mb": service.memory_mb}
        )
    tell(f"{service.unit} runs, with {service.threads} threads and {service.memory_mb} MB at most ({file})")
    if not lingers():
        tell("it ends when you log out, and starts when you log in; from boot on: sudo loginctl enable-linger $USER")


@app.command("remove")
def remove(name: Name = None, as_json: AsJson = False) -> None:
    """End a service and remove it; its models stay."""
    from mdl.peers.service import find_unit, need_systemd
    from mdl.peers.service import remove as take_away

    unit = find_unit(name)
    need_systemd()
    take_away(unit)
    if as_json:
        print_json({"unit": unit})
    tell(f"{unit} is removed; its models and metrics stay where they are")


@app.command("status")
def status(name: Name = None, as_json: AsJson = False) -> None:
    """Show the services that are installed here."""
    from mdl.peers.service import find_unit, installed, need_systemd, state

    units = [find_unit(name)] if name else installed()
    need_systemd()
    found = {unit: state(unit) for unit in units}
    if as_json:
        print_json({"services": found})
        return
    for unit, told in found.items():
        held = told.get("MemoryCurrent", "")
        memory = f"{int(held) / 1e6:.0f} MB, " if held.isdigit() else ""
        since = f" since {told['ActiveEnterTimestamp']}" if told.get("ActiveEnterTimestamp") else ""
        print(f"{unit:<28} {told.get('ActiveState', '?')}{since}, {memory}{told.get('NRestarts', '0')} restarts")
    if not found:
        tell("no service is installed here; mdl service install -- peer --mesh NAME --data ... makes one")


@app.command("logs")
def logs(
    name: Name = None,
    lines: Annotated[int, typer.Option("-n", "--lines", help="Show so many lines.", min=1, max=MANY)] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the log of a service."""
    from mdl.peers.service import find_unit, need_systemd, read_log, show_log

    unit = find_unit(name)
    need_systemd()
    if as_json:
        print_json({"unit": unit, "lines": read_log(unit, lines)})
    else:
        show_log(unit, lines, follow)


def _choose_system(asked: str, only_print: bool, run_as: str, memory: int | None) -> str:
    """Return the service manager that is meant. Raises ConfigError for an unknown one, or one that cannot do this."""
    system = asked or _OF_PLATFORMS.get(sys.platform, "systemd")
    if system not in _SYSTEMS:
        raise ConfigError(f"service: --system {asked[:40]!r}: expected one of {', '.join(_SYSTEMS)}")
    if asked and not only_print:
        raise ConfigError("service: --system goes with --print: a service is installed on systemd alone")
    if system != "systemd" and (run_as or memory):
        raise ConfigError(f"service: {'--as' if run_as else '--memory'} is for systemd: {system} has no such bound")
    return system


def _write(service: Service, system: str) -> tuple[str, str]:
    """Return the text for a service manager, and what to do with it, or ""."""
    from mdl.peers.service import how_to_create, how_to_load, write_plist, write_task, write_unit

    if system == "launchd":
        return write_plist(service), how_to_load(service)
    if system == "windows":
        return write_task(service), how_to_create(service)
    return write_unit(service), ""


def _check(command: list[str], mdl: Any) -> dict[str, Any]:
    """Return the options of the `mdl` command, by its own parser. Raises ConfigError if it cannot serve."""
    if command[0] not in _MAY_SERVE:
        raise ConfigError(f"service: {command[0]!r} does not run on its own; expected one of {', '.join(_MAY_SERVE)}")
    if wrong := next((word for word in command if word.partition("=")[0] in _SECRETS), ""):
        raise ConfigError(f"service: {wrong}: words of an invitation are good once; mdl mesh join WORDS first")
    parsed: dict[str, Any] = mdl.commands[command[0]].make_context(command[0], command[1:]).params
    if (code := parsed.get("code")) and not code.startswith("@"):
        raise ConfigError(
            "service: --code holds the code itself, and everybody here can read a unit: give --code @FILE"
        )
    if any(_PASSWORD.search(word) and not _is_store(command, word) for word in command):
        raise ConfigError(
            "service: a word holds a password, and everybody here can read a unit: give a database's address by "
            "--store, or --store @FILE"
        )
    spec = parsed.get("data") or ""
    path = spec.partition("?")[0].partition(":")[2] if spec.startswith(("csv:", "npz:", "uci-har:", "semg:")) else ""
    if path and not path.startswith(("/", "~")):
        raise ConfigError(f"service: --data {spec}: give the whole path, a service has another working directory")
    return parsed


def _is_store(command: list[str], word: str) -> bool:
    return word.startswith("--store=") or command[command.index(word) - 1] == "--store"


def _without_store(command: list[str], hides: bool) -> tuple[list[str], str]:
    """Return the command's words without the address of a database, and that address.

    A user's own file with it stays in the words.
    """
    from mdl.peers.dccl.databases import read_url

    kept, store, words = list[str](), "", iter(command)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--store":
            kept.append(word)
            continue
        given = value if equals else next(words, "")
        if given.startswith("@") and not given.startswith(("@/", "@~")):
            raise ConfigError(f"service: --store {given[:80]}: give the whole path of the file")
        if given.startswith("@") and not hides:
            kept += ["--store", given]
        else:
            store = read_url(given)
    return kept, store


def _with_code(command: list[str], given: dict[str, Any], hides: bool) -> tuple[tuple[str, ...], str, str | None]:
    """Return the command's words, its mesh, and the join code if the unit hands it over.

    The words then do not name the code.
    """
    from mdl.peers.edge.identity import find_code

    if given.get("insecure"):
        return tuple(command), given.get("mesh") or "insecure", None
    code = find_code((given.get("mesh") or "").partition("/")[0] or None, given.get("code"))
    mesh = code.partition(":")[0]
    if not hides:
        return tuple(command), mesh, None
    kept, words = list[str](), iter(command)
    for word in words:
        if word == "--code":
            next(words, None)
        elif not word.startswith("--code="):
            kept.append(word)
    return tuple(kept), mesh, code


def _name(asked: str | None, command: str, mesh: str) -> str:
    name = asked or f"{command}-{mesh}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise ConfigError(f"--name {name!r}: use a-z, 0-9 and '-', for example peer-home")
    return name
