"""Six people's devices, ten nights: a shared model with a personal part, against own training alone and shared alone.

    python -m benchmarks personal_nights --global tweets.safetensors --blogs blogs_50.jsonl.gz --people 6 --nights 10

Each night a device learns what its person wrote that day (--words words, all layers, one pass), and the shared model
takes the plain mean of what all devices learned, which is what a round of ChainSGD gives to float32 rounding. Then each
device puts what is personal onto it and lets its last layer learn from the same words. "alone" learns the same words
with all layers, the person's vocabulary too, and nobody else. Tested on the words after the last night. Newcomers were
not there, and begin with the shared model. One process, the product's own functions.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.deeptype import authors_of
from benchmarks.tool.options import Namespace, Parser, add_seeds
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.learning.flat import FlatModel
from mdl.peers.deeptype.home import TextLesson, teach
from mdl.peers.deeptype.model.compression import swap_unused
from mdl.peers.deeptype.model.efficiency import evaluate_next_word
from mdl.peers.deeptype.model.model_file import load_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel
from mdl.peers.deeptype.model.personalise import TextTask, change_words, count_words, rebase, suit_rate
from mdl.peers.deeptype.model.study import Study, StudySettings, tune_only
from mdl.peers.deeptype.model.text import TokenTable, encode
from mdl.peers.deeptype.train import Sentences, read_sentences


@dataclass
class Night:
    """Stand in for `mdl.Round`."""

    round_id: int
    loss: float = 0.0
    samples: int = 0
    given_up: bool = False


@dataclass
class Person:
    """What one person wrote by days and afterwards, their own model with its words, and one that learns alone."""

    days: list[Sentences]
    held_out: Sentences
    own: NextWordModel
    table: TokenTable
    alone: NextWordModel


def add_options(parser: Parser) -> None:
    parser.add_argument("--global", dest="model", type=Path, required=True)
    parser.add_argument("--blogs", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=3, help="authors that were used for tuning")
    parser.add_argument("--people", type=int, default=6)
    parser.add_argument("--newcomers", type=int, default=6, help="tested with the shared model; they teach nothing")
    parser.add_argument("--nights", type=int, default=10)
    parser.add_argument("--words", type=int, default=1_000, help="of a day")
    parser.add_argument("--test", type=int, default=2_000)
    add_seeds(parser, (0,))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--rate", type=float, default=0.0, help="of all layers; 0: what suits the optimizer")
    parser.add_argument("--own-rate", type=float, default=0.0, help="of the personal last layer")
    parser.add_argument("--as-paper", action="store_true", help="the paper's loss: words before a sample's own, too")
    parser.add_argument("--sampled", type=int, default=0, help="words that a step scores, 0 for all")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure the nights with each seed, on one thread. Raises DataError."""
    torch.set_num_threads(1)
    runs = [measure(options, seed) for seed in options.seeds]
    rows, cold = ([row for run in runs for row in run[part]] for part in (0, 1))
    found = {name: median(row[name] for row in rows) for name in rows[0]}
    others = ("global", "alone", "shared")
    better = {f"personal above {name}": sum(row["shared and personal"] > row[name] for row in rows) for name in others}
    told = [(name, f"{value:.3f}", better.get(f"personal above {name}")) for name, value in found.items()]
    show(("top-3 efficiency", "median", f"personal is above, of {len(rows)}"), told)
    gains = [row["shared"] / row["global"] - 1 for row in cold]
    if gains:
        print(f"newcomers: shared above global {sum(gain > 0 for gain in gains)} of {len(gains)}, {median(gains):+.1%}")
    asked = {name: getattr(options, name) for name in ("people", "nights", "words")}
    sheet.tell(asked | {"median": found, "better": better, "rows": rows, "newcomers": cold})


def measure(options: Namespace, seed: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Top-3 efficiencies: of the people, and of newcomers who were not there, and have written nothing yet."""
    began = time.process_time()
    model, described = load_next_word(options.model)
    table = described.table
    names = authors_of(options.blogs)[options.skip :]
    people = [_meet(options, name, model, table) for name in names[: options.people]]
    others = names[options.people :][: options.newcomers]
    newcomers = [encode(read_sentences(options.blogs, name, limit=options.test), table) for name in others]
    before = [_test(model, table, person) for person in people]
    cold = [{"global": evaluate_next_word(model, said).efficiency} for said in newcomers]
    flat = FlatModel(model)
    for night in range(options.nights):
        old, values = copy.deepcopy(model), flat.values().copy()
        changes = []
        for person in people:
            _teach(options, person.alone, person.table, person.days[night], night, seed)
            flat.load(values)
            _teach(options, model, table, person.days[night], night, seed)
            changes.append(flat.values() - values)
        flat.load((values + np.mean(changes, axis=0)).astype(np.float32))
        for person in people:
            _go_on(options, person, old, model, table, night, seed)
        print(f"seed {seed}, night {night + 1}: {time.process_time() - began:.0f} s", file=sys.stderr)
    for row, said in zip(cold, newcomers, strict=True):
        row["shared"] = evaluate_next_word(model, said).efficiency
    return [
        {
            "global": first,
            "alone": _test(person.alone, person.table, person),
            "shared": _test(model, table, person),
            "shared and personal": _test(person.own, person.table, person),
        }
        for first, person in zip(before, people, strict=True)
    ], cold


def _meet(options: Namespace, name: str, model: NextWordModel, table: TokenTable) -> Person:
    """Their words enter their own model's table at once: a device counts them before it learns."""
    said = read_sentences(options.blogs, name, options.nights * options.words + options.test)
    ends = np.cumsum([len(sentence) for sentence in said])
    marks = [int(np.searchsorted(ends, day * options.words)) for day in range(options.nights + 1)]
    days = [said[low:high] for low, high in pairwise(marks)]
    own = copy.deepcopy(model)
    words = swap_unused(table.words, count_words(said[: marks[-1]]))
    mine = change_words(own, table, words)
    return Person(days, said[marks[-1] :], own, mine, copy.deepcopy(own))


def _teach(options: Namespace, model: NextWordModel, table: TokenTable, said: Sentences, night: int, seed: int) -> None:
    settings = StudySettings(1, options.batch, options.optimizer, options.rate, seed=seed)
    lesson = TextLesson(encode(said, table), settings, 0, lambda: False, options.sampled, not options.as_paper)

    def one() -> Iterator[Night]:
        yield Night(night + 1)

    teach(one(), model, lesson)


def _go_on(
    options: Namespace,
    person: Person,
    old: NextWordModel,
    new: NextWordModel,
    table: TokenTable,
    night: int,
    seed: int,
) -> None:
    rebase(person.own, person.table, (old, table), (new, table))
    settings = StudySettings(1, options.batch, options.optimizer, options.own_rate, seed=1000 * seed + night)
    text = encode(person.days[night], person.table)
    task = TextTask(person.own, text, "shared", options.batch, options.sampled, not options.as_paper)
    Study(tune_only(person.own, "output"), task, suit_rate(settings, person.own)).run()


def _test(model: NextWordModel, table: TokenTable, person: Person) -> float:
    return evaluate_next_word(model, encode(person.held_out, table)).efficiency
