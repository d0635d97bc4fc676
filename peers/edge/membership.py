"""The files of this user's devices in a mesh: the device key, and the roster beside the join code. And a device's name.

The key is made at the first start, for this user alone. MDL_KEY gives another one: @FILE, or its 64 hexadecimal digits.
A roster is kept beside the remembered join code. Several processes add to one file, and none removes anything.

NAME.roster         signed statements
NAME.roster-mark    made of them by this device's secret: they were checked before they were written, and need no check
NAME.worked         the devices that were seen to work, for the mesh and all its runs

A device takes the given name or the host's; if that is another device's, it takes one of its own.
Two new boards are both called raspberrypi, and a replaced card keeps its host's name. A device's own name is the host's
with words of its key behind it, such as raspberrypi-ash, so it is the same at each start. It has one word more as long
as that name is taken, too.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_bytes
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import platformdirs

from mdl.bounds import UNREADABLE, PeerId
from mdl.errors import ConfigError, DataError, MdlError, NameRefusedError, RemoteProtocolError, StorageError
from mdl.files.kept import read_sealed, seal
from mdl.locks import wait_for_lock
from mdl.peers.edge.identity import codes_home, default_name, known_meshes, remember_code
from mdl.protocol.statements import MAX_WORKED, AnyStatement, Key
from mdl.reading import read_bytes
from mdl.transport.trust.keys import (
    RUN_MARK,
    SECRET_BYTES,
    DeviceKey,
    Mesh,
    MeshKeys,
    is_signed,
    next_own_name,
    own_names,
)
from mdl.transport.trust.membership import Membership, encode_readable
from mdl.transport.trust.roster import Worked, is_stated
from mdl.writing import make_private_folder, narrow, open_private, write_bytes

logger = logging.getLogger(__name__)

KEY_VARIABLE = "MDL_KEY"
_LARGEST_KEY_BYTES = 256
# A full roster, with the longest reasons, and as many kept keys in each change of the code.
_LARGEST_ROSTER_BYTES = 32 << 20
_LARGEST_WORKED_BYTES = 128 * MAX_WORKED
_LARGEST_MARK_BYTES = 64
_Statements: TypeAlias = tuple[AnyStatement, ...]
_Pairs: TypeAlias = Annotated[tuple[tuple[Key, PeerId], ...], msgspec.Meta(max_length=MAX_WORKED)]
_EXPECTED = f"{2 * SECRET_BYTES} hexadecimal digits"


def device_key() -> DeviceKey:
    """Return this device's key; make and keep it at the first call. Raises ConfigError for an invalid one.

    If nothing can be kept (no home, or a read-only one), make a new key at each start and log a warning.
    """
    given = os.environ.get(KEY_VARIABLE, "")
    if given and not given.startswith("@"):
        return DeviceKey.of(_parse(given, KEY_VARIABLE))
    if given:
        return _read(Path(given[1:]).expanduser())
    path = key_path()
    try:
        return _read(path) if path.exists() else _make(path)
    except (OSError, RuntimeError, StorageError) as error:
        logger.warning("the device key is not kept (%s): this is another device at its next start", error)
        return DeviceKey.of(token_bytes(SECRET_BYTES))


def key_for_cloud(insecure: bool) -> DeviceKey | None:
    """Return the key that this device shows a cloud; None without encryption.

    Raises ConfigError as `device_key` does.
    """
    return None if insecure else device_key()


def key_path() -> Path:
    """Return the path of the key, unless another one is given."""
    return Path(platformdirs.user_config_dir("mdl")) / "device.key"


def open_membership(keys: MeshKeys) -> Membership:
    """Return this device's membership in a mesh, with the roster kept on disk. Raises ConfigError."""
    path, device = roster_path(keys), device_key()
    if path is None:
        return Membership(keys, device)
    content, checks = _read_roster(path), _Checks()
    are_checked = _is_marked(path, content, keys, device)
    statements = _decode(path, content, keys, lambda statement: are_checked, checks)
    worked = Worked(_load_worked(_worked_path(path)))
    membership = Membership(keys, device, statements, worked, are_checked, checks)
    checks.known.clear()
    membership.on_change = lambda: _keep(path, membership)
    membership.on_code = lambda code: _keep_code(code)
    return membership


