"""Lets a device that trains with another one's windows hear, at the same time, that they are taken back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from mdl.config import MeshSection
from mdl.data.parcel import find_shared
from mdl.data.sources import parse_spec
from mdl.devices.offer import Offer
from mdl.errors import MdlError
from mdl.peers.roles.sharing import Taker
from mdl.peers.sharing.files import TakenFiles, read_taken
from mdl.peers.sharing.node import Meeting, delete_if_out, opened
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Finish
from mdl.protocol.sharing.work import DeleteShared, StorePart
from mdl.transport.trust.words import fingerprint

logger = logging.getLogger(__name__)

# The interval of looks for the windows: training stops within a batch after one.
_LOOK_S = 1.0
_END_S = 3.0


@contextmanager
def heeding(spec: str, section: MeshSection, name: str) -> Iterator[Callable[[], str]]:
    """Let the giver of the windows of `spec` delete them meanwhile; yield a function that returns why they are gone.

    With other data nothing happens. Raises ConfigError if there are none, or if this device was revoked: they are
    deleted then.
    """
    parsed = parse_spec(spec)
    if parsed.source != "shared":
        yield lambda: ""
        return
    delete_if_out(parsed.path)
    path = find_shared(parsed.path, parsed.options.get("source", ""))
    asked_at, reason = -_LOOK_S, ""

    def gone() -> str:
        nonlocal asked_at, reason
        if (now := time.monotonic()) - asked_at >= _LOOK_S:
            asked_at, reason = now, "" if path.exists() else "the windows that it trained with were taken back"
        return reason

    taken = read_taken(path)
    if taken is None:  # this device's own
        yield gone
        return
    source = bytes.fromhex(taken.source)
    files = TakenFiles(parsed.path, fingerprint(source), lambda: source)

    def make(me: Contributor, now: float) -> Taker:
        return Taker(me, lambda device: device == source, Offer(0.0), 0, files.held())

    meeting = Meeting(parsed.path, msgspec.structs.replace(section, port=0, join=()), name)
    try:
        with opened(meeting, make, {StorePart: files.store, DeleteShared: files.delete}) as (runtime, _, run):
            thread = threading.Thread(target=_drive, args=(run,), name="mdl-heed", daemon=True)
            thread.start()
            try:
                yield gone
            finally:
                runtime.stop()
                thread.join(_END_S)
    finally:
        delete_if_out(parsed.path)


def _drive(run: Callable[[], Finish]) -> None:
    try:
        run()
    except MdlError as error:
        logger.warning("this device cannot hear that shared windows are taken back: %s", error)
