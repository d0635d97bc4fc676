"""Colla in one process: a cloud and its devices exchange models as they would over a network, without the network.

The cloud has a large model and the sequences of a few people who gave theirs; each other person is a device, which sees
its own days arrive in three parts, one a cycle. Every upload is encoded, counted, decoded and only then used.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from torch import Tensor

from mdl.data.places import PlaceLog, cut_days
from mdl.data.visits import Stays, make_sequences, take_stays
from mdl.distill import (
    DistillSettings,
    Examples,
    average_teachers,
    keep_best,
    locate_classes,
    pad_classes,
    pick_classes,
    predict_probabilities,
    train_student,
)
from mdl.grouping import Grouping, group_models, model_distances
from mdl.recurrent import (
    CLOUD_SIZE,
    DEVICE_SIZE,
    RecurrentModel,
    build_recurrent,
    copy_embeddings,
    customize_classes,
    grow_classes,
    pretrain_embeddings,
)
from mdl.update import apply_update, encode_update

# Rows of the cloud's data that models are compared on (3.2): enough for stable distances, few enough for 40 models.
COMPARED_ROWS = 400


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that may be chosen. docs/colla-notes.md says which choices were made with test figures in sight.

    device, scratch: how a device trains from a pulled model, and from nothing. cloud_rows: the cloud keeps at most so
    many of its people's sequences; update_rows: and learns from its clients on so many. keep: share of the client
    models that teach. start: what a device goes on from in a later cycle, what it "pulled" or its "own" model.
    teacher: what it is taught by, the pulled "small" model or the cloud's "large" one.
    """

    cycles: int = 3
    cloud_people: int = 15
    cloud_rows: int = 3000
    steps: int = 8
    test_share: float = 0.2
    pretrain_epochs: int = 5
    device: DistillSettings = DistillSettings(
        epochs=12, batch_size=64, learning_rate=0.02, teacher_weight=0.3, patience=0
    )
    scratch: DistillSettings = DistillSettings(epochs=12, batch_size=64, learning_rate=0.02, patience=0)
    bootstrap: DistillSettings = DistillSettings(epochs=8, batch_size=64, learning_rate=0.005, patience=2)
    compress: DistillSettings = DistillSettings(
        epochs=40, batch_size=64, learning_rate=0.01, teacher_weight=0.8, patience=0
    )
    cloud_update: DistillSettings = DistillSettings(epochs=3, batch_size=64, learning_rate=0.002, patience=0)
    recompress_epochs: int = 12
    update_rows: int = 1500
    keep: float = 1.0
    start: str = "pulled"
    teacher: str = "small"


@dataclass
class Person:
    """A device's sequences: those of each cycle's days, and the test."""

    name: str
    parts: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]

    def seen(self, cycle: int) -> tuple[Tensor, Tensor]:
        """All that has arrived up to this cycle (from 1)."""
        parts = self.parts[:cycle]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@dataclass
class Client:
    """A device in Colla: what it holds, and what it cost it."""

    person: Person
    model: RecurrentModel | None = None
    group: int = -1
    upload_bytes: list[int] = field(default_factory=list)
    download_bytes: list[int] = field(default_factory=list)
    update_cpu_s: list[float] = field(default_factory=list)


def split_people(log: PlaceLog, recipe: Recipe, seed: int, tune: bool) -> tuple[tuple[Tensor, Tensor], list[Person]]:
    """The cloud's sequences, and the devices. tune: the test days are not looked at; the days before them are cut."""
    people = [(name, cut_days(stays, recipe.test_share)[0] if tune else stays) for name, stays in log.stays.items()]
    usable = [(name, person) for name, stays in people if (person := _cut(name, stays, recipe)) is not None]
    order = np.random.default_rng([seed, 1]).permutation(len(usable))
    given = [usable[index][1] for index in order[: recipe.cloud_people]]
    sequences = [person.seen(recipe.cycles) for person in given] + [person.test for person in given]
    cloud = torch.cat([x for x, _ in sequences]), torch.cat([y for _, y in sequences])
    rows = torch.from_numpy(np.random.default_rng([seed, 2]).permutation(len(cloud[1]))[: recipe.cloud_rows])
    cloud = cloud[0][rows], cloud[1][rows]
    return cloud, [usable[index][1] for index in sorted(order[recipe.cloud_people :])]