def found_mesh(code: str) -> Path:
    """Remember a code that names this device as founder, state that it owns the mesh, and return the code's path."""
    path = remember_code(code)
    membership = open_membership(MeshKeys.from_code(code))
    membership.roster.add(membership.found())
    keep_roster(membership)
    return path


def roster_path(keys: MeshKeys) -> Path | None:
    """Return the path of a mesh's roster; None if the mesh's code is not remembered."""
    mesh = keys.name.partition(RUN_MARK)[0]
    home = codes_home()
    return home / f"{keys.name}.roster" if (home / f"{mesh}.code").exists() else None


def keep_roster(membership: Membership) -> None:
    """Write the roster as it is known now. Raises MdlError if the disk refuses."""
    if path := roster_path(membership.keys):
        _write(path, membership)


def _keep(path: Path, membership: Membership) -> None:
    try:
        _write(path, membership)
    except MdlError as error:  # other devices know it too, and send it again
        logger.warning("the roster is not kept: %s", error)


def _write(path: Path, membership: Membership) -> None:
    roster, keys = membership.roster, membership.keys
    with _alone_in(path.parent):
        for statement in _decode(path, _read_roster(path), keys, roster.knows):
            with suppress(RemoteProtocolError):  # void by now
                roster.add(statement)
        content = encode_readable(membership.statements(), _Statements, str(path))
        if len(content) > _LARGEST_ROSTER_BYTES:
            raise ConfigError(f"{path} would have {len(content)} bytes, at most {_LARGEST_ROSTER_BYTES}: not written")
        write_bytes(path, content)
        write_bytes(_mark_path(path), _mark(content, keys, membership.device))
        _write_worked(_worked_path(path), membership.worked)


def _read_roster(path: Path) -> bytes:
    """Read a roster's file. Raises ConfigError if it is too large for any roster."""
    if not path.exists():
        return b""
    try:
        return read_bytes(path, _LARGEST_ROSTER_BYTES, "a mesh's roster")
    except DataError as error:
        raise _broken(path, error) from None


def _decode(
    path: Path,
    content: bytes,
    keys: MeshKeys,
    knows: Callable[[AnyStatement], bool],
    check: Callable[[bytes, bytes, bytes], bool] = is_signed,
) -> _Statements:
    """Decode a roster's file. knows: returns True if a statement was checked before.

    Raises ConfigError for a file that has changed on the disk. A void statement counts no more: a flipped bit would
    admit a locked-out device, unnoticed. If no statement is valid, the file is of a former mesh of this name, and is
    accepted.
    """
    if not content:
        return ()
    try:
        statements = msgspec.msgpack.decode(content, type=_Statements)
        signed = [knows(each) or is_stated(keys.mesh_id, each, check) for each in statements]
        if any(signed) and not all(signed):
            raise DataError(f"{signed.count(False)} of {len(signed)} statements have changed since they were signed")
        return statements
    except (DataError, *UNREADABLE) as error:
        raise _broken(path, error) from None


def _broken(path: Path, error: Exception) -> ConfigError:
    what = "it lists the locked-out devices: remove it only if the other devices can tell this one again"
    return ConfigError(f"{path} is no whole roster ({error}); {what}")


class _Checks:
    """Checks each signature once. known: those that were right."""

    def __init__(self) -> None:
        self.known: set[tuple[bytes, bytes, bytes]] = set()

    def __call__(self, public: bytes, claim: bytes, signature: bytes) -> bool:
        if (public, claim, signature) in self.known:
            return True
        if not is_signed(public, claim, signature):
            return False
        self.known.add((public, claim, signature))
        return True


def _mark_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-mark")


def _mark(content: bytes, keys: MeshKeys, device: DeviceKey) -> bytes:
    """Return the mark by which a roster is known as written by this device under this join code."""
    return device.seal(keys.mesh_id.encode() + b"\0" + keys.code_hash + content)


def _is_marked(path: Path, content: bytes, keys: MeshKeys, device: DeviceKey) -> bool:
    try:
        mark = read_bytes(_mark_path(path), _LARGEST_MARK_BYTES, "a mark")
    except DataError:  # an older version wrote none: every statement is checked
        return False
    return hmac.compare_digest(mark, _mark(content, keys, device))


