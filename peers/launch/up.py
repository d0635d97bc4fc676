"""`mdl up`: a whole mesh on this machine: an agent and n peers as real processes, a live view, a run directory.

Its plan (`plan_run`) finds all errors of the input before a process is started.
"""

from __future__ import annotations

import logging
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mdl.bounds import in_utf8
from mdl.config import Config, RoundSection, WebSection, save_config
from mdl.data import DataSet, default_cache_dir, load_data, private_part, split_windows
from mdl.descriptors import claim_share
from mdl.errors import ConfigError, DataError, MdlError, UnfinishedError
from mdl.files.figures import RoundReader, read_rounds
from mdl.own import Own, own_data
from mdl.peers.edge.small import check_limit
from mdl.peers.interrupts import handled, interrupt
from mdl.peers.launch.nursery import Nursery, share_of_threads
from mdl.peers.launch.processes import Child, Children
from mdl.peers.launch.run_directory import (
    CycleReader,
    Verifier,
    collect_best,
    collect_results,
    describe_interrupt,
    remove_traces,
)
from mdl.peers.roles.build import check_exchange
from mdl.peers.view.report import report_on
from mdl.peers.view.snapshot import SnapshotTaker
from mdl.peers.view.terminal import PlainConsole, describe_summary, draw_mesh, show_result
from mdl.peers.view.watch import Watcher
from mdl.peers.web.opening import need_libraries
from mdl.protocol.status_messages import RoundSummary
from mdl.scheduler.given import check_count, is_file, policy_of
from mdl.transport.trust.keys import Mesh, new_join_code
from mdl.writing import make_private_folder, write_bytes

logger = logging.getLogger(__name__)

# The default data: `mdl up` shows that all works, and says that this is synthetic.
_SHOWN_DATA = "motion"
# The default number of passes over the data, and that of a run that ends by itself (`--until`).
_EPOCHS, _MOST_EPOCHS = 5, 100


@dataclass(frozen=True)
class Run:
    """The plan of one `mdl up`. rounds: aggregations in total. cloud: with a cloud of its own.

    log_level: of this process and those that it starts. own_policy: a function of the user's that orders the rounds.
    page: TCP port of a page about it; 0: none.
    """

    config: Config
    peers: int
    rounds: int
    data: DataSet
    out: Path
    verify: bool
    cloud: bool = False
    log_level: str = "info"
    own_policy: Own | None = None
    page: int = 0


def plan_run(
    config: Config,
    peers: int,
    epochs: int | None,
    out: Path | None,
    policy: str | Own | None,
    *,
    verify: bool,
    cloud: bool,
    log_level: str,
) -> Run:
    """Check everything that can be checked before a process is started, and make the run directory.

    policy: instead of the configuration's, which can name no function. Raises ConfigError or DataError.
    """
    if peers < 1:
        raise ConfigError(f"-n {peers}: expected at least 1 peer")
    rounds = _count_rounds(config, epochs)
    claim_share()
    check_limit(peers)
    config = _with_policy(config, policy, peers)
    if not config.data.spec:
        config = msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, spec=_SHOWN_DATA))
    data = load_data(own_data(config.data.spec), default_cache_dir(), config.seed)
    if cloud:
        config = _with_cloud(config, data)
    data = private_part(data, config.cloud.people, config.seed)
    split_windows(data.train, config.data.split, peers, config.seed)
    page = config.web.port
    if page:
        need_libraries()
    wait_for = 1.0 if config.round.wait_for == RoundSection().wait_for else config.round.wait_for
    config = msgspec.structs.replace(
        config,
        mesh=msgspec.structs.replace(config.mesh, loopback=True, join=(), port=0),
        # They share one machine: none is slow by itself, and two runs are to give the same digits.
        round=msgspec.structs.replace(
            config.round, rounds=rounds, min_peers=peers, keep_deltas=verify, relearn=False, wait_for=wait_for
        ),
        training=msgspec.structs.replace(config.training, planned_rounds=rounds),
        busy=msgspec.structs.replace(config.busy, cpu_percent=100.0),  # they share one processor
        web=WebSection(),  # only this process serves a page
    )
    check_exchange(config.round)
    out = out or Path("runs") / f"up-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        make_private_folder(out)
        if any(out.iterdir()):
            raise ConfigError(f"--out {out} is not empty; choose a new directory")
        save_config(config, out / "config.toml")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    own = policy if isinstance(policy, Own) else None
    return Run(config, peers, rounds, data, out, verify, cloud, log_level, own, page)


