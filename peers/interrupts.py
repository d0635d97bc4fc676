"""Ctrl-C, SIGTERM and a closed terminal, from the first line of a command to its last.

An exception that comes up in the middle of somebody's import, or while a command says how it ended, is shown as a
traceback or lost. So in those moments a command just leaves, and who has something to keep waits for the next moment:

- at the start, and where modules are imported: leave at once, nothing has been begun;
- in a command: KeyboardInterrupt, which closes and removes what is half done; the second one leaves at once;
- in a command with something to keep (`handled`): what it says itself, mostly `interrupt`;
- at the end: leave with the exit code that was found.

What the caller has this process ignore (`nohup`, a job in a shell's background) stays ignored.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from mdl.signals import SIGNALS, unblock

INTERRUPTED = 130
# An import under way is looked at again: soon for people, seldom for the processor.
_LOOK_AGAIN_S = 0.02
_CAN_WAIT = hasattr(signal, "setitimer")

Handler = Callable[[int, FrameType | None], object]


class _Phase:
    """Of this process's command. may_raise: KeyboardInterrupt would be caught. exit_code: once all is said."""

    may_raise = False
    exit_code: int | None = None


def begin() -> None:
    """The first line of a process: from here on every interrupt is answered, those that waited for it too."""
    for number in _heeded():
        signal.signal(number, _interrupt_once)
    unblock(*SIGNALS)
    atexit.register(_ignore)  # the first one registered is the last one called: the rest is the interpreter's


def allow() -> None:
    """The command begins: the next interrupt is a KeyboardInterrupt."""
    _Phase.may_raise = True


def hurry() -> None:
    """The command is over: an interrupt leaves at once."""
    _Phase.may_raise = False


def end(exit_code: int) -> None:
    """All is said: an interrupt ends the process with this code, and says nothing."""
    _Phase.exit_code = exit_code


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """`handler` takes all interrupts meanwhile. In the main thread only."""
    before = {number: signal.signal(number, handler) for number in _heeded()}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler: raises KeyboardInterrupt, after an import that is under way."""
    if not _CAN_WAIT or not _would_be_lost(frame):
        raise KeyboardInterrupt

    def look_again(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, frame)

    signal.signal(signal.SIGALRM, look_again)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_S)


def interrupted_quietly(problem: KeyboardInterrupt) -> None:
    """If nobody catches it, the program ends by it as ever, without a traceback: what there is to say has been said."""
    before = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is not problem:
            before(kind, value, trace)

    sys.excepthook = hook


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _heeded() -> list[signal.Signals]:
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt_once(_: int, frame: FrameType | None) -> None:
    if not _Phase.may_raise or _would_be_lost(frame):
        _leave()
    _Phase.may_raise = False
    raise KeyboardInterrupt


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether what is under way would swallow the exception, or tell of it in its own way.

    An import, a finalizer; the evaluation of a text, which typer does with annotations: `python -m` remembers a
    KeyboardInterrupt that went through one, and ends by SIGINT whatever exit code it is given.
    """
    while frame is not None:
        place, name = frame.f_code.co_filename, frame.f_code.co_name
        if place.startswith("<frozen importlib") or name == "__del__":
            return True
        if (place, name) == ("<string>", "<module>") and frame.f_back:  # the outermost one is `python -c`
            return True
        frame = frame.f_back
    return False


def _leave() -> None:
    if _Phase.exit_code is not None:
        os._exit(_Phase.exit_code)
    try:
        os.write(2, b"mdl: interrupted\n")
        if "--json" in sys.argv:
            os.write(1, b'{"error": "interrupted", "hint": "", "exit_code": 130}\n')
    finally:
        os._exit(INTERRUPTED)
