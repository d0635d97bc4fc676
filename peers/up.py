"""`mdl up`: a whole mesh on this machine: an agent and n peers as real processes, a live view, a run directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mdl.config import Config, save_config, show_config
from mdl.data import DataSet, default_cache_dir, load_data, split_windows
from mdl.errors import ConfigError, MdlError
from mdl.messages import RoundSummary
from peers.liveview import describe_summary, draw_mesh
from peers.processes import Child, Children
from peers.verify import Verifier
from peers.watch import Watcher
from scheduler.policies import make_policy
from transport.keys import MeshKeys, new_join_code

_FRAME_S = 0.2
# How long the peers may take to write their files after the last round.
_EXPORT_S = 10.0


@dataclass(frozen=True)
class Run:
    """What one `mdl up` is about to do. rounds: aggregations in total."""

    config: Config
    peers: int
    rounds: int
    data: DataSet
    out: Path
    verify: bool


def run_up(
    config: Config, peers: int, epochs: int, out: Path | None, *, baselines: bool, verify: bool, quiet: bool
) -> dict[str, Any]:
    """Train; returns what `--json` prints. quiet: no live view, one line a round on stderr.

    Raises ConfigError or DataError before anything is started, KeyboardInterrupt after Ctrl-C, when all has been saved.
    """
    started = time.monotonic()
    run = _plan(config, peers, epochs, out, verify)
    console = Console(stderr=quiet)
    console.print(Text(show_config(run.config), style="dim"))
    if run.data.synthetic:
        console.print(f"{run.data.name} is synthetic data: its figures say nothing about real people")
    code = new_join_code("up")
    verifier = Verifier(run.out) if verify else None
    with ExitStack() as stack:
        children = stack.enter_context(Children(run.out / "logs", code, max(1, (os.cpu_count() or 1) // peers)))
        trainers = _start(run, children)
        watcher = stack.enter_context(Watcher(run.config.mesh, MeshKeys.from_code(code), "up"))
        try:
            _follow(run, children, watcher, verifier, console, quiet)
        except KeyboardInterrupt:
            children.stop()
            saved = _collect(run, trainers)
            console.print(f"interrupted; saved in {saved or run.out}")
            raise
    saved = _collect(run, trainers)
    if saved is None:
        raise MdlError(f"no peer finished a round; their logs are in {run.out / 'logs'}")
    rounds = _read_rounds(run.out / "metrics.jsonl")
    result = _summarise(run, rounds, children, verifier, time.monotonic() - started)
    if baselines:
        result |= _compare(run, console)
    (run.out / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    if not quiet:
        _show(result, console)
    return {key: value for key, value in result.items() if key != "alone"}


def _plan(config: Config, peers: int, epochs: int, out: Path | None, verify: bool) -> Run:
    """Check everything that can be checked before a process is started."""
    if peers < 1:
        raise ConfigError(f"-n {peers}: expected at least 1 peer")
    if epochs < 1:
        raise ConfigError(f"--epochs {epochs}: expected at least 1")
    make_policy(config.round.policy)
    data = load_data(config.data.spec, default_cache_dir(), config.seed)
    split_windows(data.train, config.data.split, peers, config.seed)
    rounds = epochs * config.training.rounds_per_epoch
    config = msgspec.structs.replace(
        config,
        mesh=msgspec.structs.replace(config.mesh, loopback=True, join=(), port=0),
        round=msgspec.structs.replace(config.round, rounds=rounds, min_peers=peers, keep_deltas=verify),
        training=msgspec.structs.replace(config.training, planned_rounds=rounds),
    )
    out = out or Path("runs") / f"up-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ConfigError(f"--out {out} is not empty; choose a new directory")
        save_config(config, out / "config.toml")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    return Run(config, peers, rounds, data, out, verify)


def _start(run: Run, children: Children) -> list[Child]:
    common = ["--json", "--config", str(run.out / "config.toml")]
    children.start("agent", "agent", *common, "--out", str(run.out / "agent"))
    names = [f"peer-{index}" for index in range(1, run.peers + 1)]
    return [
        children.start(
            name, "peer", *common, "--name", name, "--shard", f"{index}/{run.peers}", "--out", str(run.out / name)
        )
        for index, name in enumerate(names, 1)
    ]


def _follow(
    run: Run, children: Children, watcher: Watcher, verifier: Verifier | None, console: Console, quiet: bool
) -> None:
    """Until the agent has ended; raises if a peer could not start, or nobody is left."""
    agent = children.running[0]
    reader = _RoundReader(run.out / "agent" / "metrics.jsonl")
    with ExitStack() as stack:
        draws = console.is_terminal and not quiet
        screen = stack.enter_context(Live(console=console, auto_refresh=False)) if draws else None
        while True:
            ended = _has_ended(agent, _FRAME_S)
            for summary in reader.new():
                if verifier:
                    verifier.check(summary)
                if screen is None:
                    console.print(describe_summary(summary), highlight=False)
            note = _check(children)
            if screen is not None:
                screen.update(draw_mesh(watcher.status, reader.rounds, note), refresh=True)
            if ended:
                break
    if agent.process.returncode:
        raise MdlError(f"the agent failed: {agent.problem()} (log: {agent.log})")
    for child in children.running[1:]:
        _has_ended(child, _EXPORT_S)  # they save and export what they have


def _has_ended(child: Child, wait_s: float) -> bool:
    try:
        child.process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _check(children: Children) -> str:
    """A note about peers that ended early. Raises ConfigError if it was the user's input, MdlError if none is left."""
    trainers = children.running[1:]
    failed = [child for child in trainers if child.process.poll() not in (None, 0)]
    for child in failed:
        if child.process.returncode == 2:
            raise ConfigError(child.problem())
    if len(failed) == len(trainers):
        raise MdlError(f"every peer failed; {failed[0].name}: {failed[0].problem()} (log: {failed[0].log})")
    return "".join(f"{child.name} ended early: {child.problem()} " for child in failed)


