"""Rounds of a mesh for a loop of another program, which calls back after each step of its optimizer.

A round ends after so many steps. Knows no trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from mdl.errors import ConfigError
from mdl.peers.api import Member, Round, join


class SteppedLoop:
    """One member for one training. steps: of the optimizer in a round. options: of `join`, but model and loop."""

    def __init__(self, mesh: str | None, steps: int, options: dict[str, Any]) -> None:
        if steps < 1:
            raise ConfigError(f"steps is {steps}: a round needs at least one")
        self._mesh, self._steps, self._options = mesh, steps, options
        self.member: Member | None = None
        self._rounds: Iterator[Round] = iter(())
        self._round: Round | None = None
        self._done, self._loss = 0, 0.0

    def begin(self, model: nn.Module, **state: Any) -> bool:
        """Join, and wait for the first round; return True if there is one.

        state: optimizer, scheduler, scaler, if known.
        """
        self.member = join(self._mesh, model=model, **{**state, **self._options})
        self.member.__enter__()
        self._rounds = iter(self.member)
        return self._next()

    def step(self, loss: float, samples: int) -> bool:
        """Count a step of the optimizer; return True if training goes on. loss: mean over those samples, in nats."""
        if self._round is None:
            return False
        self._done += 1
        self._round.samples += samples
        self._loss += loss * samples
        if self._done < self._steps:
            return True
        self._round.loss = self._loss / max(1, self._round.samples)
        return self._next()

    def end(self, problem: BaseException | None = None) -> None:
        """Leave the mesh; safe to call twice. The model holds the last round's result."""
        member, self.member, self._round = self.member, None, None
        if member is not None:
            member.__exit__(type(problem) if problem else None, problem, None)

    def _next(self) -> bool:
        self._done, self._loss = 0, 0.0
        self._round = next(self._rounds, None)
        return self._round is not None


def first_or_none(values: Any) -> Any:
    """Return the only one of a list; None if there are several or none."""
    return values[0] if isinstance(values, list | tuple) and len(values) == 1 else None
