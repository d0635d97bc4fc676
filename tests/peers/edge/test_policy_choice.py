"""What a node follows when it leads: checked before it starts, and the same in each of its times in office."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdl.config import Config, RoundSection
from mdl.errors import ConfigError, DataError
from mdl.own import Own
from mdl.peers.edge.relearner import choose_policy
from mdl.scheduler.paper.policy import MlpQ, PaperRules, save_paper_dqn
from mdl.scheduler.policies.registry import make_policy


def follow(policy: str, **options: int) -> Config:
    return Config(round=RoundSection(policy=policy, **options))  # type: ignore[arg-type]


def save_paper(path: Path, n: int) -> Path:
    layer = np.zeros((n, 5 * n), np.float32), np.zeros(n, np.float32)
    save_paper_dqn(path, MlpQ([layer], n, PaperRules(), counts=False), {})
    return path


def test_a_file_is_read_once_and_its_story_tells_which_it_was(tmp_path: Path) -> None:
    path = save_paper(tmp_path / "paper.safetensors", 3)
    chosen = choose_policy(follow(str(path)))
    path.unlink()
    first, second = chosen.make(tmp_path), chosen.make(tmp_path)
    assert first is not second
    assert first.name == second.name == "paper.safetensors"
    assert chosen.told.startswith("the file paper.safetensors, sha256 ")
    assert not chosen.learns


def test_the_command_line_comes_before_the_configuration(tmp_path: Path) -> None:
    assert choose_policy(follow("tree"), "ring").make(tmp_path).name == "ring"
    own = Own("mine:make", lambda: make_policy("fifo"))
    assert choose_policy(follow("mine:make"), own).make(tmp_path).name == "mine:make"
    assert choose_policy(Config()).learns


def test_a_mesh_that_begins_with_more_devices_than_a_file_orders_is_refused(tmp_path: Path) -> None:
    path = str(save_paper(tmp_path / "paper.safetensors", 3))
    assert choose_policy(follow(path, min_peers=2)).told
    with pytest.raises(ConfigError, match="it orders 3 devices and no other number; this mesh has 4"):
        choose_policy(follow(path, min_peers=4))


def test_a_file_that_is_none_ends_the_node_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    with pytest.raises(DataError, match="not a whole safetensors file"):
        choose_policy(follow(str(tmp_path / "torn.safetensors")))
