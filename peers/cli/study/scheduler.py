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

from mdl.errors import ConfigError, UnfinishedError
from mdl.peers.cli.headings import App
from mdl.peers.cli.options import MOST_PROCESSES, AsJson, CsvFile, Family, LogLevel, Quiet, finite, log_at, tell
from mdl.peers.cli.progress import progress_bar
from mdl.peers.interrupts import handled
from mdl.section import LARGEST_SEED, MANY
from mdl.writing import check_writable, save_or_rescue

if TYPE_CHECKING:
    from types import FrameType

    from mdl.scheduler.training.train import Report, Trained

logger = logging.getLogger(__name__)

app = App("Train the scheduler, and evaluate what it learned.")

# The verdicts on a policy compared with the greedy rule, the worst first.
_VERDICTS = ("worse", "level", "better")
# Scenarios of each cell that compare a network with greedy, or DQN with its start.
_COMPARED = 150
# A learned rule of rounds is compared with the rule `third` on so many worlds of each family, and this size of a delta.
_ROUNDS_WORLDS, _ROUNDS_MB = 10, 10.0
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
            help="Train on so many batches of labels; with another --variant, so many picks.", min=1, max=MANY
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
        bool, typer.Option("--from-scratch", help="Start from random weights, not from the shipped policy.")
    ] = False,
    require: Annotated[
        str | None,
        typer.Option(help="Demand better or level, compared with the greedy rule; end with exit code 4 if it is less."),
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
    n: Annotated[int, typer.Option(help="Train --variant paper or rounds for so many devices.", min=3, max=9)] = 9,
    exploration: Annotated[str, typer.Option(help="Explore by tdge, dge or tge, with --variant paper.")] = "tdge",
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy; Ctrl-C saves it as it is.

    With --steps, the same seed gives the same policy on this machine.
    """
    log_at(log_level, quiet)
    _check_beginning(variant, start, resume, fresh)
    _check_verdict(variant, require, from_scratch, resume)
    _check_target(out)
    if variant == "paper":
        _make_room(out, fresh)
        _train_paper(out, steps, minutes, seed, n, exploration, as_json)
        return
    if variant == "rounds":
        _train_rounds(out, steps, minutes, seed, n, fresh, as_json)
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
    _train_chain(out, steps, minutes, seed, processes, (resume, from_scratch), finetune, require, as_json)


@app.command("eval")
def evaluate(
    policy: Annotated[str, typer.Argument(help="Play this policy: a file, or a name.")],
    family: Family = "dynamic",
    n: Annotated[int, typer.Option(help="Draw so many devices.", min=2, max=128)] = 9,
    count: Annotated[int, typer.Option(help="Draw so many scenarios.", min=1, max=MANY)] = 300,
    seed_from: Annotated[
        int, typer.Option(help="Begin with this seed; 0 to 299 are never trained on.", min=0, max=LARGEST_SEED)
    ] = 0,
    optimum: Annotated[bool, typer.Option(help="Compare with the exact optimum too (N up to 12).")] = True,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Play a policy on scenarios, against the optimum.

    It shows the makespan with spread, also of the greedy rule.
    """
    from mdl.files.table import write_table
    from mdl.peers.view.policy_table import describe, judge, judge_optimum, list_makespans, print_rows
    from mdl.sim.timing.scenario import draw_scenario

    if csv is not None:
        check_writable(csv)
    scenarios = [draw_scenario(family, n, seed_from + number) for number in range(count)]
    judged = [judge(policy, scenarios), judge("greedy", scenarios)]
    if optimum and n <= 12 and family != "dying":
        judged.append(judge_optimum(scenarios))
    rows = [describe(each, judged) for each in judged]
    if csv is not None:
        write_table(csv, list_makespans(judged, scenarios))
    if not as_json:
        print_rows(rows, f"{family}, N = {n}, {count} scenarios from seed {seed_from}")
    else:
        print(json.dumps({"family": family, "n": n, "count": count, "seed_from": seed_from, "policies": rows}))


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


def _check_verdict(variant: str, require: str | None, from_scratch: bool, resume: bool) -> None:
    if require not in (None, *_VERDICTS[1:]):
        raise ConfigError(f"--require {require!r}: expected better or level")
    if variant != "chain" and (require or from_scratch):
        raise ConfigError("--require and --from-scratch are for --variant chain")
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
    finetune: int,
    require: str | None,
    as_json: bool,
) -> None:
    from mdl.scheduler.policies.qnet_numpy import NumpyQ
    from mdl.scheduler.study.judging import FIRST_VERDICT_SEED, compare_networks, tell_verdict
    from mdl.scheduler.training.train import plan_steps, train_policy

    began_s, (resume, from_scratch) = time.monotonic(), begin
    with _stopping() as stopped:
        if steps is None:
            assert minutes is not None
            steps = plan_steps(minutes, seed, processes, time.monotonic)
            logger.info("%d steps fit into %g minutes here", steps, minutes)
        command = f"mdl scheduler train --steps {steps} --seed {seed} --processes {processes}"
        with _bar() as show:
            trained = train_policy(
                steps,
                seed,
                processes,
                out,
                command,
                resume=resume,
                from_scratch=from_scratch,
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
        less = compare_networks(NumpyQ(trained.network), None, _COMPARED, FIRST_VERDICT_SEED)
        verdict, told = tell_verdict(less)
        result |= {"less_than_greedy_percent": less, "verdict": verdict, "told": told}
    _end_training(result, stopped(), as_json, require)


def _finetune(
    out: Path,
    trained: Trained,
    steps: int,
    seed: int,
    command: str,
    show: Callable[[Report], None],
    stopped: Callable[[], bool],
) -> Trained:
    """Go on by DQN, and keep the result only if no compared cell is worse."""
    from mdl.scheduler.study.judging import compare_networks, worse_cells
    from mdl.scheduler.training.chain_dqn import describe_training, train_chain_dqn
    from mdl.scheduler.training.qnet_torch import QNetwork, save_policy
    from mdl.scheduler.training.train import Report, Trained

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
    return Trained(network.weights(), trained.steps, trained.ended)


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
    from mdl.scheduler.training.chain_dqn import describe_training, train_chain_dqn
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
    from mdl.scheduler.paper.policy_file import save_paper_dqn
    from mdl.scheduler.training.paper_dqn import train_paper
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
    out: Path, steps: int | None, minutes: float | None, seed: int, n: int, fresh: bool, as_json: bool
) -> None:
    _need_learning("--variant rounds")
    if steps is None or minutes is not None:
        raise ConfigError("--variant rounds: give --steps (decisions), such as 150000")
    from mdl.scheduler.rounds.judge import describe_cell, judge_cell
    from mdl.scheduler.rounds.learned import save_rounds_policy
    from mdl.scheduler.rounds.registry import make_rule
    from mdl.scheduler.rounds.world import FAMILIES, draw_world
    from mdl.scheduler.study.judging import FIRST_VERDICT_SEED
    from mdl.scheduler.training.rounds_dqn import describe_rounds_training, train_rounds
    from mdl.scheduler.training.train import Report

    _make_room(out, fresh)
    began_s = time.monotonic()
    with _stopping() as stopped, _bar() as show:

        def tell(step: int) -> bool:
            if step % 1000 == 0:
                show(Report("rounds", step, steps, None, None))
            return stopped()

        layers, done = train_rounds(n, steps, seed, on_step=tell)
    command = f"mdl scheduler train --variant rounds --n {n} --steps {steps} --seed {seed}"
    told = describe_rounds_training(done, seed) | {"command": command}
    save_or_rescue(out, lambda path: save_rounds_policy(path, layers, n, told))
    result: dict[str, object] = {"out": str(out), "steps": done, "seed": seed, "ended": done >= steps}
    for family in FAMILIES if not stopped() else ():
        worlds = [draw_world(family, n, _ROUNDS_MB, FIRST_VERDICT_SEED + at) for at in range(_ROUNDS_WORLDS)]
        judged = describe_cell(judge_cell(family, ["third", str(out)], worlds, make_rule))
        result[f"over_third_{family}_percent"] = judged["rules"][1]["over_percent"]
    _end_training(result | {"seconds": round(time.monotonic() - began_s, 1)}, stopped(), as_json)


def _end_training(result: dict[str, object], stopped: bool, as_json: bool, require: str | None = None) -> None:
    if not as_json:
        for name, value in result.items():
            print(f"{name:<26} {value}")
    if stopped:
        raise UnfinishedError(f"interrupted, what was learned is in {result['out']}", 130, result)
    if require and _VERDICTS.index(str(result["verdict"])) < _VERDICTS.index(require):
        told = f"--require {require}: compared with the greedy rule, the policy is {result['verdict']}"
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
def _bar() -> Iterator[Callable[[Report], None]]:
    """Show a bar for each stage; log the figures of evaluations."""
    with progress_bar() as show:

        def tell_report(report: Report) -> None:
            show(report.stage, report.step, report.steps)
            if report.figures is not None:
                figures = ", ".join(f"{cell} {value:+.1f} %" for cell, value in report.figures.items())
                logger.info("step %d: less than the greedy rule: %s", report.step, figures)

        yield tell_report
