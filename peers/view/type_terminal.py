"""`mdl type` in a terminal: one line with suggestions, one with the sentence; keys come as they are pressed."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator

from mdl.errors import ConfigError
from mdl.peers.personal.typing_session import TypingSession

_END = "\x04"  # Ctrl-D
_READ_BYTES = 1024


def type_here(session: TypingSession) -> None:
    """Run a typing session until Ctrl-D.

    Ctrl-C raises KeyboardInterrupt, a terminal that closes OSError. Raises ConfigError without a terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("mdl type needs a terminal to type into; mdl personal eval MODEL TEXT tests on a text")
    with _keys_at_once():
        _write("\n")
        _draw(session)
        for key in _read_keys():
            session.press(key)
            if key in "\r\n":
                _write("\n\n")  # the sentence stays on the screen
            _draw(session)
    _write("\n")


def _read_keys() -> Iterator[str]:
    """Yield characters; sequences of cursor keys and the like are skipped."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    while True:
        chunk = os.read(sys.stdin.fileno(), _READ_BYTES)
        if not chunk:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        keys = decoder.decode(chunk)
        if keys.startswith("\x1b"):
            continue
        for key in keys:
            if key == _END:
                return
            yield key


def _draw(session: TypingSession) -> None:
    width = shutil.get_terminal_size().columns - 1
    shown = "   ".join(f"{number} {word}" for number, word in enumerate(session.suggestions, 1))
    head = f"{shown:<50}  saved {session.saved_share:.0%}"
    _write(f"\x1b[1A\r\x1b[2K{head[:width]}\n\r\x1b[2K{session.line[-width:]}")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let the terminal hand over each key, and show none by itself; Ctrl-C stays a signal."""
    try:
        import termios
        import tty
    except ImportError:
        raise ConfigError("mdl type needs a terminal of Linux, macOS or another Unix") from None
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
