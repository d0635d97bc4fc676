"""Table 1 of DeepType (IMWUT 2018), as far as one core can: authors' own models against the public one and n-grams.

    python benchmarks/deeptype_authors.py --global tweets.safetensors --compressed tweets40.safetensors \
        --blogs blogs_50.jsonl.gz --corpus tweets.txt.gz --skip 3 --count 6 --words 60000 --out authors.json

Each author's words in the order of time: the first --words are learned, the next --test are the test. "everything"
begins with the compressed model. The control learns another author's words. The first --skip authors are for tuning.
Rows are written to --out as they are made, and rows that are there are not made again. Intervals are 95 % of a
bootstrap over authors of the median of paired ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.deeptype import authors_of
from mdl.errors import MdlError
from mdl.personal.output_layer import tune_all, tune_only
from mdl.personal.study import Study, StudySettings
from mdl.personal.words.efficiency import Alphabet, evaluate_next_word
from mdl.personal.words.mixture import evaluate_mixture
from mdl.personal.words.model_file import load_next_word
from mdl.personal.words.next_word import NextWordModel
from mdl.personal.words.ngrams import count_ngrams, evaluate_ngrams
from mdl.personal.words.personalise import Techniques, change_words, count_words, plan_words
from mdl.personal.words.text import TokenTable, encode
from mdl.personal.words.text_task import TextTask
from peers.personal.train import Sentences, read_sentences

Row: TypeAlias = dict[str, float]

UNPERSONALISED, CONTROL = "unpersonalised", "another author's words"
_DRAWS = 10_000


def main() -> int:
    options = _parse_options()
    torch.set_num_threads(1)
    try:
        rows = run(options)
    except MdlError as error:
        print(f"deeptype_authors: {error}", file=sys.stderr)
        return error.exit_code
    summary = summarise(rows)
    _show(summary, len(rows))
    print(json.dumps({"part": "authors", "words": options.words, "test": options.test, "authors": len(rows),
                      "summary": summary}))  # fmt: skip
    return 0


def run(options: argparse.Namespace) -> list[Row]:
    """A row an author; written as soon as it is there."""
    made: dict[str, Row] = json.loads(options.out.read_text()) if options.out.exists() else {}
    corpus = read_sentences(options.corpus, limit=options.corpus_words)
    names = authors_of(options.blogs)[options.skip :][: options.count + 1]
    for name, other in pairwise(names):
        began, row = time.process_time(), made.setdefault(name, {})
        for _ in run_author(options, row, name, other, corpus):
            options.out.write_text(json.dumps(made))
        print(f"author {len(made)}: {time.process_time() - began:.0f} s, {_told(row)}", file=sys.stderr)
    return [made[name] for name in names if name in made]


def run_author(options: argparse.Namespace, row: Row, name: str, other: str, corpus: Sentences) -> Iterator[None]:
    """Add what the row has not yet; gives way after each part."""
    sentences = read_sentences(options.blogs, name, options.words + options.test)
    mine, held_out = _cut(sentences, options.words)
    theirs = read_sentences(options.blogs, other, options.words)
    if UNPERSONALISED not in row:
        model, described = load_next_word(options.model)
        _test(row, UNPERSONALISED, model, described.table, held_out)
        yield
    last, every = Techniques(True, 0, 3, "shared"), Techniques(False, 0, 3, "shared")
    for label, start, techniques, said in (
        ("last layer", options.model, last, mine),
        ("all layers", options.model, every, mine),
        ("everything", options.compressed, Techniques(True, options.keep, 3, "shared"), mine),
        (CONTROL, options.model, last, theirs),
    ):
        if label in row or (label == CONTROL and options.no_control):
            continue
        model, table = personalise(options, start, techniques, said)
        _test(row, label, model, table, held_out)
        yield
        if label == "all layers":
            _test_ngrams(row, options, model, table, mine, held_out, corpus)
            yield


def personalise(
    options: argparse.Namespace, start: Path, techniques: Techniques, said: Sentences
) -> tuple[NextWordModel, TokenTable]:
    model, described = load_next_word(start)
    table = change_words(model, described.table, plan_words(described.table, count_words(said), techniques))
    learned = tune_only(model, "output") if techniques.fine_tune else tune_all(model)
    settings = StudySettings(options.epochs, options.batch, "adam", options.rate, decay=0.5)
    Study(learned, TextTask(model, encode(said, table), "shared", options.batch, options.sampled), settings).run()
    return model, table


def _test(row: Row, label: str, model: NextWordModel, table: TokenTable, held_out: Sentences) -> None:
    found = evaluate_next_word(model, encode(held_out, table), 3, Alphabet(table))
    row[label], row[f"{label}, filtered"] = found.efficiency, found.filtered


def _test_ngrams(
    row: Row,
    options: argparse.Namespace,
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
        row[f"3-grams, {label}"], row[f"3-grams, {label}, filtered"] = evaluate_ngrams(ngrams, text, alphabet)
    row["all layers with merged 3-grams, filtered"] = evaluate_mixture(model, merged, text, alphabet)


def summarise(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Of each label that all rows have: the median, and the median ratio to the unpersonalised model, its interval."""
    labels = [label for label in rows[0] if all(label in row for row in rows)]
    return {label: {"median": median(row[label] for row in rows), **ratio(rows, label, UNPERSONALISED)} for label in
            labels} | {f"{one} / {other}": ratio(rows, one, other) for one, other in (
                ("last layer", "all layers"), ("everything", "all layers"),
                ("all layers with merged 3-grams, filtered", "3-grams, merged, filtered"),
                ("all layers with merged 3-grams, filtered", "all layers, filtered"))}  # fmt: skip


