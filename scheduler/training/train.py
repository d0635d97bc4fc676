"""Trains the shipped kind of policy from labels, evaluates it meanwhile, and keeps it on disk. Needs no torch.

`mdl.scheduler.training.chain_dqn` and the paper's own variant, `mdl.scheduler.training.paper_dqn`, need
stable-baselines3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError, MdlError
from mdl.scheduler.policies.learned import load_shipped
from mdl.scheduler.policies.qnet_numpy import NumpyQ, Weights, load_weights, save_weights
from mdl.scheduler.study.judging import Cells, watch, watched_cells
from mdl.scheduler.training.labels import TrainingProgress, train_on_labels
from mdl.writing import save_or_rescue

logger = logging.getLogger(__name__)

# Steps that show the time of one: a cycle of all sizes of mesh.
_TRIAL_STEPS = 8
# The share of the given minutes for the planned steps; the rest allows for slower ones.
_PLANNED_SHARE = 0.9
# Evaluations in the course of a training, and the scenarios of each cell.
_EVALUATIONS = 10
_WATCHED_SCENARIOS = 60


@dataclass(frozen=True)
class Report:
    """The progress of training. figures: if measured, the percent by which rounds take less time than by `rule`."""

    stage: str
    step: int
    steps: int
    loss: float | None
    figures: dict[str, float] | None
    rule: str = "the greedy rule"


@dataclass(frozen=True)
class TrainedNetwork:
    """The best network of a training, by the measurements on its way.

    steps: done in all, with those of a resumed file. ended: all steps were done.
    """

    network: Weights
    steps: int
    ended: bool


def train_policy(
    steps: int,
    seed: int,
    processes: int,
    out: Path,
    command: str,
    *,
    resume: bool = False,
    from_scratch: bool = False,
    seen: tuple[Scenario, ...] = (),
    watched: Cells | None = None,
    on_report: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainedNetwork:
    """Train on labels until `steps` are done in all; keep the best network in `out`, also meanwhile.

    The same steps, seed and processes give the same policy on the same machine, unless it was stopped and resumed.
    It begins with the shipped policy. resume: with that of `out`; its weights are kept, not the labels. from_scratch:
    with random weights. seen: see `train_on_labels`. watched: scenarios to compare with the greedy rule on; by default
    those of `WATCHED`. Raises ConfigError if `out` has all the steps.
    """
    start, done = _resume(out, steps) if resume else (None if from_scratch else load_shipped()[0], 0)
    gain = watch(watched_cells(_WATCHED_SCENARIOS) if watched is None else watched)
    every = max(1, (steps - done) // _EVALUATIONS)
    best = _Best()
    count = done

    def keep(path: Path) -> None:
        told = {"trained_by": "labels", "command": command, "seed": seed, "steps": count, "evaluation": best.figures}
        save_weights(path, best.network, told)

    def follow(progress: TrainingProgress) -> bool:
        nonlocal count
        count, stops = done + progress.step, should_stop()
        # A network that began with random weights waits so often that judging it would take longer than training it.
        is_early = start is None and progress.step < 2 * every
        shown = None
        # A user that stops it need not wait half a minute for judging an early network; the last one is always judged.
        if count == steps or (progress.step % every == 0 and not (is_early or stops)):
            shown = gain(NumpyQ(progress.network))
            best.offer(progress.network, shown)
            try:
                keep(out)
            except MdlError as error:  # a later save may succeed, also at the end
                logger.warning("%s; training goes on", error)
        elif not best.figures:
            best.network = progress.network
        on_report(Report("labels", count, steps, progress.loss, shown))
        return stops

    if start is not None:
        best.offer(start, gain(NumpyQ(start)))
        on_report(Report("labels", done, steps, None, best.figures))
    # A resumed training must not see the labels of its beginning again.
    train_on_labels(steps - done, seed + done, processes, start=start, seen=seen, on_progress=follow)
    save_or_rescue(out, keep)
    return TrainedNetwork(best.network, count, count == steps)


class _Best:
    """The network with the best mean of its figures so far; the last one until there are figures."""

    def __init__(self) -> None:
        self.network: Weights = {}
        self.figures: dict[str, float] = {}

    def offer(self, network: Weights, figures: dict[str, float]) -> None:
        if not self.figures or fmean(figures.values()) > fmean(self.figures.values()):
            self.network, self.figures = network, figures


def plan_steps(
    minutes: float, seed: int, processes: int, clock: Callable[[], float], seen: tuple[Scenario, ...] = ()
) -> int:
    """Estimate the steps that fit in so many minutes here, by trying a few with the shipped policy. clock: seconds.

    An untrained network would not do: it waits so often that its rollouts take many times as long.
    """
    if not minutes > 0:
        raise ConfigError(f"--minutes {minutes}: must be above 0")
    start, _ = load_shipped()
    began_s = clock()
    train_on_labels(_TRIAL_STEPS, seed, processes, start=start, seen=seen)
    trial_s = clock() - began_s
    left_s = 60.0 * minutes - trial_s
    return max(_TRIAL_STEPS, int(_PLANNED_SHARE * left_s / trial_s * _TRIAL_STEPS))


def _resume(out: Path, steps: int) -> tuple[Weights, int]:
    if not out.is_file():
        raise ConfigError(f"--resume: {out} does not exist; leave --resume out to start")
    network, metadata = load_weights(out)
    done = metadata.get("steps")
    if not isinstance(done, int):
        raise ConfigError(f"--resume: {out} does not say how many steps it has had")
    if done >= steps:
        raise ConfigError(f"--steps {steps}: {out} has had {done} already; give more")
    return network, done
