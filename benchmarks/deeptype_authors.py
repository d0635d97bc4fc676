"""DeepType (IMWUT 2018), Tables 1 and 2 and Figures 7 and 8, as far as one core can: people's own models.

    python -m benchmarks deeptype_authors --global tweets=tweets.safetensors bbc=bbc.safetensors \
        --compressed tweets40.safetensors --blogs blogs_50.jsonl.gz --corpus tweets.txt.gz --count 6 --out authors.json

Each author's words in the order of time: the first --words, or --share of all, are learned, the next --test are the
test. With --share the gain is told apart for the quarter who wrote most and the one who wrote least. Techniques and
amounts of data are measured on the first public model; its compressed one begins "all techniques" and "layers
compressed"; with compressed layers or a compressed vocabulary alone all layers learn. The control learns another
author's words. The first --skip authors are for tuning. Rows are written to the file of --out as they are made, and
rows that are there are not made again. Intervals are 95 % of a bootstrap over authors of the median of paired ratios.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
import torch

from benchmarks.deeptype import authors_of
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.peers.deeptype.model.efficiency import Alphabet, evaluate_next_word
from mdl.peers.deeptype.model.keyboard import count_ngrams, evaluate_mixture, evaluate_ngrams
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel, NextWordSize, build_next_word
from mdl.peers.deeptype.model.personalise import (
    Techniques,
    begin_study,
    change_words,
    count_words,
    plan_words,
    suit_rate,
)
from mdl.peers.deeptype.model.study import StudySettings
from mdl.peers.deeptype.model.text import TokenTable, build_table, encode
from mdl.peers.deeptype.train import Sentences, read_sentences

Row: TypeAlias = dict[str, float]

SAME_WORDS = "words of the model alone"
WORDS = "words"
_DRAWS = 10_000
# Words are cut between sentences: authors who wrote as much as each other differ by so much.
_SENTENCE = 0.02
LAST_LAYER = Techniques(fine_tune=True, words=0, cache=True, once=True)
ALL_LAYERS = Techniques(fine_tune=False, words=0, batching="shared", once=True)


@dataclass(frozen=True)
class Arm:
    """One way to a person's model. start: of a file, None begins from nothing. part: of the author's words, learned.

    others: another author's words are learned.
    """

    start: Path | None
    part: float
    techniques: Techniques = LAST_LAYER
    others: bool = False


def add_options(parser: Parser) -> None:
    parser.add_argument("--global", dest="models", type=_named, nargs="+", required=True, help="NAME=FILE, some")
    parser.add_argument("--compressed", type=Path, help="the first one after `pretrain --rank`")
    parser.add_argument("--blogs", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True, help="what the first one learned, for n-grams")
    parser.add_argument("--corpus-words", type=int, default=850_000)
    parser.add_argument("--skip", type=int, default=3, help="authors that were used for tuning")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--only", nargs="+", default=[], metavar="LABEL", help="of the rows: these alone")
    parser.add_argument("--words", type=int, default=60_000)
    parser.add_argument("--share", type=float, default=0.0, help="of each author's words, in place of --words")
    parser.add_argument("--test", type=int, default=4_000)
    parser.add_argument("--keep", type=int, default=5_000, help="words that vocabulary compression keeps")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="words of a model that begins from nothing")
    parser.add_argument("--hidden", type=int, default=128, help="its units")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--rate", type=float, default=0.0, help="0: what suits the optimizer and the model")
    parser.add_argument("--decay", type=float, default=0.5, help="of the rate, an epoch")
    parser.add_argument("--bfloat16", action="store_true", help="layers are computed in it")
    parser.add_argument("--own-weight", type=float, default=5.0, help="of a person's counts among the public's")
    parser.add_argument("--models-out", type=Path, help="a folder that keeps the models, LABEL.AUTHOR.safetensors")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure the rows that the file of --out lacks. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    options.models = dict(options.models)
    rows = make_rows(options, sheet)
    summary = summarise(rows, next(iter(options.models)))
    sheet.tell({"words": options.words, "test": options.test, "authors": len(rows), "summary": summary})
    told = [
        (label, f"{found['median']:.3f}" if "median" in found else None, f"{found['gain']:+.1%}",
         f"{found['low']:+.1%} to {found['high']:+.1%}")
        for label, found in summary.items()
    ]  # fmt: skip
    show((f"{len(rows)} authors", "median", "gain", "95 %"), told)


def list_arms(options: Namespace) -> dict[str, Arm]:
    """By label. The first public model is the one that techniques and amounts of data are measured on."""
    first, start = next(iter(options.models.items()))
    arms: dict[str, Arm] = {first: Arm(start, 0), f"{first}, personal": Arm(start, 1)}
    if options.compressed:
        everything = Techniques(True, options.keep, cache=True, once=True)
        arms[f"{first}, all techniques"] = Arm(options.compressed, 1, everything)
        arms[f"{first}, layers compressed"] = Arm(options.compressed, 1, ALL_LAYERS)
    arms |= {
        f"{first}, another's words": Arm(start, 1, others=True),
        f"{first}, {SAME_WORDS}": Arm(start, 1, Techniques(True, 0, 0, cache=True, once=True)),
        f"{first}, half the words": Arm(start, 1 / 2),
        f"{first}, a tenth of the words": Arm(start, 1 / 10),
    }
    for name, path in list(options.models.items())[1:]:
        arms |= {name: Arm(path, 0), f"{name}, personal": Arm(path, 1)}
    return arms | {
        f"{first}, all layers": Arm(start, 1, ALL_LAYERS),
        f"{first}, vocabulary compressed": Arm(start, 1, Techniques(False, options.keep, batching="shared", once=True)),
        "nothing, personal": Arm(None, 1, ALL_LAYERS),
    }


def make_rows(options: Namespace, sheet: Sheet) -> list[Row]:
    """A row an author; written as soon as a part of it is there."""
    made: dict[str, Row] = sheet.before().get("rows", {})
    sheet.tell({"rows": made})
    corpus = read_sentences(options.corpus, limit=options.corpus_words)
    names = authors_of(options.blogs)[options.skip :][: options.count + 1]
    arms = {label: arm for label, arm in list_arms(options).items() if not options.only or label in options.only}
    for label, arm in arms.items():
        for name, other in pairwise(names):
            row, began = made.setdefault(name, {}), time.process_time()
            if label in row:
                continue
            mine, held_out = split(options, name)
            row[WORDS] = sum(map(len, mine))
            said = split(options, other)[0] if arm.others else mine
            model, table = personalise(options, arm, said)
            if options.models_out:
                options.models_out.mkdir(parents=True, exist_ok=True)
                save_next_word(options.models_out / f"{file_name(label)}.{name}.safetensors", model, table)
            found = evaluate_next_word(model, encode(held_out, table), 3, Alphabet(table))
            row |= {label: found.efficiency, f"{label}, filtered": found.filtered}
            if label == f"{next(iter(options.models))}, personal":
                _test_ngrams(row, options, model, table, mine, held_out, corpus)
            sheet.save()
            took = time.process_time() - began
            print(f"{name}, {label}: {found.efficiency:.3f}, {found.filtered:.3f} ({took:.0f} s)", file=sys.stderr)
    return [made[name] for name in names[:-1]]


def personalise(options: Namespace, arm: Arm, said: Sentences) -> tuple[NextWordModel, TokenTable]:
    """The last part of what was said is learned."""
    if arm.start is None:
        table = build_table(said, options.vocabulary)
        model = build_next_word(NextWordSize(table.classes, table.size, options.hidden), 0)
    else:
        model, described = load_next_word(arm.start)
        table = described.table
    if not arm.part:
        return model, table
    said = cut(said, round(sum(map(len, said)) * (1 - arm.part)))[1]
    if arm.start is not None:
        table = change_words(model, table, plan_words(table, count_words(said), arm.techniques))
    settings = StudySettings(
        options.epochs, options.batch, options.optimizer, options.rate, options.decay, bfloat16=options.bfloat16
    )
    begin_study(model, encode(said, table), arm.techniques, suit_rate(settings, model)).run()
    return model, table


def _test_ngrams(
    row: Row,
    options: Namespace,
    model: NextWordModel,
    table: TokenTable,
    mine: Sentences,
    held_out: Sentences,
    corpus: Sentences,
) -> None:
    text, alphabet = encode(held_out, table), Alphabet(table)
    own, public = (count_ngrams(encode(said, table), table.classes) for said in (mine, corpus))
    merged = public.merged(own, options.own_weight)
    for label, ngrams in (("user", own), ("global", public), ("merged", merged)):
        for order in (1, 2, 3):
            found = evaluate_ngrams(ngrams.up_to(order), text, alphabet)
            row[f"{order}-grams, {label}"], row[f"{order}-grams, {label}, filtered"] = found
    row["personal with merged 3-grams, filtered"] = evaluate_mixture(model, merged, text, alphabet)


def summarise(rows: list[Row], first: str) -> dict[str, dict[str, float]]:
    """Of each label that all rows have: the median, and the median ratio to the first public model, its interval.

    With --only, and without that model: to the first of them.
    """
    labels = [label for label in rows[0] if label != WORDS and all(label in row for row in rows)]
    personal, grams, mixed = f"{first}, personal", "3-grams, merged, filtered", "personal with merged 3-grams, filtered"
    pairs = [(label, label.removesuffix(", personal")) for label in labels if label.endswith(", personal")]
    pairs += [(f"{first}, all techniques", personal)]
    fewer = (personal, *(f"{first}, {by} compressed" for by in ("layers", "vocabulary")), f"{first}, all techniques")
    pairs += [(label, f"{first}, all layers") for label in fewer]
    pairs += [(mixed, grams), (mixed, f"{personal}, filtered")]
    base = first if first in labels else labels[0]
    told = {label: {"median": median(row[label] for row in rows), **ratio(rows, label, base)} for label in labels}
    told |= {f"{one} / {other}": ratio(rows, one, other) for one, other in pairs if {one, other} <= set(labels)}
    ranked, quarter = sorted(rows, key=lambda row: row[WORDS]), len(rows) // 4
    if quarter and ranked[0][WORDS] < (1 - _SENTENCE) * ranked[-1][WORDS] and {personal, first} <= set(labels):
        for group, some in (("least", ranked[:quarter]), ("most", ranked[-quarter:])):
            told[f"{personal} / {first}, who wrote {group}"] = ratio(some, personal, first)
    return told


def ratio(rows: list[Row], one: str, other: str) -> dict[str, float]:
    """Median of paired ratios less 1, and 95 % of a bootstrap over authors."""
    ratios = np.array([row[one] / row[other] - 1 for row in rows])
    drawn = np.random.default_rng(1).integers(0, len(ratios), (_DRAWS, len(ratios)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
    return {"gain": float(np.median(ratios)), "low": float(low), "high": float(high)}


def file_name(label: str) -> str:
    return label.replace(" ", "-")


def split(options: Namespace, author: str) -> tuple[Sentences, Sentences]:
    """What an author's model learns, and what it is tested with."""
    if not options.share:
        return cut(read_sentences(options.blogs, author, options.words + options.test), options.words)
    written = read_sentences(options.blogs, author)
    mine, rest = cut(written, int(options.share * sum(map(len, written))))
    return mine, cut(rest, options.test)[0]


def cut(sentences: Sentences, words: int) -> tuple[Sentences, Sentences]:
    total = np.cumsum([len(sentence) for sentence in sentences])
    at = int(np.searchsorted(total, words))
    return sentences[:at], sentences[at:]


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)
