"""The techniques together (DeepType 5.6, Fig. 6): one person's model from a global one and their own text.

A `TextTask` is the text as the data of a `Study`: the batches of its samples, and the loss of a batch.
Layer compression is not among the techniques here: it happens once, to the global model, which is trained again before
it is handed out (`compress_global`). Here the vocabulary is fitted first, since it needs the person's words; then the
model learns.

Later a new shared model comes, and the personal part is brought to it: the difference to the one it began with. Each
parameter becomes new + (personal - old), row by row of the words that all three have. So the shared layers become the
new ones, the personal last layer keeps what it learned on top of the shared one, and the person's own words keep their
rows. This holds if the new model went on from the old one: a model with another start has other features, to which a
difference means nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from mdl.errors import ConfigError
from mdl.peers.deeptype.model.compression import (
    LEAST_USES,
    PERSONAL_WORDS,
    LayerUse,
    VocabularyChange,
    begin_rows,
    factor_embedding,
    factor_linear,
    keep_all,
    keep_used,
    replace_layer,
    swap_unused,
    take_rows,
)
from mdl.peers.deeptype.model.efficiency import Alphabet
from mdl.peers.deeptype.model.next_word import (
    NextWordModel,
    StepRows,
    count_once,
    draw_classes,
    mean_loss,
    sample_rows,
    sampled_loss,
    shared_rows,
    size_of,
)
from mdl.peers.deeptype.model.study import FeatureTask, Study, StudySettings, tune_all, tune_only
from mdl.peers.deeptype.model.text import (
    BUCKETS,
    MOST_STEPS,
    UNKNOWN,
    Ids,
    Text,
    TokenTable,
    batch_pieces,
    collate,
    collate_pieces,
    cut_pieces,
    draw_bucketed,
    draw_exact,
    draw_longest,
    iterate_pieces,
    list_samples,
)

# Batches of samples: padded to 30; within four buckets; to a batch's longest; of one length without padding (5.3); or
# whole pieces with the shared history of their samples.
Batching: TypeAlias = Literal["padded", "buckets", "longest", "exact", "shared"]
# Numbers of pieces; or of samples, and the number of steps to which they are padded.
Batch: TypeAlias = Ids | tuple[Ids, int]
# Limit of cached features: 70,000 words of 400 units take 0.3 GB in half precision.
LARGEST_CACHE_BYTES = 1 << 30
_CACHE_BATCH = 256
# Words that suffice to see the last layer's inputs: some 120,000 steps, of 400 numbers each.
WATCHED_WORDS = 30_000
# A class that this text does not use counts half as much as one that it uses once.
_UNUSED = 0.5
# Numbers of a batch that seed its draw: enough that hardly two batches begin alike.
_SEED_NUMBERS = 4


class TextTask:
    """Next words of a text, in batches of about `size` words.

    sampled: classes that a loss computes, 0 for all. once: steps of a word's history are not learned again with it.
    """

    def __init__(
        self, model: NextWordModel, text: Text, batching: Batching, size: int, sampled: int = 0, once: bool = False
    ) -> None:
        self._model, self._batching, self._size, self._sampled = model, batching, size, sampled
        self._once = once
        self._pieces = cut_pieces(text)
        self._samples = list_samples(self._pieces)
        self._classes = size_of(model).classes

    def draw(self, generator: np.random.Generator) -> Sequence[Batch]:
        match self._batching:
            case "shared":
                return batch_pieces(self._pieces, self._size, generator)
            case "exact":
                return draw_exact(self._samples, self._size, generator)
            case "longest":
                return draw_longest(self._samples, self._size, generator)
            case "buckets":
                return draw_bucketed(self._samples, self._size, generator, BUCKETS)
            case "padded":
                return draw_bucketed(self._samples, self._size, generator, (MOST_STEPS,))

    def loss(self, batch: Batch) -> Tensor:
        if isinstance(batch, tuple):
            return self._mean(sample_rows(self._model, collate(self._samples, *batch)), batch[0])
        return self._mean(shared_rows(self._model, collate_pieces(self._pieces, batch)), batch)

    def _mean(self, rows: StepRows, batch: Ids) -> Tensor:
        rows = count_once(rows) if self._once else rows
        if not self._sampled:
            return mean_loss(self._model.output, rows)
        # The seed comes from the batch alone: a saved study draws the same after it is resumed.
        generator = np.random.default_rng(batch[:_SEED_NUMBERS])
        return sampled_loss(self._model.output, rows, *draw_classes(self._classes, self._sampled, generator))


def cache_text(
    model: NextWordModel, text: Text, size: int, once: bool = False, largest: int = LARGEST_CACHE_BYTES
) -> FeatureTask:
    """Cache a text's features for all epochs of tuning the last layer, in half precision: an extra, not the paper's.

    Raises ConfigError if they take more than `largest` bytes.
    """
    features, targets, weights, owner = list[Tensor](), list[Tensor](), list[Tensor](), list[Ids]()
    taken = 0
    with torch.no_grad():
        for words, batch in iterate_pieces(cut_pieces(text), _CACHE_BATCH):
            rows = shared_rows(model, batch)
            rows = count_once(rows) if once else rows
            taken += 2 * rows.features.numel()
            if taken > largest:
                raise ConfigError(
                    f"the features of {len(text)} words take more than {largest >> 20} MB: do not cache them"
                )
            features.append(rows.features.half())
            targets.append(rows.targets)
            weights.append(rows.weights)
            # History that a piece took over counts for its first sample.
            first = torch.searchsorted(batch.sample_piece, rows.piece)
            owner.append(words[torch.where(rows.sample < 0, first, rows.sample).numpy()])
    together = (torch.cat(features), torch.cat(targets), torch.cat(weights)) if features else _nothing(model)
    return FeatureTask(model.output, *together, np.concatenate([*owner, np.zeros(0, np.int64)]), size)


def _nothing(model: NextWordModel) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(0, model.hidden), torch.zeros(0, dtype=torch.int64), torch.zeros(0)


def watch_last_layer(model: NextWordModel, text: Text, words: int = WATCHED_WORDS) -> LayerUse:
    """Return the last layer's inputs in the first words of a text, and the use of each class in all of it."""
    total, weight = torch.zeros(model.hidden, model.hidden), 0.0
    with torch.no_grad():
        for _, batch in iterate_pieces(cut_pieces(text.first(words)), _CACHE_BATCH):
            rows = shared_rows(model, batch)
            total += (rows.features * rows.weights[:, None]).T @ rows.features
            weight += float(rows.weights.sum())
    uses = np.bincount(text.classes, minlength=size_of(model).classes).astype(np.float32)
    return LayerUse(total / max(weight, 1.0), torch.from_numpy(uses).clamp_min(_UNUSED))


