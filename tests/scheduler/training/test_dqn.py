"""DQN with our network and exploration, the strategies of exploration, and training as a command runs it."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdl.errors import ConfigError, DataError
from mdl.scheduler.paper.policy import load_paper_dqn, save_paper_dqn
from mdl.scheduler.policies.learned import SHIPPED
from mdl.scheduler.policies.qnet_numpy import load_weights
from mdl.scheduler.study.judging import tell_verdict
from mdl.scheduler.training import train
from mdl.scheduler.training.dqn import Exploration
from mdl.scheduler.training.qnet_torch import QNetwork, load_policy, save_policy
from mdl.scheduler.training.train import TrainingProgress
from mdl.sim.timing.scenario import draw_scenario

pytest.importorskip("stable_baselines3")

from mdl.scheduler.training.dqn import ChainPolicy, MaskedDQN, PaperVecEnv, TellExploration, train_paper, valid_actions
from mdl.scheduler.training.env import ChainEnv, split_observation


def _model(env: ChainEnv, **options: Any) -> MaskedDQN:
    settings: dict[str, Any] = {"seed": 0, "learning_starts": 50, "batch_size": 16, "buffer_size": 500, "device": "cpu"}
    return MaskedDQN(ChainPolicy, env, valid=valid_actions, gamma=1.0, **(settings | options))


def _network(seed: int) -> QNetwork:
    """With opinions: a fresh one has none."""
    rng = np.random.default_rng(seed)
    weights = QNetwork(seed).weights()
    return QNetwork(
        weights={name: rng.normal(0.0, 0.1, values.shape).astype(np.float32) for name, values in weights.items()}
    )


def test_exploring_never_picks_what_is_illegal() -> None:
    ends: list[str] = []

    class Watched(ChainEnv):
        def step(self, action: np.int64) -> Any:
            result = super().step(action)
            ends.append(result[4]["end"])
            return result

    model = _model(Watched(("paper", "dynamic"), (3, 5), reward="raw"))
    model.explore_by(lambda: 0.5)
    model.learn(200)
    assert "goal" in ends
    assert "illegal" not in ends


def test_the_exploration_rate_is_what_the_schedule_says() -> None:
    model = _model(ChainEnv("paper", 3, reward="raw"))
    model.explore_by(lambda: 0.25 if model.num_timesteps < 40 else 0.125)
    assert model.exploration_rate == 0.25
    model.learn(60)
    assert model.exploration_rate == 0.125


def test_the_policy_of_stable_baselines_values_as_the_network_does() -> None:
    env = ChainEnv("hetero", 4, max_n=6)
    model = _model(env)
    network = _network(9)
    assert isinstance(model.policy, ChainPolicy)
    model.policy.load(network)
    seen = env.reset(seed=2)[0][None]
    features, exists, valid = (torch.from_numpy(array) for array in split_observation(seen))
    with torch.no_grad():
        assert torch.equal(model.q_net(torch.from_numpy(seen)), network(features, exists, valid))
        assert torch.equal(model.q_net_target(torch.from_numpy(seen)), network(features, exists, valid))


def test_double_dqn_lets_the_network_pick_and_the_target_value() -> None:
    moved = []
    for double in (True, False):
        model = _model(ChainEnv("hetero", 6, reward="raw"), double=double, max_grad_norm=1e9, learning_rate=0.0)
        assert isinstance(model.policy, ChainPolicy)
        model.policy.load(_network(1))
        model.learn(60)
        model.q_net_target.network.load_weights(_network(2).weights())  # type: ignore[operator, union-attr]
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 (the replay buffer draws from it)
        model.train(1, 16)
        moved.append([parameter.grad.clone() for parameter in model.q_net.parameters() if parameter.grad is not None])
    assert any(not torch.allclose(one, other) for one, other in zip(*moved, strict=True))


def test_every_finished_episode_is_told() -> None:
    strategy = Exploration("dge", 1.0)
    model = _model(ChainEnv("paper", 3, reward="raw"))
    told = TellExploration(strategy)
    model.learn(60, callback=told)
    assert strategy.episode == len(told.returns) > 5


def test_the_paper_network_is_kept_and_plays_the_same(tmp_path: Path) -> None:
    run = train_paper(4, 300, seed=0)
    network = run.network
    seen = run.model.observation_space.sample()[None]
    with torch.no_grad():
        assert network(seen) == pytest.approx(run.model.q_net(torch.from_numpy(seen)).numpy(), abs=1e-5)
    path = tmp_path / "paper.safetensors"
    save_paper_dqn(path, network, {"seed": 0})
    kept, metadata = load_paper_dqn(path)
    assert (metadata["seed"], kept.n) == (0, 4)
    assert kept.order((1, 0, 0, 0)) == network.order((1, 0, 0, 0))
    save_policy(path, QNetwork(0), {})
    with pytest.raises(DataError, match="no policy file of the paper's DQN"):
        load_paper_dqn(path)


def test_the_paper_is_trained_on_the_very_environment() -> None:
    from mdl.scheduler.paper.env import ChainPaperEnv
    from mdl.scheduler.paper.policy import PaperRules

    busy = [0, 1, 0, 0]
    one, many = ChainPaperEnv(4, busy=busy), PaperVecEnv(4, 3, PaperRules(), busy=busy)
    seen, _ = one.reset()
    assert many.reset().tolist() == [seen.tolist()] * 3
    for pick in (0, 2, 3, 2, 2, 1):
        seen, reward, ended, _, _ = one.step(np.int64(pick))
        all_seen, rewards, dones, _ = many.step(np.full(3, pick))
        assert rewards == pytest.approx([reward] * 3)
        assert dones.tolist() == [ended] * 3
        assert ended or all_seen.tolist() == [seen.tolist()] * 3
    assert ended


def test_training_of_the_paper_ends_when_it_is_told_so_after_an_episode() -> None:
    told: list[tuple[int, float]] = []

    def follow(ended: int, last: float) -> bool:
        told.append((ended, last))
        return ended == 30

    run = train_paper(3, 4000, seed=0, on_episode=follow)
    assert [ended for ended, _ in told][:30] == list(range(1, 31))
    assert [last for _, last in told] == run.returns
    assert run.steps < 400


def test_the_paper_explores_valid_picks_alone_and_fully_until_its_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    from mdl.scheduler.paper.policy import PaperBatch

    failures: list[bool] = []
    step = PaperBatch.step

    def watched(self: PaperBatch, devices: Any) -> Any:
        result = step(self, devices)
        failures.extend(result[2].tolist())
        return result

    monkeypatch.setattr(PaperBatch, "step", watched)
    run = train_paper(5, 384, seed=0, phi=-5.0)  # a threshold that no episode can pass
    assert (run.exploration.rate, run.exploration.passed_at) == (1.0, None)
    assert len(run.returns) == 384 // 8
    assert len(failures) == 384
    assert not any(failures)


class _Labels:
    """Stands in for training on labels: as many steps, no labels."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, bool]] = []
        self.seen: tuple[Any, ...] = ()

    def __call__(
        self, steps: int, seed: int, processes: int, *, start: Any = None, seen: Any = (), on_progress: Any = None
    ) -> Any:
        self.seen = seen
        self.calls.append((steps, seed, start is not None))
        network = QNetwork(seed).weights()
        for step in range(1, steps + 1):
            if on_progress is not None and on_progress(TrainingProgress(step, steps, 0.5, step, network)):
                break
        return network


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> _Labels:
    stand_in = _Labels()
    monkeypatch.setattr(train, "train_on_labels", stand_in)
    monkeypatch.setattr(train, "watch", lambda count: lambda network: {"paper 9": 1.5})
    return stand_in


