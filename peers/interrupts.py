"""Ctrl-C, SIGTERM and a closed terminal, from the first line of a command to its last.

An exception in the middle of an import, or while a command reports its end, is shown as a traceback or lost. In those
moments a command just leaves; a command with something to keep waits for the next moment:

- at the start, and at imports of modules: leave at once, nothing has been begun.
- in a command: KeyboardInterrupt, which closes and removes half-done work; the second one leaves at once.
- in a command with something to keep (`handled`): its own handler, mostly `interrupt`.
- at the end: leave with the exit code that was found.

A node that another process started ends with it, as if interrupted: its standard input is its lifeline.

Signals that the caller has this process ignore (`nohup`, a job in a shell's background) stay ignored.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from mdl.signals import SIGNALS, unblock

if TYPE_CHECKING:
    from mdl.transport.runtime import Runtime

INTERRUPTED = 130
# A node that another one started ends with it (`mdl up`): it reads its standard input until that closes.
LIFELINE_VARIABLE = "MDL_LIFELINE"
# An import under way is checked again: soon for people, seldom for the processor.
_LOOK_AGAIN_S = 0.02
_CAN_WAIT = hasattr(signal, "setitimer")

Handler = Callable[[int, FrameType | None], object]


class _Phase:
    """The phase of this process's command. may_raise: KeyboardInterrupt would be caught. exit_code: set at the end."""

    may_raise = False
    exit_code: int | None = None


def begin() -> None:
    """Answer every interrupt from here on, also the ones that waited; call this in the first line of a process."""
    for number in _heeded():
        signal.signal(number, _interrupt_once)
    unblock(*SIGNALS)
    atexit.register(_ignore)  # registered first, so called last: what follows is the interpreter's


def allow() -> None:
    """Begin the command: the next interrupt is a KeyboardInterrupt."""
    _Phase.may_raise = True


def hurry() -> None:
    """End the command: an interrupt leaves at once."""
    _Phase.may_raise = False


def end(exit_code: int) -> None:
    """End all output: an interrupt ends the process with this code, and says nothing."""
    _Phase.exit_code = exit_code


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Give all interrupts to `handler` meanwhile. In the main thread only."""
    before = {number: signal.signal(number, handler) for number in _heeded()}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, after an import that is under way. This is a handler."""
    if not _CAN_WAIT or not _would_be_lost(frame):
        raise KeyboardInterrupt

    def look_again(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, frame)

    signal.signal(signal.SIGALRM, look_again)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_S)


def interrupted_quietly(problem: KeyboardInterrupt) -> None:
    """Suppress the traceback of this interrupt; uncaught, it still ends the program. All is said already."""
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
    """Return True if the running code would swallow the exception, or report it in its own way.

    Such code is an import, a finalizer, or the evaluation of a text, as typer evaluates annotations. `python -m`
    remembers a KeyboardInterrupt that went through one, and ends by SIGINT with any exit code.
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


def wait_for_parent() -> None:
    """Wait until the parent is gone; this process's standard input must be its lifeline."""
    while os.read(sys.stdin.fileno(), 4096):
        pass


@contextmanager
def stopped_by_signals(runtime: Runtime[Any]) -> Iterator[None]:
    """Finish cleanly at the first interrupt, end at once at the second; the end of the parent counts as one.

    Save results inside the context: the first interrupt does not break that off, the second one does.
    """
    wishes: list[int] = []

    def wish(number: int, _: object) -> None:
        wishes.append(number)
        if len(wishes) > 1 and runtime.is_over:
            raise KeyboardInterrupt
        runtime.stop()

    if os.environ.get(LIFELINE_VARIABLE):
        import threading  # no other command needs it at its start

        threading.Thread(target=_follow_parent, args=(runtime,), name="mdl-lifeline", daemon=True).start()
    with handled(wish):
        yield


def _follow_parent(runtime: Runtime[Any]) -> None:
    wait_for_parent()
    runtime.stop()
