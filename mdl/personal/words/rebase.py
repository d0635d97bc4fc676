"""A person's model brought to a new shared model: its personal part is the difference to the one it began with.

Each parameter becomes new + (personal - old), row by row of the words that all three have. So the shared layers become
the new ones, the personal last layer keeps what it learned on top of the shared one, and the person's own words keep
their rows. This holds if the new model went on from the old one: a model with another start has other features, to
which a difference means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mdl.errors import ConfigError
from mdl.personal.words.next_word import NextWordModel, size_of
from mdl.personal.words.text import TokenTable

# Likeness of the layers between embedding and last one. Models from two seeds have 0; after ten epochs on other text
# 0.9.
LEAST_ALIKE = 0.5
_WORD_ROWS = ("embed.weight", "embed.table.weight", "output.weight", "output.widen.weight", "output.bias",
              "output.widen.bias")  # fmt: skip


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
