"""Colla in one process: a cloud and its devices exchange models as they would over a network, without the network.

The cloud has a large model and the sequences of a few people who gave theirs; each other person is a device, which sees
its own days arrive in three parts, one a cycle. Every upload is encoded, counted, decoded and only then used. What is
learned is `mdl.cloud.classroom`, the same as over a network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from mdl.cloud.classroom import (
    BASE,
    Classroom,
    Cycle,
    Pupil,
    Teacher,
    accuracy_of,
    teacher_probabilities,
    update_client,
)
from mdl.cloud.distillation import DistillSettings, Examples, locate_classes, train_student
from mdl.cloud.model_kinds import ModelKind, RecurrentKind
from mdl.cloud.recurrent import RecurrentModel
from mdl.cloud.settings import PLACES_CLIENT, PLACES_TEACHING, TeachingSettings
from mdl.data.readers.places import PlaceLog, cut_days
from mdl.data.readers.visits import Stays, make_sequences, take_stays
from mdl.errors import DataError


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that may be chosen. docs/colla-notes.md says which choices were made with test figures in sight.

    device, scratch: how a device trains from a pulled model, and from nothing. device_rows: it keeps at most so many
    of its latest sequences, 0 for all. teacher: the "pulled" model, the cloud's "large" one, or also its "own" of the
    cycle before; "none": models come back, and no device is taught. start: what a device goes on from, what it "pulled"
    or its "own" model. confident: rows on which the teacher's highest probability is below this teach nothing.
    """

    cycles: int = 3
    cloud_people: int = 15
    steps: int = 8
    test_share: float = 0.2
    device: DistillSettings = PLACES_CLIENT
    scratch: DistillSettings = PLACES_CLIENT
    device_rows: int = 0
    teaching: TeachingSettings = PLACES_TEACHING
    start: Literal["pulled", "own"] = "pulled"
    teacher: Literal["pulled", "large", "own", "none"] = "pulled"
    confident: float = 0.0


@dataclass
class Person:
    """A device's sequences: those of each cycle's days, and the test."""

    name: str
    parts: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]

    def seen(self, cycle: int, latest: int = 0) -> tuple[Tensor, Tensor]:
        """All that has arrived up to this cycle (from 1); at most the `latest` of it, 0 for no limit."""
        parts = self.parts[:cycle]
        return torch.cat([x for x, _ in parts])[-latest:], torch.cat([y for _, y in parts])[-latest:]


@dataclass
class Client:
    """A device in Colla: what it holds, and what it cost it."""

    person: Person
    models: list[nn.Module] = field(default_factory=list)
    group: int = BASE
    upload_bytes: list[int] = field(default_factory=list)
    download_bytes: list[int] = field(default_factory=list)
    update_cpu_s: list[float] = field(default_factory=list)


class UnifiedKind(RecurrentKind):
    """Every device's last layer has all classes (Fig. 10)."""

    def customize(self, pulled: nn.Module, classes: Sequence[int], generator: torch.Generator) -> RecurrentModel:
        return super().customize(pulled, self.class_ids(pulled).tolist(), generator)


def split_people(log: PlaceLog, recipe: Recipe, seed: int, tune: bool) -> tuple[tuple[Tensor, Tensor], list[Person]]:
    """The cloud's sequences, and the devices. tune: the test days are not looked at; the days before them are cut."""
    people = [(name, cut_days(stays, recipe.test_share)[0] if tune else stays) for name, stays in log.stays.items()]
    usable = [(name, person) for name, stays in people if (person := _cut(name, stays, recipe)) is not None]
    if len(usable) <= recipe.cloud_people:
        enough = f"people with enough days; there are {len(usable)} of {len(people)}"
        raise DataError(
            f"{recipe.cloud_people} people for the cloud and one device want {recipe.cloud_people + 1} {enough}"
        )
    order = np.random.default_rng([seed, 1]).permutation(len(usable))
    given = [usable[index][1] for index in order[: recipe.cloud_people]]
    sequences = [person.seen(recipe.cycles) for person in given] + [person.test for person in given]
    cloud = torch.cat([x for x, _ in sequences]), torch.cat([y for _, y in sequences])
    return cloud, [usable[index][1] for index in sorted(order[recipe.cloud_people :])]


