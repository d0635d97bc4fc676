"""Runs a study to its end: waits while the device may not train, saves as it goes, and stops when it is asked to.

It saves after a batch, as often as costs at most a twentieth of the time, always before it waits, and when it stops.
After kill -9 it goes on from there; later batches are learned again, with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from mdl.personal.study import Study
from mdl.personal.study_file import save_study

# Saving may take this share of the time: a small model is saved after each batch, a large one twice a minute.
_SAVING_SHARE = 0.05


class Gate(Protocol):
    """Tells if a device may train (`mdl.peers.edge.gatekeeper`)."""

    forbidden_by: str

    def hold(self) -> bool: ...


class StudyRun:
    """One study and its file.

    show: is given name, done and total after each batch. now: seconds, for the saving share.
    """

    def __init__(
        self,
        study: Study,
        path: Path,
        origin: str,
        gate: Gate,
        show: Callable[..., Any],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = 0.0
        self._study, self._path, self._origin = study, path, origin
        self._gate, self._show, self._now = gate, show, now
        self._save_after = 0.0
        self._saved_at = 0

    def run(self) -> bool:
        """Learn on; return True if the end was reached. `seconds`: of processor time."""
        began, study = time.process_time(), self._study
        try:
            while not study.is_done:
                if self._gate.forbidden_by:
                    self.save()
                if self._gate.hold():
                    return False
                loss = study.step()
                at = study.progress
                done, total = at.epoch * study.batches + at.batch, study.settings.epochs * study.batches
                self._show("training", done, total, f"loss {loss:.3f}")
                if self._now() >= self._save_after and not study.is_done:
                    self.save()
            return True
        finally:
            self.seconds = time.process_time() - began
            if not study.is_done:
                self.save()

    def save(self) -> None:
        """Save the study if anything has been learned since the last time."""
        if self._saved_at == self._study.progress.steps:
            return
        began = self._now()
        save_study(self._path, self._study, self._origin)
        self._saved_at = self._study.progress.steps
        ended = self._now()
        self._save_after = ended + (ended - began) / _SAVING_SHARE
