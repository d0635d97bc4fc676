"""The next-word model (DeepType 2, Fig. 1a): tokens are embedded, a stacked LSTM reads them, a last layer ranks words.

With 20,000 words and 400 units: 18.6 M parameters, 74.5 MB (the paper's figure). Biases of torch's LSTM are two a
gate, 13 KB more than the paper's one.

Its loss takes each sample by itself, or runs the words of a sentence once for all its samples. Samples of one piece
begin alike: a word step is part of each sample behind it. So its states are computed once, the characters of each word
branch off there, and a word step counts as many times as samples contain it. That is the same loss, and the same
gradient; 13.4 steps a word become 4.8.

The softmax may be over a part of the classes: less work while a global model is far from its end. The most frequent
classes are all computed; some of the others are drawn, and each stands for as many as it was drawn from. So the sum of
the softmax is right in the mean. (The paper computes all. Such training ranks rare words less well: finish with an
epoch over all classes.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mdl.learning.networks import run_recurrent
from mdl.peers.deeptype.model.compression import FactoredEmbedding, FactoredLinear
from mdl.peers.deeptype.model.text import MOST_WORDS, Ids, PieceBatch, SampleBatch

State: TypeAlias = tuple[Tensor, Tensor]

# The range of the paper's model and its tutorial: beyond, training diverges at first; far below, it begins slowly.
_EMBEDDING_RANGE = 0.1


class NextWordSize(msgspec.Struct, frozen=True):
    """classes: words of the output, `<unk>` among them. tokens: rows of the embedding. hidden: units of each layer.

    rank: of embedding and output layer, 0 if they are not factored (5.1).
    """

    classes: Annotated[int, msgspec.Meta(ge=2, le=MOST_WORDS)]
    tokens: Annotated[int, msgspec.Meta(ge=2, le=MOST_WORDS + 256)]
    hidden: Annotated[int, msgspec.Meta(ge=1, le=1 << 13)] = 400
    layers: Annotated[int, msgspec.Meta(ge=1, le=8)] = 2
    rank: Annotated[int, msgspec.Meta(ge=0, le=1 << 13)] = 0


class NextWordModel(nn.Module):
    """Tokens (batch, steps) -> logits of the classes (batch, steps, classes), at every step.

    embed and output may be replaced by others of the same shape (`compression`, `vocabulary`).
    """

    def __init__(self, size: NextWordSize) -> None:
        super().__init__()
        self.layers, self.hidden = size.layers, size.hidden
        if size.rank:
            self.embed: nn.Module = FactoredEmbedding(
                nn.Embedding(size.tokens, size.rank), nn.Linear(size.rank, size.hidden, bias=False)
            )
            self.output: nn.Module = FactoredLinear(
                nn.Linear(size.hidden, size.rank, bias=False), nn.Linear(size.rank, size.classes)
            )
        else:
            self.embed = nn.Embedding(size.tokens, size.hidden)
            nn.init.uniform_(self.embed.weight, -_EMBEDDING_RANGE, _EMBEDDING_RANGE)
            self.output = nn.Linear(size.hidden, size.classes)
        self.lstm = nn.LSTM(size.hidden, size.hidden, size.layers, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.read(tokens)[0])
        return logits

    def read(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the last layer's input at each step, (batch, steps, hidden), and the state after the last one."""
        features, state = run_recurrent(self.lstm, self.embed(tokens), state)
        return features, state

    def first_state(self, batch: int) -> State:
        zeros = next(self.lstm.parameters()).new_zeros(self.layers, batch, self.hidden)
        return zeros, zeros


