"""The pictures of states in the protocol pages are those that the code moves by, and machines move by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from mdl.peers.roles.agent.conductor import PHASE_MOVES
from mdl.peers.roles.agent.ledger import HOP_MOVES
from mdl.peers.roles.trainer.trainer import Trainer
from mdl.peers.trials.run_plan import build_mesh
from mdl.protocol.machine import Event
from mdl.protocol.messages import Said
from mdl.protocol.vocabulary import ACTIVITY_MOVES, Activity
from mdl.sim.plans.draw_plan import draw_wide

DOCS = Path(__file__).resolve().parents[1] / "docs"
# Small plans, each some tenths of a second; together they take every way but two.
SEEDS = range(24)


def draw(moves: Mapping[Any, Iterable[Enum]], start: str) -> str:
    """A state diagram as Mermaid draws it."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    for state, following in moves.items():
        targets = following.values() if isinstance(following, Mapping) else following
        ways = sorted({str(target.value) for target in targets})
        lines += [f"    {state.value} --> {way}" for way in ways or ["[*]"]]
    return "\n".join([*lines, "```"])


@pytest.mark.parametrize(
    ("page", "moves", "start"),
    [
        ("protocol-agent", PHASE_MOVES, "gathering"),
        ("protocol-hops", ACTIVITY_MOVES, "waiting"),
        ("protocol-hops", HOP_MOVES, "ordered"),
    ],
)
def test_a_picture_shows_what_the_code_does(page: str, moves: Mapping[Any, Any], start: str) -> None:
    picture = draw(moves, start)
    assert picture in (DOCS / f"{page}.md").read_text(), picture


def test_every_message_is_told() -> None:
    spec = spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = module_from_spec(spec)
    spec.loader.exec_module(reference)
    told = set(reference._messages())
    assert [kind.__name__ for kind in Said.__args__ if f"### {kind.__name__}" not in told] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_does_one_thing_after_another_as_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[tuple[str, str]] = []
    handle = Trainer.handle

    def activity(trainer: Trainer) -> Activity:
        if trainer.left:
            return Activity.LEFT
        return trainer.part.activity() if trainer.part else Activity.WAITING

    def watched(trainer: Trainer, event: Event, now: float) -> Any:
        before = activity(trainer)
        effects = handle(trainer, event, now)
        after = activity(trainer)
        if after is not before and after not in ACTIVITY_MOVES[before]:
            wrong.append((before.value, after.value))
        return effects

    monkeypatch.setattr(Trainer, "handle", watched)
    mesh, _ = build_mesh(draw_wide(seed, "hard"))
    mesh.run(25.0, lambda: False)
    assert wrong == []
