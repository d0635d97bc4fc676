"""The composition root: the one place that knows both roles and drivers. Builds a node and drives it to its end.

It opens the port where a node listens, and scans for peers where multicast finds none.

A lone peer waits without its model (`wait_for_others`): 60 MB instead of 280, until another peer of the mesh is there.
It waits so only after all errors that can be reported now are excluded: the data is read, and a built-in model is known
to fit it. A device that has trained before does not wait so; alone it trains on (`faults.on_partition`).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from mdl.config import Config, MeshSection
from mdl.data import DataSet
from mdl.errors import ConfigError, NameRefusedError
from mdl.files.checkpoint import ModelCache
from mdl.files.figures import Journal
from mdl.learning.built_in import MODELS, SHORTEST_TIME
from mdl.peers.edge.best import known_by
from mdl.peers.edge.gatekeeper import make_gatekeeper
from mdl.peers.edge.identity import claim_again
from mdl.peers.edge.membership import open_membership
from mdl.peers.edge.narrate import PATIENCE_S, PEER_COMMAND, Narrator, describe_loneliness, describe_round
from mdl.peers.edge.relearner import FOLDER, ChosenPolicy, Relearner, choose_policy
from mdl.peers.edge.sampler import MergeTimer, Sampler
from mdl.peers.edge.share import load_share
from mdl.peers.edge.small import Spare, check_room
from mdl.peers.interrupts import LIFELINE_VARIABLE, stopped_by_signals
from mdl.peers.roles.build import PeerStart, build_machine, configured_start
from mdl.peers.roles.outsiders import FirstMeeting
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.run_end import Leaving
from mdl.peers.roles.trainer.trainer import Trainer
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    Effect,
    Event,
    Finish,
    Machine,
    PauseChanged,
    PeerFound,
    Received,
    RecordRound,
    ResourcesSampled,
    SaveModel,
    StopRequested,
    Tick,
)
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vector_work import MergeDeltas
from mdl.protocol.vocabulary import PeerInfo, ResourceState, Role
from mdl.transport.discovery.directory import Address, Interface
from mdl.transport.discovery.interfaces import DEFAULT_PORT, AddressWatch, Scan, host_to_listen_on, usable_interfaces
from mdl.transport.discovery.mdns import Discovery
from mdl.transport.links.mesh_links import Links
from mdl.transport.links.sockets import LinkCounts
from mdl.transport.runtime import Renew, Renewed, Runtime
from mdl.transport.trust.keys import Mesh
from mdl.transport.worker import Work

if TYPE_CHECKING:
    from mdl.peers.edge.device import Device
    from mdl.peers.edge.resume import Begin, ResumeState

logger = logging.getLogger(__name__)


class CloudLine(Protocol):
    """A member's own line to a cloud, beside the rounds, which never wait for it."""

    def warm_start(self) -> Vector | None:
        """Return the cloud's model for a device that has none yet, float32 (P,); None if it does not come in time."""

    def join(self, work: Work) -> Work:
        """Return the device's work, of which the line hears."""

    def pause(self, paused: PauseChanged) -> None: ...
    def close(self) -> None: ...
    def sent_bytes(self) -> int: ...


OpenCloud: TypeAlias = "Callable[[Config, Contributor, Mesh, Device], CloudLine]"


def open_links(info: PeerInfo, mesh: Mesh, section: MeshSection, max_values: int) -> Links:
    """Open the links at the requested port; without one at DEFAULT_PORT, or at a free one if that is taken.

    Observers leave DEFAULT_PORT to a peer: a firewall lets that port in, and scans look there for peers.
    """

    def at(port: int) -> Links:
        return Links(
            msgspec.structs.replace(info, port=port),
            mesh.keys,
            max_values=max_values,
            now=time.monotonic(),
            listen_host="127.0.0.1" if section.loopback else host_to_listen_on(section.listen),
            join=section.join,
            insecure=section.insecure,
            membership=open_membership(mesh.keys) if mesh.keys else None,
        )

    if info.port or section.loopback or section.insecure or info.role is Role.OBSERVER:
        return at(info.port)
    try:
        return at(DEFAULT_PORT)
    except ConfigError:  # another peer of this machine has it; any other error occurs again at port 0
        return at(0)


