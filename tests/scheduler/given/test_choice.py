"""What may be said of who aggregates with whom, and that what is no policy is one clear line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import write_safetensors
from mdl.own import Own
from mdl.scheduler.given import Foreign, check_count, describe_choice, is_file, policy_of
from mdl.scheduler.paper.policy import MlpQ, PaperPolicy, PaperRules, save_paper_dqn
from mdl.scheduler.policies import trained_under
from mdl.scheduler.policies.learned import Learned
from mdl.scheduler.policies.qnet_numpy import draw_weights, save_weights
from mdl.scheduler.policies.registry import POLICIES, make_policy


def save_paper(path: Path, n: int) -> Path:
    rng = np.random.default_rng(n)
    sizes = [5 * n, 8, n]
    layers = [
        (rng.standard_normal((outputs, inputs)).astype(np.float32), np.zeros(outputs, np.float32))
        for inputs, outputs in pairwise(sizes)
    ]
    save_paper_dqn(path, MlpQ(layers, n, PaperRules(), counts=False), {})
    return path


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    save_weights(tmp_path / "mine.safetensors", draw_weights(np.random.default_rng(0)), {})
    return tmp_path / "mine.safetensors"


def test_a_name_is_the_built_in_policy() -> None:
    assert all(type(policy_of(name)) is type(make_policy(name)) for name in POLICIES)
    assert [describe_choice(name) for name in POLICIES] == list(POLICIES)
    with pytest.raises(ConfigError, match=r"unknown policy 'gredy'; did you mean 'greedy'"):
        policy_of("gredy")


def test_a_file_is_a_policy_that_tells_its_name(trained: Path) -> None:
    policy = policy_of(str(trained))
    assert isinstance(policy, Learned)
    assert policy.name == "mine.safetensors"
    assert policy_of("dqn").name == "dqn"


def test_a_file_of_the_paper_answers_for_its_number_of_devices(tmp_path: Path) -> None:
    policy = policy_of(str(save_paper(tmp_path / "paper.safetensors", 6)))
    assert isinstance(policy, PaperPolicy)
    assert (policy.name, policy.n) == ("paper.safetensors", 6)
    check_count(policy, 6, "--policy p")
    check_count(policy_of("greedy"), 6, "--policy p")
    with pytest.raises(ConfigError, match=r"^--policy p: it orders 6 devices and no other number; this mesh has 9$"):
        check_count(policy, 9, "--policy p")


@pytest.mark.parametrize("name", ["gone.safetensors", "no/such/folder.safetensors"])
def test_a_file_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: no policy file .*does not exist"):
        policy_of(name)


def test_what_is_no_policy_file_is_one_line(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(trained.read_bytes()[:-100])
    model = tmp_path / "model.safetensors"
    write_safetensors(model, {"values": np.zeros(3, np.float32)}, {"mdl": '{"model": "lenet"}'})
    other = tmp_path / "other.safetensors"
    with monkeypatch.context() as before:
        before.setattr(trained_under, "FORMULAS", 0)
        save_weights(other, draw_weights(np.random.default_rng(0)), {})
    for path, said in (
        (torn, "not a whole safetensors file"),
        (model, "no policy file: it does not say what its network sees"),
        (other, "trained under other constants than this version's .formulas 0 there, 1 here"),
        (tmp_path, "is a directory, not a policy file"),
    ):
        with pytest.raises(DataError, match=said) as error:
            policy_of(str(path))
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        assert error.value.exit_code == 2


@pytest.mark.parametrize("name", ["os:abort", "os.path:join", "mine:make.safetensors"])
def test_a_text_that_names_a_function_is_never_imported(name: str) -> None:
    with pytest.raises(ConfigError, match="nothing is imported unless you say so with --policy on the command line"):
        policy_of(name)


def test_what_a_story_keeps_of_it_is_followed_by_nobody(trained: Path, tmp_path: Path) -> None:
    """And a file's words tell it from another of the same name."""
    told = describe_choice(str(trained))
    assert told.startswith("the file mine.safetensors, sha256 ")
    save_weights(tmp_path / "mine.safetensors", draw_weights(np.random.default_rng(1)), {})
    assert describe_choice(str(trained)) != told
    own = Own("mine:make", lambda: make_policy("fifo"))
    assert describe_choice(own) == "the function mine:make"
    assert isinstance(policy_of(own), Foreign)
    for words in (told, describe_choice(own)):
        assert not is_file(words)
        with pytest.raises(ConfigError):
            policy_of(words)
