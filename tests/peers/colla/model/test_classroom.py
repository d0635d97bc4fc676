"""The cloud learns from its pupils and teaches them, on problems small enough to know the answer."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import mdl.peers.colla.model.classroom
from mdl.errors import ConfigError, DataError
from mdl.learning.training import TrainingCancelledError
from mdl.peers.colla.model.classroom import (
    BASE,
    Classroom,
    Pupil,
    TeacherPair,
    TeachingSettings,
    accuracy_of,
    suggest,
    teacher_probabilities,
)
from mdl.peers.colla.model.distillation import DistillSettings, Examples, train_student
from mdl.peers.colla.model.model_kinds import ModelKind, RecurrentKind, WindowKind

WINDOWS = WindowKind("lenet", "lenet", 1, 16, ("left", "middle", "right"))
PLACES = RecurrentKind([f"cell {number}" for number in range(8)], "4-16", "8-16")
QUICK = DistillSettings(epochs=4, learning_rate=0.005, batch_size=16, patience=0)
BRIEF = DistillSettings(epochs=1, learning_rate=0.005, batch_size=16, patience=0)
SETTINGS = TeachingSettings(
    bootstrap=BRIEF, compress=BRIEF, cloud_update=BRIEF, compress_update_epochs=1, groups=False, pretrain_steps=1
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
    codes[:, 0, -1] = here
    return codes, (here + 1) % 8


@cache
def _train(turned: int) -> nn.Module:
    x, y = _windows()
    model = WINDOWS.build_small(1)
    train_student(model, Examples(x, (y + turned) % 3), None, QUICK, _generator())
    return model


def _pupil(name: str, turned: int = 0) -> Pupil:
    """Whose labels are turned by so many classes."""
    return Pupil(name, _train(turned))


def _fresh() -> TeacherPair:
    return TeacherPair(WINDOWS.build_large(0), WINDOWS.build_small(0))


def _bytes(kind: ModelKind, teacher: TeacherPair) -> tuple[bytes, bytes]:
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


def test_the_small_model_learns_from_the_large_one_alone_if_lambda_is_0() -> None:
    x, y = _windows()
    only_teacher = DistillSettings(epochs=6, learning_rate=0.005, batch_size=16, label_weight=0.0, patience=0)
    settings = TeachingSettings(bootstrap=QUICK, compress=only_teacher)
    base = Classroom(WINDOWS, x, y, settings, 0).bootstrap()
    assert accuracy_of(WINDOWS, base.small, x, y) > 0.9


def test_what_is_drawn_follows_from_the_seed_and_the_cycle() -> None:
    x, y = _windows()
    pupils, room = [_pupil("a"), _pupil("b", 1)], Classroom(WINDOWS, x, y, SETTINGS, 5)
    base = room.bootstrap()
    again = Classroom(WINDOWS, x, y, SETTINGS, 5)
    assert _bytes(WINDOWS, again.bootstrap()) == _bytes(WINDOWS, base)
    first, second = room.teach(3, base, pupils), again.teach(3, base, pupils)
    assert _bytes(WINDOWS, first.teachers[0]) == _bytes(WINDOWS, second.teachers[0])
    assert (first.groups, first.scores) == (second.groups, second.scores)
    other = room.teach(4, base, pupils)
    assert _bytes(WINDOWS, first.teachers[0]) != _bytes(WINDOWS, other.teachers[0])


def test_the_cloud_learns_from_its_pupils_what_its_own_labels_do_not_tell() -> None:
    x, y = _windows()
    from_pupils = DistillSettings(epochs=6, learning_rate=0.005, batch_size=16, label_weight=0.0, patience=0)
    settings = TeachingSettings(cloud_update=from_pupils, compress=from_pupils, compress_update_epochs=6, groups=False)
    room = Classroom(WINDOWS, x, torch.zeros_like(y), settings, 0)
    before = _fresh()
    cycle = room.teach(1, before, [_pupil("a"), _pupil("b")])
    held = _windows(seed=9)
    assert accuracy_of(WINDOWS, before.small, *held) < 0.7
    assert min(accuracy_of(WINDOWS, model, *held) for model in cycle.teachers[0]) > 0.9


def test_teaching_changes_neither_pupils_nor_the_base_it_is_given() -> None:
    x, y = _windows()
    base, pupil = _fresh(), _pupil("a")
    before = _bytes(WINDOWS, base), WINDOWS.pack(pupil.model)
    cycle = Classroom(WINDOWS, x, y, SETTINGS, 0).teach(1, base, [pupil])
    assert (_bytes(WINDOWS, base), WINDOWS.pack(pupil.model)) == before
    assert _bytes(WINDOWS, cycle.teachers[BASE]) != before[0]


def test_figure_14_the_top_share_leaves_out_a_pupil_with_wrong_labels() -> None:
    x, y = _windows()
    pupils = [_pupil("good"), _pupil("flipped", 1), _pupil("also good")]
    settings = TeachingSettings(cloud_update=QUICK, compress=QUICK, compress_update_epochs=1, groups=False, keep=0.7)
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, _fresh(), pupils)
    assert cycle.left_out == ("flipped",)
    assert cycle.scores["flipped"] < 0.2 < 0.8 < cycle.scores["good"]
    assert cycle.groups == {"good": 0, "flipped": 0, "also good": 0}


def test_a_pupil_whose_outputs_are_not_finite_does_not_teach() -> None:
    x, y = _windows()
    broken = WINDOWS.build_small(0)
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.nan)
    room, good = Classroom(WINDOWS, x, y, SETTINGS, 0), _pupil("good")
    cycle = room.teach(1, _fresh(), [good, Pupil("broken", broken)])
    assert cycle.left_out == ("broken",)
    alone = room.teach(1, _fresh(), [good])
    assert _bytes(WINDOWS, cycle.teachers[0]) == _bytes(WINDOWS, alone.teachers[0])
    assert set(room.teach(1, _fresh(), [Pupil("broken", broken)]).teachers) == {BASE}


def test_who_knows_much_less_than_the_base_is_not_listened_to() -> None:
    x, y = _windows()
    settings = TeachingSettings(
        cloud_update=QUICK, compress=QUICK, compress_update_epochs=1, groups=False, least_score=0.8
    )
    base = TeacherPair(WINDOWS.build_large(0), _train(0))
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, base, [_pupil("knows"), _pupil("guesses", 1)])
    assert cycle.left_out == ("guesses",)


def test_4_2_what_stops_a_training_in_the_cloud_is_nothing_that_it_has_learned_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a cycle is judged on what stage 1 knows by heart, and every step away from its start looks like a loss."""
    learned, judged = set[bytes](), set[bytes]()

    def record(student: nn.Module, train: Examples, validation: Examples | None, *rest: object) -> None:
        assert validation is not None
        learned.update(row.numpy().tobytes() for row in train.x)
        judged.update(row.numpy().tobytes() for row in validation.x)

    monkeypatch.setattr(mdl.peers.colla.model.classroom, "train_student", record)
    stops = DistillSettings(patience=2)
    settings = TeachingSettings(bootstrap=stops, compress=stops, cloud_update=stops, update_rows=40, groups=False)
    room = Classroom(WINDOWS, *_windows(), settings, 0)
    base = room.bootstrap()
    for number in (1, 2):
        base = room.teach(number, base, [_pupil("a")]).teachers[BASE]
    assert (len(learned), len(judged)) == (48, 12)
    assert not learned & judged