# Measured on three authors of the blogs, as `docs/results.md` tells.
_RATE, _FACTORED_RATE, _ADAM_RATE = 1.0, 0.2, 0.001
_ONLINE_RATE, _FACTORED_ONLINE_RATE = 1.0, 0.05
# The least number of words with a new one's beginning: the mean of one or two would be theirs, not the beginning's.
_ALIKE = 4
# Likeness of the layers between embedding and last one. Models from two seeds have 0; after ten epochs on other text
# 0.9.
LEAST_ALIKE = 0.5
_WORD_ROWS = ("embed.weight", "embed.table.weight", "output.weight", "output.widen.weight", "output.bias",
              "output.widen.bias")  # fmt: skip


class Techniques(msgspec.Struct, frozen=True):
    """The paper's techniques, each switched by itself.

    fine_tune: only the last layer learns (5.4). words: the size of the compressed vocabulary (5.2), 0 for all.
    least_uses: of a word that replaces an unused one (4), 0 for none. batching: "exact" is 5.3; "padded" the paper's
    baseline; "shared" our extra. cache: features of the last layer are computed once; an extra, too. once: each sample
    teaches its own word alone, not those before it again (`count_once`); an extra.
    """

    fine_tune: bool = True
    words: int = PERSONAL_WORDS
    least_uses: int = LEAST_USES
    batching: Batching = "exact"
    cache: bool = False
    once: bool = False


def compress_global(model: NextWordModel, rank: int, text: Text | None = None) -> None:
    """Compress embedding and last layer by SVD (5.1), in place; train the model again afterwards.

    text: its training text; the last layer then keeps the directions that matter for it (`Seen`, ours). rank: 0, or the
    present one, changes nothing. Raises ConfigError if the model is of another rank already.
    """
    embed, output, has = model.embed, model.output, size_of(model).rank
    if rank in (0, has):
        return
    if not isinstance(embed, nn.Embedding) or not isinstance(output, nn.Linear):
        raise ConfigError(f"--rank {rank}: the model is compressed to rank {has} already")
    seen = None if text is None else watch_last_layer(model, text)
    model.embed, model.output = factor_embedding(embed, rank), factor_linear(output, rank, seen)


def count_words(sentences: list[list[str]]) -> Counter[str]:
    """Count a person's uses of each word."""
    return Counter(word for sentence in sentences for word in sentence)


def plan_words(table: TokenTable, uses: Mapping[str, int], techniques: Techniques) -> VocabularyChange:
    """Plan the words of the personal table: dynamic vocabulary first, then compression."""
    change = keep_all(table.words)
    if techniques.least_uses:
        change = swap_unused(table.words, uses, techniques.least_uses)
    if techniques.words:
        # `<unk>` is one of them.
        change = change.then(keep_used(change.names, uses, techniques.words - 1))
    return change