def build_next_word(size: NextWordSize, seed: int) -> NextWordModel:
    """Build a model; its parameters follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NextWordModel(size)


def size_of(model: NextWordModel) -> NextWordSize:
    """Return the size with which `build_next_word` makes another of the same shape."""
    embed, output = model.embed, model.output
    if isinstance(embed, FactoredEmbedding) and isinstance(output, FactoredLinear):
        classes, (tokens, rank) = output.widen.out_features, embed.table.weight.shape
    else:
        assert isinstance(embed, nn.Embedding)
        assert isinstance(output, nn.Linear)
        classes, tokens, rank = output.out_features, embed.num_embeddings, 0
    return NextWordSize(classes, tokens, model.hidden, model.layers, rank)


# The share of frequent classes in those computed: they have nine tenths of all running words.
_FREQUENT_SHARE = 2 / 3


@dataclass(frozen=True)
class StepRows:
    """The last layer's inputs, a row a step. features: (R, hidden). targets: int64 (R,). weights: (R,), float.

    sample: (R,), the one that types the row's target, -1 for none of the batch. piece: (R,), of the batch. typed: (R,),
    the number of characters fed.
    """

    features: Tensor
    targets: Tensor
    weights: Tensor
    sample: Tensor
    piece: Tensor
    typed: Tensor


def sample_rows(model: NextWordModel, batch: SampleBatch) -> StepRows:
    """Run each sample by itself, padding included (the paper's way); padded steps weigh 0."""
    features, _ = model.read(batch.inputs)
    count, steps = batch.inputs.shape
    is_own = torch.arange(steps) >= batch.first[:, None]
    sample = torch.where(is_own, torch.arange(count)[:, None], -1).reshape(-1)
    nothing = torch.zeros_like(sample)
    flat = features.reshape(count * steps, -1)
    return StepRows(flat, batch.targets.reshape(-1), batch.mask.reshape(-1), sample, nothing, nothing)


def shared_rows(model: NextWordModel, batch: PieceBatch) -> StepRows:
    """Run words once, branch off characters: a row for each sample's step before its first character, and for each one.

    Word steps before a piece's first sample have a row too, since its samples contain them; their `sample` is -1.
    """
    before, states = _run_words(model, batch)
    piece, place = torch.nonzero(_is_step(batch), as_tuple=True)
    own = _number_samples(batch)[piece, place + 1]
    targets = batch.words[piece, place + 1]
    # Samples that contain this word: from the next one, or from the piece's first, to its last.
    weights = batch.counts[piece] - torch.maximum(batch.first[piece], place + 1)
    features, sample, typed = _run_characters(model, batch, states)
    spelled = batch.words[batch.sample_piece, batch.sample_place][sample]
    return StepRows(
        torch.cat([before[piece, place], features]),
        torch.cat([targets, spelled]),
        torch.cat([weights.to(features.dtype), features.new_ones(len(sample))]),
        torch.cat([own, sample]),
        torch.cat([piece, batch.sample_piece[sample]]),
        torch.cat([torch.zeros_like(own), typed]),
    )


def mean_loss(output: nn.Module, rows: StepRows) -> Tensor:
    """Return the cross-entropy over all steps of all samples, in nats (masked mean)."""
    losses = nn.functional.cross_entropy(widen(output(rows.features)), rows.targets, reduction="none")
    return (losses * rows.weights).sum() / rows.weights.sum()


def count_once(rows: StepRows) -> StepRows:
    """Keep the steps with a sample's own word as their target, each once, as in measuring a person's typing.

    The paper's loss also has the words before, so that the first words of a sentence count as often as samples begin
    with them.
    """
    keep = (rows.sample >= 0) & (rows.weights > 0)
    weights = torch.ones_like(rows.weights[keep])
    return StepRows(
        rows.features[keep], rows.targets[keep], weights, rows.sample[keep], rows.piece[keep], rows.typed[keep]
    )


def widen(logits: Tensor) -> Tensor:
    """Convert to single precision at least: a softmax over thousands of classes needs it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _run_words(model: NextWordModel, batch: PieceBatch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return features (P, N - 1, hidden) of all words but the last, states (N, layers, P, hidden) before each word."""
    state = model.first_state(len(batch.words))
    hidden, cell, features = [state[0]], [state[1]], []
    embedded = model.embed(batch.words[:, :-1])
    for step in range(embedded.shape[1]):
        output, state = run_recurrent(model.lstm, embedded[:, step : step + 1], state)
        features.append(output)
        hidden.append(state[0])
        cell.append(state[1])
    together = torch.cat(features, dim=1) if features else embedded[:, :0]
    return together, (torch.stack(hidden), torch.stack(cell))


def _run_characters(
    model: NextWordModel, batch: PieceBatch, states: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of each character step of each sample, with the sample and the number of characters fed."""
    start = tuple(part[batch.sample_place, :, batch.sample_piece].transpose(0, 1).contiguous() for part in states)
    longest = int(batch.fed.max())
    embedded = model.embed(batch.characters[:, :longest])
    packed = pack_padded_sequence(embedded, batch.fed, batch_first=True, enforce_sorted=False)
    output, _ = pad_packed_sequence(run_recurrent(model.lstm, packed, start)[0], batch_first=True)
    sample, step = torch.nonzero(torch.arange(longest) < batch.fed[:, None], as_tuple=True)
    return output[sample, step], sample, step + 1


def _is_step(batch: PieceBatch) -> Tensor:
    """Return True, (P, N - 1), for the words of each piece but its last."""
    return torch.arange(batch.words.shape[1] - 1) < batch.counts[:, None] - 1


def _number_samples(batch: PieceBatch) -> Tensor:
    """Return the sample that types each word, (P, N); -1 for history that a piece took over."""
    numbers = torch.full_like(batch.words, -1)
    numbers[batch.sample_piece, batch.sample_place] = torch.arange(len(batch.sample_piece))
    return numbers


def draw_classes(classes: int, count: int, generator: np.random.Generator) -> tuple[int, Ids]:
    """Draw (F, drawn): the most frequent classes 0 to F - 1, and these (count - F,) of the others, are computed."""
    frequent = min(classes, round(count * _FREQUENT_SHARE))
    drawn = generator.choice(classes - frequent, min(count, classes) - frequent, replace=False)
    return frequent, frequent + np.sort(drawn)


def sampled_loss(output: nn.Module, rows: StepRows, frequent: int, drawn: Ids) -> Tensor:
    """Return the `mean_loss` with the sum of the softmax over these classes; equal to it if they are all classes."""
    assert isinstance(output, nn.Linear | FactoredLinear)
    features = output.narrow(rows.features) if isinstance(output, FactoredLinear) else rows.features
    last = output.widen if isinstance(output, FactoredLinear) else output
    others = torch.from_numpy(drawn)
    chosen = torch.cat([torch.arange(frequent), others])
    logits = widen(nn.functional.linear(features, last.weight[chosen], last.bias[chosen]))
    own = (features * last.weight[rows.targets]).sum(dim=1) + last.bias[rows.targets]
    rare = rows.targets >= frequent
    # In a row with a rare target, the target counts by itself, and the drawn ones stand for the rest without it.
    apart = (others != rows.targets[:, None]) | ~rare[:, None]
    stands_for = (last.out_features - frequent - rare.to(logits.dtype)) / apart.sum(dim=1).clamp(min=1)
    shares = torch.where(apart, stands_for[:, None].log(), -math.inf)
    terms = [logits[:, :frequent], logits[:, frequent:] + shares, torch.where(rare, own, -math.inf)[:, None]]
    losses = torch.logsumexp(torch.cat(terms, dim=1), dim=1) - own
    return (losses * rows.weights).sum() / rows.weights.sum()
