"""There is one way to build a machine: from a `PeerStart`, which its story begins with."""

from __future__ import annotations

from typing import get_args

import msgspec
import numpy as np
import pytest

from mdl.config import Compress, Config, FaultSection, RoundSection
from mdl.errors import ConfigError
from mdl.peers.edge.resume import ResumeState
from mdl.peers.roles.build import (
    PeerStart,
    TrainerStart,
    build_machine,
    configured_start,
    outer_of,
    simulated_start,
)
from mdl.protocol.coding import CODINGS
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.vocabulary import Ballot, History, LineagePoint

ME = Contributor("ann", 3)
W = np.arange(4, dtype=np.float32)
BALLOT = Ballot(term=5, agent="bob", reached=(LineagePoint("", 2),))
CONFIG = Config(
    round=RoundSection(policy="fifo", eta=0.5, keep_deltas=True), faults=FaultSection(stall_s=3.0, lost_after_s=2.0)
)


def test_a_trainer_goes_on_from_what_was_saved_as_the_configuration_wants_it() -> None:
    start = configured_start(
        CONFIG, ME, ResumeState(W, 2, History()).start("hash", "lenet", BALLOT, outer_of(CONFIG.round)), 10.0
    )
    assert start.trainer is not None
    assert (start.policy, start.started_s, start.trainer.round_id) == ("fifo", 10.0, 2)
    settings = start.trainer.settings
    assert (settings.outer.eta, settings.keep_deltas, settings.stall_s) == (0.5, True, 3.0)
    machine = build_machine(start, W)
    assert machine.trainer is not None
    assert (machine.trainer.digest, machine.trainer.round_id) == (start.trainer.digest, 2) == (digest_of(W), 2)
    assert machine.trainer.describe() == {"schema_hash": "hash", "model": "lenet"}
    assert machine.succession.term == 5


@pytest.mark.parametrize("trainer", [None, TrainerStart(4, digest_of(W), "hash", "lenet", 2, History(), BALLOT)])
def test_a_story_keeps_how_its_process_started(trainer: TrainerStart | None) -> None:
    for start in (configured_start(CONFIG, ME, trainer, 1.0), simulated_start(ME, "ring", 5, "wait", trainer, 1.0)):
        assert msgspec.json.decode(msgspec.json.encode(start), type=PeerStart) == start


def test_a_dedicated_agent_has_no_trainer() -> None:
    assert build_machine(configured_start(CONFIG, ME, None, 0.0)).trainer is None


def test_a_policy_that_does_not_exist_is_named_with_those_that_do() -> None:
    start = msgspec.structs.replace(configured_start(CONFIG, ME, None, 0.0), policy="fiffo")
    with pytest.raises(ConfigError, match=r"policy 'fiffo': expected one of .*fifo.*greedy"):
        build_machine(start)


def test_settings_of_an_exchange_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="only segments are compressed"):
        configured_start(Config(round=RoundSection(compress="int8", exchange="chain")), Contributor("a", 1), None, 0.0)
    segments = RoundSection(compress="int8", exchange="shares")
    configured_start(Config(round=segments), Contributor("a", 1), None, 0.0)
    for compress in get_args(Compress):  # what can be configured is what can be ordered
        start = configured_start(
            Config(round=RoundSection(compress=compress, exchange="shares")), Contributor("a", 1), None, 0.0
        )
        assert msgspec.json.decode(msgspec.json.encode(start), type=PeerStart).agent.coding == compress
    assert {*get_args(Compress)} == {*CODINGS, "auto"}
