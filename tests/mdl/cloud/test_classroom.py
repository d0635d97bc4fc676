"""The cloud learns from its pupils and teaches them, on problems small enough to know the answer."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import mdl.cloud.classroom
from mdl.cloud.classroom import (
    BASE,
    Classroom,
    Pupil,
    Teacher,
    TeachingSettings,
    accuracy_of,
    suggest_client,
    suggest_teaching,
    teacher_probabilities,
    update_client,
)
from mdl.cloud.distillation import DistillSettings, Examples, train_student
from mdl.cloud.model_kinds import ModelKind, RecurrentKind, WindowKind
from mdl.errors import ConfigError, DataError
from mdl.learning.training import TrainingCancelledError

WINDOWS = WindowKind("lenet", "lenet", 1, 16, ("left", "middle", "right"))
PLACES = RecurrentKind([f"cell {number}" for number in range(8)], "4-16", "8-16")
QUICK = DistillSettings(epochs=4, learning_rate=0.005, batch_size=16, patience=0)
BRIEF = DistillSettings(epochs=1, learning_rate=0.005, batch_size=16, patience=0)
SETTINGS = TeachingSettings(
    bootstrap=BRIEF, compress=BRIEF, cloud_update=BRIEF, compress_update_epochs=1, groups=False, pretrain_epochs=1
)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _windows(count: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A bump whose place is the class."""
    y = torch.arange(count) % 3
    x = torch.randn((count, 1, 16), generator=_generator(seed)) * 0.2
    for row, label in enumerate(y.tolist()):
        x[row, 0, 5 * label : 5 * label + 5] += 2
    return x, y


def _places(count: int = 60) -> tuple[Tensor, Tensor]:
    """After place p comes p + 1."""
    codes = torch.zeros(count, 6, 2)
    here = torch.arange(count) % 8
    codes[:, 0, -1] = here + 2.0
    return codes, (here + 1) % 8


@cache
def _train(turned: int) -> nn.Module:
    x, y = _windows()
    model = WINDOWS.build_small(1)
    train_student(model, Examples(x, (y + turned) % 3), None, QUICK, _generator())
    return model


def _pupil(name: str, turned: int = 0, group: int = BASE) -> Pupil:
    """Whose labels are turned by so many classes."""
    return Pupil(name, group, _train(turned))


def _fresh() -> Teacher:
    return Teacher(WINDOWS.build_large(0), WINDOWS.build_small(0))


def _bytes(kind: ModelKind, teacher: Teacher) -> tuple[bytes, bytes]:
    return kind.pack(teacher.large), kind.pack(teacher.small)


@pytest.mark.parametrize(("kind", "data"), [(WINDOWS, _windows()), (PLACES, _places())], ids=["windows", "places"])
def test_bootstrapping_teaches_the_large_model_and_through_it_the_small_one(
    kind: ModelKind, data: tuple[Tensor, Tensor]
) -> None:
    epochs = 5 if kind is WINDOWS else 20
    long = DistillSettings(epochs=epochs, learning_rate=0.02, batch_size=16, patience=0)
    settings = TeachingSettings(bootstrap=long, compress=long)
    base = Classroom(kind, *data, settings, 0).bootstrap()
    assert [accuracy_of(kind, model, *data) for model in base] == [1.0, 1.0]


def test_the_small_model_learns_from_the_large_one_alone_if_lambda_is_1() -> None:
    x, y = _windows()
    only_teacher = DistillSettings(epochs=6, learning_rate=0.005, batch_size=16, teacher_weight=1.0, patience=0)
    settings = TeachingSettings(bootstrap=QUICK, compress=only_teacher)
    base = Classroom(WINDOWS, x, y, settings, 0).bootstrap()
    assert accuracy_of(WINDOWS, base.small, x, y) > 0.9


def test_what_is_drawn_follows_from_the_seed_and_the_cycle() -> None:
    x, y = _windows()
    pupils, room = [_pupil("a"), _pupil("b", 1)], Classroom(WINDOWS, x, y, SETTINGS, 5)
    base = room.bootstrap()
    again = Classroom(WINDOWS, x, y, SETTINGS, 5)
    assert _bytes(WINDOWS, again.bootstrap()) == _bytes(WINDOWS, base)
    first, second = room.teach(3, {BASE: base}, pupils), again.teach(3, {BASE: base}, pupils)
    assert _bytes(WINDOWS, first.teachers[0]) == _bytes(WINDOWS, second.teachers[0])
    assert (first.groups, first.scores) == (second.groups, second.scores)
    other = room.teach(4, {BASE: base}, pupils)
    assert _bytes(WINDOWS, first.teachers[0]) != _bytes(WINDOWS, other.teachers[0])


