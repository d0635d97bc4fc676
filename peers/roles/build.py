"""What it takes to build the machine of one process again: kept with its story, and drawn from a simulated plan."""

from __future__ import annotations

import msgspec
import numpy as np

from mdl.errors import ConfigError
from mdl.protocol.delta import Contributor, Vector
from mdl.protocol.vocabulary import Ballot, History
from peers.roles.agent.agent import AgentSettings
from peers.roles.membership.succession import SuccessionSettings
from peers.roles.peer import Peer
from peers.roles.trainer.trainer import Trainer, TrainerSettings
from scheduler.policies.registry import POLICIES, make_policy

# Of a simulated process. Reports and heartbeats are rare: two that get lost in a row make a loss (in the field it takes
# four to eight), so that devices are given up by mistake and agents succeeded, often. Repetitions share their ticks.
_REPORT_S, _RETRY_S, _LOST_AFTER_S = 1.0, 0.25, 2.0


class TrainerStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The trainer of a node as it starts: at w(round_id), with so many values and this digest."""

    size: int
    digest: bytes
    schema_hash: str = ""
    model: str = ""
    round_id: int = 0
    history: History = History()
    ballot: Ballot | None = None
    settings: TrainerSettings = TrainerSettings()


class Casting(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process at its start. trainer: None on a dedicated agent. started_s: by the clock that its events have."""

    me: Contributor
    policy: str
    agent: AgentSettings
    succession: SuccessionSettings
    trainer: TrainerStart | None = None
    started_s: float = 0.0


def cast_simulated(
    me: Contributor, policy: str, peers: int, on_partition: str, trainer: TrainerStart | None, started_s: float
) -> Casting:
    """A process of a simulated mesh: losses and stalls show in a fraction of the usual time; a run is a few seconds."""
    agent = AgentSettings(
        min_peers=peers // 2 + 1,
        lost_after_s=_LOST_AFTER_S,
        retry_s=_RETRY_S,
        stall_s=3.0,
        partition_s=4.0,
        waits_for_majority=on_partition == "wait",
    )
    succession = SuccessionSettings(_REPORT_S, _LOST_AFTER_S, settle_s=0.8, step_s=0.25, start_s=2.8)
    if trainer is not None:
        settings = TrainerSettings(keep_deltas=True, report_s=_REPORT_S, retry_s=_RETRY_S, stall_s=2.0)
        trainer = msgspec.structs.replace(trainer, schema_hash="schema", model="model", settings=settings)
    return Casting(me, policy, agent, succession, trainer, started_s)


def cast_node(peer: Peer, policy: str, trainer: TrainerSettings | None, started_s: float) -> Casting:
    """A node that is about to start, for the header of its story."""
    start = None
    if peer.trainer and trainer:
        standing = peer.trainer.standing
        start = TrainerStart(
            standing.parameters.size,
            standing.digest,
            round_id=standing.round_id,
            history=standing.history(),
            ballot=peer.trainer.ballot,
            settings=trainer,
            **peer.trainer.describe(),
        )
    return Casting(peer.me, policy, peer.agent_settings, peer.settings, start, started_s)


def build_machine(casting: Casting, parameters: Vector | None = None) -> Peer:
    """The machine of this process; parameters are its trainer's w, zeros if they are not known any longer.

    Raises ConfigError if the policy does not exist.
    """
    if casting.policy not in POLICIES:
        raise ConfigError(f"policy {casting.policy!r}: expected one of {', '.join(sorted(POLICIES))}")
    trainer = None
    if start := casting.trainer:
        values = np.zeros(start.size, np.float32) if parameters is None else parameters
        trainer = Trainer(
            casting.me,
            values,
            start.schema_hash,
            start.model,
            start.settings,
            start.round_id,
            start.history,
            start.ballot,
        )
    return Peer(
        casting.me,
        trainer,
        lambda: make_policy(casting.policy),
        casting.agent,
        casting.succession,
        casting.started_s,
    )
