"""Colla and those it is compared with (5.2), all in one process, by the paper's protocol.

Every upload is encoded, counted, decoded and only then used. `peers/colla/model/` learns, as over a network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor, nn

from benchmarks.next_place.counts import count_prior, guess_counted, guess_markov, guess_tree, mix
from benchmarks.next_place.record import Device, Examples, join
from mdl.peers.colla.model.classroom import (
    BASE,
    PLACES_PRESETS,
    Classroom,
    Cycle,
    Preset,
    Pupil,
    TeacherPair,
    TeachingSettings,
    draw_held,
    hold_examples,
    update_client,
)
from mdl.peers.colla.model.distillation import DistillSettings, predict_probabilities, train_student
from mdl.peers.colla.model.distillation import Examples as Taught
from mdl.peers.colla.model.model_kinds import UPDATE_MODES, RecurrentKind

CYCLES = 3
_MEASURED = PLACES_PRESETS["measured"]


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that may be chosen; docs/colla-notes.md says what was, and on which days.

    client, update: how a device learns, in Colla and in DT-ws. alone: DT, which has no cloud and learns as a whole.
    central: CT, each period. prior: the share of the counted prior in the extension.
    """

    steps: int = 8
    small: str = "4-16"
    large: str = "32-128"
    teaching: TeachingSettings = _MEASURED.teaching
    client: DistillSettings = _MEASURED.client
    update: str = _MEASURED.update
    alone: DistillSettings = _MEASURED.client
    central: DistillSettings = _MEASURED.teaching.bootstrap
    prior: float = 0.9


class Score(msgspec.Struct, frozen=True):
    """accuracy: top-1, which is also the recall weighted by each class's share. precision: weighted likewise."""

    accuracy: float
    precision: float


@dataclass
class Outcome:
    """scores: of each device after each cycle. models: each device's last one."""

    scores: list[list[Score]] = field(default_factory=list)
    upload_bytes: list[list[int]] = field(default_factory=list)
    epochs: list[list[int]] = field(default_factory=list)
    cpu_s: list[list[float]] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)


def score(predicted: Tensor, y: Tensor) -> Score:
    """5.1's metrics. A class that is predicted and never occurs has no weight."""
    right = predicted == y
    precision = 0.0
    for label in torch.unique(y):
        named = predicted == label
        precision += float((y == label).float().mean()) * float(right[named].float().mean() if named.any() else 0.0)
    return Score(round(float(right.float().mean()), 4), round(precision, 4))


def judge(kind: RecurrentKind, model: nn.Module, device: Device, cycle: int, prior: float = 0.0) -> Score:
    """On the next part. prior: the share of what the device has counted so far."""
    x, y = device.test(cycle)
    classes, probabilities = kind.class_ids(model), predict_probabilities(model, x)
    if prior:
        probabilities = mix(probabilities, count_prior(device.so_far(cycle), x, classes), prior)
    return score(classes[probabilities.argmax(dim=1)], y)


def run_colla(
    kind: RecurrentKind, room: Classroom, base: TeacherPair, devices: Sequence[Device], recipe: Recipe, seed: int,
    judges: dict[str, float],
) -> dict[str, Outcome]:  # fmt: skip
    """Stages 2 to 4, three cycles. judges: by name, the share of the counted prior; one training serves all of them."""
    outcomes = {name: Outcome() for name in judges}
    costs = next(iter(outcomes.values()))
    own: dict[str, nn.Module] = {}
    groups: dict[str, int] = {}
    teachers, origin, mode = {BASE: base}, base.small, UPDATE_MODES[recipe.update]
    for cycle in range(1, CYCLES + 1):
        pupils, uploads, epochs, seconds = [], [], [], []
        for number, device in enumerate(devices):
            started = time.process_time()
            teacher = teachers[groups.get(device.name, BASE)].large
            start = own.get(device.name, origin)
            made = update_client(
                kind, start, teacher, *device.train(cycle), recipe.client, mode, draw(seed, cycle, number)
            )
            seconds.append(round(time.process_time() - started, 3))
            own[device.name] = made.model
            update = kind.encode_update(made.model, origin)
            uploads.append(len(update))
            epochs.append(made.training.epochs)
            pupils.append(Pupil(device.name, kind.apply_update(origin, update)))
        costs.upload_bytes.append(uploads)
        costs.epochs.append(epochs)
        costs.cpu_s.append(seconds)
        for name, prior in judges.items():
            outcomes[name].scores.append([judge(kind, own[it.name], it, cycle, prior) for it in devices])
        if cycle < CYCLES:
            taught = room.teach(cycle, teachers[BASE], pupils)
            teachers, groups = taught.teachers, taught.groups
            costs.cycles.append(taught)
    return outcomes