def _worked_path(path: Path) -> Path:
    """Return the path of the mesh's file, the same for all its runs."""
    return path.with_name(f"{path.stem.partition(RUN_MARK)[0]}.worked")


def _load_worked(path: Path) -> _Pairs:
    if not path.exists():
        return ()
    try:
        content = read_sealed(path, _LARGEST_WORKED_BYTES, "a list of devices that have worked")
        return msgspec.msgpack.decode(content, type=_Pairs)
    except (DataError, *UNREADABLE) as error:
        logger.warning("%s cannot be read (%s): the list of devices that worked begins anew", path, error)
        return ()


def _write_worked(path: Path, worked: Worked) -> None:
    kept = _load_worked(path)
    if not set(worked) <= set(kept):
        write_bytes(path, seal(encode_readable(tuple(Worked([*kept, *worked])), _Pairs, str(path))))


def _keep_code(code: str) -> None:
    name = code.partition(":")[0]
    if known_meshes().get(name) == code:
        return
    try:
        remember_code(code, replace=True)
        logger.info("an owner has changed the join code of mesh %s; the new one is remembered", name)
    except MdlError as error:
        logger.warning("the new join code of mesh %s is not remembered: %s", name, error)


def _read(path: Path) -> DeviceKey:
    try:
        text = read_sealed(path, _LARGEST_KEY_BYTES, _EXPECTED).decode("ascii", "replace")
    except DataError as error:
        raise ConfigError(
            f"cannot read the device key: {error}; put a copy of it back, or remove it to be a new device"
        ) from None
    if narrow(path):
        logger.warning("others on this machine could read %s until now: remove it, and this is a new device", path)
    return DeviceKey.of(_parse(text, str(path)))


def _parse(text: str, where: str) -> bytes:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"{where} is no device key: {_EXPECTED} are expected")
    return secret


def _make(path: Path) -> DeviceKey:
    """Make the key unless it is there; processes that start together all use the first one."""
    with _alone_in(path.parent):
        if not path.exists():
            write_bytes(path, seal(f"{token_bytes(SECRET_BYTES).hex()}\n".encode()))
    return _read(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Admit one process of this user at a time, if the disk supports locks. Raises StorageError."""
    lock = folder / ".lock"
    try:
        make_private_folder(folder)
        file = open_private(lock, "ab")
    except OSError as error:
        raise StorageError(lock, error) from error
    with file:
        try:
            wait_for_lock(file)
        except TimeoutError as error:
            raise StorageError(lock, error) from error
        yield


logger = logging.getLogger("mdl")

_T = TypeVar("_T")


def name_here(membership: Membership | None, first: str = "") -> str:
    """Return the name that this device begins with, by what it knows of others' names and of its own.

    first: used instead of the host's name.
    """
    host = first or default_name()
    if membership is None:
        return host
    roster, device = membership.roster, membership.device.public
    own = own_names(host, device)
    taken = [name for name in own if (holder := roster.enrolled(name)) is not None and holder.device == device]
    free = [
        name
        for name in (host, *own)
        if all(roster.has_given_up(each.device, name) for each in roster.rivals(name, device))
    ]
    return (taken or free or own)[0]


def next_name(mesh: Mesh, refused: NameRefusedError) -> str:
    """Return the name to take in place of a refused one, and log it; "" if there is none left."""
    assert mesh.keys is not None
    name = next_own_name(refused.name, open_membership(mesh.keys).device.public)
    if name:
        told = (refused.name, mesh.shown, name)
        logger.warning("%r is the name of another device of mesh %s: this one calls itself %r from now on", *told)
    return name


def under_a_free_name(mesh: Mesh, given: str | None, run: Callable[[str], _T], first: str = "") -> _T:
    """Run as a device of this mesh; run again under the next name while the name belongs to another device.

    given: the only name to take, if the user has given one. run: is given the name to take. Raises NameRefusedError if
    no name is left.
    """
    if given is not None:
        return run(given)
    name = name_here(open_membership(mesh.keys) if mesh.keys else None, first)
    while True:
        try:
            return run(name)
        except NameRefusedError as refused:
            if not (name := next_name(mesh, refused)):
                raise
