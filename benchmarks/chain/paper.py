"""The paper's own problem measured: reward and DQN, Phi of Eq. 8, exploration (Fig. 6, 8), re-learning (9), speed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from benchmarks.chain.optimum import PaperOptimum
from mdl.scheduler.paper.env import ChainPaperEnv
from mdl.scheduler.paper.policy import MlpQ, PaperBatch, PaperRules, draw_busy, load_paper_dqn, save_paper_dqn
from mdl.scheduler.study.judging import half_width
from mdl.scheduler.training.dqn import PHI, MaskedDQN, plain_mlp, threshold, train_paper
from mdl.scheduler.training.env import ChainEnv, ChainVectorEnv

Keep = Callable[[dict[str, Any]], None]

# Picks of one training by N.
PICKS = {3: 4_000, 4: 6_000, 5: 8_000, 6: 12_000, 7: 12_000, 8: 16_000, 9: 24_000}
_ROUNDS = 200
# Optimal: within rounding of the best return.
_SAME = 1e-6
# One resource condition: most episodes, episodes after which 1 / e of the exploration is left ("slow"; "fast": half).
_MOST_EPISODES, _DECAY = 300, 50.0
# Converged: within this share of the way from quitting to the best return. The learned policy so many episodes on end;
# the rewards of training (which still explores) in the mean of so many.
_NEAR, _STEADY, _MEAN_OF = 0.1, 3, 10
# Phi: a random episode is above T(N) so often where most devices are busy, and episodes drawn for that.
_PASSES, _RANDOM_EPISODES = 0.01, 20_000
_PAPER_FIG8 = {"time: TDGE against TGE": 1.2, "time: TDGE against DGE": 1.3, "spread: against TGE": 1.9}
_PAPER_FIG8 |= {"spread: against DGE": 2.1, "epochs at N = 8: against TGE": 1.2, "epochs at N = 8: against DGE": 1.4}


def measure_reward(seeds: int, folder: Path, keep: Keep) -> dict[str, Any]:
    """Eq. 7: its exact optimum by the number of busy devices, and DQNs trained on it, on the same 200 rounds.

    folder: where the policy files of the trainings are, and come to.
    """
    found: dict[str, Any] = {}
    for n in PICKS:
        starts = draw_busy(n, _ROUNDS, np.random.default_rng([n, 500_000]))
        signs = {}
        for name, rules in (("text", PaperRules()), ("printed", PaperRules(printed_sign=True))):
            optimum = PaperOptimum(n, rules)
            by_busy = [[1] * count + [0] * (n - count) for count in range(n // 2 + 1)]
            signs[name] = {
                "best_return_by_busy": [round(optimum.best_return(start), 3) for start in by_busy],
                "quitting_is_best_by_busy": [optimum.best_order(start) is None for start in by_busy],
            }
        optimum = PaperOptimum(n, PaperRules())
        best = [optimum.best_return(start.tolist()) for start in starts]
        trainings = []
        for seed in range(seeds):
            trainings.append(_judge(train_or_load(n, seed, folder), starts, best))
            print(f"eq7: N = {n}, seed {seed}: {trainings[-1]}", file=sys.stderr, flush=True)
        found[str(n)] = {"optimum": signs, "best_return": round(fmean(best), 3), "picks": PICKS[n], "dqn": trainings}
        keep({"by_n": found})
    return {"by_n": found, "rounds": _ROUNDS}


def train_or_load(n: int, seed: int, folder: Path) -> MlpQ:
    """The DQN of this seed: from the folder's policy file, or trained and kept there."""
    path = folder / f"paper-{n}-{seed}.safetensors"
    if path.is_file():
        return load_paper_dqn(path)[0]
    network = train_paper(n, PICKS[n], seed).network
    folder.mkdir(parents=True, exist_ok=True)
    save_paper_dqn(
        path, network, {"seed": seed, "steps": PICKS[n], "command": "`python -m benchmarks chain_scheduler` --part eq7"}
    )
    return network


