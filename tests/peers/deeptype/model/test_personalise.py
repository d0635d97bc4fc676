"""5.6: the techniques together, the model on disk, and typing. A new shared model comes, and what is personal stays."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.deeptype_online import type_sentences
from mdl.errors import ConfigError, DataError
from mdl.peers.deeptype.model.compression import count_bytes
from mdl.peers.deeptype.model.efficiency import Alphabet, efficiency, evaluate_next_word
from mdl.peers.deeptype.model.keyboard import Keyboard, OnlineLearner
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel
from mdl.peers.deeptype.model.personalise import (
    Techniques,
    begin_study,
    change_words,
    compress_global,
    count_words,
    online_rate,
    plan_words,
    rebase,
    suit_rate,
)
from mdl.peers.deeptype.model.study import StudySettings
from mdl.peers.deeptype.model.text import LONGEST_WORD, TokenTable, build_table, encode
from tests.peers.deeptype.model.examples import invent, invented_text, small_model

USES = {"anna": 9, "zebrafish": 5}


def _trained(hidden: int = 24) -> tuple[NextWordModel, TokenTable]:
    """A global model of a language that lacks some of its words."""
    sentences = invent(60, seed=1, longest=12)
    table = build_table(sentences, 40)
    model = small_model(table, hidden)
    settings = StudySettings(epochs=4, batch=32, optimizer="adam", learning_rate=0.02)
    begin_study(model, encode(sentences, table), Techniques(fine_tune=False, batching="shared"), settings).run()
    return model, table


def test_words_of_a_person_enter_and_unused_ones_go() -> None:
    table, _ = invented_text(words=40)
    mine = [["anna", table.words[0], "anna", table.words[38]], ["anna", "once"]]
    change = plan_words(table, count_words(mine), Techniques(words=10, least_uses=2))
    assert len(change.names) == 9  # and `<unk>`
    assert {"anna", table.words[0]} <= set(change.names)
    assert "once" not in change.names
    assert plan_words(table, count_words(mine), Techniques(words=0, least_uses=0)).names == table.words


@pytest.mark.parametrize(("optimizer", "rank", "rate"), [("sgd", 0, 1.0), ("sgd", 3, 0.2), ("adam", 0, 0.001)])
def test_a_rate_that_is_not_given_suits_the_optimizer_and_the_model(optimizer: Any, rank: int, rate: float) -> None:
    table, _ = invented_text(words=40)
    model = small_model(table, rank=rank)
    settings = StudySettings(optimizer=optimizer, learning_rate=0.0, epochs=2)
    assert suit_rate(settings, model) == StudySettings(optimizer=optimizer, learning_rate=rate, epochs=2)
    assert online_rate(model) == (0.05 if rank else 1.0)
    given = StudySettings(learning_rate=0.7)
    assert suit_rate(given, model) is given


@pytest.mark.parametrize("rank", [0, 3])
def test_the_model_says_the_same_of_words_that_stay(rank: int) -> None:
    table, _ = invented_text(words=40)
    model = small_model(table, rank=rank)
    letters = torch.tensor([[table.classes, table.classes + 1, table.size - 1]])
    with torch.no_grad():
        before = model(letters)
        change = plan_words(table, {}, Techniques(words=10, least_uses=0))
        smaller = change_words(model, table, change)
        after = model(letters - table.classes + smaller.classes)
    assert smaller.words == table.words[:9]
    torch.testing.assert_close(after, before[..., :10])
    assert model.output(torch.zeros(12)).shape == (10,)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_new_word_is_read_as_unknown_and_suggested_like_those_that_begin_as_it_does(rank: int) -> None:
    words = ("tea", "teach", "team", "tear", "tell", "ox", "yak", "yew")
    table = TokenTable(words, "abcehklmorstwxyn")
    model = small_model(table, rank=rank)
    features, unknown = torch.randn(3, 12), torch.tensor([0])
    with torch.no_grad():
        scores, read = model.output(features), model.embed(unknown)
        mine = change_words(model, table, plan_words(table, {"teatime": 3, "oxen": 4}, Techniques(words=0)))
        assert mine.words == (*words[:6], "teatime", "oxen")
        found = model.output(features)
        for word in ("teatime", "oxen"):
            torch.testing.assert_close(model.embed(torch.tensor([1 + mine.words.index(word)])), read)
    torch.testing.assert_close(found[:, :7], scores[:, :7])
    torch.testing.assert_close(found[:, 7], scores[:, 1:5].mean(dim=1))  # tea, teach, team and tear begin with tea
    torch.testing.assert_close(found[:, 8], scores[:, 1:].mean(dim=1))  # ox alone begins with o: too few


def test_compression_makes_the_file_small_and_training_again_repairs_it() -> None:
    model, table = _trained()
    text = encode(invent(60, seed=1, longest=12), table)
    size, known = count_bytes(model), evaluate_next_word(model, text).perplexity
    compress_global(model, 5)
    broken = evaluate_next_word(model, text).perplexity
    settings = StudySettings(epochs=2, batch=32, optimizer="adam", learning_rate=0.01)
    begin_study(model, text, Techniques(fine_tune=False, batching="shared"), settings).run()
    assert count_bytes(model) < size
    assert known < broken
    assert evaluate_next_word(model, text).perplexity < (known + broken) / 2


def test_compression_that_knows_the_text_loses_less_of_it() -> None:
    model, table = _trained()
    text = encode(invent(60, seed=1, longest=12), table)
    blind, seeing = copy.deepcopy(model), copy.deepcopy(model)
    compress_global(blind, 5)
    compress_global(seeing, 5, text)
    known, lost, kept = (evaluate_next_word(each, text).perplexity for each in (model, blind, seeing))
    assert known < kept < lost
    assert count_bytes(seeing) == count_bytes(blind)


def test_a_model_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    for rank in (0, 3):
        table, _ = invented_text()
        model = small_model(table, rank=rank)
        save_next_word(path, model, table, trained_words=100, personal_words=7)
        again, described = load_next_word(path)
        assert described.table == table
        assert (described.trained_words, described.personal_words) == (100, 7)
        tokens = torch.zeros(1, 3, dtype=torch.int64)
        assert torch.equal(again(tokens), model(tokens))
        assert path.stat().st_mode & 0o077 == 0


def test_a_file_that_is_no_such_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(DataError, match="does not exist"):
        load_next_word(path)
    table, _ = invented_text()
    other, _ = invented_text(words=20)
    save_next_word(path, small_model(table), other)
    with pytest.raises(DataError, match="classes"):
        load_next_word(path)
    model = small_model(table)
    model.hidden = 999  # claims what its tensors are not
    save_next_word(path, model, table)
    with pytest.raises(DataError, match="do not fit"):
        load_next_word(path)


def test_typing_needs_the_characters_that_the_evaluation_counts() -> None:
    """One character at a time through the keyboard, or all at once: R(x) is the same."""
    model, table = _trained()
    sentences = invent(20, seed=7, longest=10)
    found = evaluate_next_word(model, encode(sentences, table), 3, Alphabet(table))
    for filtered, expected in ((False, found.efficiency), (True, found.filtered)):
        lengths, needed = zip(*type_sentences(Keyboard(model, table, filtered=filtered), sentences), strict=True)
        assert efficiency(lengths, needed) == pytest.approx(expected)
        assert expected > 0.1


def test_a_character_taken_back_was_never_typed() -> None:
    model, table = _trained()
    keyboard, word = Keyboard(model, table), table.words[2]
    assert keyboard.suggest() == []
    keyboard.type(word[0])
    before = keyboard.suggest()
    keyboard.type("x")
    keyboard.erase()
    assert keyboard.suggest() == before
    assert all(each.startswith(word[0]) for each in before)
    keyboard.erase()
    keyboard.erase()
    assert (keyboard.typed, keyboard.suggest()) == ("", [])


def test_a_word_without_an_end_is_kept_no_longer_than_a_model_reads() -> None:
    model, table = _trained()
    keyboard = Keyboard(model, table, filtered=False)
    for _ in range(LONGEST_WORD):
        keyboard.type("a")
    assert keyboard.suggest()
    for _ in range(1000):
        keyboard.type("a")
    assert keyboard.suggest() == []
    for _ in range(1000):
        keyboard.erase()
    assert keyboard.suggest()
    assert not keyboard.finish("a" * LONGEST_WORD)
    assert keyboard.suggest()


def test_5_5_learning_while_typing_saves_more_of_what_comes_later() -> None:
    """Somebody who writes otherwise than the public: the same sentence again and again, with steps in between."""
    saved = []
    for learns in (False, True):
        model, table = _trained()
        sentences = [[table.words[number] for number in (30, 3, 25, 17)]] * 60
        learner = OnlineLearner(model.output, 2.0) if learns else None
        needed = type_sentences(Keyboard(model, table, learner, recent=False), sentences)
        halves = [efficiency(*zip(*part, strict=True)) for part in (needed[:120], needed[120:])]
        saved.append(halves)
    without, with_steps = saved
    assert without[0] == pytest.approx(without[1])
    assert with_steps[1] > without[1] + 0.1
    assert with_steps[1] > with_steps[0]


def test_words_that_came_lately_are_suggested_sooner() -> None:
    model, table = _trained()
    sentences = [[table.words[number] for number in (30, 3, 25, 17)]] * 60
    saved = []
    for recent in (False, True):
        needed = type_sentences(Keyboard(model, table, top=1, recent=recent), sentences)
        saved.append(efficiency(*zip(*needed, strict=True)))
    assert saved[1] > saved[0] + 0.05


def test_a_sentence_may_go_on_for_ever() -> None:
    model, table = _trained()
    sentence = [table.words[number] for number in np.random.default_rng(0).integers(0, 38, 200)]
    assert len(type_sentences(Keyboard(model, table), [sentence])) == 200


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