def test_the_cloud_learns_from_its_pupils_what_its_own_labels_do_not_tell() -> None:
    x, y = _windows()
    from_pupils = DistillSettings(epochs=6, learning_rate=0.005, batch_size=16, teacher_weight=1.0, patience=0)
    settings = TeachingSettings(cloud_update=from_pupils, compress=from_pupils, compress_update_epochs=6, groups=False)
    room = Classroom(WINDOWS, x, torch.zeros_like(y), settings, 0)
    before = _fresh()
    cycle = room.teach(1, {BASE: before}, [_pupil("a"), _pupil("b")])
    held = _windows(seed=9)
    assert accuracy_of(WINDOWS, before.small, *held) < 0.7
    assert min(accuracy_of(WINDOWS, model, *held) for model in cycle.teachers[0]) > 0.9


def test_teaching_changes_neither_pupils_nor_the_base() -> None:
    x, y = _windows()
    base, pupil = _fresh(), _pupil("a")
    before = _bytes(WINDOWS, base), WINDOWS.pack(pupil.model)
    cycle = Classroom(WINDOWS, x, y, SETTINGS, 0).teach(1, {BASE: base}, [pupil])
    assert (_bytes(WINDOWS, base), WINDOWS.pack(pupil.model)) == before
    assert cycle.teachers[BASE] is base


def test_figure_14_the_top_share_leaves_out_a_pupil_with_wrong_labels() -> None:
    x, y = _windows()
    pupils = [_pupil("good"), _pupil("flipped", 1), _pupil("also good")]
    settings = TeachingSettings(cloud_update=QUICK, compress=QUICK, compress_update_epochs=1, groups=False, keep=0.7)
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, {BASE: _fresh()}, pupils)
    assert cycle.left_out == ("flipped",)
    assert cycle.scores["flipped"] < 0.2 < 0.8 < cycle.scores["good"]
    assert cycle.groups == {"good": 0, "flipped": 0, "also good": 0}


def test_a_pupil_whose_outputs_are_not_finite_does_not_teach() -> None:
    x, y = _windows()
    broken = WINDOWS.build_small(0)
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.nan)
    room, good = Classroom(WINDOWS, x, y, SETTINGS, 0), _pupil("good")
    cycle = room.teach(1, {BASE: _fresh()}, [good, Pupil("broken", BASE, broken)])
    assert cycle.left_out == ("broken",)
    alone = room.teach(1, {BASE: _fresh()}, [good])
    assert _bytes(WINDOWS, cycle.teachers[0]) == _bytes(WINDOWS, alone.teachers[0])
    assert set(room.teach(1, {BASE: _fresh()}, [Pupil("broken", BASE, broken)]).teachers) == {BASE}


def test_who_knows_much_less_than_the_base_is_not_listened_to() -> None:
    x, y = _windows()
    settings = TeachingSettings(
        cloud_update=QUICK, compress=QUICK, compress_update_epochs=1, groups=False, least_score=0.8
    )
    base = Teacher(WINDOWS.build_large(0), _train(0))
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, {BASE: base}, [_pupil("knows"), _pupil("guesses", 1)])
    assert cycle.left_out == ("guesses",)


def test_without_pupils_the_base_is_all_there_is() -> None:
    cycle = Classroom(WINDOWS, *_windows(), SETTINGS, 0).teach(1, {BASE: _fresh()}, [])
    assert (set(cycle.teachers), cycle.groups, cycle.left_out) == ({BASE}, {}, ())


def test_pupils_of_two_kinds_get_two_teachers() -> None:
    x, y = _windows()
    turned = (y + 1) % 3
    pupils = [_pupil("a"), _pupil("b", 1), _pupil("c"), _pupil("d", 1)]
    by_pupils = DistillSettings(epochs=6, learning_rate=0.005, batch_size=16, teacher_weight=1.0, patience=0)
    settings = TeachingSettings(cloud_update=by_pupils, compress=BRIEF, compress_update_epochs=1, group_counts=(2,))
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, {BASE: _fresh()}, pupils)
    groups = cycle.groups
    assert groups["a"] == groups["c"] != groups["b"] == groups["d"]
    assert set(cycle.silhouettes) == {2}
    assert accuracy_of(WINDOWS, cycle.teachers[groups["a"]].large, x, y) > 0.9
    assert accuracy_of(WINDOWS, cycle.teachers[groups["b"]].large, x, turned) > 0.9


@pytest.mark.parametrize("count", [1, 2])
def test_few_pupils_are_one_group(count: int) -> None:
    x, y = _windows()
    settings = TeachingSettings(cloud_update=QUICK, compress=QUICK, compress_update_epochs=1)
    pupils = [_pupil(f"pupil {number}") for number in range(count)]
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, {BASE: _fresh()}, pupils)
    assert set(cycle.groups.values()) == {0}
    assert set(cycle.teachers) == {BASE, 0}


