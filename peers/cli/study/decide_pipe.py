"""`mdl schedule decide`: lines in, answers out. Each answer is written out before the next line is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from mdl.scheduler.explain.decide_lines import MAX_LINE_BYTES, Decider


def answer_all(decider: Decider, lines: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the lines end. Raises BrokenPipeError if no program reads the answers any more."""
    for line in _read_lines(lines):
        answers.write(decider.answer(line) + b"\n")
        answers.flush()


def _read_lines(lines: BinaryIO) -> Iterator[bytes]:
    """Yield the lines; of one that is too long only the beginning, which is still too long."""
    while line := lines.readline(MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = lines.readline(MAX_LINE_BYTES + 1)
        yield line
