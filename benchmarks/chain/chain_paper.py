"""The paper's own problem measured: Phi of Eq. 8, strategies of exploration (Fig. 6), re-learning (Fig. 8), speed."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from scheduler.paper.env import ChainPaperEnv
from scheduler.paper.mlp_numpy import MlpQ
from scheduler.paper.optimum import PaperOptimum
from scheduler.paper.problem import PaperBatch, PaperRules, draw_busy, observe_paper
from scheduler.study.judging import half_width
from scheduler.training.dqn import MaskedDQN
from scheduler.training.env import ChainEnv
from scheduler.training.refine import plain_mlp, train_paper
from scheduler.training.vector_env import ChainVectorEnv

# Picks of one training by N; some 1,500 episodes of full length.
_PICKS = {5: 12_000, 7: 16_000, 9: 24_000}
_LOOK_PICKS = 400
_STARTS = 200
# Converged: within this share of the way from quitting at once to the optimum, at two looks in a row.
_NEAR = 0.1


def measure_exploration(seeds: int) -> dict[str, Any]:
    """Fig. 6: episodes until the greedy policy is near the optimum, by strategy."""
    found: dict[str, Any] = {}
    for n, picks in _PICKS.items():
        found[str(n)] = {}
        for name in ("tdge", "dge", "tge"):
            runs = [_train(n, picks, seed, PaperRules(), exploration=name) for seed in range(seeds)]
            found[str(n)][name] = _describe(runs)
    return {"episodes_to_convergence": found, "paper": "not stated here", "near": _NEAR, "seeds": seeds}


def measure_relearning(seeds: int, n: int = 5) -> dict[str, Any]:
    """Fig. 8: after the environment changed, episodes until it is learned again: from the old weights, from scratch."""
    before = PaperRules()
    changes = {
        "batteries count four times as much": replace(before, battery_cost=0.4),
        "busy devices are wanted (the printed sign)": replace(before, printed_sign=True),
    }
    picks = _PICKS[n]
    old = [_train(n, picks, 100 + seed, before) for seed in range(seeds)]
    found = {}
    for change, rules in changes.items():
        warm = [_train(n, picks, seed, rules, start=run.model) for seed, run in enumerate(old)]
        cold = [_train(n, picks, seed, rules) for seed in range(seeds)]
        found[change] = {"warm": _describe(warm), "from scratch": _describe(cold)}
    return {"n": n, "episodes_to_convergence": found, "paper": "not stated here", "seeds": seeds}


def measure_speed() -> dict[str, Any]:
    """Steps a second of CPU: median of five runs of each."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for count in (256, 1024, 4096):
        batch = PaperBatch(9, count, PaperRules(), rng)

        def step(batch: PaperBatch = batch) -> int:
            draws = rng.random(batch.state.shape, dtype=np.float32)
            draws[~batch.legal] = -1.0
            batch.step(draws.argmax(axis=1))
            return batch.count

        found[f"paper batch of {count}, legal picks drawn, steps/s"] = _rate(step)
    found["paper env, steps/s"] = _rate(_stepper(ChainPaperEnv(9), rng))
    for reward in ("raw", "shaped"):
        found[f"chain env, dynamic 9, {reward}, picks/s"] = _rate(_stepper(ChainEnv("dynamic", 9, reward=reward), rng))
    for family in ("hetero", "dynamic"):
        vector = _VectorStepper(ChainVectorEnv(1024, family=family, n=9, reward="raw", pool=2048), rng)
        found[f"chain vector env of 1024, {family} 9, raw, picks/s"] = _rate(vector.step, seconds=1.0)
    return {"rates": found}