def scanning(runtime: Runtime[Links], section: MeshSection) -> Any:
    """Return a context that scans the usual port for members while no peer is known."""
    if not section.scan or section.loopback or section.insecure or section.join:
        return nullcontext()
    links = runtime.links
    return closing(
        Scan(
            usable_interfaces(section.interfaces or None),
            lambda: not links.directory.everyone(),
            lambda there: runtime.with_links(lambda links, now: links.greetings.try_some(there, now)),
        )
    )


# One line a round of the mesh.
METRICS = "metrics.jsonl"

Observe = Callable[[float, Event, list[Effect]], None]


@dataclass(frozen=True)
class Ended:
    """The end of a node. exit_code: of the command. round_id: the round of the last model that it has.

    ended_by: why the run has ended by itself, in words. best_round: the round of the kept best model; 0: none is kept.
    missed_best: the round of a better model that this device was away for; 0: there is none.
    """

    problem: str
    exit_code: int
    round_id: int
    sent_bytes: int
    model_bytes: int = 0
    ended_by: str = ""
    best_round: int = 0
    missed_best: int = 0


def start_runtime(
    machine: Machine,
    info: PeerInfo,
    mesh: Mesh,
    section: MeshSection,
    *,
    max_values: int = 0,
    work: Work | None = None,
    observe: Observe | None = None,
    story_path: Path | None = None,
    sample: Callable[[LinkCounts], ResourcesSampled] | None = None,
    renew: Renew[Links] | None = None,
) -> Runtime[Links]:
    """Return the links and the loop for one machine; nothing is announced before `drive`. renew: as for `Runtime`."""
    return Runtime(
        machine,
        open_links(info, mesh, section, max_values),
        work or {},
        sample=sample,
        observe=observe,
        renew=renew,
        story_path=story_path,
    )


def start_peer(
    start: PeerStart,
    machine: Peer,
    mesh: Mesh,
    section: MeshSection,
    work: Work,
    *,
    observe: Observe | None = None,
    story_path: Path | None = None,
    sample: Callable[[LinkCounts], ResourcesSampled] | None = None,
    renew: Callable[[], tuple[PeerStart, Peer]] | None = None,
) -> Runtime[Links]:
    """Return the runtime of the machine that was built from `start`; its story begins with `start`.

    renew: builds the machine once more, as another start of this process, from the disk.
    """
    me, trainer = start.me, start.trainer
    role = Role.TRAINER if trainer else Role.AGENT
    info = PeerInfo(me.peer_id, me.incarnation, role, "", section.port, trainer.schema_hash if trainer else "")
    size = trainer.settings.outer.state_size(trainer.size) if trainer else 0
    runtime = start_runtime(
        machine,
        info,
        mesh,
        section,
        max_values=size,
        work=work,
        observe=observe,
        story_path=story_path,
        sample=sample,
        renew=renew and partial(_begin_again, renew),
    )
    runtime.story.header = start
    return runtime


def _begin_again(renew: Callable[[], tuple[PeerStart, Peer]], links: Links) -> Renewed:
    start, machine = renew()
    return Renewed(machine, links.begin_again(start.me.incarnation), start)


def drive(runtime: Runtime[Links], mesh: Mesh, section: MeshSection) -> Finish:
    """Announce the node, find the others, and run until the machine finishes.

    Raises NameRefusedError if its name is another device's.
    """
    try:
        discovery = Discovery(
            runtime.links.me,
            mesh.name,
            mesh.keys,
            lambda info: runtime.post(PeerFound(info)),
            interfaces=section.interfaces or None,
            loopback=section.loopback,
            required=not (section.join or section.scan),
            sign=runtime.links.introducer.announced,
        )
    except BaseException:
        runtime.close()  # nothing will run it, and its links would go on listening
        raise

    def move(own: Sequence[Interface], kept: frozenset[str]) -> None:
        runtime.move(kept)
        discovery.move(own)

    watch = None if section.loopback else AddressWatch(section.interfaces or None, move)
    try:
        with scanning(runtime, section):
            finish = runtime.run()
    finally:
        if watch:
            watch.close()
        discovery.close()
    if refusal := runtime.links.standing.refusal:
        raise NameRefusedError(str(refusal), refusal.name)
    return finish


