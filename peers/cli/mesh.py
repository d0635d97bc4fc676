"""`mdl mesh`: makes meshes and lists those that are known here; the commands of their owners.

Those of owners are `mdl mesh members`, `owners`, `revoke`, `rotate-code` and `upgrade`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.config import LONGEST_S
from mdl.peers.cli.invite import AsQr, draw_qr
from mdl.peers.command.options import (
    AsJson,
    CommandGroup,
    Interface,
    Join,
    Loopback,
    confirm,
    finite,
    load_settings,
    mesh_overrides,
    print_json,
    tell,
)

if TYPE_CHECKING:
    from mdl.config import MeshSection
    from mdl.peers.ownership import Agreement
    from mdl.transport.links.standing import Stated
    from mdl.transport.trust.membership import Membership

app = CommandGroup("Make, join and list meshes, and manage their members.")
MeshName = Annotated[str, typer.Argument(help="Name the mesh as `mdl mesh list` shows it.")]
Device = Annotated[str, typer.Argument(help="Give its name, or the words of its key, as `mdl mesh members` shows.")]
Wait = Annotated[
    float, typer.Option(help="Look so many seconds for the others.", min=0.1, max=LONGEST_S, callback=finite)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command("new")
def new_mesh(
    name: Annotated[str, typer.Argument(help="Name the mesh by a-z, 0-9 and '-', for example home.")],
    as_json: AsJson = False,
) -> None:
    """Make a mesh and print its join code.

    Every other device needs the code once.
    """
    from mdl.errors import ConfigError
    from mdl.peers.edge.identity import known_meshes
    from mdl.peers.edge.membership import device_key, found_mesh
    from mdl.transport.trust.keys import RUN_MARK, founder_mark, new_join_code

    if RUN_MARK in name:
        raise ConfigError(f"mesh name {name!r}: {RUN_MARK!r} separates a mesh from its run; --run makes a run")
    if name in known_meshes():
        raise ConfigError(f"mesh {name!r} exists already; `mdl mesh show {name}` shows its code")
    code = new_join_code(name, mark=founder_mark(device_key().public))
    path = found_mesh(code)
    if as_json:
        print_json({"mesh": name, "code": code, "file": str(path)})
        return
    print(code)
    tell(f"remembered in {path}; this device owns the mesh. On the others: mdl peer --mesh {name}, which asks for it")


@app.command("list")
def list_meshes(
    codes: Annotated[
        bool, typer.Option("--codes", help="Show their join codes, too: anybody that reads one can join.")
    ] = False,
    qr: AsQr = False,
    as_json: AsJson = False,
) -> None:
    """List the meshes that this user has codes of."""
    from mdl.peers.edge.identity import known_meshes

    known = known_meshes()
    if as_json:
        print_json({"meshes": [{"mesh": name} | ({"code": code} if codes else {}) for name, code in known.items()]})
        return
    for name, code in known.items():
        print(f"{draw_qr(code) if qr else ''}{name:<16} {code}" if codes or qr else name)
    if not known:
        tell("no meshes yet; `mdl mesh new NAME` makes one")


@app.command("runs")
def list_runs(as_json: AsJson = False) -> None:
    """List the runs on this machine, and their rounds."""
    from mdl.peers.edge.identity import kept_runs

    found = kept_runs()
    if as_json:
        rows = [{"mesh": each.mesh, "run": each.run, "device": each.device, "round": each.round_id,
                 "model": each.model, "directory": str(each.directory)} for each in found]  # fmt: skip
        print_json({"runs": rows})
        return
    for each in found:
        name = f"{each.mesh}/{each.run}" if each.run else each.mesh
        print(f"{name:<24} {each.device:<16} round {each.round_id:<6} {each.model}")
    if not found:
        tell("nothing is kept yet; mdl peer --mesh NAME begins a run")


@app.command("forget")
def forget(
    name: Annotated[str, typer.Argument(help="Forget NAME, or NAME/RUN; `mdl mesh runs` lists them.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a run's models and metrics from this machine.

    The mesh's join code stays.
    """
    from mdl.errors import ConfigError
    from mdl.peers.edge.identity import forget_run

    mesh, _, run = name.partition("/")
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(f"forgetting {name} removes its models for good, and nobody can be asked here: add --yes")
        if not typer.confirm(f"remove all that this machine keeps of {name}?", err=True):
            raise ConfigError(f"{name} stays")
    count = forget_run(mesh, run)
    if as_json:
        print_json({"mesh": mesh, "run": run, "devices": count})
        return
    tell(f"{name} is forgotten: {count} device{'s' if count > 1 else ''} of this machine")