def test_a_cycle_teaches_although_the_cloud_knows_its_own_labels_by_heart() -> None:
    """The pupils know another truth than the cloud's labels, which it was trained on to the end."""
    x, y = _windows()
    heart = DistillSettings(epochs=20, learning_rate=0.005, batch_size=16, patience=0)
    listens = DistillSettings(epochs=20, learning_rate=0.005, batch_size=16, label_weight=0.2, patience=4)
    settings = TeachingSettings(bootstrap=heart, compress=heart, cloud_update=listens, groups=False)
    room = Classroom(WINDOWS, x, torch.zeros_like(y), settings, 0)
    cycle = room.teach(1, room.bootstrap(), [_pupil("a"), _pupil("b")])
    assert min(accuracy_of(WINDOWS, model, *_windows(seed=9)) for model in cycle.teachers[BASE]) > 0.9


def test_without_pupils_the_base_is_all_there_is() -> None:
    cycle = Classroom(WINDOWS, *_windows(), SETTINGS, 0).teach(1, _fresh(), [])
    assert (set(cycle.teachers), cycle.groups, cycle.left_out) == ({BASE}, {}, ())


@pytest.mark.slow
def test_pupils_of_two_kinds_get_two_teachers() -> None:
    x, y = _windows()
    turned = (y + 1) % 3
    pupils = [_pupil("a"), _pupil("b", 1), _pupil("c"), _pupil("d", 1)]
    by_pupils = DistillSettings(epochs=6, learning_rate=0.005, batch_size=16, label_weight=0.0, patience=0)
    settings = TeachingSettings(cloud_update=by_pupils, compress=BRIEF, compress_update_epochs=1, group_counts=(2,))
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, _fresh(), pupils)
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
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(1, _fresh(), pupils)
    assert set(cycle.groups.values()) == {0}
    assert set(cycle.teachers) == {BASE, 0}


