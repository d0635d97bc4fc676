"""A policy file knows under which constants it was trained; greedy's own are none of them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from mdl.devices import usage
from mdl.scheduler.policies import greedy, trained_under
from mdl.scheduler.policies.features import FEATURES
from mdl.scheduler.policies.learned import Learned
from mdl.scheduler.policies.qnet_numpy import UnfitPolicyError, draw_weights, load_weights, read_policy, save_weights
from mdl.scheduler.policies.trained_under import LAYOUT, UNSTAMPED_HASH, hash_constants, seen_constants, stamp
from mdl.scheduler.study.play import view_of
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import draw_scenario
from tests.scheduler.one_view import observe

SEEN = Path(__file__).with_name("observation.json")
FOLDER = Path(trained_under.__file__).parent
# What makes the observation, and the layout that it tells of.
MAKERS = ("chain", "features", "layout")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    save_weights(path, draw_weights(np.random.default_rng(0)), {"command": "a test"})
    return path


# The families that there were when the columns were written down.
FIRST_FAMILIES = ("paper", "hetero", "dynamic", "dying")


def _write(path: Path, **changes: object) -> None:
    """A policy file whose metadata say something else; None: leave it out."""
    weights, metadata = read_policy(path)
    changed = {name: value for name, value in (metadata | changes).items() if value is not None}
    save_file(weights, path, {"mdl": json.dumps(changed)})


def _tune(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    monkeypatch.setattr(trained_under, "LAYOUT", msgspec.structs.replace(LAYOUT, **changes))


def test_a_file_says_what_it_was_trained_under_and_is_read_again(path: Path) -> None:
    assert load_weights(path)[1]["trained_under"] == stamp()


def test_the_shipped_policy_says_it_too() -> None:
    assert Learned().metadata["trained_under"] == stamp()


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"rush": 3.0}, r"\(rush 2.0 there, 3.0 here\)"),
        (
            {"low_battery_transfers": 4.0, "max_gaps": 7},
            "low_battery_transfers 2.0 there, 4.0 here, max_gaps 6",
        ),
        ({name: 9.0 for name in LAYOUT.__struct_fields__}, r", 9.0 here and 8 more\)"),
    ],
)
def test_under_other_constants_it_is_refused_by_name(
    path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], difference: str
) -> None:
    _tune(monkeypatch, **changes)
    with pytest.raises(UnfitPolicyError, match=rf"policy\.safetensors: trained under other .*{difference}") as refused:
        load_weights(path)
    assert "train it again" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "mdl scheduler train" in refused.value.hint


def test_what_is_believed_of_kinds_of_use_counts_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(usage.BUSY_SHARES, usage.UsageKind.CALL, 0.3)
    with pytest.raises(UnfitPolicyError, match="busy_shares"):
        load_weights(path)


def test_a_changed_formula_counts_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_under, "FORMULAS", 2)
    with pytest.raises(UnfitPolicyError, match="formulas 1 there, 2 here"):
        load_weights(path)


def test_a_file_from_before_there_was_a_stamp_was_made_under_the_first_constants(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(path, trained_under=None)
    with monkeypatch.context() as tuned:
        _tune(tuned, rush=3.0)
        with pytest.raises(UnfitPolicyError, match="it does not name them, so it is of an older version"):
            load_weights(path)
    if hash_constants(seen_constants()) == UNSTAMPED_HASH:  # until somebody trains under others
        assert load_weights(path)[1]["command"] == "a test"


@pytest.mark.parametrize("said", ["abc", 5, [], {"hash": 5}, {}, {"hash": "0", "constants": [1]}])
def test_a_stamp_that_is_none_is_refused_in_one_line(path: Path, said: object) -> None:
    _write(path, trained_under=said)
    with pytest.raises(UnfitPolicyError, match="trained under other constants") as refused:
        load_weights(path)
    assert "\n" not in str(refused.value)


def test_what_a_file_says_is_told_in_bounds(path: Path) -> None:
    _write(path, trained_under={"hash": "x", "constants": {"rush": "\x1b[2J" + "long " * 10_000}})
    with pytest.raises(UnfitPolicyError) as refused:
        load_weights(path)
    assert len(str(refused.value)) < 2_000
    assert "\x1b" not in str(refused.value)


def test_tuning_greedy_changes_nothing_that_the_network_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    views = [view_of(Iteration(draw_scenario(family, 6, 1))) for family in FIRST_FAMILIES]
    before = [observe(view).features for view in views]
    for name, value in vars(greedy).items():
        if name.isupper() and isinstance(value, float):
            monkeypatch.setattr(greedy, name, 7.0 * value)
    assert all(np.array_equal(observe(view).features, seen) for view, seen in zip(views, before, strict=True))


@pytest.mark.parametrize("module", MAKERS)
def test_nothing_that_the_network_sees_is_greedys_or_kept_outside_of_the_stamp(module: str) -> None:
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "mdl.scheduler.policies.greedy" not in imported
    numbers = [
        ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int | float)
    ]
    assert numbers == [], "a constant of its own: it belongs to mdl.scheduler.policies.trained_under"


def _observe_all() -> dict[str, list[float]]:
    """Columns of the observation at four moments, one of each family, at both picks."""
    columns: dict[str, list[float]] = {name: [] for name in FEATURES}
    for family in FIRST_FAMILIES:
        iteration = Iteration(draw_scenario(family, 4, 11))
        while len(iteration.idle()) < 2:
            iteration.advance()
        first, second, *_ = iteration.idle()
        view = view_of(iteration)
        seen = [observe(view), observe(view, first)]
        iteration.start(second, first)
        iteration.advance()
        view = view_of(iteration)
        devices = tuple(
            msgspec.structs.replace(device, energy_j=30.0 * number**3, battery_percent=3.0 * number, cpu_percent=50.0)
            for number, device in enumerate(view.devices)
        )
        seen.append(observe(msgspec.structs.replace(view, devices=devices)))
        for observation in seen:
            for name, values in zip(FEATURES, observation.features.T, strict=True):
                columns[name] += [round(float(value), 5) for value in values]
    return columns


def test_every_column_means_what_it_meant_when_the_shipped_policy_was_trained() -> None:
    """Who changes a formula on purpose lets FORMULAS rise, trains the shipped policy again, and writes the file anew:

    python -m tests.scheduler.policies.test_trained_under
    """
    then, now = json.loads(SEEN.read_text()), _observe_all()
    assert then.keys() == now.keys()
    for name, values in now.items():
        assert values == pytest.approx(then[name], abs=2e-5), name


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in _observe_all().items())
    SEEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
