"""Single words of a person's model: listed, added, removed, and what stays of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mdl.errors import ConfigError
from mdl.peers.deeptype.home import MODEL, PREVIOUS, STUDY
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.personalise import Techniques
from mdl.peers.deeptype.model.study import StudySettings
from mdl.peers.deeptype.model.text import build_table
from mdl.peers.deeptype.train import edit_words, own_words, train
from tests.peers.deeptype.model.examples import small_model

PUBLIC = ["the", "hare", "sees", "the", "otter"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A person who learned from a text with a name that the public has not."""
    table = build_table([PUBLIC], 5)
    save_next_word(tmp_path / "global.safetensors", small_model(table), table)
    (tmp_path / "mine.txt").write_text("the hare sees anna\n" * 4)
    _learn(tmp_path, tmp_path / "global.safetensors")
    return tmp_path


def _learn(home: Path, start: Path | None) -> None:
    train(home / "mine.txt", home / "me", start, Techniques(words=0), StudySettings(1, 8, "sgd", 0.1))


def test_what_came_from_the_person_is_listed(home: Path) -> None:
    assert own_words(home / "me") == ("anna",)
    _learn(home, None)
    assert own_words(home / "me") == ("anna",)  # a second time it is in the table already


def test_a_word_is_added_and_stays(home: Path) -> None:
    before = load_next_word(home / "me" / MODEL)[0]
    assert edit_words(home / "me", ["Zoë's", "hare"], []) == ("anna", "zoë's")
    model, described = load_next_word(home / "me" / MODEL)
    assert described.table.words[0] == "zoë's"
    assert sorted(described.table.words).count("hare") == 1
    place = described.table.words.index("anna") + 1
    assert torch.equal(model.output.weight[place], before.output.weight[place - 1])  # each keeps its row
    (home / "mine.txt").write_text("nobody nobody sees sees it it\n" * 4)
    _learn(home, None)
    assert "zoë's" in own_words(home / "me")


def test_a_removed_word_is_in_no_file(home: Path) -> None:
    _learn(home, None)
    assert (home / "me" / PREVIOUS).exists()
    assert edit_words(home / "me", [], ["Anna"]) == ()
    assert not any(b"anna" in path.read_bytes() for path in (home / "me").iterdir())
    assert "anna" not in load_next_word(home / "me" / MODEL)[1].table.words


def test_what_cannot_be_is_refused(home: Path) -> None:
    for add, remove, told in (
        (["two words"], [], "'two words' is not one word"),
        ([""], [], "'' is not one word"),
        (["42"], [], "'42' is not one word"),
        ([], ["ana"], "--remove ana: the model has no such word; did you mean anna?"),
    ):
        with pytest.raises(ConfigError) as found:
            edit_words(home / "me", add, remove)
        assert told in str(found.value)
    (home / "me" / STUDY).touch()
    with pytest.raises(ConfigError, match="a training is unfinished"):
        edit_words(home / "me", ["zoe"], [])