def test_a_cloud_without_scikit_learn_has_one_group_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _windows()
    monkeypatch.setattr(mdl.peers.colla.model.classroom, "can_group", lambda: False)
    settings = TeachingSettings(cloud_update=QUICK, compress=QUICK, compress_update_epochs=1)
    room = Classroom(WINDOWS, x, y, settings, 0)
    assert "scikit-learn" in room.without_groups
    pupils = [_pupil(f"pupil {number}", number) for number in range(3)]
    assert set(room.teach(1, _fresh(), pupils).groups.values()) == {0}


def test_3_2_a_groups_teacher_is_the_base_model_taught_by_its_members() -> None:
    x, y = _windows()
    still = DistillSettings(epochs=1, learning_rate=1e-9, patience=0)
    settings = TeachingSettings(cloud_update=still, compress=QUICK, compress_update_epochs=1, group_counts=(2,))
    pupils = [_pupil("a"), _pupil("b", 1), _pupil("c"), _pupil("d", 1)]
    base = _fresh()
    cycle = Classroom(WINDOWS, x, y, settings, 0).teach(2, base, pupils)
    for group in set(cycle.groups.values()):
        made, before = next(cycle.teachers[group].large.parameters()), next(base.large.parameters())
        assert torch.allclose(made, before, atol=1e-6)


def test_3_2_the_base_model_learns_from_all_so_that_a_new_device_gains_from_the_crowd() -> None:
    """The cloud's own labels say that all is of one class; who joins after a cycle knows better, without a group."""
    x, y = _windows()
    listens = DistillSettings(epochs=6, learning_rate=0.005, batch_size=16, label_weight=0.0, patience=0)
    settings = TeachingSettings(cloud_update=listens, compress=listens, compress_update_epochs=6, groups=False)
    room, before = Classroom(WINDOWS, x, torch.zeros_like(y), settings, 0), _fresh()
    cycle = room.teach(1, before, [_pupil("a"), _pupil("b")])
    held = _windows(seed=9)
    assert accuracy_of(WINDOWS, before.small, *held) < 0.7 < accuracy_of(WINDOWS, cycle.teachers[BASE].small, *held)


def test_where_all_are_one_group_its_teacher_is_the_base() -> None:
    cycle = Classroom(WINDOWS, *_windows(), SETTINGS, 0).teach(1, _fresh(), [_pupil("a"), _pupil("b")])
    assert cycle.teachers[0] is cycle.teachers[BASE]


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
        lambda: room.teach(1, _fresh(), [_pupil("a")], lambda: True),
    ):
        with pytest.raises(TrainingCancelledError):
            work()


def test_no_example_teaches_nothing() -> None:
    x, y = _windows()
    with pytest.raises(DataError, match="at least one"):
        Classroom(WINDOWS, x[:0], y[:0], SETTINGS, 0)


@pytest.mark.parametrize(
    "wrong", [{"keep": 0.0}, {"keep": 1.5}, {"rows": 0}, {"pretrain_steps": -1}, {"group_counts": (1, 2)}]
)
def test_a_setting_out_of_range_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TeachingSettings(**wrong)  # type: ignore[arg-type]


def test_each_kind_has_settings_of_its_own_and_an_unknown_name_says_which() -> None:
    assert suggest(PLACES, "measured") != suggest(WINDOWS, "measured")
    with pytest.raises(ConfigError, match=r"cloud.preset is 'best': for this data expected one of measured, paper"):
        suggest(PLACES, "best")
    with pytest.raises(ConfigError, match="expected one of measured"):
        suggest(WINDOWS, "paper")


def test_4_2_the_papers_settings_have_a_name() -> None:
    preset = suggest(PLACES, "paper")
    assert preset.update == "customisation"
    for settings in (preset.client, preset.teaching.bootstrap, preset.teaching.cloud_update):
        assert (settings.label_weight, settings.learning_rate, settings.batch_size, settings.patience) == (
            0.5, 0.1, 32, 20,
        )  # fmt: skip
    assert preset.teaching.group_counts == (2, 3, 5, 10)