def ratio(rows: list[Row], one: str, other: str) -> dict[str, float]:
    """Median of paired ratios less 1, and 95 % of a bootstrap over authors."""
    ratios = np.array([row[one] / row[other] - 1 for row in rows])
    drawn = np.random.default_rng(1).integers(0, len(ratios), (_DRAWS, len(ratios)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
    return {"gain": float(np.median(ratios)), "low": float(low), "high": float(high)}


def _cut(sentences: Sentences, words: int) -> tuple[Sentences, Sentences]:
    total = np.cumsum([len(sentence) for sentence in sentences])
    at = int(np.searchsorted(total, words))
    return sentences[:at], sentences[at:]


def _told(row: Row) -> str:
    return ", ".join(f"{label} {value:.3f}" for label, value in row.items())


def _show(summary: dict[str, dict[str, float]], authors: int) -> None:
    print(f"{'':<70} {'median':>7} {'gain':>7}   95 %   ({authors} authors)")
    for label, found in summary.items():
        shown = f"{found['median']:>7.3f}" if "median" in found else " " * 7
        print(f"{label:<70} {shown} {found['gain']:>+7.1%}   {found['low']:+.1%} to {found['high']:+.1%}")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--global", dest="model", type=Path, required=True)
    parser.add_argument("--compressed", type=Path, required=True, help="the same after `pretrain --rank`")
    parser.add_argument("--blogs", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True, help="what the global model learned, for n-grams")
    parser.add_argument("--corpus-words", type=int, default=1_100_000)
    parser.add_argument("--skip", type=int, default=3, help="authors that were used for tuning")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--no-control", action="store_true", help="leave another author's words out")
    parser.add_argument("--words", type=int, default=60_000)
    parser.add_argument("--test", type=int, default=4_000)
    parser.add_argument("--keep", type=int, default=5_000, help="words that vocabulary compression keeps")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.002, help="of Adam; half of it in each next epoch")
    parser.add_argument("--sampled", type=int, default=1_000, help="words that a step scores, 0 for all")
    parser.add_argument("--own-weight", type=float, default=5.0, help="of a person's counts among the public's")
    parser.add_argument("--out", type=Path, default=Path("deeptype_authors.json"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
