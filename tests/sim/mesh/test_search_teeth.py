"""The search has teeth: each rule of docs/protocol.md that few departures can break, switched off, is found by it.

Rules 1 and 3 are not among them: they take more departures than are gone through. `test_teeth.py` has checks of their
own for them.

Rule 1 takes an agent that opens one round twice. Ann opens round r + 1 under 3a, gives it up, and opens it under 4a.
Bob does not hear her. He has taken the office under 2b, and decides r + 1 with Cleo under 3b, between the two. Ann
still counts on Cleo's report under 2a. Cleo hears 4a before Bob's `RoundClosed`, and follows. All that happens in the 2
to 4 s after which Ann would take the silent Cleo for lost. Otherwise terms grow in steps. Ann opens a round one step
above the last one. A device that takes the office speaks above all that it and its voters have promised, and opens the
round another step above that. So Ann's first proposal for a round lies below all others for it. No voter comes back to
her from another agent before she has risen above that one, when she asks everybody anew (`rise_above`).

Rule 3 takes an order for another lineage under a term that the device obeys. The same agent must have brought the
device to its new place under that term. So the agent has given a round up for a fork that came back, and has moved the
device there (`CatchUp`). Its order for the round before comes late, while a device that was not moved can still give
the result. The steps: `test_another_forks_result_staged_as_a_vote_here_would_count_work_twice`.

That an agent steps down only for whom it can obey is held by
tests/peers/roles/test_peer.py alone: since a deaf agent calls at its own pace, no single cut breaks a mesh without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from mdl.peers.roles.agent import conductor as conductor_module
from mdl.peers.roles.agent import gathering as gathering_module
from mdl.peers.roles.agent import gathering as opening_module
from mdl.peers.roles.agent.agent import MobileAgent
from mdl.peers.roles.membership import majority as choice_module
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.roles.trainer.progress import Reports
from mdl.peers.trials.campaign import Bound, Found, search_all, search_from, tell_found
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Ballot
from mdl.sim.mesh.search import AnyDeparture, CrashDuring


def _nobody_asks_what_was_staged(members: Any) -> None:
    return None


def _anybody_is_a_majority(base: Any, voters: Any) -> bool:
    return True


def _a_restart_forgets_what_was_staged(self: ModelState, term: int, agent: str = "") -> Ballot:
    return Ballot(term, starts=self.starts, begun=self.begun)


def _a_vote_is_kept_and_not_what_it_was_for(self: Reports, *state: Any) -> PeerReport:
    return replace(_MAKE(self, *state), accepted=None)


def _who_has_lost_its_ballot_votes(self: ModelState) -> bool:
    return True


def _who_is_here_decides(self: MobileAgent, position: Any, current: Any, base: Any, now: float) -> None:
    return _OPEN(self, position, current, tuple(sorted(member.peer_id for member in current)), now)


def _a_minority_goes_on_with_the_round(self: MobileAgent, position: Any, current: Any, base: Any, now: float) -> None:
    if self.lineage and not self.quorum:
        self.quorum, self._gathering.lacking_since = True, None
        base = tuple(sorted(member.peer_id for member in current))
    return _OPEN(self, position, current, base, now)


_OPEN, _MAKE = MobileAgent._open, Reports.make


class Broken(NamedTuple):
    """A rule that is switched off, where, and a bound within which that is found: by its kind.

    first: of two departures the one that is tried first; without, or if it is another one by now, all are gone through.
    """

    rule: Callable[..., Any]
    where: tuple[tuple[Any, str], ...]
    bound: Bound
    kind: str = "digest"
    first: AnyDeparture | None = None


_ROUND_2 = Bound(2, 2, from_round=2, kinds=("crash",))
TEETH = {
    "2: the newest accepted value is proposed": Broken(
        _nobody_asks_what_was_staged,
        ((conductor_module, "newest_staged"), (opening_module, "newest_staged")),
        Bound(3, 1, policy="tree", kinds=("suspend",)),
    ),
    "4: a quorum decides": Broken(
        _anybody_is_a_majority,
        tuple((module, "has_quorum") for module in (choice_module, conductor_module, gathering_module)),
        Bound(3, 1, kinds=("cut",)),
    ),
    "5: a promise outlives the process": Broken(
        _a_restart_forgets_what_was_staged,
        ((ModelState, "ballot"),),
        _ROUND_2,
        first=CrashDuring(step=64, said=2, for_s=0.0),
    ),
    "6: who has lost the value says its name": Broken(
        _a_vote_is_kept_and_not_what_it_was_for,
        ((Reports, "make"),),
        _ROUND_2,
        first=CrashDuring(step=64, said=2, for_s=0.0),
    ),
    "7: who does not know its ballot has no vote": Broken(
        _who_has_lost_its_ballot_votes,
        ((ModelState, "knows_ballot"),),
        Bound(2, 2, from_round=2, kinds=("crash", "forget")),
        first=CrashDuring(step=64, said=2, for_s=0.0),
    ),
    "8: the base is part of the value": Broken(
        _who_is_here_decides,
        ((MobileAgent, "_open"),),
        Bound(3, 2, kinds=("crash", "cut")),
        first=CrashDuring(step=69, said=0, for_s=3.5),
    ),
    "9: a group without a quorum forks": Broken(
        _a_minority_goes_on_with_the_round, ((MobileAgent, "_open"),), Bound(3, 1, kinds=("cut",))
    ),
}


def _search(broken: Broken) -> Found | None:
    if broken.first is None:
        return search_all(broken.bound, 1, 1).found
    found = search_from(broken.bound, 2, [(broken.first,)]).found
    return found or search_all(broken.bound, 2, 1).found


@pytest.mark.slow
@pytest.mark.parametrize("rule", TEETH)
def test_a_rule_that_is_switched_off_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = TEETH[rule]
    for owner, name in broken.where:
        monkeypatch.setattr(owner, name, broken.rule)
    found = _search(broken)
    assert found is not None
    assert found.kind == broken.kind
    monkeypatch.undo()
    assert not tell_found(found.bound, found.departures)[0].kind
