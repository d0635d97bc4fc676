"""The secret of a page's server: chosen at random by this device, so no other device can derive it.

It is kept beside this user's files of the mesh, so that a bookmark lives through a restart, and Prometheus reads it
there. `mdl mesh forget`, or removing the file, gives a new one. MDL_PAGE_TOKEN sets one for several devices, so that
their pages go on with each other: the token itself, or @FILE.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from pathlib import Path

from mdl.errors import ConfigError, DataError
from mdl.locks import wait_for_lock
from mdl.peers.edge.identity import state_home
from mdl.reading import read_bytes
from mdl.transport.trust.keys import Mesh
from mdl.writing import make_private_folder, narrow, open_private

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "MDL_PAGE_TOKEN"
FILE = "page.token"
# 16 random bytes in hexadecimal digits; a token that a user has chosen must be hard to guess too.
_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,128}")
_LARGEST_BYTES = 256


def page_token(mesh: Mesh | None) -> tuple[str, Path | None]:
    """Return the token and its file; a new one, and no file, if nothing can be kept.

    mesh: of the page; None for a finished run. Raises ConfigError for an invalid token in MDL_PAGE_TOKEN.
    """
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given.startswith("@"):
        path = Path(given[1:]).expanduser()
        return _checked(_read(path), str(path)), path
    if given:
        return _checked(given, TOKEN_VARIABLE), None
    if mesh is None or mesh.keys is None:
        return _draw(), None
    path = state_home(mesh.name) / FILE
    try:
        make_private_folder(path.parent)
        was_open = narrow(path)
        with open_private(path, "a+b") as file:
            wait_for_lock(file)  # processes that start together share one token
            file.seek(0)
            kept = file.read(_LARGEST_BYTES).decode("ascii", "replace").strip()
            if _TOKEN.fullmatch(kept) and not was_open:
                return kept, path
            token = _draw()  # also if others could read the kept one
            file.truncate(0)
            file.write(f"{token}\n".encode())
            return token, path
    except (OSError, RuntimeError) as error:
        logger.warning("the page's token is not kept (%s): it is another one at the next start", error)
        return _draw(), None


def _draw() -> str:
    return secrets.token_hex(16)


def _read(path: Path) -> str:
    try:
        return read_bytes(path, _LARGEST_BYTES, "a page's token").decode("ascii", "replace").strip()
    except DataError as error:
        raise ConfigError(f"{TOKEN_VARIABLE}: cannot read {error}") from None


def _checked(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where} holds no token: give 22 to 128 letters, digits, '-' and '_', for example {_draw()}")
    return token