class _RoundReader:
    """Follows metrics.jsonl while the agent writes it."""

    def __init__(self, path: Path) -> None:
        self.rounds: list[RoundSummary] = []
        self._path = path

    def new(self) -> list[RoundSummary]:
        found = _read_rounds(self._path)[len(self.rounds) :]
        self.rounds += found
        return found


def _read_rounds(path: Path) -> list[RoundSummary]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # the last piece is empty, or not written to its end
    return [msgspec.json.decode(line, type=RoundSummary) for line in lines]


def _collect(run: Run, trainers: list[Child]) -> Path | None:
    """Bring metrics and the newest global model to the run directory; the model's path, or None without one."""
    metrics = run.out / "agent" / "metrics.jsonl"
    if metrics.exists():
        shutil.copyfile(metrics, run.out / "metrics.jsonl")
    reached = [(child.result().get("round_id", 0), run.out / child.name / "global.safetensors") for child in trainers]
    models = [(round_id, path) for round_id, path in reached if path.exists()]
    if not models:
        return None
    newest = max(models, key=lambda found: found[0])[1]
    shutil.copyfile(newest, run.out / "global.safetensors")
    return run.out / "global.safetensors"


def _summarise(
    run: Run, rounds: list[RoundSummary], children: Children, verifier: Verifier | None, seconds: float
) -> dict[str, Any]:
    last = rounds[-1]
    results = [child.result() for child in children.running]
    return {
        "mesh": "up",
        "peers": run.peers,
        "rounds": len(rounds),
        "policy": run.config.round.policy,
        "accuracy": last.accuracy,
        "macro_f1": last.macro_f1,
        "accuracy_alone": None,
        "accuracy_central": None,
        "seconds": round(seconds, 3),
        "round_s_median": median(summary.seconds["total"] for summary in rounds),
        "wire_bytes": sum(result.get("sent_bytes", 0) for result in results),
        "model_bytes": max(result.get("model_bytes", 0) for result in results),
        "max_relative_error": verifier.worst if verifier else None,
        "run_dir": str(run.out),
    }


def _compare(run: Run, console: Console) -> dict[str, Any]:
    from peers.baselines import train_baselines  # imports torch

    with console.status("baselines") as status:
        return train_baselines(run.config, run.peers, run.rounds, status.update)


def _show(result: dict[str, Any], console: Console) -> None:
    def show(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    console.print()
    console.print(f"{result['rounds']} rounds in {result['seconds']:.1f} s, {result['round_s_median']:.2f} s a round")
    console.print(f"[bold]mesh    {show(result['accuracy'])}[/bold]   macro F1 {result['macro_f1'] or 0:.3f}")
    if result["accuracy_alone"] is not None:
        gain = (result["accuracy"] or 0) - result["accuracy_alone"]
        console.print(
            f"alone   {show(result['accuracy_alone'])}   (median of {result['peers']}; the mesh gained {gain:+.1%})"
        )
        console.print(f"central {show(result['accuracy_central'])}   (all data in one place: what the mesh avoids)")
    if result["max_relative_error"] is not None:
        console.print(
            f"largest relative error of a global delta against the central mean: {result['max_relative_error']:.1e}"
        )
    console.print(f"{result['wire_bytes'] / 1e6:.1f} MB on the wire; everything is in {result['run_dir']}")
    console.print(f"[dim]next: mdl eval {result['run_dir']}   mdl predict {result['run_dir']}[/dim]")
