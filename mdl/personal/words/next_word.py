"""The next-word model (DeepType 2, Fig. 1a): tokens are embedded, a stacked LSTM reads them, a last layer ranks words.

With 20,000 words and 400 units: 18.6 M parameters, 74.5 MB (the paper's figure). Biases of torch's LSTM are two a
gate, 13 KB more than the paper's one.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
import torch
from torch import Tensor, nn

from mdl.learning.networks import run_recurrent
from mdl.personal.compression import FactoredEmbedding, FactoredLinear
from mdl.personal.words.text import MOST_WORDS

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
