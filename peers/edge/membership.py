"""What this user's devices keep of a mesh on disk: the device key, and the roster beside the join code.

The key is made at the first start, for this user alone; MDL_KEY gives another one: @FILE, or its 64 hexadecimal digits.
A roster is kept where the mesh's code is remembered; several processes add to one file, and none takes anything out.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_bytes

import msgspec
import platformdirs

from mdl.bounds import UNREADABLE
from mdl.errors import ConfigError, DataError, MdlError, RemoteProtocolError, StorageError
from mdl.reading import read_bytes
from mdl.trust.statements import AnyStatement
from mdl.writing import make_private_folder, narrow, open_private, write_bytes
from peers.edge.identity import codes_home, known_meshes, remember_code
from transport.trust.device_key import SECRET_BYTES, DeviceKey
from transport.trust.keys import RUN_MARK, MeshKeys
from transport.trust.membership import Membership
from transport.trust.roster import is_stated

logger = logging.getLogger(__name__)

KEY_VARIABLE = "MDL_KEY"
_LARGEST_KEY_BYTES = 256
# Statements of 1,024 members and as many kept keys in some changes of the code.
_LARGEST_ROSTER_BYTES = 8 << 20
_EXPECTED = f"{2 * SECRET_BYTES} hexadecimal digits"


def device_key() -> DeviceKey:
    """This device's key; made and kept at the first call. Raises ConfigError for one that cannot be.

    Where nothing can be kept (no home, a read-only one) it is made anew at each start, and that is told.
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
    """What this device shows a cloud; None where nothing is encrypted. Raises ConfigError as `device_key`."""
    return None if insecure else device_key()


def key_path() -> Path:
    """Where the key is kept, unless another one is given."""
    return Path(platformdirs.user_config_dir("mdl")) / "device.key"


def open_membership(keys: MeshKeys) -> Membership:
    """What this device is in a mesh, with what is kept of the mesh's roster. Raises ConfigError."""
    path = roster_path(keys)
    membership = Membership(keys, device_key(), _load(path, keys) if path else ())
    if path:
        membership.on_change = lambda: _keep(path, membership)
        membership.on_code = lambda code: _keep_code(code)
    return membership


def found_mesh(code: str) -> Path:
    """Remember a code that names this device as the founder, and that it owns the mesh; where the code is kept."""
    path = remember_code(code)
    membership = open_membership(MeshKeys.from_code(code))
    membership.roster.add(membership.found())
    keep_roster(membership)
    return path


def roster_path(keys: MeshKeys) -> Path | None:
    """Where a mesh's roster is kept; None for a mesh whose code nobody has remembered."""
    mesh = keys.name.partition(RUN_MARK)[0]
    home = codes_home()
    return home / f"{keys.name}.roster" if (home / f"{mesh}.code").exists() else None


def keep_roster(membership: Membership) -> None:
    """Keep what is known now. Raises MdlError if the disk refuses."""
    if path := roster_path(membership.keys):
        _write(path, membership)


def _keep(path: Path, membership: Membership) -> None:
    try:
        _write(path, membership)
    except MdlError as error:  # others know it too, and tell it again
        logger.warning("the roster is not kept: %s", error)


def _write(path: Path, membership: Membership) -> None:
    roster = membership.roster
    with _alone_in(path.parent):
        for statement in _load(path, membership.keys, roster.knows):
            with suppress(RemoteProtocolError):  # void by now
                roster.add(statement)
        write_bytes(path, msgspec.msgpack.encode(membership.statements()))


def _load(
    path: Path, keys: MeshKeys, knows: Callable[[AnyStatement], bool] = lambda statement: False
) -> tuple[AnyStatement, ...]:
    """knows: whether a statement was checked before. Raises ConfigError for a file that has changed on the disk.

    What is void counts no more; so a flipped bit would let in who was locked out, and nobody would be told. Of another
    mesh, which had this name before, no statement is this one's.
    """
    if not path.exists():
        return ()
    try:
        content = read_bytes(path, _LARGEST_ROSTER_BYTES, "a mesh's roster")
        statements = msgspec.msgpack.decode(content, type=tuple[AnyStatement, ...])
        signed = [knows(each) or is_stated(keys.mesh_id, each) for each in statements]
        if any(signed) and not all(signed):
            raise DataError(f"{signed.count(False)} of {len(signed)} statements have changed since they were signed")
        return statements
    except (DataError, *UNREADABLE) as error:
        what = "it holds who is locked out: remove it only if you accept to hear that from the other devices again"
        raise ConfigError(f"{path} is no whole roster ({error}); {what}") from None


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
        text = read_bytes(path, _LARGEST_KEY_BYTES, _EXPECTED).decode("ascii", "replace")
    except DataError as error:
        raise ConfigError(f"cannot read the device key: {error}") from None
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
    """Whoever comes first makes it; processes that start together all have that one."""
    with _alone_in(path.parent):
        if not path.exists():
            write_bytes(path, f"{token_bytes(SECRET_BYTES).hex()}\n".encode())
    return _read(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process of this user at a time reads and writes there, where the disk knows locks. Raises StorageError."""
    lock = folder / ".lock"
    try:
        make_private_folder(folder)
        file = open_private(lock, "ab")
    except OSError as error:
        raise StorageError(lock, error) from error
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
