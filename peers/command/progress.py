"""One progress bar for every command that takes long: on stderr, unless --quiet was given; else lines in the log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

logger = logging.getLogger(__name__)

# The pause between two drawings for people; each drawing costs a millisecond.
_DRAW_EVERY_S = 0.1
# The pause between two lines of a log: two lines a minute.
_TELL_EVERY_S = 30.0


class Show(Protocol):
    """Shows the progress. name: of the work; a new one gets a bar of its own. note: anything else to show."""

    def __call__(self, name: str, done: float, total: float, note: str = "") -> None: ...


@contextmanager
def progress_bar(*, of_bytes: bool = False) -> Iterator[Show]:
    """Yield a function that shows the progress; the bar disappears at the end.

    of_bytes: amounts are bytes, not a count.
    It draws when it is called, without a thread of its own: a later step may fork. Without a terminal nothing of rich
    is created: the end of a disabled bar is an empty line in rich 13. A line of the log tells the progress then.
    """
    if not (sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)):
        yield _tell_now_and_then()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if of_bytes else MofNCompleteColumn()
    name, note = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[note]"))
    columns = (name, BarColumn(), amount, TimeRemainingColumn(), note)
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        tasks: dict[str, TaskID] = {}
        drawn_at = -_DRAW_EVERY_S

        def show(name: str, done: float, total: float, note: str = "") -> None:
            nonlocal drawn_at
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total, note=note)
            progress.update(tasks[name], completed=done, total=total, note=note)
            if done >= total or time.monotonic() - drawn_at >= _DRAW_EVERY_S:
                drawn_at = time.monotonic()
                progress.refresh()

        yield show


def _tell_now_and_then() -> Show:
    told_at = time.monotonic()

    def show(name: str, done: float, total: float, note: str = "") -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            share = f"{done / total:.0%}" if total else "begun"
            logger.info("%s: %s%s", name, share, f", {note}" if note else "")

    return show