def test_training_that_was_stopped_is_kept_and_resumed(labels: _Labels, tmp_path: Path) -> None:
    out = tmp_path / "policy.safetensors"
    asked = iter([False] * 6 + [True] * 100)
    first = train.train_policy(20, 3, 0, out, "mdl scheduler train", should_stop=lambda: next(asked))
    assert (first.steps, first.ended) == (7, False)
    assert load_policy(out)[1]["steps"] == 7
    second = train.train_policy(20, 3, 0, out, "mdl scheduler train", resume=True)
    assert (second.steps, second.ended) == (20, True)
    assert load_policy(out)[1]["evaluation"] == {"paper 9": 1.5}
    assert labels.calls == [(20, 3, True), (13, 10, True)]
    with pytest.raises(ConfigError, match="has had 20 already"):
        train.train_policy(20, 3, 0, out, "mdl scheduler train", resume=True)


def test_training_is_evaluated_and_saved_on_its_way(labels: _Labels, tmp_path: Path) -> None:
    reports: list[train.Report] = []
    train.train_policy(40, 0, 0, tmp_path / "p.safetensors", "mdl scheduler train", on_report=reports.append)
    assert [report.step for report in reports] == list(range(41))
    assert [report.step for report in reports if report.figures] == list(range(0, 41, 4))


