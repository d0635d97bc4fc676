"""The composition root: the one place that knows both roles and drivers. Builds a node and drives it to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

import msgspec

from mdl.config import Config, MeshSection
from mdl.files.journal import Journal
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, Machine, PeerFound, RecordRound, ResourcesSampled, StopRequested
from mdl.protocol.vocabulary import PeerInfo, Role
from peers.edge.lifeline import stopped_by_signals
from peers.edge.narrate import Narrator
from peers.edge.relearner import FOLDER, Relearner, make_own_policy
from peers.edge.sampler import MergeTimer, Sampler
from peers.roles.build import cast_node
from peers.roles.peer import make_peer
from peers.roles.round_limit import RoundLimit
from transport.discovery.addresses import AddressWatch
from transport.discovery.interfaces import host_to_listen_on
from transport.discovery.mdns import Discovery
from transport.links.mesh_links import Links
from transport.runtime import Runtime
from transport.trust.keys import MeshKeys
from transport.worker import Work

logger = logging.getLogger(__name__)

# One line a round that the node has led.
METRICS = "metrics.jsonl"

Observe = Callable[[float, Event, list[Effect]], None]


@dataclass(frozen=True)
class Ended:
    """How a node ended. exit_code: as the command's. round_id: the last round it has the model of."""

    problem: str
    exit_code: int
    round_id: int
    sent_bytes: int
    model_bytes: int = 0


def start_runtime(
    machine: Machine,
    info: PeerInfo,
    keys: MeshKeys | None,
    mesh: MeshSection,
    *,
    max_values: int = 0,
    work: Work | None = None,
    observe: Observe | None = None,
    story_path: Path | None = None,
    sample: Callable[[int], ResourcesSampled] | None = None,
) -> Runtime[Links]:
    """Links and the loop for one machine; nothing is announced before `drive`."""
    links = Links(
        info,
        keys,
        max_values=max_values,
        now=time.monotonic(),
        listen_host="127.0.0.1" if mesh.loopback else host_to_listen_on(mesh.listen),
        join=mesh.join,
        insecure=mesh.insecure,
    )
    return Runtime(
        machine,
        links,
        work or {},
        sample=sample,
        observe=observe,
        story_path=story_path,
    )


def drive(runtime: Runtime[Links], mesh_name: str, mesh: MeshSection) -> Finish:
    """Announce the node, find the others, run until the machine finishes."""
    links = runtime.links
    discovery = Discovery(
        links.me,
        mesh_name,
        links.keys,
        lambda info: runtime.post(PeerFound(info)),
        interfaces=mesh.interfaces or None,
        loopback=mesh.loopback,
        required=not mesh.join,
    )

    def move(own: Sequence[IPv4Interface], kept: frozenset[str]) -> None:
        runtime.move(kept)
        discovery.move(own)

    watch = None if mesh.loopback else AddressWatch(mesh.interfaces or None, move)
    try:
        return runtime.run()
    finally:
        if watch:
            watch.close()
        discovery.close()


def run_agent(config: Config, me: Contributor, keys: MeshKeys | None, mesh_name: str, out: Path) -> Ended:
    """`mdl agent`: orders the aggregations, writes metrics.jsonl; stands by as long as another agent leads."""
    now = time.monotonic()
    machine = make_peer(me, None, config, now, lambda: make_own_policy(config, out))
    info = PeerInfo(me.peer_id, me.incarnation, Role.AGENT, "", config.mesh.port)
    sampler = Sampler(config.device.in_use_file)
    metrics = Journal(out / METRICS)
    runtime = start_runtime(
        machine,
        info,
        keys,
        config.mesh,
        work={RecordRound: lambda effect: record_round(metrics, effect, relearner)},
        story_path=out / f"story-{me.peer_id}.jsonl",
    )
    runtime.story.header = cast_node(machine, config.round.policy, None, now)
    relearner = _make_relearner(config, out, runtime, sampler)
    with stopped_by_signals(runtime), closing(relearner):
        finish = drive(runtime, mesh_name, config.mesh)
        metrics.flush()
        runtime.save_story(out / f"story-{me.peer_id}.jsonl")
    return Ended(finish.problem, finish.exit_code, machine.rounds_closed(), runtime.links.counts.sent_bytes)


