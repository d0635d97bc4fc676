"""DeepType (IMWUT 2018), Figures 1b and 2: a network and n-grams by how much text they learned from.

    python -m benchmarks deeptype_amounts --corpus tweets.txt.gz --amounts 50000 200000 800000 --test 20000

The first words of the corpus are learned, its last --test words tested. The network learns by Adam, --sampled words
scored a step, then once more, with all words scored, the last --finish words that it learned. n-grams are counted over
the same words with the same table. "+char": only words that begin as typed are suggested, as in the paper. Rows are
written to the file of --out as they are made, and rows that are there are not made again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from benchmarks.deeptype_authors import cut
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.errors import ConfigError
from mdl.peers.deeptype.model.efficiency import Alphabet, evaluate_next_word
from mdl.peers.deeptype.model.keyboard import count_ngrams, evaluate_ngrams
from mdl.peers.deeptype.model.next_word import NextWordModel, NextWordSize, build_next_word
from mdl.peers.deeptype.model.personalise import TextTask
from mdl.peers.deeptype.model.study import Study, StudySettings, tune_all
from mdl.peers.deeptype.model.text import build_table, encode
from mdl.peers.deeptype.train import Sentences, read_sentences

# Top-3 efficiency of its network by millions of words (3.2).
PAPER = {1_000_000: 0.524, 10_000_000: 0.573}


def add_options(parser: Parser) -> None:
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--amounts", type=int, nargs="+", default=[50_000, 200_000, 800_000])
    parser.add_argument("--test", type=int, default=20_000, help="words, the last of the corpus")
    parser.add_argument("--words", type=int, default=10_000, help="of the table")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--sampled", type=int, default=1500)
    parser.add_argument("--finish", type=int, default=60_000, help="words that are learned once more, all scored")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--seed", type=int, default=0)


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure the amounts that the file of --out lacks. Raises ConfigError, DataError."""
    torch.set_num_threads(1)
    made: dict[str, dict[str, float]] = sheet.before().get("rows", {})
    sentences = read_sentences(options.corpus)
    total = sum(map(len, sentences))
    if max(options.amounts) + options.test > total:
        raise ConfigError(f"{options.corpus} has {total} words: too few for {max(options.amounts)} and a test")
    held_out = cut(sentences, total - options.test)[1]
    sheet.tell({"test": options.test, "rows": made})
    for amount in options.amounts:
        if str(amount) not in made:
            made[str(amount)] = row = _measure_amount(options, cut(sentences, amount)[0], held_out)
            sheet.save()
            print(f"{amount} words: {row['network']:.3f} ({row['seconds']:.0f} s)", file=sys.stderr)
    rows = {amount: made[str(amount)] for amount in options.amounts}
    labels = next(iter(rows.values()))
    told = [
        (label.replace(", filtered", " +char"), *(f"{row[label]:.3f}" for row in rows.values())) for label in labels
    ]
    show(("top-3 efficiency", *(f"{amount:,}" for amount in rows)), told)
    print("the paper's network: " + ", ".join(f"{found} of {amount:,} words" for amount, found in PAPER.items()))


def _measure_amount(options: Namespace, learned: Sentences, held_out: Sentences) -> dict[str, float]:
    began, words = time.process_time(), build_table(learned, options.words)
    alphabet, test = Alphabet(words), encode(held_out, words)
    model = build_next_word(NextWordSize(words.classes, words.size, options.hidden), options.seed)
    last = cut(learned, sum(map(len, learned)) - options.finish)[1]
    _learn(model, TextTask(model, encode(learned, words), "shared", options.batch, options.sampled), options, False)
    _learn(model, TextTask(model, encode(last, words), "shared", options.batch), options, True)
    found = evaluate_next_word(model, test, 3, alphabet)
    row = {"network": found.efficiency, "network, filtered": found.filtered, "perplexity": found.perplexity}
    ngrams = count_ngrams(encode(learned, words), words.classes)
    for order in (1, 2, 3):
        row[f"{order}-gram"], row[f"{order}-gram, filtered"] = evaluate_ngrams(ngrams.up_to(order), test, alphabet)
    return row | {"unknown": found.unknown, "seconds": time.process_time() - began}


def _learn(model: NextWordModel, task: TextTask, options: Namespace, is_last: bool) -> None:
    epochs, rate = (1, options.rate / 6) if is_last else (options.epochs, options.rate)
    settings = StudySettings(epochs, options.batch, "adam", rate, seed=options.seed, bfloat16=options.bfloat16)
    Study(tune_all(model), task, settings).run()
