"""The paper's DQN on disk: what was kept plays the same, and whatever is no such file is one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mdl.scheduler.paper.policy import MlpQ, PaperRules, is_paper_dqn, load_paper_dqn, save_paper_dqn
from mdl.scheduler.policies.qnet_numpy import PolicyFileError, draw_weights, save_weights


def _network(n: int = 4, *, counts: bool = False, rules: PaperRules | None = None) -> MlpQ:
    rng = np.random.default_rng(n)
    sizes = [(6 if counts else 5) * n, 8, n]
    layers = [
        (rng.normal(size=(outputs, inputs)).astype(np.float32), rng.normal(size=outputs).astype(np.float32))
        for inputs, outputs in itertools.pairwise(sizes)
    ]
    return MlpQ(layers, n, rules or PaperRules(), counts=counts)


@pytest.mark.parametrize("counts", [False, True])
def test_a_kept_network_values_as_it_did_and_says_what_it_is(tmp_path: Path, counts: bool) -> None:
    path, rules = tmp_path / "paper.safetensors", PaperRules(battery_cost=0.2, printed_sign=True, step_limit=5)
    network = _network(counts=counts, rules=rules)
    save_paper_dqn(path, network, {"seed": 3})
    kept, metadata = load_paper_dqn(path)
    state, n_agg = np.array([[0, 1, 2, 4]], np.int8), np.array([[0, 1, 0, 2]])
    assert np.array_equal(kept.value(state, n_agg), network.value(state, n_agg))
    assert (kept.n, kept.rules, kept.counts) == (4, rules, counts)
    assert (metadata["kind"], metadata["n"], metadata["seed"]) == ("paper-dqn", 4, 3)
    assert metadata["sizes"] == [24 if counts else 20, 8, 4]
    assert is_paper_dqn(path)


def test_what_the_maker_adds_cannot_change_what_the_file_is(tmp_path: Path) -> None:
    save_paper_dqn(tmp_path / "p.safetensors", _network(), {"kind": "other", "n": 9})
    assert load_paper_dqn(tmp_path / "p.safetensors")[0].n == 4


def _write(path: Path, network: MlpQ, said: dict[str, Any], **arrays: Any) -> None:
    """A file of a sound network in which something was changed: None leaves it out."""
    save_paper_dqn(path, network, {})
    metadata = load_paper_dqn(path)[1] | said
    kept = {f"layer{number}.{part}": value for number, layer in enumerate(network.layers)
            for part, value in zip(("weight", "bias"), layer, strict=True)}  # fmt: skip
    kept = {name: value for name, value in (kept | arrays).items() if value is not None}
    save_file(kept, path, {"mdl": json.dumps({key: value for key, value in metadata.items() if value is not None})})


@pytest.mark.parametrize(
    ("said", "arrays", "reason"),
    [
        ({"kind": "chain"}, {}, "no policy file of the paper's DQN .*kind"),
        ({"kind": None}, {}, "no policy file of the paper's DQN .*kind"),
        ({"n": 1 << 40}, {}, r"\$\.n"),
        ({"n": 5}, {}, "20 inputs and 4 values; 5 devices have 25 and 5"),
        ({"counts": True}, {}, "20 inputs and 4 values; 4 devices have 24 and 4"),
        ({"sizes": [20, 9, 4]}, {}, "layer 0 is not of float32 numbers, 9 times 20"),
        ({"sizes": [20, 8, 8, 4]}, {}, "it has 4 arrays; expected weight and bias of 3 layers"),
        ({"sizes": [20, 0, 4]}, {}, r"\$\.sizes"),
        ({"rules": {"battery_cost": "much"}}, {}, r"\$\.rules"),
        ({"rules": {"alpha": 1.0}}, {}, r"\$\.rules"),
        ({}, {"layer1.bias": None}, "it has 3 arrays"),
        ({}, {"more": np.zeros(1)}, "it has 5 arrays"),
        ({}, {"layer1.bias": np.zeros(4)}, "layer 1 is not of float32"),
        ({}, {"layer1.bias": np.full(4, np.nan, np.float32)}, "layer 1 holds numbers that are not finite"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(
    tmp_path: Path, said: dict[str, Any], arrays: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "p.safetensors"
    _write(path, _network(), said, **arrays)
    with pytest.raises(PolicyFileError, match=reason) as error:
        load_paper_dqn(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_file_of_another_kind_of_policy_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "chain.safetensors"
    save_weights(path, draw_weights(np.random.default_rng(0)), {})
    assert not is_paper_dqn(path)
    with pytest.raises(PolicyFileError, match="no policy file of the paper's DQN"):
        load_paper_dqn(path)


def test_what_is_no_policy_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("hello")
    with pytest.raises(PolicyFileError, match="no policy file"):
        is_paper_dqn(tmp_path / "words")