def _judge(network: MlpQ, starts: np.ndarray, best: list[float]) -> dict[str, Any]:
    """How many rounds it orders to the end, and how far from the optimum: mean of best return - its return."""
    played = [network.play(start.tolist()) for start in starts]
    missed = [top - total for (total, order), top in zip(played, best, strict=True) if order is not None]
    return {
        "to_the_end": len(missed),
        "missed_there": round(fmean(missed), 3) if missed else None,
        "missed_in_all": round(fmean(best) - fmean(total for total, _ in played), 3),
        "optimal": sum(each < _SAME for each in missed),
    }


def measure_phi() -> dict[str, Any]:
    """Eq. 8: f + g, and what random valid picks bring where most devices are busy; Phi is the largest difference."""
    found: dict[str, Any] = {}
    for n in PICKS:
        busy = [1] * (n // 2) + [0] * (n - n // 2)
        rng = np.random.default_rng(n)
        batch = PaperBatch(n, _RANDOM_EPISODES, PaperRules(), rng, busy=busy)
        total = np.zeros(_RANDOM_EPISODES)
        for _ in range(2 * (n - 1)):
            picks = np.where(batch.legal, rng.random(batch.state.shape), -1.0).argmax(axis=1)
            total += batch.step(picks)[0]
        bound, reached = threshold(n, PaperRules(), 0.0), float(np.quantile(total, 1.0 - _PASSES))
        best = PaperOptimum(n, PaperRules()).best_return(busy)
        found[str(n)] = {"f + g": round(bound, 3), "best": round(best, 3), "one_in_100": round(reached, 3)}
        found[str(n)]["phi"] = round(bound - reached, 3)
    return {"by_n": found, "phi": max(row["phi"] for row in found.values()), "used": PHI}


@dataclass
class _Run:
    """A training for one resource condition. None: not within the episodes."""

    model: MaskedDQN
    policy_at: int | None
    policy_cpu_s: float | None
    reward_at: int | None
    reward_cpu_s: float | None


def measure_decay(runs: int, keep: Keep, n: int = 8) -> dict[str, Any]:
    """Fig. 6: DGE, and DGE whose rate decays twice as fast."""
    found = {}
    for name, decay in (("fast", _DECAY / 2), ("slow", _DECAY)):
        found[name] = _describe([_learn(n, draw_condition(n, run), "dge", run, decay=decay) for run in range(runs)])
        keep({"dge": found})
    return {"dge": found, "n": n, "runs": runs, "paper_epochs": {"fast": 73, "slow": 143}}


def measure_strategies(runs: int, sizes: list[int], phi: float, keep: Keep) -> dict[str, Any]:
    """Fig. 8: TDGE, DGE and TGE, each for the same drawn resource conditions."""
    found: dict[str, Any] = {}
    for n in sizes:
        learned = {
            name: [_learn(n, draw_condition(n, run), name, run, phi=phi) for run in range(runs)]
            for name in ("tdge", "dge", "tge")
        }
        found[str(n)] = {name: _describe(each) for name, each in learned.items()}
        found[str(n)] |= {f"tdge_against_{name}": _compare(learned[name], learned["tdge"]) for name in ("dge", "tge")}
        keep({"by_n": found})
        print(f"fig8: N = {n}: {found[str(n)]}", file=sys.stderr, flush=True)
    return {"by_n": found, "runs": runs, "phi": phi, "paper_times_more": _PAPER_FIG8}


def measure_relearning(runs: int, sizes: list[int], keep: Keep) -> dict[str, Any]:
    """Fig. 9: some devices become busy or free; learned again from the weights for the condition before."""
    found: dict[str, Any] = {}
    for n in sizes:
        learned: dict[str, list[_Run]] = {"tdge": [], "dge": [], "tdge from scratch": []}
        for run in range(runs):
            before = _learn(n, draw_condition(n, run), "tdge", run)
            changed = draw_condition(n, 10_000 + run)
            for name, each in learned.items():
                start = None if name.endswith("scratch") else before.model
                each.append(_learn(n, changed, name.partition(" ")[0], 100 + run, start=start))
        found[str(n)] = {name: _describe(each) for name, each in learned.items()}
        found[str(n)] |= {"tdge_against_dge": _compare(learned["dge"], learned["tdge"])}
        keep({"by_n": found})
        print(f"fig9: N = {n}: {found[str(n)]}", file=sys.stderr, flush=True)
    paper = {"time, N > 7: TDGE against DGE": 1.5, "battery: TDGE against DGE": 1.3}
    return {"by_n": found, "runs": runs, "paper_times_more": paper}


def draw_condition(n: int, run: int) -> list[int]:
    """Who is busy in this run: at most half of the devices."""
    return [int(each) for each in draw_busy(n, 1, np.random.default_rng([n, 700_000 + run]))[0]]


def _learn(
    n: int,
    busy: list[int],
    exploration: str,
    seed: int,
    *,
    decay: float = _DECAY,
    phi: float = PHI,
    start: MaskedDQN | None = None,
) -> _Run:
    """Train for one condition until policy and rewards have converged, or the episodes are over."""
    best = PaperOptimum(n, PaperRules()).best_return(busy)
    enough = best - _NEAR * (best - PaperRules().illegal_reward)
    run: list[_Run] = []
    near, rewards, began_s = [0], [], time.process_time()

    def follow(episodes: int, reward: float) -> bool:
        rewards.append(reward)
        here = run[0]
        spent_s = time.process_time() - began_s
        if here.policy_at is None:
            total, order = plain_mlp(here.model, n, PaperRules()).play(busy)
            near[0] = near[0] + 1 if order is not None and total >= enough else 0
            if near[0] == _STEADY:
                here.policy_at, here.policy_cpu_s = episodes, spent_s
        if here.reward_at is None and len(rewards) >= _MEAN_OF and fmean(rewards[-_MEAN_OF:]) >= enough:
            here.reward_at, here.reward_cpu_s = episodes, spent_s
        return episodes >= _MOST_EPISODES or (here.policy_at is not None and here.reward_at is not None)

    train_paper(
        n,
        2 * (n - 1) * _MOST_EPISODES,
        seed,
        busy=busy,
        exploration=exploration,
        phi=phi,
        decay_episodes=decay,
        at_once=4,
        start=start,
        on_model=lambda model: run.append(_Run(model, None, None, None, None)),
        on_episode=follow,
    )
    return run[0]


def _describe(runs: list[_Run]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for what in ("policy", "reward"):
        at = [getattr(run, f"{what}_at") for run in runs]
        cpu = [getattr(run, f"{what}_cpu_s") for run in runs]
        reached = [each for each in at if each is not None]
        spent = [each for each in cpu if each is not None]
        told[what] = {
            "epochs": at,
            "mean": round(fmean(reached), 1) if reached else None,
            "interval95": round(half_width(reached), 1) if reached else None,
            "deviation": round(stdev(reached), 1) if len(reached) > 1 else None,
            "cpu_s": round(fmean(spent), 2) if spent else None,
            "converged": len(reached),
            "of": len(runs),
        }
    return told


def _compare(others: list[_Run], runs: list[_Run]) -> dict[str, Any]:
    """How many times as many epochs the others take where both converged, with the 95 % interval of the pairs."""
    told: dict[str, Any] = {}
    for what in ("policy", "reward"):
        pairs = [
            (getattr(one, f"{what}_at"), getattr(two, f"{what}_at")) for one, two in zip(others, runs, strict=True)
        ]
        both = [(one, two) for one, two in pairs if one is not None and two is not None]
        if not both:
            continue
        own = fmean(two for _, two in both)
        told[what] = {
            "times_more": round(fmean(one for one, _ in both) / own, 2),
            "interval95": round(half_width([one - two for one, two in both]) / own, 2),
            "conditions": len(both),
        }
    return told


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
