"""`mdl scheduler`: train the Chain-scheduler and evaluate a policy file. Slow imports come late."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.config import LARGEST_SEED, MANY
from mdl.errors import ConfigError, UnfinishedError
from mdl.peers.command.options import (
    MOST_PROCESSES,
    AsJson,
    CommandGroup,
    CsvFile,
    Family,
    LogLevel,
    Quiet,
    finite,
    log_at,
    tell,
)
from mdl.peers.command.progress import progress_bar
from mdl.peers.interrupts import handled
from mdl.writing import check_writable, save_or_rescue

if TYPE_CHECKING:
    from types import FrameType

    from mdl.devices.scenario import Scenario
    from mdl.scheduler.rounds.world import Logged
    from mdl.scheduler.study.judging import Cells
    from mdl.scheduler.training.train import Report, TrainedNetwork

logger = logging.getLogger(__name__)

app = CommandGroup("Train the scheduler, and evaluate what it learned.")

# The verdicts on a policy compared with the greedy rule, the worst first.
_VERDICTS = ("worse", "level", "better")
# Scenarios of each cell that compare a network with greedy, or DQN with its start.
_COMPARED = 150
# Variants of a log's rounds that compare a network with greedy while it trains.
_WATCHED_RECORDED = 60
# Worlds of each family that compare a learned rule of rounds with the best shipped one: on the way, and at the end.
_ROUNDS_WATCHED, _ROUNDS_JUDGED = 12, 24
# The most devices that a rule of rounds is learned for.
_MOST_LEARNED = 9
# Picks of DQN from one checkpoint to the next: about half a minute on one core.
_TOLD_EVERY = 5_000


@app.command("train")
def train(
    out: Annotated[Path, typer.Option(help="Write the policy to this file (safetensors).")] = Path(
        "policy.safetensors"
    ),
    steps: Annotated[
        int | None,
        typer.Option(
            help="Train on so many batches of labels; with another --variant, so many decisions.", min=1, max=MANY
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train about so many minutes instead.", min=0.01, max=MANY, callback=finite)
    ] = None,
    seed: Annotated[int, typer.Option(help="Draw every random choice from this seed.", min=0, max=LARGEST_SEED)] = 0,
    processes: Annotated[
        int, typer.Option(help="Make labels in so many processes; 0 makes them here.", min=0, max=MOST_PROCESSES)
    ] = 2,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the policy in --out.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, and set aside what is in --out.")] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Start from random weights, not from what mdl comes with.")
    ] = False,
    require: Annotated[
        str | None,
        typer.Option(
            help="Demand better or level, compared with the best shipped rule; end with exit code 4 if it is less."
        ),
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(
            help="Train on your own mesh: recorded:FILE, a run directory or its metrics.jsonl. Default: simulated."
        ),
    ] = None,
    finetune: Annotated[
        int, typer.Option(help="Train so many steps of DQN afterwards (needs mdl[train]).", min=0, max=MANY)
    ] = 0,
    variant: Annotated[
        str,
        typer.Option(
            help="Train chain (from labels), dqn (by DQN from --start), paper (MDLdroid's, for one --n) or rounds "
            "(which devices take part, for --n at most). All but chain need mdl[train]."
        ),
    ] = "chain",
    start: Annotated[
        Path | None, typer.Option(help="Start --variant dqn from this policy file; by default from the shipped one.")
    ] = None,
    n: Annotated[
        int, typer.Option(help="Train --variant paper or rounds for so many devices.", min=3, max=_MOST_LEARNED)
    ] = 9,
    exploration: Annotated[str, typer.Option(help="Explore by tdge, dge or tge, with --variant paper.")] = "tdge",
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy; Ctrl-C saves it as it is.

    While it runs it shows how far it is from the best shipped rule. It keeps the best, and ends with one sentence that
    says whether to use it. With --steps, the same seed gives the same policy on this machine.
    """
    log_at(log_level, quiet)
    _check_beginning(variant, start, resume, fresh)
    _check_verdict(variant, require, from_scratch, resume, scenarios)
    _check_target(out)
    if variant == "paper":
        _make_room(out, fresh)
        _train_paper(out, steps, minutes, seed, n, exploration, as_json)
        return
    if variant == "rounds":
        _train_rounds(out, steps, minutes, seed, processes, n, from_scratch, scenarios, fresh, require, as_json)
        return
    if variant == "dqn":
        _train_dqn(out, steps, minutes, seed, start, fresh, as_json)
        return
    if (steps is None) == (minutes is None):
        raise ConfigError("give either --steps or --minutes")
    if finetune:
        _need_learning("--finetune")
    if not resume:
        _make_room(out, fresh)
    _train_chain(out, steps, minutes, seed, processes, (resume, from_scratch), scenarios, finetune, require, as_json)