def test_from_scratch_no_early_network_is_judged(labels: _Labels, tmp_path: Path) -> None:
    reports: list[train.Report] = []
    told = ("mdl scheduler train", tmp_path / "p.safetensors")
    train.train_policy(40, 0, 0, told[1], told[0], from_scratch=True, on_report=reports.append)
    assert [report.step for report in reports if report.figures] == list(range(8, 41, 4))
    assert labels.calls == [(40, 0, False)]


def test_the_best_network_is_kept_and_not_the_last(
    labels: _Labels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = iter([0.5, 0.2, 1.75, *[-3.0] * 20])
    monkeypatch.setattr(train, "watch", lambda count: lambda network: {"paper 9": next(gains)})
    out = tmp_path / "p.safetensors"
    trained = train.train_policy(40, 0, 0, out, "mdl scheduler train")
    assert trained.steps == 40
    network, told = load_policy(out)
    assert told["evaluation"] == {"paper 9": 1.75}
    assert np.array_equal(network.weights()["encode1.weight"], QNetwork(0).weights()["encode1.weight"])


def test_training_that_only_makes_it_worse_gives_the_shipped_policy_back(
    labels: _Labels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = iter([0.0, *[-3.0] * 20])
    monkeypatch.setattr(train, "watch", lambda count: lambda network: {"paper 9": next(gains)})
    trained = train.train_policy(40, 0, 0, tmp_path / "p.safetensors", "mdl scheduler train")
    with as_file(files("mdl.scheduler") / "data" / SHIPPED) as shipped:
        assert np.array_equal(trained.network["encode1.weight"], load_weights(shipped)[0]["encode1.weight"])


@pytest.mark.parametrize(
    ("less", "verdict", "told"),
    [
        ({"paper 9": (1.0, 0.5), "hetero 9": (2.0, 0.5)}, "better", "use it: rounds take 1.5 +- 0.4 % less time"),
        ({"paper 9": (1.0, 2.0), "hetero 9": (-1.0, 2.0)}, "level", "no reason to use it"),
        (
            {"paper 9": (9.0, 0.5), "hetero 9": (-4.0, 0.5)},
            "worse",
            "do not use it: on hetero 9 rounds take 4.0 % longer",
        ),
    ],
)
def test_one_sentence_says_whether_to_use_it(less: dict[str, tuple[float, float]], verdict: str, told: str) -> None:
    found, sentence = tell_verdict(less)
    assert found == verdict
    assert told in sentence


def test_resuming_needs_a_file(labels: _Labels, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        train.train_policy(5, 0, 0, tmp_path / "none.safetensors", "mdl scheduler train", resume=True)


def test_minutes_become_steps_by_trying_a_few(labels: _Labels) -> None:
    ticks = iter([100.0, 108.0])
    assert train.plan_steps(2.0, 0, 0, lambda: next(ticks)) == int(0.9 * 112.0 / 8.0 * 8)


def test_rounds_of_a_mesh_are_learned_from_and_others_watched(labels: _Labels, tmp_path: Path) -> None:
    seen = (draw_scenario("hetero", 4, 1),)
    train.train_policy(4, 0, 0, tmp_path / "p.safetensors", "", seen=seen, watched={"recorded": seen})
    assert labels.seen == seen
    labels.seen = ()
    ticks = iter([100.0, 108.0])
    train.plan_steps(2.0, 0, 0, lambda: next(ticks), seen)
    assert labels.seen == seen


def test_without_the_learning_libraries_one_line_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from mdl.peers.cli import scheduler as cli_scheduler

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli_scheduler.app, ["train", "--variant", "paper", "--steps", "10"])
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'mdl[train]'" in str(result.exception)
