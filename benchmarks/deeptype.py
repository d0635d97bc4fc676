"""DeepType (IMWUT 2018) made again: costs of each technique (Table 2), online steps (Fig. 10b).

    python -m benchmarks deeptype costs --blogs BLOGS.jsonl.gz
    python -m benchmarks deeptype latency

`costs` measures batches of the first author's words, of which only the lengths matter; without a file they are drawn.
`latency` needs no data. Seconds are of one core's processor time. The paper's figures stand
beside ours; Table 1 is in `deeptype_authors`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.peers.deeptype.model.compression import count_bytes
from mdl.peers.deeptype.model.keyboard import STEP_SAMPLES, OnlineLearner
from mdl.peers.deeptype.model.next_word import NextWordModel, NextWordSize, build_next_word
from mdl.peers.deeptype.model.personalise import (
    Techniques,
    TextTask,
    cache_text,
)
from mdl.peers.deeptype.model.study import Study, StudySettings, Task, tune_all, tune_only
from mdl.peers.deeptype.model.text import Text, TokenTable, encode
from mdl.peers.deeptype.train import read_sentences

CLASSES, PERSONAL, HIDDEN, RANK = 20_000, 10_000, 400, 40
# Of Table 2: hours for an epoch of 100,000 words on a Nexus 6, and MB.
PAPER_COSTS = {
    "baseline": (3.79, 74.5),
    "fine-tune": (2.17, 74.5),
    "layer": (2.97, 17.0),
    "vocabulary": (2.63, 42.4),
    "buckets": (1.35, 74.5),
    "all": (0.32, 13.8),
}
BASELINE = Techniques(fine_tune=False, words=0, batching="padded")
COMBINED = Techniques()

# Each technique by itself: (techniques, words of the model, rank). Those without a figure of the paper are ours, but
# padding to the longest and four buckets are what it has for global training.
VARIANTS: dict[str, tuple[Techniques, int, int]] = {
    "baseline": (BASELINE, CLASSES, 0),
    "padded to the longest": (Techniques(False, 0, batching="longest"), CLASSES, 0),
    "fine-tune": (Techniques(True, 0, batching="padded"), CLASSES, 0),
    "layer": (BASELINE, CLASSES, RANK),
    "vocabulary": (BASELINE, PERSONAL, 0),
    "buckets": (Techniques(False, 0, batching="exact"), CLASSES, 0),
    "all": (COMBINED, PERSONAL, RANK),
    "four buckets": (Techniques(False, 0, batching="buckets"), CLASSES, 0),
    "shared prefix": (Techniques(False, 0, batching="shared"), CLASSES, 0),
    "all, shared prefix": (Techniques(True, 0, batching="shared"), PERSONAL, RANK),
    "all, cached features": (Techniques(True, 0, cache=True), PERSONAL, RANK),
}


def add_options(parser: Parser) -> None:
    parser.add_argument("part", choices=("costs", "latency"))
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="units of each layer")
    parser.add_argument("--turns", type=int, default=8, help="batches or repetitions that count")
    parser.add_argument("--words", type=int, default=4000, help="of the text")
    parser.add_argument("--batch", type=int, default=STEP_SAMPLES)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, help="of costs: these alone, against the first one")
    parser.add_argument("--kept", type=int, default=3, help="suggestions of a word that are learned from online")
    parser.add_argument("--blogs", type=Path, default=Path("blogs_50.jsonl.gz"), help="a .jsonl.gz that names authors")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure the part that is asked for. Raises DataError."""
    torch.set_num_threads(1)
    sheet.tell({"costs": run_costs, "latency": run_latency}[options.part](options))


def lengths_of(options: Namespace) -> list[list[str]]:
    """Sentences whose words have the lengths of an author's, or drawn ones: 15 words of 4.2 letters in the mean."""
    if options.blogs.exists():
        return read_sentences(options.blogs, authors_of(options.blogs)[0], options.words)
    generator, sentences, made = np.random.default_rng(1), list[list[str]](), 0
    while made < options.words:
        lengths = np.clip(generator.geometric(1 / 4.2, int(generator.integers(1, 31))), 1, 12)
        sentences.append(["".join(generator.choice(list(ascii_lowercase), length)) for length in lengths])
        made += len(lengths)
    return sentences


def spread_words(sentences: list[list[str]], classes: int) -> tuple[TokenTable, Text]:
    """A text whose words are spread over a table of so many: what is looked up and predicted costs what it would."""
    table = TokenTable(tuple(f"w{number}" for number in range(classes - 1)), ascii_lowercase + "'")
    text = encode(sentences, table)
    drawn = np.random.default_rng(2).integers(0, classes, len(text.class_ids))
    return table, replace(text, class_ids=drawn)


