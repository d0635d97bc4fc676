"""Who this process is: a name that stays, an incarnation that never repeats, and the join codes this user knows."""

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

from mdl.bounds import MAX_INCARNATION, printable, whole_number
from mdl.errors import ConfigError, DataError, MdlError
from mdl.files import run_lock
from mdl.protocol.delta import Contributor
from mdl.reading import read_bytes, read_text
from mdl.transport.trust.keys import RUN_MARK, MeshKeys, is_successor, name_run, parse_join_code
from mdl.writing import make_private_folder, narrow, remove_leftovers, write_bytes

logger = logging.getLogger(__name__)

CODE_VARIABLE = "MDL_CODE"
CLOUD_CODE_VARIABLE = "MDL_CLOUD_CODE"
# A code has 60 characters; whatever is far larger is another file.
_LARGEST_CODE_BYTES = 4096


def claim_identity(base: Path, name: str | None, out: Path | None = None, host: str = "") -> tuple[Contributor, Path]:
    """A peer id that no other live process in `base` uses, its next incarnation, and its directory (`out` if given).

    A name or directory that was asked for and is in use raises ConfigError; otherwise `host`, by default the host's
    name, gets a number.
    """
    if name is not None and not re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", name):
        raise ConfigError(f"name {name!r}: use 1 to 40 letters, digits, '-' and '_'")
    host = host or default_name()
    for number in range(1, 1000):
        peer_id = name or (host if number == 1 else f"{host}-{number}")
        directory = out or base / peer_id
        try:
            make_private_folder(directory)
            taken = not run_lock.take(directory)
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
            who = run_lock.owner_of(directory)
            raise ConfigError(f"{directory} is used by {who}; choose another --name or --out")
    raise ConfigError(f"no free name for {host!r} in {base}")


def default_name() -> str:
    """The host's, as far as it can be a peer's."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", socket.gethostname())[:36].strip("-") or "peer"


def claim_again(directory: Path, me: Contributor) -> Contributor:
    """This process's own next incarnation: for the others it has started anew."""
    return Contributor(me.peer_id, _next_incarnation(directory / "incarnation"))


def release_identity(directory: Path) -> None:
    """Another process may take the name and directory from now on."""
    run_lock.let_go(directory)


def state_home(mesh: str) -> Path:
    """Where this user's peers of a mesh keep their file caches."""
    return Path(platformdirs.user_state_dir("mdl")) / mesh


# Runs of one mesh that are looked for.
_MOST_RUNS = 100


@dataclass(frozen=True)
class KeptRun:
    """What a device of this machine keeps of a run. round_id: its last one. model: one line for people."""

    mesh: str
    run: str
    device: str
    round_id: int
    model: str
    directory: Path


def kept_runs() -> list[KeptRun]:
    """Of all meshes, by name; what has no model yet is left out."""
    from mdl.files.checkpoint import ModelCache

    found = []
    for file in sorted(Path(platformdirs.user_state_dir("mdl")).glob("*/*/model.safetensors")):
        if (cached := ModelCache(file.parent).load()) is not None:
            mesh, _, run = file.parent.parent.name.partition(RUN_MARK)
            told = printable(cached.extra.get("model", ""))
            found.append(KeptRun(mesh, run, file.parent.name, cached.round_id, told, file.parent))
    return found


def other_runs(name: str) -> list[str]:
    """Return the names of the runs that this machine has been in of the mesh that this one belongs to, without it.

    name: of a mesh, or of a run of it, as keys and folders spell it.
    """
    mesh = name.partition(RUN_MARK)[0]
    folders = sorted(path.name for path in Path(platformdirs.user_state_dir("mdl")).glob(f"{mesh}*") if path.is_dir())
    return [each for each in folders if each.partition(RUN_MARK)[0] == mesh and each != name][:_MOST_RUNS]


def forget_run(mesh: str, run: str = "") -> int:
    """Remove what the devices of this machine keep of a run, and say how many they were; the mesh's code stays.

    Raises ConfigError if one of them runs, or there are none.
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
    """The join code: given, in MDL_CODE, or remembered under the mesh's name; else what `ask` hears.

    code: the code itself, which everybody on this machine can see in a list of processes, or @FILE for what is in a
    file. ask: shows a question and gives the answer; None where nobody can be asked. Raises ConfigError without one.
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
        raise ConfigError(f"which mesh? give {choices}")
    if mesh not in known:
        raise ConfigError(
            f"no code is known for mesh {mesh!r}; give --code @FILE once (known: {', '.join(known) or '-'})"
        )
    return known[mesh]


def cloud_keys(keys: MeshKeys | None) -> MeshKeys | None:
    """A cloud may serve many meshes, with a join code of its own; else it has the mesh's. Raises ConfigError."""
    code = os.environ.get(CLOUD_CODE_VARIABLE)
    return MeshKeys.from_code(code) if code else keys


def known_meshes() -> dict[str, str]:
    """Mesh name -> join code, as `remember_code` stored them; a file that holds none is told of and left out."""
    found = {}
    for path in sorted(codes_home().glob("*.code")):
        try:
            found[path.stem] = read_code(path)
        except ConfigError as error:
            logger.warning("%s", error)
    return found


def read_code(path: Path) -> str:
    """The join code in a file, which is for this user alone from now on. Raises ConfigError, without what is in it."""
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
    """Keep a join code for this user alone (file mode 600). Raises ConfigError if the name is another mesh's here.

    replace: an owner has changed the code.
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
    """Whether a code is remembered for it; without a name, whether there is anything to choose from."""
    known = known_meshes()
    return mesh in known if mesh else bool(known)


def codes_home() -> Path:
    """Where this user's join codes and rosters are kept."""
    return Path(platformdirs.user_config_dir("mdl")) / "meshes"


def _next_incarnation(path: Path) -> int:
    """Grows with every start, even if the clock was set back."""
    try:
        last = whole_number(read_text(path, _LARGEST_CODE_BYTES).strip(), MAX_INCARNATION - 1) or 0
    except DataError:
        last = 0
    incarnation = max(last + 1, int(time.time() * 1000))
    write_bytes(path, str(incarnation).encode())
    return incarnation