def run_trainer(
    config: Config, me: Contributor, keys: MeshKeys | None, mesh_name: str, out: Path, fresh: bool = False
) -> Ended:
    """`mdl peer`: trains, aggregates, keeps its file cache, and exports the global model when it ends.

    fresh: does not go on from what is in `out`, but sets it aside. Raises ConfigError for a state of another origin.
    """
    from peers.edge.cloud_line import CloudSide  # imports torch, which an agent never needs
    from peers.edge.device import Device
    from peers.edge.resume import State
    from peers.roles.trainer.trainer import Trainer, TrainerSettings

    device = Device(config, me, mesh_name, out)
    state = device.restore(fresh)
    cloud = CloudSide(config, me, keys, mesh_name, device) if config.cloud.address else None
    if cloud and not state.round_id and (values := cloud.warm_start()) is not None:
        state = State(values)
    settings = TrainerSettings(
        eta=config.round.eta, keep_deltas=config.round.keep_deltas, stall_s=config.faults.stall_s
    )
    merges = MergeTimer()
    trainer = Trainer(
        me,
        state.parameters,
        device.schema_hash,
        device.summary,
        settings,
        state.round_id,
        state.history,
        device.ballots.load(),
        merges,
    )
    now = time.monotonic()
    machine = make_peer(me, trainer, config, now, lambda: make_own_policy(config, out))
    info = PeerInfo(me.peer_id, me.incarnation, Role.TRAINER, "", config.mesh.port, schema_hash=device.schema_hash)
    story = out / f"story-{me.peer_id}.jsonl"
    sampler = Sampler(config.device.in_use_file, merges)
    metrics = Journal(out / METRICS)
    narrator = Narrator(mesh_name)
    limit = RoundLimit(config.round.rounds, state.round_id)

    def observe(now: float, event: Event, effects: list[Effect]) -> None:
        narrator.look(now, event, effects)
        narrator.hear_waiting(now, machine.agent.held_up_by if machine.agent else "")
        if any(isinstance(effect, Finish) for effect in effects):
            device.stop()
        if limit.is_reached(trainer.round_id, trainer.goal):
            logger.info("%d rounds are done", config.round.rounds)
            runtime.post(StopRequested())

    work = cloud.join(device.work()) if cloud else device.work()
    runtime = start_runtime(
        machine,
        info,
        keys,
        config.mesh,
        max_values=state.parameters.size,
        work={**work, RecordRound: lambda effect: record_round(metrics, effect, relearner)},
        observe=observe,
        sample=sampler,
        story_path=story,
    )
    runtime.story.header = cast_node(machine, config.round.policy, settings, now)
    logger.info("%s holds %d windows of %s", me.peer_id, len(device.train), config.data.spec)
    relearner = _make_relearner(config, out, runtime, sampler)
    with stopped_by_signals(runtime), closing(relearner), closing(cloud) if cloud else nullcontext():
        finish = drive(runtime, mesh_name, config.mesh)
        metrics.flush()
        runtime.save_story(story)
        if trainer.round_id:
            device.export(out / "global.safetensors", trainer.round_id, trainer.parameters)
    sent_bytes = runtime.links.counts.sent_bytes + (cloud.sent_bytes() if cloud else 0)
    exit_code = 0 if limit.is_over and not finish.problem else finish.exit_code
    return Ended(finish.problem, exit_code, trainer.round_id, sent_bytes, state.parameters.nbytes)


def _make_relearner(config: Config, out: Path, runtime: Runtime[Links], sampler: Sampler) -> Relearner:
    is_on = config.round.relearn and config.round.policy == "dqn"
    return Relearner(out / FOLDER, config.busy, sampler.last, runtime.post, is_on)


def record_round(metrics: Journal, effect: RecordRound, relearner: Relearner | None = None) -> None:
    """Append the line of a round that this node has led; the scheduler may learn from it."""
    metrics.add(msgspec.json.encode(effect.summary))
    logger.info("%s", describe_round(effect))
    if relearner:
        relearner.hear(effect.summary)


def describe_round(effect: RecordRound) -> str:
    """One line for people."""
    summary = effect.summary
    parts = [f"round {summary.round}", f"{len(summary.contributors)} contributors", f"{summary.total_s:.2f} s"]
    if summary.loss is not None:
        parts.append(f"loss {summary.loss:.3f}")
    if summary.accuracy is not None:
        parts.append(f"accuracy {summary.accuracy:.1%}")
    if summary.lost:
        parts.append(f"lost {', '.join(summary.lost)}")
    parts += summary.cuts
    return ", ".join(parts)