def run_agent(config: Config, me: Contributor, mesh: Mesh, out: Path, policy: ChosenPolicy | None = None) -> Ended:
    """Run `mdl agent`: order the aggregations, write metrics.jsonl; stand by while another agent leads.

    policy: from the user's command line, instead of the configuration's.
    """
    chosen = policy or choose_policy(config)

    def build(me: Contributor) -> tuple[PeerStart, Peer]:
        start = configured_start(config, me, None, time.monotonic(), chosen.told)
        return start, build_machine(start, policy=lambda: chosen.make(out))

    node = _Node(config, mesh, out, build, me, Sampler(config.device), {}, chosen.learns)
    with node.running():
        finish = node.run()
    ended_by = known_by(node.machine).ended_by
    return Ended(finish.problem, finish.exit_code, node.machine.rounds_closed(), node.sent_bytes(), ended_by=ended_by)


def run_trainer(
    config: Config,
    me: Contributor,
    mesh: Mesh,
    out: Path,
    how: Begin | None = None,
    policy: ChosenPolicy | None = None,
    name_classes: Callable[[tuple[str, ...]], None] = lambda names: None,
    gone: Callable[[], str] = lambda: "",
    open_cloud: OpenCloud | None = None,
) -> Ended:
    """Run `mdl peer`: train, aggregate, keep the file cache, and export the global model at the end.

    Begin as `how` says, else from the state in `out`. policy: from the command line, instead of the configuration's.
    name_classes: is given the class names. gone: returns why its windows were taken back. open_cloud: opens its line to
    `cloud.address`. Raises ConfigError if an
    existing state conflicts with `how`.
    """
    from mdl.peers.edge.device import Device  # imports torch, which an agent never needs

    chosen = policy or choose_policy(config)
    gate = make_gatekeeper(config.device.when, config)
    device = Device(config, me, mesh.name, out)
    name_classes(device.description.class_names)
    device.is_paused, device.hold = lambda: bool(gate.forbidden_by), gate.hold
    kept = device.restore(*(how or ()))
    cloud = open_cloud(config, me, mesh, device) if open_cloud and config.cloud.address else None
    state = kept if kept.round_id or not cloud else _warmed(kept, cloud)
    sampler = Sampler(config.device, merges := MergeTimer(device.losses(config.defence.test_windows)))
    sampler.check_offer(state.parameters.nbytes)
    check_room(state.parameters.nbytes)

    def build(me: Contributor, begins: ResumeState | None = None) -> tuple[PeerStart, Peer]:
        """Build the machine as a new start would: from the last model on the disk and the device's promises."""
        at = device.begin_again(me) if begins is None else begins
        start = configured_start(config, me, device.start(at), time.monotonic(), chosen.told, merges.defence())
        return start, build_machine(start, at.parameters, lambda: chosen.make(out), at.momentum)

    leaving = Leaving(config.round.rounds, state.round_id)
    device.course, device.stays_for = lambda: known_by(node.machine).course, leaving.stays_for
    narrator = Narrator(mesh.shown, me=me.peer_id, stays_for=leaving.stays_for)
    observe = _observer(
        lambda: node.machine,
        narrator,
        device.stop,
        lambda: _why_leave(leaving, node.trainer, sampler, gone),
        lambda: node.runtime.post(StopRequested()),
    )
    work = {**(cloud.join(device.work()) if cloud else device.work()), MergeDeltas: merges.work}
    first = build(me, state)
    node = _Node(config, mesh, out, build, me, sampler, work, chosen.learns, observe, first, lambda: gate.forbidden_by)
    node.runtime.links.standing.note_worked(state.history.base, time.monotonic())
    held = me.peer_id, len(device.train), config.data.spec, tell_weight(config, device.theta)
    logger.info("%s holds %d windows of %s; %s", *held)
    looking = gate.looking(lambda reason: _tell_pause(PauseChanged(reason), node, cloud))
    with node.running(), closing(cloud) if cloud else nullcontext(), looking:
        finish = node.run()
        logger.info("energy since the start: %s", sampler.tell_energy())
        device.ballots.end()
        trainer = node.trainer
        if trainer.round_id:
            device.export(out / "global.safetensors", trainer.round_id, trainer.parameters)
    sent_bytes = node.sent_bytes() + (cloud.sent_bytes() if cloud else 0)
    exit_code = 0 if leaving.is_over and not finish.problem else finish.exit_code
    known, best = known_by(node.machine), device.best.round_id
    missed = known.course.best_round if known.course and known.course.digest else 0
    told = known.ended_by, best, missed if missed > best else 0
    return Ended(finish.problem, exit_code, trainer.round_id, sent_bytes, state.parameters.nbytes, *told)