def run_alone(
    kind: RecurrentKind, start: nn.Module | None, devices: Sequence[Device], recipe: Recipe, seed: int,
    judges: dict[str, float],
) -> dict[str, Outcome]:  # fmt: skip
    """DT-ws goes on from `start`, DT from a model of its own (None); neither hears of anybody again."""
    outcomes = {name: Outcome() for name in judges}
    own: dict[str, nn.Module] = {}
    mode = UPDATE_MODES[recipe.update if start is not None else "customised-whole"]
    settings = recipe.client if start is not None else recipe.alone
    for cycle in range(1, CYCLES + 1):
        for number, device in enumerate(devices):
            before = own.get(device.name, start if start is not None else kind.build_small(1000 * seed + number))
            generator = draw(seed, cycle, number)
            own[device.name] = update_client(kind, before, None, *device.train(cycle), settings, mode, generator).model
        for name, prior in judges.items():
            outcomes[name].scores.append([judge(kind, own[it.name], it, cycle, prior) for it in devices])
    return outcomes


def run_central(
    kind: RecurrentKind, devices: Sequence[Device], others: list[Examples], recipe: Recipe, seed: int
) -> Outcome:
    """CT: a heavy model trained each period on all devices' data so far. others: more of the cloud's."""
    outcome = Outcome()
    for cycle in range(1, CYCLES + 1):
        generator = draw(seed, cycle, 10_000)
        x, y = join([*others, *(device.so_far(cycle) for device in devices)])
        model = kind.build_large(seed)
        kind.pretrain(model, x, y, recipe.teaching.pretrain_steps)
        train, validation = hold_examples(Taught(x, y), recipe.central, draw_held(len(y), generator))
        train_student(model, train, validation, recipe.central, generator)
        outcome.scores.append([judge(kind, model, device, cycle) for device in devices])
    return outcome


def count_all(devices: Sequence[Device], seed: int) -> dict[str, Outcome]:
    """Markov chain, decision tree and the extension's counts alone, each on all that the device has seen so far."""
    guesses: dict[str, Callable[[Examples, Tensor], Tensor]] = {
        "Markov": guess_markov,
        "tree": lambda seen, asked: guess_tree(seen, asked, seed),
        "counts": guess_counted,
    }
    outcomes = {}
    for name, guess in guesses.items():
        outcomes[name] = Outcome()
        for cycle in range(1, CYCLES + 1):
            outcomes[name].scores.append(
                [score(guess(it.so_far(cycle), it.test(cycle)[0]), it.test(cycle)[1]) for it in devices]
            )
    return outcomes


def hide_time(device: Device) -> Device:
    """The same device whose sequences tell places alone: what an RNN without time reads (Fig. 5)."""

    def hide(examples: Examples) -> Examples:
        x = examples[0].clone()
        x[:, 1:] = torch.where(x[:, :1] < 0, x[:, 1:], torch.zeros(()))
        return x, examples[1]

    return Device(device.name, hide(device.donated), [hide(part) for part in device.parts])


def preset_recipe(preset: Preset) -> Recipe:
    """All that learns, as a preset of the product says."""
    return Recipe(
        teaching=preset.teaching, client=preset.client, alone=preset.client, central=preset.teaching.bootstrap,
        update=preset.update,
    )  # fmt: skip


def draw(seed: int, cycle: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_000 * seed + 100_000 * cycle + number)
