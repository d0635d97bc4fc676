"""kill -9 in the middle of a training: the same command goes on, and ends with the same model, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mdl.files.checkpoint import read_safetensors
from mdl.peers.deeptype.home import MODEL, STUDY
from mdl.peers.deeptype.model.model_file import save_next_word
from mdl.peers.deeptype.model.text import build_table
from tests.integration import product
from tests.peers.deeptype.model.examples import invent, small_model

# Each start costs seconds; ten moments were tried when this was written.
KILLS = 4
PRETRAIN = ("personal", "pretrain", "mine.txt", "--words", "60", "--hidden", "48", "--epochs", "3", "--batch", "32",
            "--sampled", "30", "--json")  # fmt: skip
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


# What is run, where it goes for `--out NAME`, and where it stands in between.
WAYS = {
    "train": (TRAIN, "{}", f"{{}}/{MODEL}", f"{{}}/{STUDY}"),
    "pretrain": (PRETRAIN, "{}.safetensors", "{}.safetensors", "{}.safetensors.study"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_kill_9_at_random_moments_and_the_model_is_that_of_a_run_without(home: product.Home, way: str) -> None:
    command, out, model, study_name = WAYS[way]
    assert home.run(*command, "--out", out.format("whole")).code == 0
    chance, study = random.Random(5), home.folder / study_name.format("cut")
    words = (*command, "--out", out.format("cut"))
    killed = [_kill_once(home, words, study, chance.uniform(0.0, 0.3)) for _ in range(KILLS)]
    assert any(killed)
    done = home.run(*words)
    assert done.code == 0, done.told
    whole, cut = (read_safetensors(home.folder / model.format(name))[0] for name in ("whole", "cut"))
    assert not study.exists()
    assert all(np.array_equal(whole[name], cut[name]) for name in whole)


def _kill_once(home: product.Home, words: tuple[str, ...], study: Path, later_s: float) -> bool:
    """So long after it has saved a batch more; whether it was still at work."""
    before = _saved_at(study)
    command = home.start(*words)
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
