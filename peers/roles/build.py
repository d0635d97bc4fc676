"""The one way to build the machine of a process: of a node, of a simulated plan, or of a replayed story.

One value, `PeerStart`, holds how a process starts; the machine follows from it and from w, so that a story which has it
in its header can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from mdl.channels import Told
from mdl.config import Config, Exchange, RoundSection
from mdl.errors import ConfigError
from mdl.peers.roles.agent.settings import AgentSettings, TimeLimit
from mdl.peers.roles.membership.succession import SuccessionSettings
from mdl.peers.roles.peer import Peer
from mdl.peers.roles.trainer.guard import Defence
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.coding import Coding
from mdl.protocol.delta import Contributor
from mdl.protocol.grid import Vector
from mdl.protocol.vector_work import Outer
from mdl.protocol.vocabulary import Ballot, History
from mdl.scheduler.policies.chain import Policy
from mdl.scheduler.policies.registry import POLICIES, make_policy

# Times of a simulated process. Reports and heartbeats are rare: two that get lost in a row make a loss (in the field it
# takes four to eight), so that devices are given up by mistake and agents succeeded, often. Repetitions share their
# ticks.
_REPORT_S, _RETRY_S, _LOST_AFTER_S = 1.0, 0.25, 2.0
_START_S = 2.8
# A simulated model has some 256 values: a dozen segments, so that several devices own more than one.
SEGMENT_VALUES = 24
# Segments that may be on their way to one device, so that more wait in its lane, as in a real mesh.
_MOST_UNDER_WAY = 2
# A way that failed is tried again within the run: one takes 10 to 60 s.
_AVOID_S = 6.0


class TrainerStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The trainer of a process as it starts: at w(round_id), with so many values and this digest.

    history, ballot: saved by an earlier start. ballot: None if that is not known. channels: the description of its
    windows' channels.
    """

    size: int
    digest: bytes
    schema_hash: str = ""
    model: str = ""
    round_id: int = 0
    history: History = History()
    ballot: Ballot | None = None
    settings: TrainerSettings = TrainerSettings()
    channels: Told = ()


class PeerStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process as it starts. trainer: None on a dedicated agent. started_s: by the clock that its events have."""

    me: Contributor
    policy: str
    agent: AgentSettings
    succession: SuccessionSettings
    trainer: TrainerStart | None = None
    started_s: float = 0.0


def check_exchange(section: RoundSection) -> None:
    """Raise ConfigError for settings that exclude each other."""
    if section.compress != "none" and section.exchange == "chain":
        raise ConfigError(
            f"round.compress = {section.compress}: only segments are compressed; set round.exchange to shares or auto"
        )


def configured_start(
    config: Config,
    me: Contributor,
    trainer: TrainerStart | None,
    now: float,
    policy: str = "",
    defence: Defence | None = None,
) -> PeerStart:
    """Return the start of a node as its configuration wants it, its trainer's settings too. now: of the driver's clock.

    policy: in words, if no name stands for it (a file, a function). defence: the means of this device to judge others.
    Raises ConfigError for settings that contradict each other.
    """
    check_exchange(config.round)
    chain, faults = config.round, config.faults
    agent = AgentSettings(
        rounds=chain.rounds,
        min_peers=chain.min_peers,
        lost_after_s=faults.lost_after_s,
        stall_s=faults.stall_s,
        partition_s=faults.partition_s,
        waits_for_majority=faults.on_partition == "wait",
        busy=config.busy,
        # The more devices judge each other's work, the less a lie gets through.
        limit=TimeLimit(
            1.0 if config.defence.check else chain.wait_for, chain.grace_s, chain.left_out_at_most, rule=chain.rule
        ),
        exchange=chain.exchange,
        coding=chain.compress,
        quarantine=config.defence.quarantine,
        judges=config.defence.check,
        end=config.end,
        every_s=chain.every_s,
    )
    if trainer is not None:
        outer = trainer.settings.outer
        # Deltas that are kept are compared with the mean of all: one merged in part would not be it.
        defence = msgspec.structs.replace(defence or Defence(), is_on=config.defence.check, clips=not chain.keep_deltas)
        settings = TrainerSettings(
            outer,
            chain.keep_deltas,
            config.training.overlap,
            stall_s=faults.stall_s,
            defence=defence,
            theta=trainer.settings.theta,
            link_mb_s=trainer.settings.link_mb_s,
        )
        trainer = _tell_outer(msgspec.structs.replace(trainer, settings=settings))
    return PeerStart(
        me, policy or chain.policy, agent, SuccessionSettings(lost_after_s=faults.lost_after_s), trainer, now
    )


def outer_of(section: RoundSection, buffers: Iterable[range] = ()) -> Outer:
    """Return the step by which rounds change the model. buffers: places in its vector that hold no parameters."""
    averaged = tuple((place.start, place.stop) for place in buffers)
    return Outer(section.eta, section.outer_momentum, averaged) if section.outer == "nesterov" else Outer(section.eta)


def _tell_outer(trainer: TrainerStart) -> TrainerStart:
    """Name the outer optimizer in the schema hash: devices that step differently would never stand at one model."""
    outer = trainer.settings.outer
    if not outer.momentum:
        return trainer
    return msgspec.structs.replace(
        trainer,
        schema_hash=f"{trainer.schema_hash}.nesterov-{outer.momentum:g}-{outer.eta:g}",
        model=f"{trainer.model}, outer nesterov {outer.momentum:g} at eta {outer.eta:g}",
    )


def simulated_start(
    me: Contributor,
    policy: str,
    peers: int,
    on_partition: str,
    trainer: TrainerStart | None,
    now: float,
    exchange: Exchange = "chain",
    coding: Coding = "none",
    outer: Outer | None = None,
    judges: bool = False,
    overlaps: bool = False,
    segment_values: int = SEGMENT_VALUES,
    limit: TimeLimit | None = None,
    meets: bool = False,
) -> PeerStart:
    """Return a simulated process's start: losses and stalls show in a fraction of the usual time, a run in seconds.

    meets: it elects the first agent as soon as real devices do. Else all wait: the faults of plans are drawn for that.
    """
    agent = AgentSettings(
        min_peers=peers // 2 + 1,
        lost_after_s=_LOST_AFTER_S,
        retry_s=_RETRY_S,
        stall_s=3.0,
        avoid_s=_AVOID_S,
        partition_s=4.0,
        waits_for_majority=on_partition == "wait",
        limit=limit or TimeLimit(),
        exchange=exchange,
        coding=coding,
        segment_values=segment_values,
        judges=judges,
    )
    meet_s = 0.8 if meets else _START_S
    succession = SuccessionSettings(
        _REPORT_S, _LOST_AFTER_S, settle_s=0.8, step_s=0.25, start_s=_START_S, meet_s=meet_s
    )
    if trainer is not None:
        settings = TrainerSettings(
            outer=outer or Outer(),
            keep_deltas=True,
            overlaps=overlaps,
            report_s=_REPORT_S,
            retry_s=_RETRY_S,
            stall_s=2.0,
            most_under_way=_MOST_UNDER_WAY * 4 * segment_values,
            defence=Defence(is_on=judges, tests=judges, clips=False),
        )
        trainer = msgspec.structs.replace(trainer, schema_hash="schema", model="model", settings=settings)
    return PeerStart(me, policy, agent, succession, trainer, now)


def build_machine(
    start: PeerStart,
    parameters: Vector | None = None,
    policy: Callable[[], Policy] | None = None,
    momentum: Vector | None = None,
) -> Peer:
    """Build the machine of this process.

    parameters: its trainer's w, float32 (P,); zeros if they are not known any longer. momentum: of its outer optimizer,
    likewise. policy: makes the one of each time in office, instead of the named one. Raises ConfigError if there is no
    policy of this name.
    """
    if policy is None and start.policy not in POLICIES:
        raise ConfigError(f"policy {start.policy!r}: expected one of {', '.join(sorted(POLICIES))}")
    trainer = None
    if told := start.trainer:
        parameters = np.zeros(told.size, np.float32) if parameters is None else parameters
        trainer = Trainer(
            start.me,
            told.settings.outer.begin(parameters, momentum),
            told.schema_hash,
            told.model,
            told.settings,
            told.round_id,
            told.history,
            told.ballot,
            told.digest,
            told.channels,
        )
    named = policy or (lambda: make_policy(start.policy))
    return Peer(start.me, trainer, named, start.agent, start.succession, start.started_s)
