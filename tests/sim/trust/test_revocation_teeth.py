"""The judge of revocations has teeth: each rule, broken, is caught by a drawn plan that unbroken code passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest

from mdl.peers.roles.peer import Peer
from mdl.peers.trials.campaign import Campaign, silent_machines
from mdl.peers.trials.run_plan import run_guarded
from mdl.protocol.machine import PeerRevoked
from mdl.protocol.statements import AnyStatement
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.fault_plan import FaultPlan
from mdl.sim.trust import Desk, SimulatedGate
from mdl.transport.links.introducer import RosterTalk
from mdl.transport.links.standing import LinkStanding, News
from mdl.transport.trust.roster import Roster
from mdl.transport.wire.codec import RosterTold

_SEEDS = 1000
_LIMIT_S = 30.0
_PASS_ON, _JUDGE = LinkStanding._pass_on, Roster._judge


def _a_restart_forgets_who_is_out(self: SimulatedGate, desk: Desk) -> None:
    return None


def _words_count_before_rosters_were_compared(self: LinkStanding, peer_id: str, now: float) -> bool:
    return True


def _news_are_not_passed_on(self: RosterTalk, statements: Any) -> list[RosterTold]:
    return []


def _digests_are_never_compared(self: RosterTalk, peer_ids: Iterable[str], now: float) -> list[Any]:
    self._compare_at = now + 1.0
    return []


def _who_is_revoked_is_heard_on(self: Roster, device: bytes) -> None:
    return None


def _who_is_revoked_is_told_on(self: LinkStanding, new: list[AnyStatement], but: str) -> News:
    return News(_PASS_ON(self, new, but).told)


def _who_tells_of_it_is_not_forgotten(self: LinkStanding, new: list[AnyStatement], but: str) -> News:
    news = _PASS_ON(self, new, but)
    return News(news.told, [peer_id for peer_id in news.gone if peer_id != but])


def _what_was_said_by_one_that_is_out_now_is_refused(self: Roster) -> None:
    _JUDGE(self)
    self._judges = self._owners


def _machines_do_not_part_with_it(self: Peer, out: PeerRevoked, now: float) -> list[Any]:
    return []


# mutation -> (where, name, what the judge says of it, a seed that catches it)
MUTATIONS: dict[Callable[..., Any], tuple[Any, str, set[str], int]] = {
    _a_restart_forgets_who_is_out: (SimulatedGate, "_keep", {"forgot"}, 0),
    _words_count_before_rosters_were_compared: (LinkStanding, "is_settled", {"early"}, 21),
    _news_are_not_passed_on: (RosterTalk, "tell", {"slow"}, 1),
    _digests_are_never_compared: (RosterTalk, "due", {"unaware"}, 31),
    _who_is_revoked_is_heard_on: (Roster, "_drop_device", {"forgot"}, 0),
    _who_is_revoked_is_told_on: (LinkStanding, "_pass_on", {"told"}, 0),
    _who_tells_of_it_is_not_forgotten: (LinkStanding, "_pass_on", {"told"}, 18),
    _what_was_said_by_one_that_is_out_now_is_refused: (Roster, "_judge", {"forgot"}, 41),
    _machines_do_not_part_with_it: (Peer, "_part_with", {"entered"}, 12),
}


def _run(plan: FaultPlan) -> RunVerdict:
    with silent_machines():
        return run_guarded(plan, _LIMIT_S)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
def test_a_broken_rule_is_caught(mutation: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, kinds, seed = MUTATIONS[mutation]
    campaign = Campaign(peers=5, revocations=True)
    monkeypatch.setattr(where, name, mutation)
    seeds = chain([seed], range(_SEEDS))
    caught = next((plan for plan in map(campaign.plan, seeds) if _run(plan).kind in kinds), None)
    assert caught is not None
    monkeypatch.undo()
    assert not _run(caught).kind
