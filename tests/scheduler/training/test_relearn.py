"""A slot of re-learning goes on from files of this version, and sets others aside instead of failing for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.devices.scenario import save_scenarios
from mdl.errors import DataError
from mdl.scheduler.policies import trained_under
from mdl.scheduler.policies.learned import DRAFT, POLICY, SEEN
from mdl.scheduler.training import train as labels
from mdl.scheduler.training.qnet_torch import QNetwork, load_policy, save_policy
from mdl.scheduler.training.relearn import run_slot
from mdl.sim.timing.scenario import draw_scenario


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rounds of three devices to learn from, in chunks that take no time."""
    monkeypatch.setattr(labels, "_SEEN_SCENARIOS", 4)
    monkeypatch.setattr(labels, "_MINIBATCH", 16)
    save_scenarios([draw_scenario("paper", 3, number) for number in range(6)], tmp_path / SEEN)
    return tmp_path


def _save_under_others(path: Path, metadata: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(trained_under, "FORMULAS", 0)
        save_policy(path, QNetwork(3), metadata)


def test_a_draft_is_gone_on_with(folder: Path) -> None:
    assert run_slot(folder, slots=3, steps=1).slot == 1
    second = run_slot(folder, slots=3, steps=1)
    assert (second.slot, second.set_aside) == (2, ())


def test_a_draft_under_other_constants_is_set_aside_and_learning_begins_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save_under_others(folder / DRAFT, {"slots": 2}, monkeypatch)
    _save_under_others(folder / POLICY, {}, monkeypatch)
    slot = run_slot(folder, slots=3, steps=1)
    assert slot.slot == 1
    assert [line.rpartition("; ")[2] for line in slot.set_aside] == [
        f"it is set aside as {name}.set-aside" for name in (POLICY, DRAFT)
    ]
    assert load_policy(folder / DRAFT)[1]["slots"] == 1
    assert not (folder / POLICY).exists()
    assert run_slot(folder, slots=3, steps=1).set_aside == ()


def test_a_file_that_cannot_be_read_now_stays_where_it_is(folder: Path) -> None:
    (folder / POLICY).write_bytes(b"torn")
    with pytest.raises(DataError, match="no policy file"):
        run_slot(folder, slots=3, steps=1)
    assert (folder / POLICY).exists()
