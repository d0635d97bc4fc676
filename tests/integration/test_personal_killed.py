"""kill -9 in the middle of a personal training: the same command goes on, and ends with the same model, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mdl.files.checkpoint import read_safetensors
from mdl.personal.words.model_file import save_next_word
from mdl.personal.words.text import build_table
from peers.personal.home import MODEL, STUDY
from tests.integration import product
from tests.mdl.personal.words.examples import invent, small_model

# Each start costs seconds; ten moments were tried when this was written.
KILLS = 4
TRAIN = ("personal", "train", "mine.txt", "--model", "global.safetensors", "--words", "0", "--epochs", "4", "--json")


@pytest.fixture
def home(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[product.Home]:
    home = product.Home(tmp_path / "home", tmp_path_factory.getbasetemp() / "cache")
    sentences = invent(300, seed=1, longest=20)
    table = build_table(sentences, 60)
    save_next_word(home.folder / "global.safetensors", small_model(table, 48), table)
    (home.folder / "mine.txt").write_text("\n".join(" ".join(words) for words in sentences))
    yield home
    home.close()


def test_kill_9_at_random_moments_and_the_model_is_that_of_a_run_without(home: product.Home) -> None:
    assert home.run(*TRAIN, "--out", "whole").code == 0
    chance, study = random.Random(5), home.folder / "cut" / STUDY
    killed = [_kill_once(home, study, chance.uniform(0.0, 0.3)) for _ in range(KILLS)]
    assert any(killed)
    done = home.run(*TRAIN, "--out", "cut")
    assert done.code == 0, done.told
    whole, cut = (read_safetensors(home.folder / name / MODEL)[0] for name in ("whole", "cut"))
    assert not study.exists()
    assert all(np.array_equal(whole[name], cut[name]) for name in whole)


def _kill_once(home: product.Home, study: Path, later_s: float) -> bool:
    """So long after it has saved a batch more; whether it was still at work."""
    before = _saved_at(study)
    command = home.start(*TRAIN, "--out", "cut")
    product.until(lambda: command.code is not None or _saved_at(study) != before)
    product.until(lambda: command.code is not None, later_s)
    killed = command.code is None
    if killed:
        command.process.kill()
    command.end()
    return killed


def _saved_at(study: Path) -> int:
    try:
        return study.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
