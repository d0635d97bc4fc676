"""The shared model beside the personal one: what a mesh gets, and what stays when a new one comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mdl.errors import ConfigError
from mdl.learning.flat import FlatModel, hash_task
from mdl.peers.cli.main import add_groups, app
from mdl.peers.deeptype.home import (
    MODEL,
    NEXT,
    SHARED,
    TextLesson,
    identify,
    read_shared,
    settle,
    take_over,
    teach,
    words_of,
)
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.personalise import Techniques
from mdl.peers.deeptype.model.study import StudySettings
from mdl.peers.deeptype.model.text import TokenTable, build_table
from mdl.peers.deeptype.train import train
from tests.peers.deeptype.model.examples import invent, small_model

MINE = [[*words, "anna"] for words in invent(20, seed=2, longest=8)]
SETTINGS = StudySettings(1, 16, "adam", 0.01)


@dataclass
class Round:
    round_id: int
    loss: float = 0.0
    samples: int = 0
    given_up: bool = False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A person who learned from global.safetensors; beside it new.safetensors, which went on from that."""
    torch.set_num_threads(1)
    table = build_table(invent(60, seed=1, longest=8), 50)
    model = small_model(table)
    save_next_word(tmp_path / "global.safetensors", model, table, 100)
    (tmp_path / "mine.txt").write_text("\n".join(" ".join(words) for words in MINE))
    train(tmp_path / "mine.txt", tmp_path / "me", tmp_path / "global.safetensors", Techniques(words=40), SETTINGS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    save_next_word(tmp_path / "new.safetensors", model, table, 200)
    return tmp_path


def _adopt(folder: Path, name: str, *options: str) -> Any:
    add_groups()
    words = ["personal", "adopt", str(folder / name), "--out", str(folder / "me"), "--json", *options]
    done = CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)
    return json.loads(done.stdout)


def test_a_new_shared_model_comes_and_words_and_last_layer_stay(folder: Path) -> None:
    before, mine = load_next_word(folder / "me" / MODEL)
    _adopt(folder, "new.safetensors", "--began-with", str(folder / "global.safetensors"))
    after, described = load_next_word(folder / "me" / MODEL)
    assert described.table == mine.table
    assert "anna" in described.table.words
    assert described.personal_words == mine.personal_words
    new = load_next_word(folder / "new.safetensors")
    torch.testing.assert_close(after.lstm.weight_hh_l0, new[0].lstm.weight_hh_l0)
    row = 1 + mine.table.words.index("anna")
    torch.testing.assert_close(after.output.weight[row], before.output.weight[row])
    assert described.base == identify(new[0], new[1].table)
    assert (folder / "me" / SHARED).exists()
    assert not (folder / "me" / NEXT).exists()


def test_the_same_one_again_changes_nothing(folder: Path) -> None:
    _adopt(folder, "new.safetensors", "--began-with", str(folder / "global.safetensors"))
    once = load_next_word(folder / "me" / MODEL)[0].state_dict()
    _adopt(folder, "new.safetensors")
    again = load_next_word(folder / "me" / MODEL)[0].state_dict()
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.parametrize("decided", [False, True])
def test_a_take_over_that_was_killed_half_way_is_dropped_or_finished(folder: Path, decided: bool) -> None:
    home = folder / "me"
    take_over(home, load_next_word(folder / "global.safetensors"), folder / "global.safetensors")
    first, personal = (home / SHARED).read_bytes(), (home / MODEL).read_bytes()
    take_over(home, load_next_word(folder / "new.safetensors"))
    second = (home / SHARED).read_bytes()
    # As it stood before the last step, with the personal model written or not.
    (home / NEXT).write_bytes(second)
    (home / SHARED).write_bytes(first)
    if not decided:
        (home / MODEL).write_bytes(personal)
    settle(home)
    assert (home / SHARED).read_bytes() == (second if decided else first)
    assert not (home / NEXT).exists()


def test_who_did_not_begin_with_what_is_here_is_told_so(folder: Path) -> None:
    with pytest.raises(ConfigError, match="did not begin with"):
        _adopt(folder, "new.safetensors")


def test_what_a_mesh_gets_does_not_depend_on_the_person(folder: Path) -> None:
    model, described = read_shared(folder / "me", folder / "global.safetensors")
    said = words_of(MINE, described.table)
    schema, told = FlatModel(model).schema, hash_task(FlatModel(model).schema, described.table.words)
    taught = teach([Round(1), Round(2)], model, TextLesson(said, SETTINGS, 0, lambda: False))
    fresh = load_next_word(folder / "global.safetensors")
    assert taught == 2
    assert FlatModel(model).schema == schema == FlatModel(fresh[0]).schema
    assert told == hash_task(schema, fresh[1].table.words)
    assert not any("anna" in name for name, _ in schema)


def test_a_round_is_a_part_of_the_text_and_given_up_for_a_pause(folder: Path) -> None:
    model, described = read_shared(folder / "me", folder / "global.safetensors")
    said, looks = words_of(MINE, described.table), iter([False, False, True])

    def rounds() -> Iterator[Round]:
        yield whole
        yield cut

    whole, cut = Round(1), Round(2)
    assert teach(rounds(), model, TextLesson(said, SETTINGS, 32, lambda: next(looks))) == 1
    assert (whole.samples, whole.given_up, cut.given_up) == (32, False, True)


def test_a_text_of_which_the_shared_model_knows_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="knows no word"):
        words_of([["zz", "qq"]], TokenTable(("a", "b"), "ab"))
