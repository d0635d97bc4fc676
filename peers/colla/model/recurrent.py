"""M-RNN (Colla 2.2, Fig. 1): six features of each step are embedded, an LSTM reads them, a last layer has classes.

Layout: six embeddings of E, concatenated; an LSTM of H over them, with one bias a gate; a linear last layer with a row
a class. E-H of the paper: 4-16, 8-32, 16-64, 32-128. docs/colla-notes-model.md has the parameter counts.

The last layer is a device's own: `class_ids` are the class numbers of its rows, and it grows with the seen classes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, nn

from mdl.data.readers.visits import FEATURES, NO_STAY, feature_sizes, last_steps
from mdl.errors import ConfigError
from mdl.peers.colla.model.distillation import locate_classes

SIZES = ("4-16", "8-32", "16-64", "32-128")
CLOUD_SIZE, DEVICE_SIZE = SIZES[-1], SIZES[0]
# The context of a window in pre-training the embedding of places: windows at most so many before or after it, as in
# word2vec.
_CONTEXT_WINDOWS = 5


class RecurrentSize(msgspec.Struct, frozen=True):
    """embedding: E, the size of each of the six features; hidden: H, the size of the LSTM's memory."""

    embedding: int
    hidden: int


class RecurrentModel(nn.Module):
    """(batch, 6, steps) codes as float32 -> logits (batch, K) for the classes `class_ids` (K,), in their order.

    Sequences may be of different length: NO_STAY steps stand at the end, and are not read.
    """

    def __init__(self, size: RecurrentSize, places: int, class_ids: Sequence[int]) -> None:
        super().__init__()
        self.size = size
        self.places = places
        self.embed = nn.ModuleList(nn.Embedding(codes, size.embedding) for codes in feature_sizes(places))
        # torch's LSTM has two biases a gate, which only ever act as their sum: a constant input of 1 is that sum.
        self.lstm = nn.LSTM(len(FEATURES) * size.embedding + 1, size.hidden, bias=False, batch_first=True)
        self.classify = nn.Linear(size.hidden, len(class_ids))
        self.class_ids: Tensor
        self.register_buffer("class_ids", torch.tensor(class_ids, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classify(self.read_sequences(x))
        return logits

    def read_sequences(self, x: Tensor) -> Tensor:
        """Return the last layer's inputs: the LSTM's output at each sequence's last step, (batch, hidden)."""
        last = ((x[:, 0] != NO_STAY).sum(dim=1) - 1).clamp_min(0)
        outputs, _ = self.lstm(self.embed_steps(x[:, :, : int(last.max()) + 1]))
        read: Tensor = outputs[torch.arange(len(x)), last]
        return read

    def embed_steps(self, x: Tensor) -> Tensor:
        """Return X_n of every step (Eq. 1): (batch, steps, 6 * embedding + 1), the last column 1."""
        codes = x.long().clamp_min(0)
        joined = torch.cat([table(codes[:, index]) for index, table in enumerate(self.embed)], dim=-1)
        return torch.cat([joined, joined.new_ones(*joined.shape[:2], 1)], dim=-1)

    def train_body(self, trains: bool) -> None:
        """Let all but the last layer learn, or freeze it; a device uploads no frozen part (Colla 5.4)."""
        self.embed.requires_grad_(trains)
        self.lstm.requires_grad_(trains)


def parse_size(text: str) -> RecurrentSize:
    """Parse "EMBEDDING-HIDDEN", as in 32-128. Raises ConfigError."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})-([1-9][0-9]{0,3})", text)
    if not match:
        raise ConfigError(f"model size {text[:40]!r}: expected EMBEDDING-HIDDEN, as in {CLOUD_SIZE} or {DEVICE_SIZE}")
    return RecurrentSize(int(match[1]), int(match[2]))


def build_recurrent(size: str, places: int, class_ids: Sequence[int], seed: int) -> RecurrentModel:
    """Build a model with fresh parameters that follow from `seed`; leave the global random state as it was.

    places: their number in the mesh; class_ids: distinct numbers below it. Raises ConfigError.
    """
    parsed = parse_size(size)
    _check_classes(class_ids, places)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RecurrentModel(parsed, places, class_ids)


def recurrent_shapes(size: str, places: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of such a model, without memory for any. Raises ConfigError."""
    parsed = parse_size(size)
    with torch.device("meta"):
        model = RecurrentModel(parsed, places, range(classes))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def customize_classes(model: RecurrentModel, class_ids: Sequence[int], generator: torch.Generator) -> RecurrentModel:
    """Return a copy with these classes in its last layer, in this order (Colla 3.1, customised last layer).

    Rows of classes the model knows are kept. Other rows are drawn small from `generator`, with the lowest present bias,
    so that a class without training is not guessed. Used both to pick classes and to grow.
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
    """Return a copy that also knows the classes `seen`: the old rows first and unchanged, then new ones by number."""
    old = model.class_ids.tolist()
    return customize_classes(model, [*old, *sorted(set(seen) - set(old))], generator)


def pretrain_places(model: RecurrentModel, x: Tensor, y: Tensor, steps: int, learning_rate: float) -> float:
    """Teach the embedding of places alone (2.2), like word2vec: a place predicts the places near in time.

    x: (n, 6, steps) and y (n,) of one or more people. Each sequence's last stay and the place after it are cut into
    windows of 10 minutes, which are the words. The softmax is over all places; its layer is thrown away after.
    Returns the last step's loss in nats a pair. Raises ConfigError without sequences.
    """
    if not len(y):
        raise ConfigError("no sequences to pre-train the embedding of places with")
    share = count_neighbours(x, y, model.places)
    share /= share.sum()
    weight = torch.zeros(model.places, model.size.embedding, requires_grad=True)
    bias = torch.zeros(model.places, requires_grad=True)
    table = model.embed[0]
    optimizer = torch.optim.Adam([*table.parameters(), weight, bias], learning_rate)
    loss = torch.zeros(())
    for _ in range(steps):
        predicted = torch.log_softmax(nn.functional.linear(table.get_parameter("weight"), weight, bias), dim=1)
        loss = -(share * predicted).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return float(loss.detach())


def count_neighbours(x: Tensor, y: Tensor, places: int) -> Tensor:
    """Count pairs of 10-minute windows by place: one window, and one in its context: (places, places).

    Windows that are nowhere are between the two stays; the stay that follows is taken to outlast the context.
    """
    codes = torch.from_numpy(last_steps(x.numpy()))
    here, windows, gap = codes[:, 0], codes[:, 4] + 1, codes[:, 5]
    counts = torch.zeros(places, places)
    for lag in range(1, _CONTEXT_WINDOWS + 1):
        both = (windows - lag).clamp_min(0).float()
        counts.index_put_((here, here), 2 * both, accumulate=True)
        across = torch.minimum(windows, (lag - gap).clamp_min(0)).float()
        counts.index_put_((here, y), across, accumulate=True)
        counts.index_put_((y, here), across, accumulate=True)
    return counts


def _check_classes(class_ids: Sequence[int], places: int) -> None:
    if len(set(class_ids)) != len(class_ids) or not all(0 <= number < places for number in class_ids):
        raise ConfigError(f"class numbers {list(class_ids)[:5]}...: expected distinct numbers of the {places} places")
    if not class_ids:
        raise ConfigError("a model needs at least one class")
