"""A sample for each typed word (DeepType 2): the words before it, then its characters; and the batches of samples.

    [health, is | p, r, i, c, e, l, e, s, s]  ->  [is, priceless | priceless x 9]

Each step's target is a word: the next one of the sentence at words, the one being typed at characters and before them.
No sample has more than 30 steps. A longer sentence is cut into pieces; a piece begins with some words of the one
before, which are history and no samples again. (The paper cuts each sample at its front. With pieces, all samples of
one begin at the same word, so that their histories can be shared: `prefix`.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mdl.peers.deeptype.model.text import LONGEST_WORD, Ids, Text

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
