"""M-RNN (Colla): six features of each stay are embedded, an LSTM reads the stays, the last layer knows some classes.

Layout: six embeddings of 8, joined (48), projected to `embedding`, an LSTM of `hidden` with one bias a gate, a linear
last layer with a row a class. The embeddings do not depend on the size, so that a small model starts from those that
were pre-trained for the large one. With the 308 cells of the default grid the sizes 32-128 and 4-16 have 128,796 and
11,868 parameters, the paper's counts; its own layout is not known (docs/colla-notes.md).

The last layer is a device's own: `class_ids` are the class numbers of its rows, and it grows with what the device sees.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, nn

from mdl.cloud.distillation import locate_classes
from mdl.data.readers.visits import FEATURES, feature_sizes
from mdl.errors import ConfigError

EMBEDDING_WIDTH = 8
CLOUD_SIZE, DEVICE_SIZE = "32-128", "4-16"


class RecurrentSize(msgspec.Struct, frozen=True):
    """embedding: what the LSTM reads of each stay; hidden: what it remembers."""

    embedding: int
    hidden: int


class RecurrentModel(nn.Module):
    """(batch, 6, steps) codes as float32 -> logits (batch, K) for the classes `class_ids` (K,), in their order."""

    def __init__(self, size: RecurrentSize, places: int, class_ids: Sequence[int]) -> None:
        super().__init__()
        self.size = size
        self.places = places
        self.embed = nn.ModuleList(nn.Embedding(codes, EMBEDDING_WIDTH) for codes in feature_sizes(places))
        self.project = nn.Linear(len(FEATURES) * EMBEDDING_WIDTH, size.embedding, bias=False)
        # torch's LSTM has two biases a gate, which only ever act as their sum: a constant input of 1 is that sum.
        self.lstm = nn.LSTM(size.embedding + 1, size.hidden, bias=False, batch_first=True)
        self.classify = nn.Linear(size.hidden, len(class_ids))
        self.class_ids: Tensor
        self.register_buffer("class_ids", torch.tensor(class_ids, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.lstm(self.read_stays(x))
        logits: Tensor = self.classify(steps[:, -1])
        return logits

    def read_stays(self, x: Tensor) -> Tensor:
        """What the LSTM reads: (batch, steps, embedding + 1), the last column 1."""
        codes = x.long()
        joined = torch.cat([table(codes[:, index]) for index, table in enumerate(self.embed)], dim=-1)
        read: Tensor = self.project(joined)
        return torch.cat([read, read.new_ones(*read.shape[:2], 1)], dim=-1)

    def train_embeddings(self, trains: bool) -> None:
        """Whether the embeddings learn on; a device leaves those of the cloud as they are, and uploads none."""
        self.embed.requires_grad_(trains)


def parse_size(text: str) -> RecurrentSize:
    """ "EMBEDDING-HIDDEN", as in 32-128. Raises ConfigError."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})-([1-9][0-9]{0,3})", text)
    if not match:
        raise ConfigError(f"model size {text[:40]!r}: expected EMBEDDING-HIDDEN, as in {CLOUD_SIZE} or {DEVICE_SIZE}")
    return RecurrentSize(int(match[1]), int(match[2]))


def build_recurrent(size: str, places: int, class_ids: Sequence[int], seed: int) -> RecurrentModel:
    """A model with fresh parameters that follow from `seed`; the global random state is left as it was.

    places: how many there are in the mesh; class_ids: distinct numbers below it. Raises ConfigError.
    """
    parsed = parse_size(size)
    _check_classes(class_ids, places)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RecurrentModel(parsed, places, class_ids)


def count_parameters(model: nn.Module) -> int:
    """All parameters, frozen ones too."""
    return sum(parameter.numel() for parameter in model.parameters())


def customize_classes(model: RecurrentModel, class_ids: Sequence[int], generator: torch.Generator) -> RecurrentModel:
    """A copy whose last layer has these classes, in this order (Colla 3.1, customised last layer).

    Rows of classes the model knows are kept; those of others are drawn small from `generator`, with the lowest bias
    there is, so that a class nobody has taught is not guessed. Used both to pick classes and to grow.
    """
    _check_classes(class_ids, model.places)
    made = copy.deepcopy(model)
    wanted = torch.tensor(class_ids, dtype=torch.int64)
    at = locate_classes(wanted, model.class_ids)
    known = at >= 0
    made.classify = nn.Linear(model.size.hidden, len(wanted))
    bound = model.size.hidden**-0.5
    with torch.no_grad():
        made.classify.weight.uniform_(-bound, bound, generator=generator)
        made.classify.bias.fill_(float(model.classify.bias.min()) if len(model.class_ids) else 0.0)
        made.classify.weight[known] = model.classify.weight[at[known]]
        made.classify.bias[known] = model.classify.bias[at[known]]
    made.class_ids = wanted
    return made


def grow_classes(model: RecurrentModel, seen: Sequence[int], generator: torch.Generator) -> RecurrentModel:
    """A copy that also knows the classes `seen`: the old rows first and unchanged, new ones after them by number."""
    old = model.class_ids.tolist()
    return customize_classes(model, [*old, *sorted(set(seen) - set(old))], generator)


def copy_embeddings(source: RecurrentModel, target: RecurrentModel) -> None:
    """Give `target` the embeddings of `source`. Raises ConfigError if they know different places."""
    if source.places != target.places:
        raise ConfigError(f"embeddings of {source.places} places do not fit a model of {target.places}")
    target.embed.load_state_dict(source.embed.state_dict())


def pretrain_embeddings(
    model: RecurrentModel, x: Tensor, y: Tensor, epochs: int, learning_rate: float, generator: torch.Generator
) -> float:
    """Teach the embeddings alone: a linear layer, thrown away after, tells the next place from the last stay's joined
    embeddings. x: (n, 6, steps), y: place numbers (n,). Returns the last epoch's mean loss in nats.
    """
    if not len(y):
        raise ConfigError("no sequences to pre-train the embeddings with")
    width = len(FEATURES) * EMBEDDING_WIDTH
    weight = torch.zeros(model.places, width, requires_grad=True)
    bias = torch.zeros(model.places, requires_grad=True)
    optimizer = torch.optim.Adam([*model.embed.parameters(), weight, bias], learning_rate)
    codes, mean = x[:, :, -1].long(), 0.0
    for _ in range(epochs):
        order, mean = torch.randperm(len(y), generator=generator), 0.0
        for start in range(0, len(y), 128):
            rows = order[start : start + 128]
            joined = torch.cat([table(codes[rows, index]) for index, table in enumerate(model.embed)], dim=-1)
            loss = nn.functional.cross_entropy(nn.functional.linear(joined, weight, bias), y[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean += float(loss.detach()) * len(rows) / len(y)
    return mean


def _check_classes(class_ids: Sequence[int], places: int) -> None:
    if len(set(class_ids)) != len(class_ids) or not all(0 <= number < places for number in class_ids):
        raise ConfigError(f"class numbers {list(class_ids)[:5]}...: expected distinct numbers of the {places} places")
    if not class_ids:
        raise ConfigError("a model needs at least one class")