class Spread:
    """Some batches of an epoch that stand for all: sorted by their length, evenly spaced. whole: batches of an epoch.

    A batch's time follows its length: a few drawn at random would be a guess at the mean. The first comes twice.
    """

    def __init__(self, task: Task, count: int) -> None:
        self.whole = 0
        self._task, self._count = task, count

    def draw(self, generator: np.random.Generator) -> Sequence[Any]:
        batches = sorted(self._task.draw(generator), key=lambda batch: batch[1] if isinstance(batch, tuple) else 0)
        self.whole = len(batches)
        chosen = [batches[(2 * at + 1) * self.whole // (2 * self._count)] for at in range(self._count)]
        return [chosen[0], *chosen]

    def loss(self, batch: Any) -> Tensor:
        return self._task.loss(batch)


def run_costs(options: Namespace) -> dict[str, Any]:
    """Seconds for 1,000 words of an epoch: of batches that stand for all, measured in turns."""
    sentences = lengths_of(options)
    studies: dict[str, tuple[Study, Spread]] = {}
    sizes: dict[str, int] = {}
    for name in options.only or VARIANTS:
        techniques, words, rank = VARIANTS[name]
        table, text = spread_words(sentences, words)
        model = build_next_word(
            NextWordSize(table.classes, table.size, options.hidden, rank=rank * options.hidden // HIDDEN), 0
        )
        task: Task = TextTask(model, text, techniques.batching, options.batch)
        task = cache_text(model, text, options.batch) if techniques.cache else task
        spread, learned = Spread(task, options.turns), tune_only(model, "output") if techniques.fine_tune else None
        settings = StudySettings(epochs=1, batch=options.batch, learning_rate=0.1)
        studies[name] = Study(learned or tune_all(model), spread, settings), spread
        sizes[name] = count_bytes(model)
    total = sum(map(len, sentences))
    spent: dict[str, list[float]] = {name: [] for name in studies}
    for turn, (name, (study, _)) in in_turns(options.turns + 1, studies.items()):
        began = time.process_time()
        study.step()
        if turn:  # the first one makes what later ones reuse
            spent[name].append(time.process_time() - began)
    per_1000 = {name: 1000 * float(np.mean(times)) * studies[name][1].whole / total for name, times in spent.items()}
    _show_costs(per_1000, sizes)
    measured = {"hidden": options.hidden, "batch": options.batch, "turns": options.turns, "words": total}
    return {"part": "costs", **measured, "seconds_per_1000_words": per_1000, "bytes": sizes}


def _show_costs(per_1000: dict[str, float], sizes: dict[str, int]) -> None:
    base, rows = next(iter(per_1000.values())), []
    for name, seconds in per_1000.items():
        hours, megabytes = PAPER_COSTS.get(name, (0.0, 0.0))
        told = f"{1 - hours / PAPER_COSTS['baseline'][0]:.1%}" if hours else None
        less, size = f"{1 - seconds / base:.1%}", f"{sizes[name] / 1e6:.1f}"
        rows.append((name, f"{seconds:.2f}", less, told, size, f"{megabytes:.1f}" if megabytes else None))
    show(("", "s/1,000 words", "less", "paper", "MB", "paper"), rows)
    print(f"less: than {next(iter(per_1000))!r}; baseline: all layers, batches padded to 30 steps")


def run_latency(options: Namespace) -> dict[str, Any]:
    """Milliseconds of an inference, and of an online step of 16 words after histories of 3 to 30 tokens."""
    result: dict[str, Any] = {"part": "latency", "hidden": options.hidden, "turns": options.turns, "rows": []}
    for name, words, rank in (("whole", CLASSES, 0), ("compressed", PERSONAL, RANK)):
        model = build_next_word(NextWordSize(words, words + 30, options.hidden, rank=rank), 0)
        model.eval()
        for length in (3, 6, 10, 20, 30):
            row = _measure_latency(model, words, length, options)
            result["rows"].append({"model": name, "tokens": length, **row})
    keys = ("inference", "reused", "not_reused")
    rows = [(row["model"], row["tokens"], *(f"{row[key]:.2f}" for key in keys)) for row in result["rows"]]
    show(("ms, median", "tokens", "inference", "step, reused", "step, not reused"), rows)
    return result


def _measure_latency(model: NextWordModel, words: int, length: int, options: Namespace) -> dict[str, float]:
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(words, (STEP_SAMPLES, length), generator=generator)
    targets = torch.randint(words, (STEP_SAMPLES,), generator=generator)
    learner = OnlineLearner(model.output.requires_grad_(False), 0.01, kept=options.kept)
    with torch.no_grad():
        _, states = zip(*(model.read(row[None, :-1]) for row in tokens), strict=True)

    def infer() -> list[Any]:
        with torch.no_grad():
            seen = [model.read(row[None, -1:], state)[0] for row, state in zip(tokens, states, strict=True)]
            return [learner.infer(each[0, 0]) for each in seen]

    inference = _median_ms(infer, options.turns) / STEP_SAMPLES
    inferred = infer()

    def reuse() -> None:
        for each, target in zip(inferred, targets.tolist(), strict=True):
            # `kept` suggestions a word; those of a word differ, their cost does not.
            learner.learn([learner_fresh(each)] * options.kept, target)

    def learner_fresh(each: Any) -> Any:
        return type(each)(each.features, each.probabilities, learner.steps)

    reused = _median_ms(reuse, options.turns)
    learned = tune_only(model, "output")

    def backpropagate() -> None:
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.repeat_interleave(length))
        gradients = torch.autograd.grad(loss, list(learned.values()))
        _descend(list(learned.values()), gradients)

    return {"inference": inference, "reused": reused, "not_reused": _median_ms(backpropagate, options.turns)}


@torch.no_grad()
def _descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.sub_(gradient, alpha=0.01)


def _median_ms(action: Callable[[], object], turns: int) -> float:
    action()
    times = []
    for _ in range(turns):
        began = time.process_time()
        action()
        times.append(1000 * (time.process_time() - began))
    return median(times)


def authors_of(path: Path) -> list[str]:
    """In the order of the file; whose first text is another's has the same blog twice, and is left out."""
    import gzip

    first: dict[str, str] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            written = json.loads(line)
            first.setdefault(written["author"], written["text"])
    by_text = {text: author for author, text in reversed(first.items())}
    return [author for author, text in first.items() if by_text[text] == author]
