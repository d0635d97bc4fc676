"""Words and characters as tokens of one table (DeepType 2), and text as numbers of that table.

A word is a run of letters with apostrophes inside, in lower case; digits, links and @names are not words. Sentences end
at . ! ? and at the end of a line. Class 0 is `<unk>`, all words that the table lacks; the other words follow, and then
the characters. So classes of the output are the first rows of the embedding.

A sample is made for each typed word: the words before it, then its characters; and batches are made of samples.

    [health, is | p, r, i, c, e, l, e, s, s]  ->  [is, priceless | priceless x 9]

Each step's target is a word: the next one of the sentence at words, the one being typed at characters and before them.
No sample has more than 30 steps. A longer sentence is cut into pieces; a piece begins with some words of the one
before, which are history and no samples again. (The paper cuts each sample at its front. With pieces, all samples of
one begin at the same word, so that their histories can be shared: `prefix`.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids: TypeAlias = NDArray[np.int64]

UNKNOWN = 0
UNKNOWN_WORD = "<unk>"
# Characters fed of a word: one in ten thousand words of written English is longer, most of them "aaaaaah".
LONGEST_WORD = 20
# The paper has about a hundred characters; alphabets of one language have fewer.
MOST_CHARACTERS = 128
# Ten times the paper's table; a file with more is none of ours.
MOST_WORDS = 1 << 18
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?…\r\n]+")
_NOT_TYPED = re.compile(r"(?:https?://|www\.|@)\S+")
_APOSTROPHES = str.maketrans("’‘ʼ`", "''''")

Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


def split_words(line: str) -> Iterator[list[str]]:
    """Yield the sentences of a text, as lists of words; none is empty."""
    line = _NOT_TYPED.sub(" ", line.translate(_APOSTROPHES).lower())
    for sentence in _SENTENCE_END.split(line):
        if words := _WORD.findall(sentence):
            yield words


class TokenTable(msgspec.Struct, frozen=True):
    """The rows of tokens. words: without `<unk>`, the most frequent first. characters: each once."""

    words: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MOST_WORDS)]
    characters: Annotated[str, msgspec.Meta(max_length=MOST_CHARACTERS)]

    @property
    def classes(self) -> int:
        """The number of output classes: the words and `<unk>`."""
        return len(self.words) + 1

    @property
    def size(self) -> int:
        """The number of rows of the embedding: classes, characters, and one for any other character."""
        return self.classes + len(self.characters) + 1

    def word(self, class_id: int) -> str:
        return self.words[class_id - 1] if class_id else UNKNOWN_WORD


class Speller:
    """Looks words and characters up in one table."""

    def __init__(self, table: TokenTable) -> None:
        self.table = table
        self._words = {word: number for number, word in enumerate(table.words, 1)}
        self._characters = {letter: number for number, letter in enumerate(table.characters, table.classes)}

    def word_id(self, word: str) -> int:
        return self._words.get(word, UNKNOWN)

    def character_ids(self, word: str) -> list[int]:
        """Return the rows of the first LONGEST_WORD characters."""
        other = self.table.size - 1
        return [self._characters.get(letter, other) for letter in word[:LONGEST_WORD]]


@dataclass(frozen=True)
class Text:
    """Running words as numbers; each distinct word is spelled once.

    forms: int64 (n,), the distinct word of each running one. starts: (sentences + 1,), the first word of each sentence.
    Fields of distinct words: spelled; class_ids (F,); characters (F, LONGEST_WORD), 0 beyond their end; fed (F,), the
    number of characters fed; lengths (F,), in characters.
    """

    forms: Ids
    starts: Ids
    spelled: tuple[str, ...]
    class_ids: Ids
    characters: Ids
    fed: Ids
    lengths: Ids

    def __len__(self) -> int:
        return len(self.forms)

    def first(self, words: int) -> Text:
        """Return the first sentences, with at most so many words."""
        return self.between(0, words)

    def between(self, first: int, last: int) -> Text:
        """Return the sentences that begin and end between these two running words."""
        low = int(np.searchsorted(self.starts, first))
        high = max(low, int(np.searchsorted(self.starts, last, side="right")) - 1)
        starts = self.starts[low : high + 1]
        return replace(self, forms=self.forms[starts[0] : starts[-1]], starts=starts - starts[0])

    @property
    def classes(self) -> Ids:
        """The class of each running word, int64 (n,)."""
        return self.class_ids[self.forms]


def build_table(sentences: Iterable[Sequence[str]], words: int, counts: Counter[str] | None = None) -> TokenTable:
    """Build a table of the most frequent words, `<unk>` counted too, and all characters (DeepType 2: 20,000 words).

    counts: of the words, if they are counted already. Equally frequent words are sorted.
    """
    counts = counts or Counter(word for sentence in sentences for word in sentence)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    common = sorted(letters, key=lambda letter: (-letters[letter], letter))[:MOST_CHARACTERS]
    return TokenTable(tuple(ranked[: words - 1]), "".join(sorted(common)))


def encode(sentences: Iterable[Sequence[str]], table: TokenTable) -> Text:
    """Encode sentences as numbers of a table; their order stays."""
    speller, known = Speller(table), dict[str, int]()
    forms: list[int] = []
    starts = [0]
    for sentence in sentences:
        forms += [known.setdefault(word, len(known)) for word in sentence]
        starts.append(len(forms))
    characters = np.zeros((len(known), LONGEST_WORD), np.int64)
    for row, word in enumerate(known):
        ids = speller.character_ids(word)
        characters[row, : len(ids)] = ids
    lengths = np.array([len(word) for word in known], np.int64)
    class_ids = np.array([speller.word_id(word) for word in known], np.int64)
    fed = np.minimum(lengths, LONGEST_WORD)
    arrays = np.array(forms, np.int64), np.array(starts, np.int64)
    return Text(*arrays, tuple(known), class_ids, characters, fed, lengths)


# The paper's largest bucket, and all of them for global training (5.3).
MOST_STEPS = 30
BUCKETS = (5, 10, 20, 30)
# Words of history that a piece takes over: as many as leave room for the longest word.
OVERLAP = MOST_STEPS - LONGEST_WORD


@dataclass(frozen=True)
class Pieces:
    """text: the one cut here. start, stop: int64 (P,), the running words of each piece. first: (P,), its first sample.

    Sample i of a piece types its word first + i.
    """

    text: Text
    start: Ids
    stop: Ids
    first: Ids

    @property
    def samples(self) -> Ids:
        """The number of samples of each piece, int64 (P,)."""
        return self.stop - self.first

    def __len__(self) -> int:
        return len(self.start)


def cut_pieces(text: Text, most_steps: int = MOST_STEPS, overlap: int = OVERLAP) -> Pieces:
    """Cut sentences so that no sample has more steps; every word is exactly one sample."""
    fed = text.fed[text.forms]
    rows: list[tuple[int, int, int]] = []
    for begin, end in zip(text.starts[:-1].tolist(), text.starts[1:].tolist(), strict=True):
        start = first = begin
        for word in range(begin, end):
            if word - start + fed[word] > most_steps:
                rows.append((start, word, first))
                start, first = max(start + 1, word - overlap), word
        if end > first:
            rows.append((start, end, first))
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Pieces(text, table[:, 0], table[:, 1], table[:, 2])


def batch_pieces(pieces: Pieces, samples: int, generator: np.random.Generator | None) -> list[Ids]:
    """Return piece numbers in batches of about so many samples each, drawn at random; without a generator in order."""
    if not len(pieces):
        return []
    order = np.arange(len(pieces)) if generator is None else generator.permutation(len(pieces))
    if generator is not None:
        # Neighbours in length make a batch without much padding; batches come in any order.
        words = (pieces.stop - pieces.start)[order]
        order = order[np.argsort(words, kind="stable")]
    ends = np.cumsum(pieces.samples[order])
    batch_of = (ends - 1) // samples
    batches = np.split(order, np.flatnonzero(np.diff(batch_of)) + 1)
    return batches if generator is None else [batches[at] for at in generator.permutation(len(batches))]


@dataclass(frozen=True)
class PieceSamples:
    """One row a sample, to be computed each by itself. piece: int64 (S,); word: (S,), the running word it types."""

    pieces: Pieces
    piece: Ids
    word: Ids

    @property
    def steps(self) -> Ids:
        """The steps of each sample, int64 (S,): the words before, and the characters."""
        text = self.pieces.text
        return self.word - self.pieces.start[self.piece] + text.fed[text.forms[self.word]]


def list_samples(pieces: Pieces) -> PieceSamples:
    piece = np.repeat(np.arange(len(pieces)), pieces.samples)
    word = np.concatenate([np.arange(a, b) for a, b in zip(pieces.first, pieces.stop, strict=True)] or [piece])
    return PieceSamples(pieces, piece, word)


def draw_exact(samples: PieceSamples, size: int, generator: np.random.Generator) -> list[tuple[Ids, int]]:
    """Draw batches of samples of exactly one length each, so that nothing is padded (5.3): (rows, length)."""
    return _draw(samples.steps, size, generator, samples.steps)


def draw_bucketed(
    samples: PieceSamples, size: int, generator: np.random.Generator, buckets: Sequence[int] = BUCKETS
) -> list[tuple[Ids, int]]:
    """Draw batches within a bucket, padded to its length (global training); one bucket is the paper's naive padding."""
    lengths = np.array(buckets, np.int64)[np.searchsorted(buckets, samples.steps)]
    return _draw(samples.steps, size, generator, lengths)