def register_owners(app: typer.Typer) -> None:
    """Add the commands. Call this once: each call would add them again."""
    for command in (members, owners, revoke, upgrade):
        app.command()(command)
    app.command("rotate-code")(rotate_code)


def members(name: MeshName, as_json: AsJson = False) -> None:
    """Show the members of a mesh that this machine knows.

    It shows names, the words of keys, owners, and devices that are locked out.
    """
    from mdl.peers.edge.membership import open_membership
    from mdl.peers.ownership import list_members
    from mdl.transport.trust.keys import MeshKeys

    found = list_members(open_membership(MeshKeys.from_code(_code_of(name))))
    if as_json:
        print_json({"mesh": name, "members": [asdict(each) for each in found]})
        return
    for each in found:
        marks = [mark for mark, is_so in (("owner", each.is_owner), ("this device", each.is_this)) if is_so]
        state = each.state if each.state != "in" else ""
        print(f"{each.name:<24} {each.device:<36} {', '.join([*marks, *([state] if state else [])])}".rstrip())
    if not found:
        tell(f"nobody yet: mdl peer --mesh {name} makes this device a member")


def owners(
    name: MeshName,
    add: Annotated[str | None, typer.Option(help="Make this member an owner, too: its name or words.")] = None,
    wait: Wait = 3.0,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Show the owners of a mesh, or name one more.

    An owner can revoke devices and change the join code.
    """
    from mdl.peers.edge.membership import open_membership
    from mdl.peers.ownership import find_device, list_members, owned, state
    from mdl.transport.links.standing import Stated
    from mdl.transport.trust.keys import MeshKeys

    code = _code_of(name)
    keys = MeshKeys.from_code(code)
    told: dict[str, object] = {"mesh": name}
    if add is not None:
        device = find_device(owned(keys), add)
        spread = state(name, code, _section(join, interface, loopback), lambda m: Stated((m.name_owner(device),)), wait)
        told |= _report(f"{add} owns mesh {name} now", spread, quiet=as_json)
    found = [each for each in list_members(open_membership(keys)) if each.is_owner]
    if as_json:
        print_json(told | {"owners": [asdict(each) for each in found]})
        return
    for each in found:
        print(f"{each.name:<24} {each.device:<36} {'this device' if each.is_this else ''}".rstrip())
    if not keys.mark:
        tell(f"mesh {name} has no owners: `mdl mesh upgrade {name}` gives it one")


def revoke(
    name: MeshName,
    device: Device,
    reason: Annotated[str, typer.Option(help="Tell everybody this reason, the device too.")] = "",
    yes: Yes = False,
    wait: Wait = 3.0,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Lock a lost, sold or stolen device out for ever.

    Devices in reach heed it at once.
    """
    from mdl.bounds import first_few
    from mdl.errors import ConfigError
    from mdl.peers.ownership import find_device, owned, state
    from mdl.transport.links.standing import Stated
    from mdl.transport.trust.keys import MeshKeys, fingerprint

    if len(reason) > 200 or not reason.isprintable():
        raise ConfigError("--reason: one line of at most 200 printable characters")
    code = _code_of(name)
    keys = MeshKeys.from_code(code)
    out = find_device(owned(keys), device)
    if keys.is_founder(out):
        raise ConfigError(
            f"{device} founded mesh {name}: the founder cannot be locked out; `mdl mesh new` makes another"
        )
    confirm(f"lock {device} ({fingerprint(out)}) out of mesh {name} for ever?", yes, "nothing was changed")
    now_ms = time.time_ns() // 1_000_000
    section = _section(join, interface, loopback)
    back: list[str] = []

    def make(membership: Membership) -> Stated:
        statements = membership.revoke(out, now_ms, reason)
        again = {each.device for each in statements}
        void = [each for each in membership.roster.revocations() if each.by == out and each.device not in again]
        back.extend(each.name or fingerprint(each.device) for each in void)
        return Stated(statements)

    spread = state(name, code, section, make, wait)
    told = _report(f"{device} is locked out of mesh {name}", spread, quiet=as_json)
    if as_json:
        print_json({"mesh": name, "device": fingerprint(out), "no_longer_out": sorted(set(back))} | told)
        return
    if back:
        tell(f"devices that {device} had locked out, and that are not out any more: {first_few(sorted(set(back)))}")
    tell(f"it still has the join code, and could come back as another device: mdl mesh rotate-code {name}")


def rotate_code(
    name: MeshName,
    keep: Annotated[
        str, typer.Option(help="Keep these members though they never took part here: names or words, with commas.")
    ] = "",
    keep_all: Annotated[
        bool, typer.Option("--keep-all", help="Keep every member, also one that never worked.")
    ] = False,
    yes: Yes = False,
    wait: Wait = 3.0,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    as_json: AsJson = False,
) -> None:
    """Give a mesh another join code.

    Devices that took part in a round stay in and are told; others need the new code.
    """
    from mdl.bounds import first_few
    from mdl.data.spec import split_names
    from mdl.peers.ownership import change_code, owned, who_is_left_out
    from mdl.transport.trust.keys import MeshKeys

    kept = split_names(keep)
    left_out = who_is_left_out(owned(MeshKeys.from_code(_code_of(name))), kept, keep_all)
    told_out = f"; out are {first_few(left_out)}, which never took part in a round here" if left_out else ""
    confirm(
        f"change the join code of mesh {name}? Members that worked with this device stay in{told_out}",
        yes,
        "nothing was changed",
    )
    code, spread, left_out = change_code(name, _section(join, interface, loopback), wait, kept, keep_all)
    told = _report(f"mesh {name} has another join code", spread, quiet=as_json)
    if as_json:
        print_json({"mesh": name, "code": code, "left_out": left_out} | told)
        return
    print(code)
    if left_out:
        tell(f"out, as they never took part in a round here: {first_few(left_out)}; they come in again by the new code")


def upgrade(name: MeshName, as_json: AsJson = False) -> None:
    """Make this device the owner of an old mesh.

    An old mesh has a code of 20 characters. Every device needs the new code once.
    """
    from mdl.peers.edge.membership import device_key, found_mesh
    from mdl.transport.trust.keys import founder_mark, with_founder

    code = with_founder(_code_of(name), founder_mark(device_key().public))
    path = found_mesh(code)
    if as_json:
        print_json({"mesh": name, "code": code, "file": str(path)})
        return
    print(code)
    tell(f"this device owns mesh {name} now; stop its peers, then on each device: mdl peer --mesh {name} --code @FILE")


def _code_of(name: str) -> str:
    from mdl.peers.edge.identity import find_code

    return find_code(name, None)


def _section(join: list[str] | None, interface: list[str] | None, loopback: bool | None) -> MeshSection:
    return load_settings(None, mesh_overrides(join, None, None, interface, loopback, None), None).mesh


def _report(what: str, spread: list[Agreement], quiet: bool) -> dict[str, object]:
    if not quiet:
        tell(f"{what}; {spread[0].tell()}")
    agreed = sorted({each for one in spread for each in one.agreed})
    return {"agreed": agreed, "reached": sorted({each for one in spread for each in one.reached})}
