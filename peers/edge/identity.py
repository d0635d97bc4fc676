"""The identity of this process: a name that stays, an incarnation that never repeats, and the user's join codes."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from mdl import locks
from mdl.bounds import MAX_INCARNATION, printable, whole_number
from mdl.errors import ConfigError, DataError, MdlError
from mdl.protocol.delta import Contributor
from mdl.reading import read_bytes, read_text
from mdl.transport.trust.keys import RUN_MARK, MeshKeys, is_successor, name_run, parse_join_code
from mdl.writing import make_private_folder, narrow, remove_leftovers, write_bytes

logger = logging.getLogger(__name__)

CODE_VARIABLE = "MDL_CODE"
CLOUD_CODE_VARIABLE = "MDL_CLOUD_CODE"
# A code has 60 characters; a file far larger than that is no join code.
_LARGEST_CODE_BYTES = 4096


def claim_identity(base: Path, name: str | None, out: Path | None = None, host: str = "") -> tuple[Contributor, Path]:
    """Claim a peer id that no other live process in `base` uses; return it and its directory (`out` if given).

    The peer id comes with its next incarnation. Raises ConfigError if a requested name or directory is in use.
    Otherwise `host`, by default the host's name, gets a number.
    """
    if name is not None and not re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", name):
        raise ConfigError(f"name {name!r}: use 1 to 40 letters, digits, '-' and '_'")
    host = host or default_name()
    for number in range(1, 1000):
        peer_id = name or (host if number == 1 else f"{host}-{number}")
        directory = out or base / peer_id
        try:
            make_private_folder(directory)
            taken = not locks.take(directory)
        except OSError as error:
            way = "--out, or XDG_STATE_HOME for all meshes, names another place"
            raise ConfigError(f"cannot write to {directory}: {error.strerror}; {way}") from None
        if not taken:
            remove_leftovers(directory)
            try:
                return Contributor(peer_id, _next_incarnation(directory / "incarnation")), directory
            except MdlError:
                release_identity(directory)
                raise
        if name is not None or out is not None:
            who = locks.owner_of(directory)
            raise ConfigError(f"{directory} is used by {who}; choose another --name or --out")
    raise ConfigError(f"no free name for {host!r} in {base}")


def default_name() -> str:
    """Return the host's name, as far as it can be a peer's."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", socket.gethostname())[:36].strip("-") or "peer"


def claim_again(directory: Path, me: Contributor) -> Contributor:
    """Return this process's own next incarnation: to other peers it is a new start."""
    return Contributor(me.peer_id, _next_incarnation(directory / "incarnation"))


def release_identity(directory: Path) -> None:
    """Release the name and the directory; another process may take them from now on."""
    locks.let_go(directory)


def state_home(mesh: str) -> Path:
    """Return the directory of the file caches of this user's peers of a mesh."""
    return Path(platformdirs.user_state_dir("mdl")) / mesh


# The most runs of one mesh that are listed.
_MOST_RUNS = 100


@dataclass(frozen=True)
class KeptRun:
    """The files of a run that a device of this machine keeps. round_id: its last round. model: one line for people."""

    mesh: str
    run: str
    device: str
    round_id: int
    model: str
    directory: Path


def kept_runs() -> list[KeptRun]:
    """Return the kept runs of all meshes, by name; runs without a model yet are left out."""
    from mdl.files.checkpoint import ModelCache

    found = []
    for file in sorted(Path(platformdirs.user_state_dir("mdl")).glob("*/*/model.safetensors")):
        if (cached := ModelCache(file.parent).load()) is not None:
            mesh, _, run = file.parent.parent.name.partition(RUN_MARK)
            told = printable(cached.extra.get("model", ""))
            found.append(KeptRun(mesh, run, file.parent.name, cached.round_id, told, file.parent))
    return found


def other_runs(name: str) -> list[str]:
    """Return the names of this machine's other runs of the same mesh.

    name: of a mesh, or of a run of it, as keys and folders spell it.
    """
    mesh = name.partition(RUN_MARK)[0]
    folders = sorted(path.name for path in Path(platformdirs.user_state_dir("mdl")).glob(f"{mesh}*") if path.is_dir())
    return [each for each in folders if each.partition(RUN_MARK)[0] == mesh and each != name][:_MOST_RUNS]