def draw_longest(samples: PieceSamples, size: int, generator: np.random.Generator) -> list[tuple[Ids, int]]:
    """Draw batches of any lengths, each padded to its longest sample (2: "within a mini-batch")."""
    steps = samples.steps
    batches = np.split(order := generator.permutation(len(steps)), range(size, len(order), size))
    return [(rows, int(steps[rows].max())) for rows in batches]


def _draw(steps: Ids, size: int, generator: np.random.Generator, lengths: Ids) -> list[tuple[Ids, int]]:
    batches: list[tuple[Ids, int]] = []
    order = generator.permutation(len(steps))
    for length in np.unique(lengths).tolist():
        rows = order[lengths[order] == length]
        batches += [(rows[at : at + size], length) for at in range(0, len(rows), size)]
    return [batches[at] for at in generator.permutation(len(batches))]


@dataclass(frozen=True)
class SampleBatch:
    """inputs, targets: int64 (B, T), tokens and classes. mask: float32 (B, T), 1 for a real step.

    first: int64 (B,), the first step with the typed word of the sample as its target.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    first: Tensor


def collate(samples: PieceSamples, rows: Ids, length: int) -> SampleBatch:
    """Put samples side by side, padded at their ends."""
    inputs = np.zeros((len(rows), length), np.int64)
    targets, mask = np.zeros_like(inputs), np.zeros(inputs.shape, np.float32)
    first = np.zeros(len(rows), np.int64)
    text, classes = samples.pieces.text, samples.pieces.text.class_ids
    for at, row in enumerate(rows.tolist()):
        word, start = samples.word[row], samples.pieces.start[samples.piece[row]]
        history = text.forms[start : word + 1]
        form, before = history[-1], len(history) - 1
        stop = before + text.fed[form]
        inputs[at, :before] = classes[history[:-1]]
        inputs[at, before:stop] = text.characters[form, : text.fed[form]]
        targets[at, :before] = classes[history[1:]]
        targets[at, before:stop] = classes[form]
        mask[at, :stop] = 1
        first[at] = max(before - 1, 0)
    return SampleBatch(*map(torch.from_numpy, (inputs, targets, mask, first)))


@dataclass(frozen=True)
class PieceBatch:
    """Some pieces with shared histories of their samples.

    words: int64 (P, N), classes, 0 beyond a piece's end. counts: (P,), words of each. first: (P,), the first sample's
    place in its piece. The samples follow piece by piece: sample_piece, sample_place, sample_form (S,); characters
    (S, LONGEST_WORD) and fed (S,).
    """

    words: Tensor
    counts: Tensor
    first: Tensor
    sample_piece: Tensor
    sample_place: Tensor
    sample_form: Ids
    characters: Tensor
    fed: Tensor


def collate_pieces(pieces: Pieces, rows: Ids) -> PieceBatch:
    """Put pieces side by side, padded at their ends."""
    text, start = pieces.text, pieces.start[rows]
    counts, first = pieces.stop[rows] - start, pieces.first[rows] - start
    words = np.zeros((len(rows), int(counts.max())), np.int64)
    for at, (begin, count) in enumerate(zip(start.tolist(), counts.tolist(), strict=True)):
        words[at, :count] = text.class_ids[text.forms[begin : begin + count]]
    piece = np.repeat(np.arange(len(rows)), counts - first)
    place = np.concatenate([np.arange(a, b) for a, b in zip(first, counts, strict=True)])
    form = text.forms[start[piece] + place]
    return PieceBatch(
        torch.from_numpy(words),
        torch.from_numpy(counts),
        torch.from_numpy(first),
        torch.from_numpy(piece),
        torch.from_numpy(place),
        form,
        torch.from_numpy(text.characters[form]),
        torch.from_numpy(text.fed[form]),
    )


def iterate_pieces(pieces: Pieces, samples: int) -> Iterator[tuple[Ids, PieceBatch]]:
    """Yield all pieces in their order, for evaluation: (running words of the samples, batch)."""
    for rows in batch_pieces(pieces, samples, None):
        batch = collate_pieces(pieces, rows)
        yield pieces.start[rows][batch.sample_piece.numpy()] + batch.sample_place.numpy(), batch
