"""Online training while a person types (DeepType 6.1, "Accuracy Improvement of Online Training"), emulated.

    python -m benchmarks deeptype_online --global tweets.safetensors --blogs blogs_50.jsonl.gz --count 4 --words 20000

Each author's words are typed in the order of time, from the public model on, by somebody who takes a suggestion as soon
as it is there; the last layer learns a step from every 16 words. Beside it the same without learning, and with
--filtered also with the words that came lately, as `mdl type` has them. Efficiency is of all words, and of the last
tenth. The first --skip authors are for tuning. The paper, not filtered: +9.5 % over 100,000 words, +16.9 % in the last
10,000.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.deeptype import authors_of
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.peers.deeptype.model.efficiency import efficiency
from mdl.peers.deeptype.model.keyboard import Keyboard, OnlineLearner
from mdl.peers.deeptype.model.model_file import load_next_word
from mdl.peers.deeptype.model.personalise import online_rate
from mdl.peers.deeptype.train import Sentences, read_sentences

PARTS = 10
ARMS = ("nothing learned", "learning", "learning, with recent words")


def type_sentences(keyboard: Keyboard, sentences: Iterable[Sequence[str]]) -> list[tuple[int, int]]:
    """Type like a person that takes each suggestion at once; return (length, R(x)) of each word."""
    needed: list[tuple[int, int]] = []
    for sentence in sentences:
        keyboard.end_sentence()
        for word in sentence:
            for character in word:
                if word in keyboard.suggest():
                    break
                keyboard.type(character)
            needed.append((len(word), len(keyboard.typed)))
            keyboard.finish(word)
    return needed


def add_options(parser: Parser) -> None:
    parser.add_argument("--global", dest="model", type=Path, required=True)
    parser.add_argument("--blogs", type=Path, required=True, help="a .jsonl.gz that names authors")
    parser.add_argument("--skip", type=int, default=3, help="authors that were used for tuning")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=0.0, help="of a step; 0: as `mdl type`")
    parser.add_argument("--filtered", action="store_true", help="only words that begin as typed, as `mdl type` does")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure each author with and without learning. Raises DataError."""
    torch.set_num_threads(1)
    sheet.tell(measure(options))
    gains = list(sheet.figures["gains"].items())[1:]
    rows = [(arm, f"{gain:+.1%}", f"{last:+.1%}") for arm, (gain, last) in gains]
    show((f"median of {len(sheet.figures['rows'])}", "of all words", "of the last tenth"), rows)


def measure(options: Namespace) -> dict[str, Any]:
    names = authors_of(options.blogs)[options.skip :][: options.count]
    arms = ARMS if options.filtered else ARMS[:2]
    rows: list[list[list[float]]] = []
    for name in names:
        began = time.process_time()
        said = read_sentences(options.blogs, name, options.words)
        rows.append([type_author(options, arm, said) for arm in arms])
        told = ", ".join(f"{arm} {_told(found)}" for arm, found in zip(arms, rows[-1], strict=True))
        print(f"{name:>10}: {told} ({time.process_time() - began:.0f} s)", file=sys.stderr, flush=True)
    gains = {arm: [median(row[number][at] / row[0][at] - 1 for row in rows) for at in (0, PARTS)] for number, arm in
             enumerate(arms)}  # fmt: skip
    return {"words": options.words, "rate": options.rate, "filtered": options.filtered,
            "gains": gains, "authors": names, "rows": rows}  # fmt: skip


def type_author(options: Namespace, arm: str, said: Sentences) -> list[float]:
    """Top-3 efficiency of all words, and of each tenth of them."""
    model, described = load_next_word(options.model)
    model.eval()
    rate = options.rate or online_rate(model)
    learner = None if arm == ARMS[0] else OnlineLearner(model.output.requires_grad_(False), rate)
    keyboard = Keyboard(model, described.table, learner, filtered=options.filtered, recent=arm == ARMS[2])
    needed = type_sentences(keyboard, said)
    tenths = [needed[len(needed) * at // PARTS : len(needed) * (at + 1) // PARTS] for at in range(PARTS)]
    return [_efficiency(part) for part in (needed, *tenths)]


def _efficiency(needed: Sequence[tuple[int, int]]) -> float:
    return efficiency([length for length, _ in needed], [typed for _, typed in needed])


def _told(found: Sequence[float]) -> str:
    return f"{found[0]:.3f} (last tenth {found[PARTS]:.3f})"