def run_colla(
    classroom: Classroom, kind: ModelKind, base: Teacher, people: Sequence[Person], recipe: Recipe, seed: int
) -> tuple[list[list[float]], list[Client], list[Cycle]]:
    """All cycles: (accuracy of each device after each cycle, the clients, what came of each of the cloud's cycles)."""
    clients = [Client(person) for person in people]
    teachers = {BASE: base}
    accuracies: list[list[float]] = []
    taught: list[Cycle] = []
    for cycle in range(1, recipe.cycles + 1):
        pupils = [
            _serve(kind, client, teachers[client.group], recipe, cycle, seed + number)
            for number, client in enumerate(clients)
        ]
        accuracies.append([accuracy_of(kind, client.models[-1], *client.person.test) for client in clients])
        if cycle == recipe.cycles:
            break
        taught.append(classroom.teach(cycle, teachers, pupils))
        teachers = taught[-1].teachers
        for client in clients:
            client.group = taught[-1].groups[client.person.name]
    return accuracies, clients, taught


def train_alone(
    kind: ModelKind, person: Person, start: nn.Module | None, recipe: Recipe, cycle: int, seed: int
) -> nn.Module:
    """DT (no start) and DT-ws (the compressed model as the start): the device's own data, without a teacher."""
    generator = torch.Generator().manual_seed(seed)
    x, y = person.seen(cycle, recipe.device_rows)
    if start is not None:
        alone = msgspec.structs.replace(recipe.device, teacher_weight=0.0)
        return update_client(kind, start, x, y, alone, generator)
    model = kind.customize(kind.build_small(seed), sorted(set(y.tolist())), generator)
    # There is no cloud whose embeddings it could leave as they are.
    model.requires_grad_(True)
    train_student(model, Examples(x, locate_classes(y, kind.class_ids(model))), None, recipe.scratch, generator)
    return model


def _serve(kind: ModelKind, client: Client, teacher: Teacher, recipe: Recipe, cycle: int, seed: int) -> Pupil:
    """Stages 2 and 3 on one device: pull, update, push; returns what the cloud decodes."""
    generator = torch.Generator().manual_seed(1000 * seed + cycle)
    client.download_bytes.append(len(kind.pack(teacher.small)))
    started = time.process_time()
    x, y = client.person.seen(cycle, recipe.device_rows)
    if (recipe.teacher, recipe.start, recipe.confident) == ("pulled", "pulled", 0.0):
        model = update_client(kind, teacher.small, x, y, recipe.device, generator)
    else:
        model = _update_otherwise(kind, client, teacher, recipe, (x, y), generator)
    update = kind.encode_update(model, teacher.small)
    client.models.append(model)
    client.update_cpu_s.append(time.process_time() - started)
    client.upload_bytes.append(len(update))
    return Pupil(client.person.name, client.group, kind.apply_update(teacher.small, update))


def _update_otherwise(
    kind: ModelKind, client: Client, teacher: Teacher, recipe: Recipe, data: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> nn.Module:  # fmt: skip
    """Stage 3 with another teacher or start than Colla's."""
    x, y = data
    own = client.models[-1] if client.models else None
    start = own if recipe.start == "own" and own is not None else teacher.small
    student = kind.customize(start, sorted(set(y.tolist())), generator)
    classes, temperature = kind.class_ids(student), recipe.device.temperature
    speaker = teacher.large if recipe.teacher == "large" else teacher.small
    soft = teacher_probabilities(kind, speaker, x, classes, temperature)
    if recipe.teacher == "own" and own is not None:
        soft = (soft + teacher_probabilities(kind, own, x, classes, temperature)) / 2
    soft[soft.max(dim=1).values < recipe.confident] = 0
    taught = None if recipe.teacher == "none" else soft
    train_student(student, Examples(x, locate_classes(y, classes), taught), None, recipe.device, generator)
    return student


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