def change_words(model: NextWordModel, table: TokenTable, change: VocabularyChange) -> TokenTable:
    """Apply a change of a table's words to its model, in place; return the new table. Characters stay.

    A new word is read like `<unk>` before, and suggested like words with the same beginning: the LSTM tells these apart
    by the typed characters.
    """
    # `<unk>` is row 0 of both, the words follow.
    classes = np.concatenate([[UNKNOWN], change.rows + 1])
    characters = np.arange(table.classes, table.size)
    output, embed = take_rows(model.output, classes), take_rows(model.embed, np.concatenate([classes, characters]))
    known, alphabet = set(table.words), Alphabet(table)
    alike = {row: alphabet.alike(name, _ALIKE) for row, name in enumerate(change.names, 1) if name not in known}
    begin_rows(output, model.output, alike)
    begin_rows(embed, model.embed, dict.fromkeys(alike, (UNKNOWN,)))
    replace_layer(model, "output", output)
    replace_layer(model, "embed", embed)
    return TokenTable(change.names, table.characters)


def suit_rate(settings: StudySettings, model: NextWordModel) -> StudySettings:
    """Return the settings with a learning rate for a person's own text, if they have none (0).

    SGD is the default, as in the tutorial that the paper's model follows. A night is few steps, and in the first of
    them Adam moves the rows of unused words as far as those of used ones. A factored layer multiplies a step's change.
    """
    if settings.learning_rate:
        return settings
    sgd = _FACTORED_RATE if size_of(model).rank else _RATE
    return msgspec.structs.replace(settings, learning_rate=sgd if settings.optimizer == "sgd" else _ADAM_RATE)


def online_rate(model: NextWordModel) -> float:
    """Return the rate for an `OnlineLearner` of this model's last layer."""
    return _FACTORED_ONLINE_RATE if size_of(model).rank else _ONLINE_RATE


def begin_study(model: NextWordModel, text: Text, techniques: Techniques, settings: StudySettings) -> Study:
    """Begin incremental training of a model with a fitted vocabulary; text: of its table.

    Raises ConfigError if cached features are asked for although other layers learn, or take too much memory.
    """
    parameters = tune_only(model, "output") if techniques.fine_tune else tune_all(model)
    if techniques.fine_tune and techniques.cache:
        return Study(parameters, cache_text(model, text, settings.batch, techniques.once), settings)
    task = TextTask(model, text, techniques.batching, settings.batch, once=techniques.once)
    return Study(parameters, task, settings)


@torch.no_grad()
def rebase(
    personal: NextWordModel,
    table: TokenTable,
    old: tuple[NextWordModel, TokenTable],
    new: tuple[NextWordModel, TokenTable],
) -> None:
    """Bring `personal`, which began with `old`, to `new`, in place. Its words stay.

    Raises ConfigError if the models have other sizes, or `new` did not go on from `old`.
    """
    shapes = {(size.hidden, size.layers, size.rank) for size in map(size_of, (personal, old[0], new[0]))}
    if len(shapes) > 1:
        raise ConfigError(f"the new shared model has another size: (units, layers, rank) are {sorted(shapes)}")
    before, after, own = old[0].state_dict(), new[0].state_dict(), personal.state_dict()
    if _likeness(before, after) < LEAST_ALIKE:
        raise ConfigError(
            "the new shared model did not go on from the one that this personal model began with. `mdl personal train "
            "TEXT --model NEW` learns it again from text"
        )
    tables = old[1], new[1]
    words = _common([name.word(row) for name in (table,) for row in range(table.classes)],
                    *([name.word(row) for row in range(name.classes)] for name in tables))  # fmt: skip
    letters = _common(list(table.characters), *(list(each.characters) for each in tables))
    first = torch.tensor([[each.classes] for each in (table, *tables)])
    # The row for any other character is the last of all.
    other = torch.tensor([[each.size - 1] for each in (table, *tables)])
    tokens = torch.cat([words, letters + first, other], dim=1)
    for name, values in own.items():
        if name not in _WORD_ROWS:
            values += after[name] - before[name]
            continue
        mine, was, is_now = tokens if name.startswith("embed") else words
        values[mine] += after[name][is_now] - before[name][was]


def _common(mine: list[str], *others: list[str]) -> Tensor:
    """Return the places of each name that all lists have, int64 (1 + others, n)."""
    places = [{name: place for place, name in enumerate(names)} for names in (mine, *others)]
    shared = [name for name in mine if all(name in each for each in places)]
    return torch.tensor([[each[name] for name in shared] for each in places], dtype=torch.int64)


def _likeness(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Return the cosine between the layers with the same shape in both, whatever their words are."""
    one, other = (torch.cat([state[n].flatten() for n in state if n.startswith("lstm")]) for state in (before, after))
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))