def forget_run(mesh: str, run: str = "") -> int:
    """Remove the files of a run that this machine's devices keep; return the number of devices. The mesh's code stays.

    Raises ConfigError if one of them runs, or if there are none.
    """
    home = state_home(name_run(mesh, run) if run else mesh)
    devices = sorted(path.name for path in home.glob("*") if path.is_dir())
    if not devices:
        raise ConfigError(f"nothing is kept of {mesh}{f'/{run}' if run else ''}; `mdl mesh runs` lists what is")
    taken: list[Path] = []
    try:
        for device in devices:
            taken.append(claim_identity(home, device)[1])
        shutil.rmtree(home)
    finally:
        for directory in taken:
            release_identity(directory)
    return len(devices)


def find_code(mesh: str | None, code: str | None, ask: Callable[[str], str] | None = None) -> str:
    """Return the join code: given, in MDL_CODE, answered to `ask`, or remembered under the mesh's name.

    code: the code itself, which any user of this machine can see in a list of processes; or @FILE, to read it from a
    file. ask: shows a question and returns the answer; None if no user can be asked. Raises ConfigError without a code.
    """
    code = code or os.environ.get(CODE_VARIABLE)
    if code and code.startswith("@"):
        code = read_code(Path(code[1:]).expanduser())
    if not code and ask is not None and not _knows(mesh):
        code = ask(f"join code of mesh {mesh}: " if mesh else "join code: ").strip()
    if code:
        name, _ = parse_join_code(code)
        if mesh and mesh != name:
            raise ConfigError(f"the code is for mesh {name!r}, not {mesh!r}")
        return code
    known = known_meshes()
    if mesh is None and len(known) == 1:
        mesh = next(iter(known))
    if mesh is None:
        choices = f"--mesh NAME, one of: {', '.join(known)}" if known else "--code @FILE; `mdl mesh new NAME` makes one"
        raise ConfigError(f"no mesh is named: give {choices}")
    if mesh not in known:
        raise ConfigError(
            f"no code is known for mesh {mesh!r}; give --code @FILE once (known: {', '.join(known) or '-'})"
        )
    return known[mesh]


def cloud_keys(keys: MeshKeys | None) -> MeshKeys | None:
    """Return the keys for a cloud: of its own join code, if it has one, else of the mesh. Raises ConfigError."""
    code = os.environ.get(CLOUD_CODE_VARIABLE)
    return MeshKeys.from_code(code) if code else keys


def known_meshes() -> dict[str, str]:
    """Return mesh name -> join code, as `remember_code` stored them; files without a code are logged and left out."""
    found = {}
    for path in sorted(codes_home().glob("*.code")):
        try:
            found[path.stem] = read_code(path)
        except ConfigError as error:
            logger.warning("%s", error)
    return found


def read_code(path: Path) -> str:
    """Read the join code in a file, and make the file this user's alone.

    Raises ConfigError, without the file's content.
    """
    try:
        text = read_bytes(path, _LARGEST_CODE_BYTES, "a file with a join code").decode("ascii").strip()
        parse_join_code(text)
    except DataError as error:
        raise ConfigError(f"cannot read {error}") from None
    except (UnicodeDecodeError, ConfigError):
        raise ConfigError(f"{path} holds no join code; `mdl mesh list` shows those that are known") from None
    if narrow(path):
        logger.warning("others on this machine could read %s until now: `mdl mesh new` makes a new code", path)
    return text


def remember_code(code: str, replace: bool = False) -> Path:
    """Keep a join code for this user alone (file mode 600).

    replace: an owner has changed the code. Raises ConfigError if the name is another mesh's here.
    """
    name, text = parse_join_code(code)
    path = codes_home() / f"{name}.code"
    known = known_meshes().get(name, code)
    if not (replace or known == code or is_successor(text, parse_join_code(known)[1])):
        raise ConfigError(
            f"mesh {name!r} is known here with another code, and its state is in {state_home(name)}: "
            f"if that mesh is gone, remove {path} and start with --fresh"
        )
    write_bytes(path, f"{code}\n".encode())
    return path


def _knows(mesh: str | None) -> bool:
    """Return True if the mesh's code is remembered; without a name, if any code is."""
    known = known_meshes()
    return mesh in known if mesh else bool(known)


def codes_home() -> Path:
    """Return the directory of this user's join codes and rosters."""
    return Path(platformdirs.user_config_dir("mdl")) / "meshes"


def _next_incarnation(path: Path) -> int:
    """Return a number that grows with every start, even if the clock was set back."""
    try:
        last = whole_number(read_text(path, _LARGEST_CODE_BYTES).strip(), MAX_INCARNATION - 1) or 0
    except DataError:
        last = 0
    incarnation = max(last + 1, int(time.time() * 1000))
    write_bytes(path, str(incarnation).encode())
    return incarnation
