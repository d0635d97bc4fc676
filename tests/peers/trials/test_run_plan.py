"""A run that is caught inside of one event is a verdict, and a processor that others want is none."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from mdl.peers.roles.peer import Peer
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import run_guarded
from mdl.sim.plans.fault_plan import FaultPlan

PLAN = FaultPlan(1, 2, 1)
_HANDLE = Peer.handle


def test_an_event_that_is_never_handled_to_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(self: Peer, event: Any, now: float) -> list[Any]:
        while True:
            pass

    monkeypatch.setattr(Peer, "handle", spin)
    with silent_machines():
        verdict = run_guarded(PLAN, 0.2)
    assert (verdict.kind, "spin" in verdict.problem) == ("hang", True)


def test_a_run_that_seldom_gets_the_processor_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside ten other processes: campaigns told of hangs that were none."""

    def handle(self: Peer, event: Any, now: float) -> list[Any]:
        time.sleep(0.01)
        return _HANDLE(self, event, now)

    monkeypatch.setattr(Peer, "handle", handle)
    begun = time.monotonic()
    with silent_machines():
        verdict = run_guarded(PLAN, 0.3)
    assert time.monotonic() - begun > 0.4
    assert not verdict.kind, verdict.problem


def test_it_is_told_though_the_timer_rings_while_garbage_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints what is raised there and goes on: no test would have ended."""
    rings: list[float] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        ends_s = time.process_time() + 0.3
        while time.process_time() < ends_s and not rings:
            pass
        rings.append(ends_s)

    def spin(self: Peer, event: Any, now: float) -> list[Any]:
        gc.collect()
        while True:
            pass

    monkeypatch.setattr(Peer, "handle", spin)
    gc.callbacks.insert(0, collected)
    try:
        with silent_machines():
            verdict = run_guarded(PLAN, 0.2)
    finally:
        gc.callbacks.remove(collected)
    assert rings
    assert verdict.kind == "hang"