def tell_weight(config: Config, theta: float) -> str:
    """Return in words what a device weighs in the mesh's mean. theta: its weight."""
    if config.round.theta == "samples":
        return f"it weighs {theta:,.0f}, its windows (round.theta)"
    return "it weighs 1, as every device does (round.theta)"


def _warmed(state: ResumeState, cloud: CloudLine) -> ResumeState:
    """Return the state of a device that has trained nothing yet: with the cloud's model, if it gives one."""
    from mdl.peers.edge.resume import ResumeState  # imports torch, too

    values = cloud.warm_start()
    return state if values is None else ResumeState(values)


def _observer(
    machine: Callable[[], Peer],
    narrator: Narrator,
    stop: Callable[[], None],
    why_leave: Callable[[], str],
    leave: Callable[[], None],
) -> Observe:
    """Return the observer of a trainer: it logs each step, stops work at the run's end, and leaves when that is due."""

    def observe(now: float, event: Event, effects: list[Effect]) -> None:
        narrator.look(now, event, effects)
        agent = machine().agent
        narrator.hear_waiting(now, agent.held_up_by if agent else "")
        if any(isinstance(effect, Finish) for effect in effects):
            stop()
        if why := why_leave():
            logger.info("%s", why)
            leave()

    return observe


def _why_leave(leaving: Leaving, trainer: Trainer, sampler: Sampler, gone: Callable[[], str]) -> str:
    return leaving.why(trainer.round_id, trainer.goal, trainer.part is not None, sampler.is_spent(), gone())


def _tell_pause(paused: PauseChanged, node: _Node, cloud: CloudLine | None) -> None:
    """Tell the mesh, and the line to a cloud if there is one."""
    node.runtime.post(paused)
    if cloud:
        cloud.pause(paused)


class _Node:
    """A node with a run directory: its loop, its story, the rounds that it leads, and the relearner.

    Reads its sensors for the mesh only if it trains; the relearner asks them on an agent too.
    machine: the one that runs, or ran last. build: makes it for a start of this process; first: the machine of the
    first start.
    paused: returns why the device may not work now, "" if it may.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        out: Path,
        build: Callable[[Contributor], tuple[PeerStart, Peer]],
        me: Contributor,
        sampler: Sampler,
        work: Work,
        learns: bool = False,
        observe: Observe | None = None,
        first: tuple[PeerStart, Peer] | None = None,
        paused: Callable[[], str] = lambda: "",
    ) -> None:
        self._mesh, self._section = mesh, config.mesh
        self._build, self._out, self._contributor, self._paused = build, out, me, paused
        start, self.machine = first or build(me)
        self._story = out / f"story-{start.me.peer_id}.jsonl"
        self._metrics = Journal(out / METRICS)
        self.runtime = start_peer(
            start,
            self.machine,
            mesh,
            config.mesh,
            {**work, RecordRound: lambda effect: record_round(self._metrics, effect, self._relearner)},
            observe=self._observe,
            story_path=self._story,
            sample=sampler if start.trainer else None,
            renew=self._begin_again,
        )
        self._me, self._observe_too, self._sampler = start.me.peer_id, observe, sampler
        self._relearner = Relearner(out / FOLDER, config.busy, sampler.last, self.runtime.post, learns)

    @property
    def trainer(self) -> Trainer:
        """Return the trainer of a device that trains."""
        trainer = self.machine.trainer
        assert trainer is not None
        return trainer

    def _begin_again(self) -> tuple[PeerStart, Peer]:
        """Build the machine once more, as if this process had been started anew."""
        self._contributor = claim_again(self._out, self._contributor)
        start, self.machine = self._build(self._contributor)
        if paused := self._paused():
            self.runtime.post(PauseChanged(paused))
        return start, self.machine

    @contextmanager
    def running(self) -> Iterator[None]:
        """Give the context of `run`. Save results inside it too: an interrupt ends the node, but not that."""
        with stopped_by_signals(self.runtime), closing(self._relearner):
            yield

    def run(self) -> Finish:
        """Run until the machine finishes, and write its rounds and its story to the disk."""
        finish = drive(self.runtime, self._mesh, self._section)
        self._metrics.flush()
        self.runtime.save_story(self._story)
        return finish

    def _observe(self, now: float, event: Event, effects: list[Effect]) -> None:
        """Pass reports to the relearner while this node leads, its own trainer's too; note devices that worked."""
        for effect in effects:
            match effect:
                case SaveModel(history=history):
                    self._sampler.close_round()
                    self.runtime.links.standing.note_worked(history.base, now)
                case RecordRound(summary):
                    self.runtime.links.standing.note_worked(summary.contributors, now)
        if self.machine.agent:
            match event:
                case Received(sender, PeerReport(resources=ResourceState() as resources)):
                    self._relearner.notice(sender.peer_id, resources)
                case ResourcesSampled(resources):
                    self._relearner.notice(self._me, resources)
        if self._observe_too:
            self._observe_too(now, event, effects)

    def sent_bytes(self) -> int:
        return self.runtime.links.counts.sent_bytes