@app.command("eval")
def evaluate(
    policy: Annotated[str, typer.Argument(help="Play this policy: a file, or a name.")],
    family: Family = "dynamic",
    n: Annotated[int, typer.Option("--n", "-n", help="Devices.", min=2, max=128)] = 9,
    count: Annotated[int, typer.Option(help="Draw so many scenarios.", min=1, max=MANY)] = 300,
    seed_from: Annotated[
        int, typer.Option(help="Begin with this seed; 0 to 299 are never trained on.", min=0, max=LARGEST_SEED)
    ] = 0,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare a policy with the greedy rule and the optimum.

    Does what `mdl schedule compare` does for any policies. The optimum is left out where it is not known.
    """
    from mdl.peers.cli.schedule import can_solve, compare
    from mdl.scheduler.policies.registry import OPTIMAL

    names = dict.fromkeys([policy, "greedy", *([OPTIMAL] if can_solve(n, family) else [])])
    compare(",".join(names), family, n, count, seed_from, None, csv, as_json)


def _check_beginning(variant: str, start: Path | None, resume: bool, fresh: bool) -> None:
    if variant not in ("chain", "dqn", "paper", "rounds"):
        raise ConfigError(f"--variant {variant!r}: expected chain, dqn, paper or rounds")
    if start is not None and variant != "dqn":
        raise ConfigError("--start is for --variant dqn; --resume goes on from what is in --out")
    if resume and variant == "dqn":
        raise ConfigError("--variant dqn: --start FILE goes on from a policy; --resume does not")
    if resume and variant == "rounds":
        raise ConfigError("--variant rounds: it begins anew; --resume is for the others")
    if resume and fresh:
        raise ConfigError("--resume goes on, --fresh starts anew: give one of them")


def _check_verdict(variant: str, require: str | None, from_scratch: bool, resume: bool, scenarios: str | None) -> None:
    if require not in (None, *_VERDICTS[1:]):
        raise ConfigError(f"--require {require!r}: expected better or level")
    if variant not in ("chain", "rounds") and (require or from_scratch or scenarios):
        raise ConfigError("--require, --from-scratch and --scenarios are for --variant chain and rounds")
    if resume and from_scratch:
        raise ConfigError("--resume goes on from what is in --out, --from-scratch begins anew: give one of them")


def _check_target(out: Path) -> None:
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the directory {out.parent} does not exist")
    if out.is_dir():
        raise ConfigError(f"--out {out}: is a directory; give a file in it")
    check_writable(out)


def _make_room(out: Path, fresh: bool) -> None:
    """Move an existing policy aside, or refuse: it took minutes or hours, so none is overwritten silently."""
    from mdl.peers.edge.resume import set_file_aside

    if not out.exists():
        return
    if not fresh:
        raise ConfigError(f"--out {out} exists: --resume goes on from it, --fresh sets it aside and starts anew")
    set_file_aside(out)


def _train_chain(
    out: Path,
    steps: int | None,
    minutes: float | None,
    seed: int,
    processes: int,
    begin: tuple[bool, bool],
    scenarios: str | None,
    finetune: int,
    require: str | None,
    as_json: bool,
) -> None:
    from mdl.scheduler.policies.qnet_numpy import NumpyQ
    from mdl.scheduler.study.judging import FIRST_VERDICT_SEED, compare_networks, compare_on, tell_verdict
    from mdl.scheduler.training.train import plan_steps, train_policy

    seen, watched, judged = _read_scenarios(scenarios, seed) if scenarios else ((), None, None)
    began_s, (resume, from_scratch) = time.monotonic(), begin
    with _stopping() as stopped:
        if steps is None:
            assert minutes is not None
            steps = plan_steps(minutes, seed, processes, time.monotonic, seen)
            logger.info("%d steps fit into %g minutes here", steps, minutes)
        command = f"mdl scheduler train --steps {steps} --seed {seed} --processes {processes}"
        command += f" --scenarios {scenarios}" if scenarios else ""
        with _bar() as show:
            trained = train_policy(
                steps,
                seed,
                processes,
                out,
                command,
                resume=resume,
                from_scratch=from_scratch,
                seen=seen,
                watched=watched,
                on_report=show,
                should_stop=lambda: stopped() or _is_late(began_s, minutes),
            )
            if finetune and not stopped():
                trained = _finetune(out, trained, finetune, seed, command, show, stopped)
    result = {
        "out": str(out),
        "steps": trained.steps,
        "seed": seed,
        "ended": trained.ended,
        "seconds": round(time.monotonic() - began_s, 1),
    }
    if not stopped():
        network = NumpyQ(trained.network)
        if judged is None:
            less = compare_networks(network, None, _COMPARED, FIRST_VERDICT_SEED)
        else:
            less = compare_on(network, None, judged)
        verdict, told = tell_verdict(less)
        result |= {"less_than_greedy_percent": less, "verdict": verdict, "told": told}
    _end_training(result, stopped(), as_json, require)


def _read_scenarios(text: str, seed: int) -> tuple[tuple[Scenario, ...], Cells, Cells]:
    """Return a log's rounds to learn from, variants of others to watch, and of still others to judge by."""
    from mdl.errors import DataError
    from mdl.peers.view.schedule_source import parse_recorded, recorded_scenarios
    from mdl.scheduler.training.relearn import divide, vary_cells

    path = parse_recorded(text)
    learned, held_out = divide(recorded_scenarios(path))
    if len(held_out) < 2:
        raise DataError(f"{path}: {len(learned)} rounds to learn from; expected 4 rounds or more")
    watched = vary_cells(held_out[::2], _WATCHED_RECORDED, seed)
    return tuple(learned), watched, vary_cells(held_out[1::2], _COMPARED, seed + 1)


def _finetune(
    out: Path,
    trained: TrainedNetwork,
    steps: int,
    seed: int,
    command: str,
    show: Callable[[Report], None],
    stopped: Callable[[], bool],
) -> TrainedNetwork:
    """Go on by DQN, and keep the result only if no compared cell is worse."""
    from mdl.scheduler.study.judging import compare_networks, worse_cells
    from mdl.scheduler.training.dqn import describe_training, train_chain_dqn
    from mdl.scheduler.training.qnet_torch import QNetwork, save_policy
    from mdl.scheduler.training.train import Report, TrainedNetwork

    def tell(step: int, network: object) -> bool:
        show(Report("dqn", step, steps, None, None))
        return stopped()

    start = QNetwork(weights=trained.network)
    network, done = train_chain_dqn(start, steps, seed, every=_TOLD_EVERY, on_network=tell)
    less = compare_networks(network.plain(), start.plain(), _COMPARED)
    logger.info("DQN against the labels' network, less time in percent (95 %%): %s", less)
    if worse := worse_cells(less):
        logger.info("DQN made it worse on %s: the policy stays as it was", ", ".join(worse))
        return trained
    told = describe_training(done, seed) | {"command": f"{command} --finetune {steps}", "less_than_start": less}
    save_or_rescue(out, lambda path: save_policy(path, network, told))
    return TrainedNetwork(network.weights(), trained.steps, trained.ended)


def _train_dqn(
    out: Path,
    steps: int | None,
    minutes: float | None,
    seed: int,
    start: Path | None,
    fresh: bool,
    as_json: bool,
) -> None:
    _need_learning("--variant dqn")
    if steps is None or minutes is not None:
        raise ConfigError("--variant dqn: give --steps (picks), such as 300000")
    from importlib.resources import as_file, files

    from mdl.scheduler.policies.learned import SHIPPED
    from mdl.scheduler.study.judging import compare_networks, worse_cells
    from mdl.scheduler.training.dqn import describe_training, train_chain_dqn
    from mdl.scheduler.training.qnet_torch import QNetwork, load_policy, save_policy
    from mdl.scheduler.training.train import Report

    with as_file(files("mdl.scheduler") / "data" / SHIPPED) as shipped:
        began, _ = load_policy(start or shipped)
    _make_room(out, fresh)
    began_s = time.monotonic()
    command = f"mdl scheduler train --variant dqn --steps {steps} --seed {seed} --start {start or SHIPPED}"
    with _stopping() as stopped, _bar() as show:

        def tell(step: int, network: QNetwork) -> bool:
            show(Report("dqn", step, steps, None, None))
            save_policy(out, network, describe_training(step, seed) | {"command": command})
            return stopped()

        network, done = train_chain_dqn(began, steps, seed, every=_TOLD_EVERY, on_network=tell)
    less = {} if stopped() else compare_networks(network.plain(), began.plain(), _COMPARED)
    told = describe_training(done, seed) | {"command": command, "less_than_start": less}
    save_or_rescue(out, lambda path: save_policy(path, network, told))
    result: dict[str, object] = {"out": str(out), "steps": done, "seed": seed, "ended": done >= steps}
    result |= {"less_than_start_percent": less, "worse_on": worse_cells(less)}
    _end_training(result | {"seconds": round(time.monotonic() - began_s, 1)}, stopped(), as_json)


def _train_paper(
    out: Path, steps: int | None, minutes: float | None, seed: int, n: int, exploration: str, as_json: bool
) -> None:
    _need_learning("--variant paper")
    if steps is None or minutes is not None:
        raise ConfigError("--variant paper: give --steps (picks), such as 30000")
    from mdl.scheduler.paper.policy import save_paper_dqn
    from mdl.scheduler.training.dqn import train_paper
    from mdl.scheduler.training.train import Report

    began_s = time.monotonic()
    with _stopping() as stopped, _bar() as show:

        def tell(step: int) -> bool:
            if step % 100 == 0:
                show(Report("paper", step, steps, None, None))
            return stopped()

        run = train_paper(n, steps, seed, exploration=exploration, on_step=tell)
    command = f"mdl scheduler train --variant paper --n {n} --steps {steps} --seed {seed} --exploration {exploration}"
    recent = run.returns[-100:]
    figures = {"episodes": len(run.returns), "mean_return": round(sum(recent) / max(1, len(recent)), 4)}
    told = {"command": command, "seed": seed, "steps": run.steps, "evaluation": figures}
    save_or_rescue(out, lambda path: save_paper_dqn(path, run.network, dict(told)))
    result = {"out": str(out), "steps": run.steps, "seed": seed, "ended": run.steps >= steps, **figures}
    _end_training(result | {"seconds": round(time.monotonic() - began_s, 1)}, stopped(), as_json)


def _train_rounds(
    out: Path,
    steps: int | None,
    minutes: float | None,
    seed: int,
    processes: int,
    n: int,
    from_scratch: bool,
    scenarios: str | None,
    fresh: bool,
    require: str | None,
    as_json: bool,
) -> None:
    _need_learning("--variant rounds")
    if (steps is None) == (minutes is None):
        raise ConfigError("--variant rounds: give either --steps (decisions), such as 150000, or --minutes")
    from mdl.scheduler.rounds.judge import drawn_cells, less_time_than, logged_cells, play_rule
    from mdl.scheduler.rounds.world import draw_logged_world
    from mdl.scheduler.study.judging import FIRST_TUNING_SEED, FIRST_VERDICT_SEED, tell_verdict
    from mdl.scheduler.training.rounds_train import train_rounds_policy

    if scenarios:
        learned, kept, last = _read_log(scenarios)
        n = len(learned.devices)
        watched, judged = logged_cells(kept, _ROUNDS_WATCHED, seed), logged_cells(last, _ROUNDS_JUDGED, seed + 1)
    else:
        learned = None
        watched = drawn_cells(n, _ROUNDS_WATCHED, FIRST_TUNING_SEED)
        judged = drawn_cells(n, _ROUNDS_JUDGED, FIRST_VERDICT_SEED)
    _make_room(out, fresh)
    began_s = time.monotonic()
    length = f"--steps {steps}" if steps else f"--minutes {minutes:g}"
    command = f"mdl scheduler train --variant rounds --n {n} {length} --seed {seed}"
    command += (" --from-scratch" if from_scratch else "") + (f" --scenarios {scenarios}" if scenarios else "")
    with _stopping() as stopped, _bar(minutes) as show:
        trained = train_rounds_policy(
            n,
            steps or MANY,
            seed,
            out,
            command,
            watched=watched,
            processes=processes,
            from_scratch=from_scratch,
            draw=None if learned is None else lambda rng: draw_logged_world(learned, rng),
            share=None if minutes is None else lambda: (time.monotonic() - began_s) / (60.0 * minutes),
            on_report=show,
            should_stop=lambda: stopped() or _is_late(began_s, minutes),
        )
    ended = trained.ended or (minutes is not None and not stopped())
    result: dict[str, object] = {"out": str(out), "steps": trained.steps, "seed": seed, "ended": ended}
    result["seconds"] = round(time.monotonic() - began_s, 1)
    if not stopped():
        less = less_time_than(play_rule(judged, trained.rule), trained.layers, n, judged)
        verdict, told = tell_verdict(less, f"the rule {trained.rule}")
        result |= {"rule": trained.rule, "less_than_rule_percent": less, "verdict": verdict, "told": told}
    _end_training(result, stopped(), as_json, require, f"the rule {trained.rule}")


def _read_log(text: str) -> tuple[Logged, Logged, Logged]:
    from mdl.peers.view.schedule_source import parse_recorded, recorded_rounds
    from mdl.scheduler.rounds.world import split_log

    path = parse_recorded(text)
    parts = split_log(recorded_rounds(path), str(path))
    if (count := len(parts[0].devices)) > _MOST_LEARNED:
        raise ConfigError(f"--scenarios {text[:80]!r}: {count} devices; a rule is learned for at most {_MOST_LEARNED}")
    return parts


def _end_training(
    result: dict[str, object],
    stopped: bool,
    as_json: bool,
    require: str | None = None,
    rule: str = "the greedy rule",
) -> None:
    if not as_json:
        for name, value in result.items():
            print(f"{name:<26} {value}")
    if stopped:
        raise UnfinishedError(f"interrupted, what was learned is in {result['out']}", 130, result)
    if require and _VERDICTS.index(str(result["verdict"])) < _VERDICTS.index(require):
        told = f"--require {require}: compared with {rule}, the policy is {result['verdict']}"
        raise UnfinishedError(told, 4, result)
    if as_json:
        print(json.dumps(result))


def _need_learning(option: str) -> None:
    from importlib.util import find_spec

    missing = [name for name in ("gymnasium", "stable_baselines3") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{option} needs {' and '.join(missing)}: install with  pip install 'mdl[train]'")


def _is_late(began_s: float, minutes: float | None) -> bool:
    return minutes is not None and time.monotonic() - began_s > 60.0 * minutes


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Take the first interrupt as a wish to end and save; the second one ends at once.

    The yielded function returns True after the first one.
    """
    wishes: list[int] = []

    def wish(number: int, frame: FrameType | None) -> None:
        if wishes:
            raise KeyboardInterrupt
        wishes.append(number)
        tell("mdl: saving what was learned (Ctrl-C again: at once, without)")

    with handled(wish):
        yield lambda: bool(wishes)


@contextmanager
def _bar(minutes: float | None = None) -> Iterator[Callable[[Report], None]]:
    """Show a bar for each stage, of steps or of the minutes from now on; log the figures of evaluations."""
    began_s = time.monotonic()
    with progress_bar() as show:

        def tell_report(report: Report) -> None:
            if minutes is None:
                show(report.stage, report.step, report.steps)
            else:
                show(report.stage, round(time.monotonic() - began_s), round(60.0 * minutes))
            if report.figures is not None:
                figures = ", ".join(f"{cell} {value:+.1f} %" for cell, value in report.figures.items())
                logger.info("step %d: less time than by %s: %s", report.step, report.rule, figures)

        yield tell_report