def _count_rounds(config: Config, epochs: int | None) -> int:
    """Return the most rounds. epochs: None if the user does not say; a given number of rounds counts instead."""
    if epochs is None:
        epochs = _MOST_EPOCHS if config.end else _EPOCHS
    if epochs < 1:
        raise ConfigError(f"--epochs {epochs}: expected at least 1")
    return config.round.rounds or epochs * config.training.rounds_per_epoch


def _with_policy(config: Config, policy: str | Own | None, peers: int) -> Config:
    """Return the configuration with the policy that its processes read, wherever they run.

    Raises ConfigError or DataError for a policy that cannot order so many peers.
    """
    name = config.round.policy if policy is None else policy
    if peers > 1:  # a lone peer has no other to aggregate with
        check_count(policy_of(name), peers, f"--policy {name}")
    else:
        policy_of(name)
    text = str(Path(name).absolute()) if isinstance(name, str) and is_file(name) else str(name)
    return msgspec.structs.replace(config, round=msgspec.structs.replace(config.round, policy=text))


def _with_cloud(config: Config, data: DataSet) -> Config:
    """Add a cloud on this machine.

    A quarter of the training people gave it their data, unless the user says how many.
    """
    people = config.cloud.people or max(1, len(np.unique(data.train.subject)) // 4)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # The cloud will have one mesh only: each of its uploads is worth a cycle.
    section = msgspec.structs.replace(config.cloud, people=people, address=address, updates=1)
    return msgspec.structs.replace(config, cloud=section)


_FRAME_S = 0.2
# The time that the peers may take to write their files after the last round.
_EXPORT_S = 10.0


def run_up(
    config: Config,
    peers: int,
    epochs: int | None,
    out: Path | None,
    *,
    policy: str | Own | None = None,
    cloud: bool = False,
    baselines: bool = False,
    verify: bool = False,
    as_json: bool = False,
    log_level: str = "info",
    nursery: Nursery | None = None,
) -> dict[str, Any]:
    """Train; return what `--json` prints. as_json: no live view, one line a round on stderr.

    nursery: forks the processes, and is closed then. policy: instead of the configuration's; a function of the user's
    can only come so.
    log_level: of the processes; from "warning" on, only problems are told before the result.

    Raises ConfigError or DataError before a model is trained, and leaves no run directory then; MdlError if the run
    failed; UnfinishedError after Ctrl-C or SIGTERM, when all has been saved.
    """
    started = time.monotonic()
    console = PlainConsole(stderr=as_json, quiet=log_level in ("warning", "error"))
    verifier: Verifier | None = None
    with handled(interrupt):
        run = plan_run(config, peers, epochs, out, policy, verify=verify, cloud=cloud, log_level=log_level)
        told = f"{run.peers} peers, {run.config.model.name}; all settings are in {run.out / 'config.toml'}"
        console.print(Text(told, style="dim"), soft_wrap=True)
        if run.data.synthetic:
            console.print(f"{run.data.name} is synthetic data: its figures say nothing about real people")
        try:
            verifier = Verifier(run.out) if verify else None
            results = _train(run, verifier, console, as_json, nursery)
            result = _summarise(run, results, verifier, time.monotonic() - started)
            if baselines:
                result |= _compare(run, result["rounds"] if run.config.end else run.rounds, console)
        except (ConfigError, DataError):
            remove_traces(run.out)
            raise
        except KeyboardInterrupt:
            raise UnfinishedError(describe_interrupt(run.out), 130, {"run_dir": str(run.out)}) from None
    if not as_json:
        show_result(result, PlainConsole())
    try:
        write_bytes(run.out / "result.json", msgspec.json.format(msgspec.json.encode(result)))
    except MdlError as error:
        raise UnfinishedError(str(error), 4, result, "the lines above hold the same figures") from None
    for line in report_on(run.out):
        console.print(line, soft_wrap=True, highlight=False)
    return {key: value for key, value in result.items() if key != "alone"}


def _train(
    run: Run, verifier: Verifier | None, console: Console, as_json: bool, nursery: Nursery | None
) -> list[dict[str, Any]]:
    """Start all processes, follow the rounds, end them; return what each process said at its end."""
    code = new_join_code(f"up-{secrets.token_hex(3)}")  # two runs on one network have different names
    mesh = Mesh.from_code(code)
    derived = mesh.keys.hand_over() if mesh.keys else ""
    with (
        Children(run.out / "logs", code, share_of_threads(run.peers), nursery, derived) as children,
        Watcher(mesh, run.config.mesh, "up") as watcher,
        _page(run, mesh, watcher, console),
    ):
        try:
            if run.cloud:
                _start_cloud(run, children, console)
            _start(run, children)
            if nursery:
                nursery.close()
            draws = console.is_terminal and not console.quiet and not as_json
            _follow(run, children, watcher, verifier, console, draws)
        finally:
            children.stop()
            saved = collect_results(run.out, children.running[1:])
    if saved is None:
        raise MdlError(f"no peer finished a round; their logs are in {run.out / 'logs'}")
    return [child.result() for child in children.running]


@contextmanager
def _page(run: Run, mesh: Mesh, watcher: Watcher, console: Console) -> Iterator[None]:
    """Serve the page that the user wants, from what is watched in any case."""
    if not run.page:
        yield
        return
    from mdl.peers.web.opening import PageWanted, page_of
    from mdl.peers.web.sources import LiveMesh

    source = LiveMesh(watcher, run.out / "cloud" / "cycles.jsonl" if run.cloud else None, run.data.classes)
    with page_of(source, mesh, PageWanted.of(WebSection(port=run.page))) as opened:
        watcher.on_news = opened.notify
        console.print(f"the page: {opened.url}", soft_wrap=True, highlight=False)
        yield


def _start_cloud(run: Run, children: Children, console: Console) -> None:
    """Start the cloud, and wait until it can teach: it first learns from its own people, then the mesh begins."""
    port = run.config.cloud.address.rpartition(":")[2]
    out = run.out / "cloud"
    child = children.start("cloud", "cloud", *_common(run), "--port", port, "--out", str(out))
    told = f"the cloud learns from the donated data of {run.config.cloud.people} people"
    with console.status(told) if console.is_terminal else nullcontext():
        while not _read_cycles(run):
            if _has_ended(child, _FRAME_S):
                raise MdlError(f"the cloud failed: {child.problem()} (log: {child.log})")
    children.running.remove(child)
    children.beside.append(child)


def _start(run: Run, children: Children) -> None:
    # A function of the user's goes by the command line only: no file that a process reads may name one.
    common = [*_common(run), *(["--policy", run.own_policy.text] if run.own_policy else [])]
    children.start("agent", "agent", *common, "--out", str(run.out / "agent"), trains=False)
    for index in range(1, run.peers + 1):
        name, shard = f"peer-{index}", f"{index}/{run.peers}"
        children.start(name, "peer", *common, "--name", name, "--shard", shard, "--out", str(run.out / name))


def _common(run: Run) -> list[str]:
    return ["--json", "--log-level", run.log_level, "--config", str(run.out / "config.toml")]


def _follow(
    run: Run, children: Children, watcher: Watcher, verifier: Verifier | None, console: Console, draws: bool
) -> None:
    """Follow the rounds until all is done; raise if a node could not start, or too few are left.

    The agent ends the run. If it is lost in the middle, a peer leads from there on, and the run ends with the peers.
    """
    agent, reader, cycles = children.running[0], RoundReader(run.out), CycleReader(run.out)
    told, taker = "", SnapshotTaker()
    with Live(console=console, auto_refresh=False) if draws else nullcontext() as screen:
        ended, alone_s = False, 0.0
        while not ended:
            alone_s += _FRAME_S * all(child.process.poll() == 0 for child in children.running[1:])
            ended = all(_has_ended(child, _FRAME_S) for child in _waited_for(children, reader, alone_s > _EXPORT_S))
            for summary in reader.new():
                if verifier:
                    verifier.check(summary)
                if screen is None:
                    console.print(describe_summary(summary), soft_wrap=True, highlight=False)
            wrong = [_check(children, bool(reader.rounds)), *map(_check_cloud, children.beside)]
            notes = [*wrong, *(_tell_cloud(cycles) for _ in children.beside if not any(wrong[1:]))]
            note = "; ".join(note for note in (wrong if console.quiet else notes) if note)
            if screen is not None:
                snapshot = taker.take(watcher.told())
                screen.update(draw_mesh(snapshot, reader.rounds, note, console.height), refresh=True)
            elif console.quiet and note and note != told:
                logger.warning("%s", note)
            elif note != told:
                console.print(note, soft_wrap=True, highlight=False)
            told = note
    if agent.process.returncode and not reader.rounds:
        raise MdlError(f"the agent failed: {agent.problem()} (log: {agent.log})")
    watcher.stop()  # while the peers leave the network, too
    for child in children.running[1:]:
        _has_ended(child, _EXPORT_S)  # they save and export what they have


def _waited_for(children: Children, reader: RoundReader, is_alone: bool) -> list[Child]:
    """Return the processes that end with the run.

    is_alone: all others have ended well and long ago. An agent that was succeeded stands by; it goes on so if it did
    not hear that the mesh has ended.
    """
    agent, *trainers = children.running
    return trainers if (agent.process.poll() or is_alone) and reader.rounds else [agent]


def _has_ended(child: Child, wait_s: float) -> bool:
    try:
        child.process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _check(children: Children, has_begun: bool) -> str:
    """Return a note about peers that ended early.

    A mesh goes on without a peer it has lost. But the first round waits for all, and a lone peer has no other to train
    with. Raises ConfigError if the user's input was wrong, MdlError if the run is over.
    """
    agent, *trainers = children.running
    failed = [child for child in trainers if child.process.poll() not in (None, 0)]
    for child in failed:
        if child.process.returncode == 2:
            raise ConfigError(child.problem())
    ended = [agent, *failed] if agent.process.poll() else failed
    note = "; ".join(f"{child.name} ended early: {child.problem()}" for child in ended)
    left = len(trainers) - len(failed)
    is_over = agent.process.poll() == 0  # their messages at the end are no loss to the mesh
    if failed and not is_over and (not has_begun or left < min(2, len(trainers))):
        raise MdlError(f"{left} of {len(trainers)} peers are left; {note} (logs: {failed[0].log.parent})")
    return note


def _summarise(run: Run, results: list[dict[str, Any]], verifier: Verifier | None, seconds: float) -> dict[str, Any]:
    rounds = read_rounds(run.out / "metrics.jsonl")
    if not rounds:
        raise MdlError(f"no round could be written down; the model is in {run.out / 'global.safetensors'}")
    last = rounds[-1]
    return {
        "mesh": results[0].get("mesh", ""),
        "peers": run.peers,
        "rounds": len(rounds),
        "policy": run.config.round.policy,
        "targets": run.data.targets,
        "score": last.score,
        "score_alone": None,
        "score_central": None,
        **_measures(run.data, last),
        "seconds": round(seconds, 3),
        "round_s_median": median(summary.total_s for summary in rounds),
        "wire_bytes": sum(result.get("sent_bytes", 0) for result in results),
        "model_bytes": max(result.get("model_bytes", 0) for result in results),
        "max_relative_error": verifier.worst if verifier else None,
        "ended_by": results[0].get("ended_by", ""),
        "best_round": collect_best(run.out, run.peers),
        "run_dir": in_utf8(str(run.out)),
    } | ({"cloud": _describe_cloud(run)} if run.cloud else {})


def _measures(data: DataSet, last: RoundSummary) -> dict[str, Any]:
    """Return the measures of the data's kind, by their names."""
    if data.targets == "numbers":
        return {"fits": {name: msgspec.to_builtins(fit) for name, fit in zip(data.classes, last.fits, strict=False)}}
    if data.targets == "labels":
        exact = last.labelling.exact if last.labelling else None
        return {"micro_f1": last.score, "macro_f1": last.macro_f1, "exact": exact}
    alone = {"accuracy_alone": None, "accuracy_central": None}
    return {"accuracy": last.accuracy, "macro_f1": last.macro_f1, **alone}


def _check_cloud(cloud: Child) -> str:
    if cloud.process.poll() is None:
        return ""
    return f"the cloud ended early, the mesh goes on: {cloud.problem()}"


def _tell_cloud(cycles: CycleReader) -> str:
    """Return the cloud's progress in a few words."""
    cycles.look()
    version = cycles.last["version"] if cycles.last else 0
    return f"cloud: version {version}, " + ("from its own people" if version <= 1 else "from the mesh")


def _read_cycles(run: Run) -> list[dict[str, Any]]:
    """Return the whole lines of the cloud's file; there is one before the mesh begins."""
    path = run.out / "cloud" / "cycles.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line) for line in lines]


def _describe_cloud(run: Run) -> dict[str, Any]:
    """Return the cloud's results; it ended with the others."""
    cycles = _read_cycles(run)
    return {
        "people": run.config.cloud.people,
        "version": cycles[-1]["version"],
        "cycle_s": [cycle["seconds"] for cycle in cycles],
    }


def _compare(run: Run, rounds: int, console: Console) -> dict[str, Any]:
    from mdl.peers.launch.baselines import train_baselines  # imports torch

    with console.status("baselines") as status:
        return train_baselines(run.config, run.peers, rounds, status.update)