def test_a_cloud_without_scikit_learn_has_one_group_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _windows()
    monkeypatch.setattr(mdl.cloud.classroom, "can_group", lambda: False)
    settings = TeachingSettings(cloud_update=QUICK, compress=QUICK, compress_update_epochs=1)
    room = Classroom(WINDOWS, x, y, settings, 0)
    assert "scikit-learn" in room.without_groups
    pupils = [_pupil(f"pupil {number}", number) for number in range(3)]
    assert set(room.teach(1, {BASE: _fresh()}, pupils).groups.values()) == {0}


def test_a_groups_teacher_goes_on_from_the_one_most_of_its_pupils_had() -> None:
    x, y = _windows()
    still = TeachingSettings(
        cloud_update=DistillSettings(epochs=1, learning_rate=1e-9, patience=0), compress=QUICK, groups=False
    )
    had = Teacher(WINDOWS.build_large(7), WINDOWS.build_small(7))
    pupils = [_pupil(name, 0, group) for name, group in (("a", BASE), ("b", 4), ("c", 4))]
    made = Classroom(WINDOWS, x, y, still, 0).teach(2, {BASE: _fresh(), 4: had}, pupils).teachers[0].large
    first, before = next(made.parameters()), next(had.large.parameters())
    assert torch.allclose(first, before, atol=1e-6)


def test_a_client_update_knows_its_own_classes_and_leaves_the_pulled_model_alone() -> None:
    x, y = _places()
    rows = (y == 2) | (y == 5)
    pulled = PLACES.build_small(0)
    before = PLACES.pack(pulled)
    settings = DistillSettings(epochs=30, learning_rate=0.05, batch_size=16, teacher_weight=0.1, patience=0)
    model = update_client(PLACES, pulled, x[rows], y[rows], settings, _generator())
    assert PLACES.class_ids(model).tolist() == [2, 5]
    assert accuracy_of(PLACES, model, x[rows], y[rows]) == 1.0
    assert accuracy_of(PLACES, model, x, y) == pytest.approx(float(rows.float().mean()))
    assert PLACES.pack(pulled) == before


def test_a_client_that_only_listens_keeps_what_its_teacher_says() -> None:
    x, y = _windows()
    pulled: nn.Module = _pupil("teacher").model
    wrong = (y + 1) % 3
    listens = DistillSettings(epochs=3, learning_rate=0.002, teacher_weight=1.0, patience=0)
    assert accuracy_of(WINDOWS, update_client(WINDOWS, pulled, x, wrong, listens, _generator()), x, y) > 0.9
    deaf = DistillSettings(epochs=10, learning_rate=0.005, teacher_weight=0.0, patience=0)
    assert accuracy_of(WINDOWS, update_client(WINDOWS, pulled, x, wrong, deaf, _generator()), x, wrong) > 0.9


def test_a_teacher_speaks_of_the_students_classes_only() -> None:
    x, _ = _places()
    soft = teacher_probabilities(PLACES, PLACES.build_large(0), x, torch.tensor([5, 1]))
    assert soft.shape == (60, 2)
    assert torch.allclose(soft.sum(1), torch.ones(60))


def test_who_is_stopped_leaves_at_the_next_batch() -> None:
    x, y = _windows()
    room = Classroom(WINDOWS, x, y, SETTINGS, 0)
    for work in (
        lambda: room.bootstrap(lambda: True),
        lambda: room.teach(1, {BASE: _fresh()}, [_pupil("a")], lambda: True),
    ):
        with pytest.raises(TrainingCancelledError):
            work()


def test_a_student_is_asked_before_each_batch_whether_it_may_go_on() -> None:
    x, y = _windows()
    once = DistillSettings(epochs=2, batch_size=10, teacher_weight=0.0, patience=0)
    asked: list[int] = []
    update_client(WINDOWS, WINDOWS.build_small(0), x, y, once, _generator(), lambda: bool(asked.append(1)))
    assert len(asked) == 2 * -(-len(y) // 10)
    left = iter([False] * (len(asked) // 2) + [True])
    with pytest.raises(TrainingCancelledError, match="epoch 2 of 2"):
        update_client(WINDOWS, WINDOWS.build_small(0), x, y, once, _generator(), lambda: next(left))


def test_no_example_teaches_nothing() -> None:
    x, y = _windows()
    with pytest.raises(DataError, match="at least one"):
        Classroom(WINDOWS, x[:0], y[:0], SETTINGS, 0)
    with pytest.raises(DataError, match="nothing to learn"):
        update_client(WINDOWS, WINDOWS.build_small(0), x[:0], y[:0], QUICK, _generator())


@pytest.mark.parametrize(
    "wrong", [{"keep": 0.0}, {"keep": 1.5}, {"rows": 0}, {"pretrain_epochs": -1}, {"group_counts": (1, 2)}]
)
def test_a_setting_out_of_range_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TeachingSettings(**wrong)  # type: ignore[arg-type]


def test_each_kind_has_settings_of_its_own() -> None:
    assert suggest_teaching(PLACES) != suggest_teaching(WINDOWS)
    assert suggest_client(PLACES) != suggest_client(WINDOWS)
