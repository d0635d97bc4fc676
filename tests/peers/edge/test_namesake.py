"""Two live processes of one name, as the machines decide it: the one that was started later leaves."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.build import PeerStart, TrainerStart, build_machine
from mdl.peers.roles.membership.succession import SuccessionSettings
from mdl.peers.roles.peer import Peer
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Finish, NameTaken, Received, Send, Tick
from mdl.protocol.round_messages import AgentPresent, AgentResigned, PeerReport
from mdl.protocol.vocabulary import Activity, PeerInfo, Role

ME, EARLIER, LATER = (Contributor("ann", incarnation) for incarnation in (5, 4, 6))
PROBLEM = (
    "another device of this mesh at 192.0.2.7:5750 is called 'ann' too (was its data directory copied?): "
    "give this one its own --name and --out"
)


def _node(trains: bool = True) -> Peer:
    trainer = TrainerStart(4, b"") if trains else None
    start = PeerStart(ME, "greedy", AgentSettings(), SuccessionSettings(), trainer)
    return build_machine(start, np.zeros(4, np.float32))


def _leading(trains: bool = True) -> Peer:
    node = _node(trains)
    node.known["bob"] = PeerInfo("bob", 1, Role.TRAINER, "192.0.2.9", 1)
    node.handle(Received(Contributor("bob", 1), AgentResigned(1, 0)), 19.0)
    effects = node.handle(Tick(), 20.0)
    assert AgentPresent in [type(effect.message) for effect in effects if isinstance(effect, Send)]
    assert node.agent
    return node


@pytest.mark.parametrize("trains", [True, False], ids=["peer", "agent"])
def test_the_later_one_ends_with_code_2_and_says_what_to_do(trains: bool) -> None:
    effects = _node(trains).handle(NameTaken(EARLIER, "192.0.2.7:5750"), 1.0)
    assert [effect for effect in effects if isinstance(effect, Finish)] == [Finish(PROBLEM, 2)]


def test_an_address_that_is_not_known_is_left_out() -> None:
    (finish,) = (effect for effect in _node().handle(NameTaken(EARLIER), 1.0) if isinstance(effect, Finish))
    assert finish.problem == PROBLEM.replace(" at 192.0.2.7:5750", "")


@pytest.mark.parametrize("trains", [True, False], ids=["peer", "agent"])
def test_the_later_one_hands_its_office_over_and_does_not_end_the_meshs_run(trains: bool) -> None:
    node = _leading(trains)
    effects = node.handle(NameTaken(EARLIER), 21.0)
    said = [effect.message for effect in effects if isinstance(effect, Send)]
    assert isinstance(said[0], AgentResigned)
    assert node.agent is None
    assert isinstance(effects[-1], Finish)
    reports = [message for message in said if isinstance(message, PeerReport)]
    assert [report.activity for report in reports] == ([Activity.LEFT] if trains else [])


@pytest.mark.parametrize("trains", [True, False], ids=["peer", "agent"])
def test_the_earlier_one_says_where_the_other_is_and_goes_on(trains: bool, caplog: pytest.LogCaptureFixture) -> None:
    node = _leading(trains)
    assert not any(isinstance(effect, Finish) for effect in node.handle(NameTaken(LATER, "192.0.2.7:5750"), 21.0))
    assert node.agent
    assert "at 192.0.2.7:5750, started later, is called 'ann' too" in caplog.text
