"""The rules of a round in segments have teeth: each broken on purpose is caught by a hard plan, or by its own check.

As `test_teeth.py`, for `round.exchange = "shares"`: plans are drawn from seeds, and each mutation names the seed of the
first that catches it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.agent.aggregation import Aggregation
from mdl.peers.roles.agent.distribution import Distribution
from mdl.peers.roles.membership.members import Reach
from mdl.peers.roles.trainer.broadcast import Staging
from mdl.peers.roles.trainer.exchange import SegmentExchange
from mdl.peers.roles.trainer.guard import Defence, DeltaGuard, Voice
from mdl.peers.roles.trainer.hops import HopsHere
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.roles.trainer.round_state import Broadcast, RoundState
from mdl.peers.trials.campaign import silent_machines
from mdl.peers.trials.run_plan import build_mesh, run_guarded, run_plan
from mdl.protocol.coding import Coding
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.machine import HeldAs, RecallDelta, Send
from mdl.protocol.round_messages import BroadcastOrdered, DeltaWanted, HopOrdered, PieceMessage
from mdl.protocol.vector_work import hash_delta
from mdl.protocol.vocabulary import Holding
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import draw_wide
from mdl.sim.plans.fault_plan import Cut, FaultPlan
from tests.peers.roles.at_once import sum_of

_LIMIT_S = 3.0
_SEEDS = 300


def _a_piece_that_comes_twice_counts_twice(self: SegmentExchange, sender: Any, message: Any, *rest: Any) -> Any:
    mine = self._merging.get(message.segment)
    if mine and sender in mine.contributors:
        theta, others = mine.theta - message.theta, mine.contributors - {sender}
        self._merging[message.segment] = msgspec.structs.replace(mine, theta=theta, contributors=others)
    return _TAKE_PIECE(self, sender, message, *rest)


def _another_ballots_segments_are_taken(
    self: Staging, part: Any, sender: Any, message: Any, values: Any, checksum: int, now: float
) -> Any:
    if part and (exchange := part.broadcast.exchange):
        order = exchange.order
        message = msgspec.structs.replace(message, term=order.term, version=order.version)
    return _HEAR(self, part, sender, message, values, None, now)  # type: ignore[arg-type]  # checksums find it, too


def _an_owner_does_not_wait_for_all(self: SegmentExchange, segment: int) -> None:
    merged = self._merging[segment]
    self._merging[segment] = msgspec.structs.replace(merged, theta=self.order.theta, contributors=self._contributors)
    _FINISH(self, segment)


def _who_lacks_one_segment_stages(self: SegmentExchange) -> bool:
    return len(self.result.lacking) <= 1


def _a_lost_device_stays_in_the_plan(self: Aggregation, now: float) -> Holding | None:
    result = _PLAN(self, now)
    return result and Holding(result.theta + len(self._ledger.lost), result.contributors)


def _pieces_come_from_whatever_is_held(self: RoundState, me: Contributor) -> PartialSum | None:
    return self.hold


def _segments_go_on_after_a_hop_was_fetched(self: HopsHere, part: RoundState, order: HopOrdered, now: float) -> None:
    exchange = part.broadcast.exchange
    _FETCH(self, part, order, now)
    part.broadcast.exchange = exchange


def _a_restarted_process_counts_as_its_former(self: SegmentExchange, sender: Any, *rest: Any) -> Any:
    former = next((peer for peer in self._lanes if peer.peer_id == sender.peer_id), sender)
    return _TAKE_PIECE(self, former, *rest)


def _segments_are_tried_again_at_once(self: Reach, pairs: object, now: float) -> None:
    return None


def _no_report_tells_a_pair(self: Distribution) -> list[Any]:
    return []


def _nothing_is_said_again(self: SegmentExchange, now: float) -> list[Any]:
    return []


def _a_standstill_is_not_seen(self: Distribution, now: float) -> bool:
    return False


def _an_older_result_is_kept_for_a_new_plan(self: Broadcast, delta: PartialSum, digest: bytes) -> bool:
    assert self.order is not None
    return _IS_RESULT(self, delta, digest) or (self._me == 0 and self._is_of(delta))


def _who_is_in_some_segments_is_in_none(self: ModelState, lineage: Any, round_id: int) -> Any:
    entry = _ENTRY(self, lineage, round_id)
    return None if entry and entry.lacks else entry


def _who_is_in_some_segments_is_in_all(self: ModelState, lineage: Any, round_id: int) -> Any:
    entry = _ENTRY(self, lineage, round_id)
    return entry and msgspec.structs.replace(entry, lacks=b"", segment_values=0)


def _whose_piece_is_missing_is_not_told(self: SegmentExchange, sender: Any, message: Any, *rest: Any) -> Any:
    return _TAKE_RESULT(self, sender, msgspec.structs.replace(message, without=()), *rest)


def _what_a_lost_owner_gave_is_kept(self: SegmentExchange, order: BroadcastOrdered) -> Any:
    known, lacking = self.result.values.copy(), set(self.result.lacking)
    sends = _GO_ON(self, order)
    mine = set(self._owned)
    for segment in set(self.result.lacking) - lacking - mine:
        self.result.values[self.bounds(segment)] = known[self.bounds(segment)]
        self.result.lacking.discard(segment)
    return sends


def _what_lies_in_the_own_deltas_place_is_given_as_its_pieces(self: SegmentExchange, order: BroadcastOrdered) -> Any:
    sends = _GO_ON(self, order)
    if not self.lacks_own:
        return sends
    self.lacks_own = False
    return self.begin()


def _what_lies_in_the_own_deltas_place_is_given_away(
    self: HopsHere, part: RoundState, receiver: Any, wanted: Any
) -> Any:
    given = part.give(wanted.hop_id, receiver)
    return [Send(receiver.peer_id, wanted, part.hold.values.view(np.float32))] if given else []


def _a_lost_device_counts_wherever_it_is_lost(self: SegmentExchange, segment: int) -> None:
    merged, lost = self._merging[segment], self.order.lost
    gone = [each for each in lost if each.contributor not in merged.contributors]
    if gone and self._contributors <= merged.contributors:
        everybody = merged.contributors | {each.contributor for each in gone}
        theta = merged.theta + sum(each.theta for each in gone)
        self._merging[segment] = msgspec.structs.replace(merged, theta=theta, contributors=everybody)
    _FINISH(self, segment)


_ENTRY, _TAKE_RESULT, _GO_ON = ModelState._entry, SegmentExchange.take_result, SegmentExchange.go_on
_TAKE_PIECE, _FINISH, _HEAR = SegmentExchange.take_piece, SegmentExchange._finish, Staging.hear_segment
_PLAN, _FETCH, _IS_RESULT = Aggregation._plan_segments, HopsHere.fetch, Broadcast._is_result

# mutation -> (where, name, the seed that catches it)
MUTATIONS: dict[Callable[..., Any], tuple[Any, str, int]] = {
    _a_piece_that_comes_twice_counts_twice: (SegmentExchange, "take_piece", 22),
    _another_ballots_segments_are_taken: (Staging, "hear_segment", 350),
    _an_owner_does_not_wait_for_all: (SegmentExchange, "_finish", 22),
    _a_lost_device_stays_in_the_plan: (Aggregation, "_plan_segments", 9),
    _who_lacks_one_segment_stages: (SegmentExchange, "is_whole", 22),
    _who_is_in_some_segments_is_in_none: (ModelState, "_entry", 22),
    _who_is_in_some_segments_is_in_all: (ModelState, "_entry", 27),
    _whose_piece_is_missing_is_not_told: (SegmentExchange, "take_result", 22),
    _what_a_lost_owner_gave_is_kept: (SegmentExchange, "go_on", 22),
    _what_lies_in_the_own_deltas_place_is_given_as_its_pieces: (SegmentExchange, "go_on", 22),
    _a_lost_device_counts_wherever_it_is_lost: (SegmentExchange, "_finish", 22),
}
# Ballots know nothing of codings, and a seed that shows them broken is one of hundreds.
UNCODED = (_another_ballots_segments_are_taken,)


def _exchange(is_in_place: bool = False) -> SegmentExchange:
    order = BroadcastOrdered(1, 1, b"", 1, (_ME, _OTHER), 2.0, (_ME, _OTHER), owns=(2, 0), segment_values=1)
    exchange = SegmentExchange(order, _ME, _DELTA, 2, 0.5, is_in_place=is_in_place)
    exchange.begin()
    return exchange


def _check_that_a_restarted_process_is_another_one() -> None:
    exchange = _exchange()
    try:
        exchange.take_piece(Contributor("b", 2), PieceMessage(1, 1, 1, 0, 1.0), np.ones(1, np.float32), 0.0)
    except RemoteProtocolError:
        return
    raise AssertionError("its piece is taken for its former one's")


def _check_that_pieces_are_of_the_own_delta() -> None:
    part = RoundState(1, 1, frozenset([_ME, _OTHER]), hold=sum_of([0.0, 0.0], [_ME, _OTHER]))
    assert part.own_hold(_ME) is None


def _hops() -> HopsHere:
    voice = Voice(0.5, 0.5)
    return HopsHere(voice, 1.0, DeltaGuard(Defence(), ModelState(_ME, np.zeros(2, np.float32)), voice))


def _check_that_a_hop_waits_for_the_own_delta() -> None:
    both = frozenset([_ME, _OTHER])
    part = RoundState(1, 1, both, announced_to=both, hold=_DELTA, trained_from=_ZEROS)
    part.broadcast.exchange = _exchange(is_in_place=True)
    wanted = DeltaWanted(1, 1, 1)
    assert _hops().serve(part, _OTHER, wanted) == [RecallDelta(1, _ZEROS, held_as=HeldAs(1.0, _ME, 0))]
    part.broadcast.exchange.take_own(_DELTA)
    assert [type(effect) for effect in _hops().serve(part, _OTHER, wanted)] == [Send]


def _check_that_a_hop_ends_the_exchange() -> None:
    part = RoundState(1, 1, frozenset([_ME, _OTHER]), hold=_DELTA)
    part.broadcast.exchange = _exchange()
    _hops().fetch(part, HopOrdered(1, 1, 1, _OTHER), 0.0)
    assert part.broadcast.exchange is None


def _check_that_losses_cost_no_plan() -> None:
    plan = FaultPlan(3, 4, 3, exchange="shares", loss=0.1)
    with silent_machines():
        verdict, mesh = run_plan(plan)
    assert not verdict.kind
    assert mesh.rounds
    assert all(summary.shares for summary in mesh.rounds)


def _check_that_a_cut_is_gone_around() -> None:
    plan = FaultPlan(1, 3, 2, exchange="shares", faults=(Cut(at_s=0.0, a="p1", b="p2", for_s=900.0),))
    with silent_machines():
        mesh, _ = build_mesh(plan)
        mesh.run(30.0, lambda: len(mesh.accounts.closed) > plan.rounds)
    assert len(mesh.accounts.closed) > plan.rounds


def _check_that_a_cut_costs_segments_once() -> None:
    plan = FaultPlan(1, 6, 6, policy="tree", exchange="shares", faults=(Cut(at_s=0.0, a="p1", b="p2", for_s=900.0),))
    with silent_machines():
        mesh, _ = build_mesh(plan)
        mesh.run(60.0, lambda: len(mesh.accounts.closed) > plan.rounds)
    assert len(mesh.accounts.closed) > plan.rounds
    assert len([summary for summary in mesh.rounds if summary.seconds["total"] > 3.0]) <= 2
    owns = mesh.rounds[-1].shares
    assert (owns.get("p1"), owns.get("p2"), sum(owns.values()) > 0) == (0, 0, True), "in segments, around the cut"
    assert mesh.rounds[0].seconds["total"] < 7.0, "the round itself goes on in segments"


def _check_that_a_standstill_costs_segments() -> None:
    reach = Reach()
    reach.fail_segments([], 0.0)
    assert not reach.may_try_segments(1.0)


def _check_that_a_new_plan_makes_a_new_result() -> None:
    broadcast = Broadcast()
    order = BroadcastOrdered(1, 1, b"", 1, (_ME, _OTHER), 2.0, (_ME, _OTHER))
    result = sum_of([0.0, 0.0], [_ME, _OTHER])
    broadcast.follow(order, _ME, result, 0.0)
    (named,) = map(hash_delta, broadcast.name(broadcast.made))
    broadcast.take_name(named, 0.0)
    assert broadcast.staged
    broadcast.follow(msgspec.structs.replace(order, version=2, owns=(2, 0), segment_values=1), _ME, None, 0.0)
    assert broadcast.staged is None


_ME, _OTHER = Contributor("a", 1), Contributor("b", 1)
_ZEROS = np.zeros(2, np.float32)
_DELTA = sum_of(_ZEROS, [_ME])

# What plans do not bring out, since another rule makes up for it (docs/faults.md).
RARE: dict[Callable[..., Any], tuple[Any, str, Callable[[], None]]] = {
    _pieces_come_from_whatever_is_held: (RoundState, "own_hold", _check_that_pieces_are_of_the_own_delta),
    _what_lies_in_the_own_deltas_place_is_given_away: (HopsHere, "serve", _check_that_a_hop_waits_for_the_own_delta),
    _segments_go_on_after_a_hop_was_fetched: (HopsHere, "fetch", _check_that_a_hop_ends_the_exchange),
    _a_restarted_process_counts_as_its_former: (
        SegmentExchange,
        "take_piece",
        _check_that_a_restarted_process_is_another_one,
    ),
    _nothing_is_said_again: (SegmentExchange, "on_time", _check_that_losses_cost_no_plan),
    _a_standstill_is_not_seen: (Distribution, "is_at_a_standstill", _check_that_a_cut_is_gone_around),
    _segments_are_tried_again_at_once: (Reach, "fail_segments", _check_that_a_standstill_costs_segments),
    _no_report_tells_a_pair: (Distribution, "find_apart", _check_that_a_cut_costs_segments_once),
    _an_older_result_is_kept_for_a_new_plan: (Broadcast, "_is_result", _check_that_a_new_plan_makes_a_new_result),
}


CODINGS: tuple[Coding, ...] = ("none", "int8", "int4")


def _plan(seed: int, compress: Coding = "none") -> FaultPlan:
    return msgspec.structs.replace(draw_wide(seed, "hard", exchange="shares"), compress=compress)


def _run(plan: FaultPlan) -> RunVerdict:
    with silent_machines(), np.errstate(all="ignore"):  # a broken machine may round what was never written
        return run_guarded(plan, _LIMIT_S)


def _is_caught(verdict: RunVerdict) -> bool:
    assert verdict.kind not in ("TypeError", "AttributeError", "NameError"), f"it fits no code: {verdict.problem}"
    return bool(verdict.kind)


@pytest.mark.slow
@pytest.mark.parametrize("compress", CODINGS)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
def test_a_broken_rule_of_segments_is_caught(
    mutation: Callable[..., Any], compress: Coding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where own deltas are rounded, and counts are told from one another by halves."""
    compress = "none" if mutation in UNCODED else compress
    where, name, first = MUTATIONS[mutation]
    monkeypatch.setattr(where, name, property(mutation) if isinstance(getattr(where, name), property) else mutation)
    caught = next((seed for seed in chain([first], range(_SEEDS)) if _is_caught(_run(_plan(seed, compress)))), None)
    assert caught is not None
    monkeypatch.undo()
    assert not _run(_plan(caught, compress)).kind


@pytest.mark.parametrize("mutation", RARE, ids=lambda mutation: mutation.__name__.strip("_"))
def test_a_rule_of_segments_that_rarely_decides_is_caught_by_its_own_check(
    mutation: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, check = RARE[mutation]
    check()
    monkeypatch.setattr(where, name, mutation)
    with pytest.raises(AssertionError):
        check()