class Cloud:
    """The cloud's side: bootstrapping (stage 1), compression (3.2), the update from client models (stage 4)."""

    def __init__(self, places: int, data: tuple[Tensor, Tensor], recipe: Recipe, seed: int) -> None:
        self.recipe, self.places = recipe, places
        self.generator = torch.Generator().manual_seed(seed)
        self.x, self.y = data
        order = torch.randperm(len(self.y), generator=self.generator)
        held, used = order[: len(order) // 10], order[len(order) // 10 :]
        self.base = build_recurrent(CLOUD_SIZE, places, range(places), seed)
        pretrain_embeddings(self.base, self.x[used], self.y[used], recipe.pretrain_epochs, 0.01, self.generator)
        validation = Examples(self.x[held], self.y[held])
        self.bootstrap = train_student(
            self.base, Examples(self.x[used], self.y[used]), validation, recipe.bootstrap, self.generator
        )
        small = build_recurrent(DEVICE_SIZE, places, range(places), seed)
        copy_embeddings(self.base, small)
        self.base_small = self.compress(self.base, small, recipe.compress.epochs)
        compared = torch.randperm(len(self.y), generator=self.generator)[:COMPARED_ROWS]
        self.compared = self.x[compared]
        rows = torch.randperm(len(self.y), generator=self.generator)[: recipe.update_rows]
        self.update_x, self.update_y = self.x[rows], self.y[rows]

    def compress(self, teacher: RecurrentModel, start: RecurrentModel, epochs: int) -> RecurrentModel:
        """Large to small on the cloud's data (3.2), from `start`."""
        small = customize_classes(start, start.class_ids.tolist(), self.generator)
        small.train_embeddings(False)
        settings = msgspec.structs.replace(self.recipe.compress, epochs=epochs)
        x, y = (self.x, self.y) if teacher is self.base else (self.update_x, self.update_y)
        soft = predict_probabilities(teacher, x, settings.temperature)
        train_student(small, Examples(x, y, soft), None, settings, self.generator)
        return small

    def learn(self, teacher: RecurrentModel, clients: Sequence[RecurrentModel]) -> RecurrentModel:
        """Eq. 4: the teacher's successor, taught by these client models on the cloud's data."""
        student = customize_classes(teacher, teacher.class_ids.tolist(), self.generator)
        student.train_embeddings(False)
        settings = self.recipe.cloud_update
        padded = [
            pad_classes(
                predict_probabilities(model, self.update_x, settings.temperature), model.class_ids, student.class_ids
            )
            for model in clients
        ]
        scores = [float((rows.argmax(1) == self.update_y).float().mean()) for rows in padded]
        soft = average_teachers([padded[index] for index in keep_best(scores, float(self.recipe.keep))])
        train_student(student, Examples(self.update_x, self.update_y, soft), None, settings, self.generator)
        return student

    def group(self, clients: Sequence[RecurrentModel], seed: int) -> Grouping:
        every = torch.arange(self.places)
        outputs = [
            pad_classes(predict_probabilities(model, self.compared), model.class_ids, every).numpy()
            for model in clients
        ]
        return group_models(model_distances(np.stack(outputs)), seed=seed)


def run_colla(
    cloud: Cloud, people: Sequence[Person], recipe: Recipe, seed: int, *, grouped: bool, customized: bool
) -> tuple[list[list[float]], list[Client], list[Grouping]]:
    """All cycles: (accuracy of each device after each cycle, the clients, the groupings after each cycle)."""
    clients = [Client(person) for person in people]
    large, small = {-1: cloud.base}, {-1: cloud.base_small}
    accuracies, groupings = [], []
    for cycle in range(1, recipe.cycles + 1):
        arrived = [
            _serve(client, small[client.group], large[client.group], recipe, cycle, seed + number, customized)
            for number, client in enumerate(clients)
        ]
        accuracies.append([accuracy(client.model, client.person.test) for client in clients])
        if cycle == recipe.cycles:
            break
        one = Grouping((0,) * len(clients), (0,), {})
        groupings.append(cloud.group(arrived, seed) if grouped else one)
        old, next_large, next_small = [client.group for client in clients], {-1: cloud.base}, {-1: cloud.base_small}
        for group in range(groupings[-1].count):
            members = [index for index, label in enumerate(groupings[-1].groups) if label == group]
            # A new group goes on from the teacher that most of its members had.
            before = max({old[index] for index in members}, key=[old[index] for index in members].count)
            next_large[group] = cloud.learn(large[before], [arrived[index] for index in members])
            next_small[group] = cloud.compress(next_large[group], small[before], recipe.recompress_epochs)
            for index in members:
                clients[index].group = group
        large, small = next_large, next_small
    return accuracies, clients, groupings


def train_alone(
    person: Person, places: int, start: RecurrentModel | None, recipe: Recipe, cycle: int, seed: int
) -> RecurrentModel:
    """DT (no start) and DT-ws (the compressed model as the start): the device's own data, without a teacher."""
    generator = torch.Generator().manual_seed(seed)
    x, y = person.seen(cycle)
    classes = sorted(set(y.tolist()))
    if start is None:
        model = build_recurrent(DEVICE_SIZE, places, classes, seed)
    else:
        model = customize_classes(start, classes, generator)
        model.train_embeddings(False)
    settings = recipe.scratch if start is None else recipe.device
    train_student(model, *_split(x, locate_classes(y, model.class_ids), None, settings), settings, generator)
    return model


def accuracy(model: RecurrentModel, test: tuple[Tensor, Tensor]) -> float:
    """Share of the test stays whose place was predicted; a class the model lacks is always wrong."""
    x, y = test
    predicted = model.class_ids[predict_probabilities(model, x).argmax(dim=1)]
    return float((predicted == y).float().mean())


def _serve(
    client: Client,
    pulled: RecurrentModel,
    large: RecurrentModel,
    recipe: Recipe,
    cycle: int,
    seed: int,
    customized: bool,
) -> RecurrentModel:
    """Stages 2 and 3 on one device: pull, update, push; returns what the cloud decodes."""
    generator = torch.Generator().manual_seed(1000 * seed + cycle)
    started = time.process_time()
    x, y = client.person.seen(cycle)
    classes = sorted(set(y.tolist())) if customized else pulled.class_ids.tolist()
    teacher = large if recipe.teacher == "large" else pulled
    soft_all = predict_probabilities(teacher, x, recipe.device.temperature)
    if client.model is None or recipe.start == "pulled":
        student = customize_classes(pulled, classes, generator)
    else:
        student = grow_classes(client.model, classes, generator)
    student.train_embeddings(False)
    soft = pick_classes(soft_all, teacher.class_ids, student.class_ids)
    train, validation = _split(x, locate_classes(y, student.class_ids), soft, recipe.device)
    train_student(student, train, validation, recipe.device, generator)
    client.model = student
    update = encode_update(student, pulled)
    client.update_cpu_s.append(time.process_time() - started)
    client.upload_bytes.append(len(update))
    return apply_update(pulled, update)


def _split(x: Tensor, y: Tensor, soft: Tensor | None, settings: DistillSettings) -> tuple[Examples, Examples | None]:
    """The last tenth of the sequences stops the training early; all of them train where it does not."""
    if not settings.patience:
        return Examples(x, y, soft), None
    cut = len(y) - max(1, len(y) // 10)
    return Examples(x[:cut], y[:cut], None if soft is None else soft[:cut]), Examples(x[cut:], y[cut:])


def _cut(name: str, stays: Stays, recipe: Recipe) -> Person | None:
    """None for a person without at least one sequence in every part."""
    before, test = cut_days(stays, recipe.test_share)
    days = np.unique(before.day)
    edges = [days[len(days) * part // recipe.cycles] for part in range(recipe.cycles)] if len(days) else []
    number = np.searchsorted(np.array(edges), before.day, side="right")
    parts = [take_stays(before, number == part) for part in range(1, recipe.cycles + 1)]
    if min(map(len, [*parts, test])) < 10:
        return None
    tensors = [_to_tensors(part, recipe.steps) for part in [*parts, test]]
    return Person(name, tensors[:-1], tensors[-1])


def _to_tensors(stays: Stays, steps: int) -> tuple[Tensor, Tensor]:
    x, y = make_sequences(stays, steps)
    return torch.from_numpy(x), torch.from_numpy(y)
