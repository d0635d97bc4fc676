"""A new shared model comes, and what is personal stays."""

from __future__ import annotations

import copy

import pytest
import torch

from mdl.errors import ConfigError
from mdl.personal.words.next_word import NextWordModel
from mdl.personal.words.personalise import Techniques, change_words, plan_words
from mdl.personal.words.rebase import rebase
from mdl.personal.words.text import TokenTable, build_table
from tests.mdl.personal.words.examples import invent, small_model

USES = {"anna": 9, "zebrafish": 5}


def _person(rank: int = 0) -> tuple[NextWordModel, TokenTable, NextWordModel, TokenTable]:
    """(personal, its table, shared, its table): two words swapped in, vocabulary compressed, nothing learned yet."""
    table = build_table(invent(60, seed=1), 40)
    shared = small_model(table, rank=rank)
    personal = copy.deepcopy(shared)
    uses = USES | {table.words[row]: 2 for row in range(10)}
    return personal, change_words(personal, table, plan_words(table, uses, Techniques(words=30))), shared, table


@torch.no_grad()
def _moved(model: NextWordModel, by: float, seed: int = 5) -> NextWordModel:
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in moved.parameters():
        parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return moved


@pytest.mark.parametrize("rank", [0, 4])
def test_who_has_learned_nothing_gets_the_new_model_with_their_words(rank: int) -> None:
    personal, mine, shared, table = _person(rank)
    new = _moved(shared, 0.01)
    expected = copy.deepcopy(new)
    uses = USES | {table.words[row]: 2 for row in range(10)}
    assert change_words(expected, table, plan_words(table, uses, Techniques(words=30))) == mine
    rebase(personal, mine, (shared, table), (new, table))
    own = [row for row, word in enumerate(mine.words, 1) if word in USES]
    assert len(own) == 2
    for name, value in personal.state_dict().items():
        keep = torch.ones(len(value), dtype=torch.bool)
        if name.startswith(("embed.w", "embed.t", "output.w", "output.b")) and len(value) >= mine.classes:
            keep[own] = False  # rows of words that the shared model does not know stay as they were
        torch.testing.assert_close(value[keep], expected.state_dict()[name][keep], rtol=0, atol=1e-6)


def test_rows_of_own_words_and_what_the_last_layer_learned_stay() -> None:
    personal, mine, shared, table = _person()
    before = copy.deepcopy(personal)
    with torch.no_grad():
        personal.output.bias += 1.0
    own = 1 + mine.words.index("anna")
    new = _moved(shared, 0.01)
    rebase(personal, mine, (shared, table), (new, table))
    torch.testing.assert_close(personal.embed.weight[own], before.embed.weight[own])
    torch.testing.assert_close(personal.output.bias[own], before.output.bias[own] + 1)
    word = mine.words[0]
    there = 1 + table.words.index(word)
    torch.testing.assert_close(personal.output.bias[1], new.output.bias[there] + 1)


def test_the_new_model_may_have_other_words_in_another_order() -> None:
    personal, mine, shared, table = _person()
    words = (*reversed(table.words), "fresh")
    other = TokenTable(words, table.characters + "é")
    new = small_model(other, seed=3)
    with torch.no_grad():
        for name, value in shared.state_dict().items():
            if name.startswith("lstm"):
                new.state_dict()[name].copy_(value)
    rebase(personal, mine, (shared, table), (new, other))
    row = 1 + mine.words.index(table.words[0])
    torch.testing.assert_close(personal.output.weight[row], new.output.weight[1 + words.index(table.words[0])])
    letter = table.characters[0]
    torch.testing.assert_close(personal.embed.weight[mine.classes], new.embed.weight[other.classes])
    assert other.characters[0] == letter
    torch.testing.assert_close(personal.embed.weight[-1], new.embed.weight[-1])


def test_a_model_that_began_elsewhere_or_has_another_size_is_refused() -> None:
    personal, mine, shared, table = _person()
    with pytest.raises(ConfigError, match="did not go on"):
        rebase(personal, mine, (shared, table), (small_model(table, seed=7), table))
    with pytest.raises(ConfigError, match="another size"):
        rebase(personal, mine, (shared, table), (small_model(table, hidden=16), table))