class _Run:
    """One training, looked at every so many picks: mean return of its greedy policy on the same starts."""

    def __init__(self, n: int, rules: PaperRules, model: MaskedDQN | None = None) -> None:
        self.model = model
        self.looks: list[tuple[int, float, float]] = []
        self._n, self._rules = n, rules
        self._starts = draw_busy(n, _STARTS, np.random.default_rng([n, 500_000]))
        optimum = PaperOptimum(n, rules)
        self.best = fmean(optimum.best_return(_flags(start)) for start in self._starts)

    def look(self, episodes: int) -> None:
        assert self.model is not None
        mean, illegal = _mean_return(plain_mlp(self.model, self._n, self._rules), self._starts)
        self.looks.append((episodes, mean, illegal))

    def converged_at(self) -> int | None:
        enough = self.best - _NEAR * (self.best - self._rules.illegal_reward)
        for (episodes, mean, _), (_, following, _) in pairwise(self.looks):
            if mean >= enough and following >= enough:
                return episodes
        return None


def _train(
    n: int, picks: int, seed: int, rules: PaperRules, *, exploration: str = "tdge", start: MaskedDQN | None = None
) -> _Run:
    run = _Run(n, rules)
    ended = [0]

    def look(step: int) -> None:
        if step % _LOOK_PICKS == 0:
            run.look(ended[0])

    def follow(episodes: int) -> None:
        ended[0] = episodes

    def keep(model: MaskedDQN) -> None:
        run.model = model

    train_paper(
        n,
        picks,
        seed,
        rules=rules,
        exploration=exploration,
        start=start,
        on_step=look,
        on_model=keep,
        on_episode=follow,
    )
    return run


def _mean_return(network: MlpQ, starts: np.ndarray) -> tuple[float, float]:
    """Mean return and share of quits of the greedy policy on these starts."""
    count, n = starts.shape
    batch = PaperBatch(n, count, network.rules, np.random.default_rng(0))
    batch.reset(starts)
    total, open_rows, illegal = np.zeros(count), np.ones(count, bool), np.zeros(count, bool)
    for _ in range(2 * (n - 1)):
        seen = observe_paper(batch.state)
        rewards, ended, wrong = batch.step(network(seen).argmax(axis=1))
        total += rewards * open_rows
        illegal |= wrong & open_rows
        open_rows &= ~ended
    return float(total.mean()), float(illegal.mean())


def _describe(runs: list[_Run]) -> dict[str, Any]:
    found = [run.converged_at() for run in runs]
    reached = [episodes for episodes in found if episodes is not None]
    return {
        "median": median(reached) if reached else None,
        "mean": round(fmean(reached), 1) if reached else None,
        "interval95": round(half_width(reached), 1) if reached else None,
        "converged": len(reached),
        "of": len(runs),
        "optimum": round(runs[0].best, 3),
        "last_return": round(fmean(run.looks[-1][1] for run in runs), 3),
        "last_quits": round(fmean(run.looks[-1][2] for run in runs), 3),
        "runs_that_quit": sum(run.looks[-1][2] > 0.02 for run in runs),
    }


def _stepper(env: ChainPaperEnv | ChainEnv, rng: np.random.Generator) -> Any:
    env.reset(seed=0)

    def step() -> int:
        valid = env.legal if isinstance(env, ChainPaperEnv) else env.valid
        if env.step(rng.choice(np.flatnonzero(valid)))[2]:
            env.reset()
        return 1

    return step


class _VectorStepper:
    """Random valid picks; waits only where nothing else is valid."""

    def __init__(self, env: ChainVectorEnv, rng: np.random.Generator) -> None:
        self._env, self._rng = env, rng
        self._valid = env.reset(seed=0)[1]["valid"]

    def step(self) -> int:
        valid = self._valid.copy()
        valid[:, -1] &= ~valid[:, :-1].any(axis=1)
        actions = np.where(valid, self._rng.random(valid.shape), -1.0).argmax(axis=1)
        self._valid = self._env.step(actions)[4]["valid"]
        return len(actions)


def _rate(step: Any, seconds: float = 0.6, runs: int = 5) -> int:
    rates = []
    for _ in range(runs):
        began, steps = time.process_time(), 0
        while (spent := time.process_time() - began) < seconds:
            steps += step()
        rates.append(steps / spent)
    return round(median(rates))


def _flags(start: np.ndarray) -> list[int]:
    return [int(each) for each in start > 0]