def record_round(metrics: Journal, effect: RecordRound, relearner: Relearner | None = None) -> None:
    """Append the line of a round; the scheduler may learn from rounds that this node has led."""
    metrics.add(msgspec.json.encode(effect.summary))
    logger.info("%s", describe_round(effect.summary))
    if relearner and effect.has_led:
        relearner.hear(effect.summary)


def wait_for_others(
    config: Config, me: Contributor, mesh: Mesh, out: Path, begins: bool
) -> tuple[Config, Contributor] | None:
    """Return configuration and identity to train with once a peer is there; None if the user stops waiting.

    begins: with parameters of the user's, or after setting aside what is in `out`. Raises ConfigError or DataError for
    data that cannot be trained on.
    """
    if not _may_wait(config, out, begins) or not _fits(load_share(config)[0]):
        return config, me
    Spare(0.0).give_back()
    machine = FirstMeeting(me, config.round.policy, time.monotonic() + PATIENCE_S)

    def begin_again(links: Links) -> Renewed:
        nonlocal machine
        machine = FirstMeeting(me, config.round.policy, time.monotonic() + PATIENCE_S)
        return Renewed(machine, [PeerFound(known) for known in links.directory.everyone()])

    info = PeerInfo(me.peer_id, me.incarnation, Role.TRAINER, "", config.mesh.port)

    def observe(now: float, event: Event, effects: list[Effect]) -> None:
        match event:
            case PeerFound(info=info) if info is machine.met:
                logger.info("found %s (%s) at %s:%d", info.peer_id, info.role.value, info.host, info.port)
            case Tick():
                logger.info("%s", describe_loneliness(mesh.shown, PEER_COMMAND))

    runtime = start_runtime(machine, info, mesh, config.mesh, observe=observe, renew=begin_again)
    logger.info("%s waits for others of mesh %s; the model is loaded when somebody is there", me.peer_id, mesh.shown)
    with stopped_by_signals(runtime):
        finish = drive(runtime, mesh, config.mesh)
    if finish.exit_code:
        return None
    # A peer that has met this device sees another start of it.
    return _introduced(config, machine.met), claim_again(out, me)


def _may_wait(config: Config, out: Path, begins: bool) -> bool:
    """Return True if it may wait: not below another process (`mdl up`), nor where torch is loaded in any case."""
    is_plain = config.model.name in MODELS and config.training.device == "cpu" and not config.cloud.address
    is_new = not begins and not ModelCache(out).path.exists()
    is_free = not os.environ.get(LIFELINE_VARIABLE) and "torch" not in sys.modules
    return is_plain and is_new and is_free and config.round.min_peers > 1 and not config.device.max_memory_mb


def _fits(data: DataSet) -> bool:
    is_plain = not data.is_of_images and data.shape[1] >= SHORTEST_TIME
    return is_plain and (len(data.classes) > 1 or data.targets != "classes") and "torch" not in sys.modules


def _introduced(config: Config, met: PeerInfo | None) -> Config:
    """Add the address of the peer that was met; one that waited too listens elsewhere later, and greets by itself."""
    if met is None or (met.role is Role.TRAINER and not met.schema_hash):
        return config
    where = Address(met.host, met.port).endpoint().removeprefix("tcp://")
    return msgspec.structs.replace(config, mesh=msgspec.structs.replace(config.mesh, join=(*config.mesh.join, where)))
