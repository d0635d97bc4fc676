"""Trains the shipped kind of policy from labels, evaluates it meanwhile, and keeps it on disk. Needs no torch.

`mdl.scheduler.training.chain_dqn` and the paper's own variant, `mdl.scheduler.training.paper_dqn`, need
stable-baselines3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from mdl.errors import ConfigError, MdlError
from mdl.scheduler.policies.learned import SHIPPED
from mdl.scheduler.policies.qnet_numpy import NumpyQ, Weights, load_weights, save_weights
from mdl.scheduler.study.judging import watch
from mdl.scheduler.training.labels import Progress, train_on_labels
from mdl.writing import save_or_rescue

logger = logging.getLogger(__name__)

# Steps that tell how long one takes: a cycle of all sizes of mesh.
_TRIAL_STEPS = 8
# Of the minutes given, this share goes to the steps that were planned; the rest is for what they take longer.
_PLANNED_SHARE = 0.9
# Evaluations in the course of a training, and the scenarios of each cell.
_EVALUATIONS = 10
_WATCHED_SCENARIOS = 60


@dataclass(frozen=True)
class Report:
    """How far training is. figures: percent that rounds are shorter than the greedy rule's, by cell; when measured."""

    stage: str
    step: int
    steps: int
    loss: float | None
    figures: dict[str, float] | None


@dataclass(frozen=True)
class Trained:
    """steps: done in all, with those of a resumed file. ended: all steps were done."""

    network: Weights
    steps: int
    ended: bool
    figures: dict[str, float]


def train_policy(
    steps: int,
    seed: int,
    processes: int,
    out: Path,
    command: str,
    *,
    resume: bool = False,
    on_report: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train on labels until `steps` are done in all, and save to `out`, also meanwhile and when it is stopped.

    The same steps, seed and processes give the same policy on the same machine, unless it was stopped and resumed.
    resume: go on from `out`; the weights are kept, not the labels. Raises ConfigError if `out` has all the steps.
    """
    start, done = _resume(out, steps) if resume else (None, 0)
    gain = watch(_WATCHED_SCENARIOS)
    every = max(1, (steps - done) // _EVALUATIONS)
    last: list[Progress] = []
    figures: dict[str, float] = {}

    def keep(network: Weights, count: int, path: Path) -> None:
        told = {"trained_by": "labels", "command": command, "seed": seed, "steps": count, "evaluation": figures}
        save_weights(path, network, told)

    def follow(progress: Progress) -> bool:
        last[:] = [progress]
        stops = should_stop()
        # An early network waits so often that judging it would take longer than training it.
        measured = progress.step % every == 0 and progress.step >= 2 * every and not stops
        if measured:
            figures.update(gain(NumpyQ(progress.network)))
            try:
                keep(progress.network, done + progress.step, out)
            except MdlError as error:  # there is a next time, and the end
                logger.warning("%s; training goes on", error)
        shown = dict(figures) if measured else None
        on_report(Report("labels", done + progress.step, steps, progress.loss, shown))
        return stops

    # A resumed training must not see the labels of its beginning again.
    network = train_on_labels(steps - done, seed + done, processes, start=start, on_progress=follow)
    count = done + last[0].step
    if count == steps:  # who has stopped it does not wait half a minute for an early network to be judged
        figures.update(gain(NumpyQ(network)))
    save_or_rescue(out, lambda path: keep(network, count, path))
    return Trained(network, count, count == steps, figures)


def plan_steps(minutes: float, seed: int, processes: int, clock: Callable[[], float]) -> int:
    """How many steps fit in so many minutes here, by trying a few with the shipped policy. clock: seconds.

    An untrained network would not do: it waits so often that its rollouts take many times as long.
    """
    if not minutes > 0:
        raise ConfigError(f"--minutes {minutes}: must be above 0")
    with as_file(files("mdl.scheduler") / "data" / SHIPPED) as shipped:
        start, _ = load_weights(shipped)
    began_s = clock()
    train_on_labels(_TRIAL_STEPS, seed, processes, start=start)
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
