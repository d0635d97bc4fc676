"""Two trainers whose delta travels in segments: what one round leaves for the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.checksum import checksum_of, checksums_by_piece
from mdl.protocol.delta import Contributor, ModelDelta, PartialSum, apply_delta, digest_of
from mdl.protocol.grid import Vector, room_for
from mdl.protocol.machine import (
    DeltaRecalled,
    Event,
    HeldAs,
    KeepDelta,
    LocalDeltaReady,
    RecallDelta,
    Received,
    Send,
    Tick,
    TrainLocally,
    hold_recalled,
)
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    DeltaWanted,
    GlobalMessage,
    HopOrdered,
    Lost,
    ModelWanted,
    PieceMessage,
    RoundClosed,
    RoundOpened,
    SegmentMessage,
    SegmentsReady,
    SegmentTaken,
)
from mdl.protocol.vocabulary import Accepted, Ballot, Fork, History, Lineage, Staged, TrainingReport
from tests.peers.roles.at_once import TrainerAtOnce, mean_of, on_way, sum_of

SIZE = 64
AGENT, ANN, BOB = (Contributor(name, 1) for name in ("agent", "ann", "bob"))
START = np.zeros(SIZE, np.float32)


def _pair() -> dict[Contributor, Trainer]:
    return {me: TrainerAtOnce(me, START, "schema", "model", TrainerSettings(keep_deltas=True)) for me in (ANN, BOB)}


def _hand(
    pair: dict[Contributor, Trainer], to: Contributor, event: Event, lost: tuple[str, type] | None = None
) -> list[KeepDelta]:
    """And all that follows from it; the deltas that were kept meanwhile. lost: what does not get to whom."""
    names, kept = {me.peer_id: me for me in pair}, list[KeepDelta]()
    queue = [(to, event)]
    while queue:
        me, event = queue.pop(0)
        for effect in pair[me].handle(event, 1.0):
            if isinstance(effect, Send) and (effect.receiver, type(effect.message)) != lost:
                queue.append((names[effect.receiver], Received(me, effect.message, effect.values)))
            elif isinstance(effect, KeepDelta):
                kept.append(effect)
    return kept


def _train(
    pair: dict[Contributor, Trainer], round_id: int, values: float, room: int = 0
) -> dict[Contributor, PartialSum]:
    base = pair[ANN].digest
    kept = {}
    for me in pair:
        _hand(pair, me, Received(AGENT, RoundOpened(9, round_id, base, (ANN, BOB), 9, room=room)))
        own = ModelDelta(np.linspace(0.0, values, SIZE, dtype=np.float32), 1.0, frozenset([me]))
        kept[me] = _hand(pair, me, LocalDeltaReady(round_id, own, TrainingReport(0.0, 1, 0.0)))[-1].delta
    return kept


def test_what_coding_rounds_off_comes_in_with_the_next_own_delta_and_nothing_else_outlives_the_round() -> None:
    pair, room = _pair(), room_for(2.0, coding="int8")
    _train(pair, 1, 1.0, room)
    both = (ANN, BOB)
    order = BroadcastOrdered(9, 1, pair[ANN].digest, 1, both, 2.0, both, owns=(2, 2), segment_values=16, room=room)
    for me in pair:
        _hand(pair, me, Received(AGENT, order))
    parts = {me: trainer.part for me, trainer in pair.items()}
    off = {}
    for me, part in parts.items():
        assert part is not None
        assert part.broadcast.exchange is not None
        assert part.rest is not None
        off[me] = part.rest.copy()
        assert np.abs(off[me]).max() > 0
        _hand(pair, me, Received(AGENT, RoundClosed(9, 1, part.broadcast.digest)))
        assert part.broadcast.exchange is None  # it holds on to the own delta, where w(t+1) needs room
    assert pair[ANN].digest == pair[BOB].digest
    own = _train(pair, 2, 0.0, room_for(2.0))
    for me, delta in own.items():
        np.testing.assert_allclose(mean_of(delta, pair[me].parameters), off[me], atol=1e-7)


def _trained(settings: TrainerSettings) -> tuple[dict[Contributor, Trainer], BroadcastOrdered]:
    """Both hold a round's own delta; and the order by which they may exchange them, each owning half."""
    pair: dict[Contributor, Trainer] = {me: TrainerAtOnce(me, START, "schema", "model", settings) for me in (ANN, BOB)}
    for me in pair:
        _hand(pair, me, Received(AGENT, RoundOpened(9, 1, pair[ANN].digest, (ANN, BOB), 9)))
        own = ModelDelta(np.linspace(0.0, 1.0, SIZE, dtype=np.float32), 1.0, frozenset([me]))
        _hand(pair, me, LocalDeltaReady(1, own, TrainingReport(0.0, 1, 0.0)))
    order = BroadcastOrdered(9, 1, pair[ANN].digest, 1, (ANN, BOB), 2.0, (ANN, BOB), owns=(2, 2), segment_values=16)
    return pair, order


@pytest.mark.parametrize("lost", [None, ("ann", SegmentTaken), ("bob", RoundOpened)], ids=["all", "some", "kept"])
def test_the_next_model_takes_the_results_memory_once_all_have_confirmed_it(lost: tuple[str, type] | None) -> None:
    """What is not confirmed may still be read on its way to another device, and so may what is written (`--verify`)."""
    keeps = lost is not None and lost[1] is RoundOpened
    settings = TrainerSettings(keep_deltas=keeps)
    pair, order = _trained(settings)
    for me in pair:
        _hand(pair, me, Received(AGENT, order), lost)
    part = pair[ANN].part
    assert part is not None
    assert part.broadcast.staged is not None
    result, digest = part.broadcast.staged.values, part.broadcast.digest
    right = apply_delta(START, mean_of(part.broadcast.staged), 1.0)
    for me in pair:
        _hand(pair, me, Received(AGENT, RoundClosed(9, 1, digest)))
    assert np.shares_memory(pair[ANN].parameters, result) is (lost is None)
    assert np.array_equal(pair[ANN].parameters, right)
    assert pair[ANN].digest == pair[BOB].digest == digest_of(right)


def test_the_next_model_leaves_alone_what_is_on_its_way_to_a_device_that_was_lost() -> None:
    """It may wake up, and take that for segments of the exchange which it still follows."""
    cleo = Contributor("cleo", 1)
    three, piece = (ANN, BOB, cleo), on_way(np.ones(16))
    told = tuple(checksum_of(piece.view(np.int32), 16 * segment) for segment in range(4))
    pair, order = _trained(TrainerSettings())
    ann = pair[ANN]
    assert ann.part is not None
    ann.part.trained_from = None  # as where earlier work is in its own delta: the result is beside that
    order = replace(order, order=three, theta=3.0, contributors=three, owns=(4, 0, 0))
    ann.handle(Received(AGENT, order), 1.0)
    ann.handle(Received(cleo, SegmentsReady(1, 9, 1, checksums=told)), 1.0)
    given: list[Vector] = []
    for segment, who in ((0, BOB), (1, BOB), (2, BOB), (3, BOB), (0, cleo), (1, cleo)):
        sends = ann.handle(Received(who, PieceMessage(1, 9, 1, segment, 1.0, 16 * segment), piece), 1.1)
        given += [e.values for e in sends if isinstance(e, Send) and isinstance(e.values, np.ndarray)]
    before = [values.copy() for values in given]
    assert len(given) == 4
    lost = (Lost(cleo, 1.0, 2, 0),)
    on = replace(
        order, version=2, began=1, order=(ANN, BOB), theta=2.0, contributors=(ANN, BOB), owns=(4, 0), lost=lost
    )
    ann.handle(Received(AGENT, on), 2.0)
    ann.handle(Received(BOB, SegmentsReady(1, 9, 2, checksums=told)), 2.1)
    for segment in range(4):
        ann.handle(Received(BOB, SegmentTaken(1, 9, 2, segment, True)), 2.2)
    broadcast = ann.part.broadcast
    assert broadcast.exchange is not None
    assert broadcast.exchange.is_over()
    ann.handle(Received(AGENT, RoundClosed(9, 1, broadcast.digest)), 3.0)
    assert ann.round_id == 1
    assert all(map(np.array_equal, given, before))


def _lent() -> tuple[dict[Contributor, Trainer], BroadcastOrdered]:
    """Both exchange a round's deltas, in whose places the result comes; ann has it, bob lacks what ann owns."""
    pair, order = _trained(TrainerSettings())
    for me in pair:
        _hand(pair, me, Received(AGENT, order), ("bob", SegmentMessage))
    return pair, order


@pytest.mark.parametrize(
    "message",
    [HopOrdered(9, 1, 9_000_001, ANN), DeltaWanted(1, 9, 9_000_001)],
    ids=["to receive another", "to give it away"],
)
@pytest.mark.parametrize("has_sum", [False, True], ids=["as it was trained", "on the grid"])
def test_a_hop_waits_for_the_own_delta_whose_place_a_result_has_taken(message: Any, has_sum: bool) -> None:
    pair, _ = _lent()
    bob, w = pair[BOB], pair[BOB].parameters
    sender = AGENT if isinstance(message, HopOrdered) else ANN
    asked = [effect for effect in bob.handle(Received(sender, message), 2.0) if not isinstance(effect, Send)]
    assert asked == [RecallDelta(1, w, held_as=HeldAs(1.0, BOB, 0))]
    assert asked[0].parameters is w
    assert [e for e in bob.handle(Received(sender, message), 2.1) if not isinstance(e, Send)] == []  # asked once
    answer = DeltaRecalled(1, np.linspace(0.0, 1.0, SIZE, dtype=np.float32))
    if has_sum:
        answer = hold_recalled(asked[0], answer)
        assert answer.held is not None
    bob.handle(answer, 2.2)
    assert bob.part is not None
    own = bob.part.own_hold(BOB)
    assert own is not None
    assert (answer.held is not None and own is answer.held.sum) is has_sum
    right = sum_of(np.linspace(0.0, 1.0, SIZE), [BOB])
    assert (own.theta, own.contributors, own.values.tobytes()) == (1.0, {BOB}, right.values.tobytes())
    effects = bob.handle(Received(sender, message), 2.3)
    if isinstance(message, DeltaWanted):
        given = [e.values for e in effects if isinstance(e, Send) and isinstance(e.values, np.ndarray)]
        assert [np.shares_memory(values, own.values) for values in given] == [True]
    else:
        assert bob.part.incoming == message


def test_a_new_plan_waits_for_the_own_delta_whose_place_the_last_one_has_taken() -> None:
    pair, order = _lent()
    bob = pair[BOB]
    again = replace(order, term=10, version=1)
    assert [e for e in bob.handle(Received(AGENT, again), 2.0) if not isinstance(e, Send)] == [
        RecallDelta(1, bob.parameters, held_as=HeldAs(1.0, BOB, 0))
    ]
    assert bob.exchange is None
    begun = bob.handle(DeltaRecalled(1, np.linspace(0.0, 1.0, SIZE, dtype=np.float32)), 2.1)
    assert bob.exchange == again
    assert [type(effect.message) for effect in begun if isinstance(effect, Send)] == [SegmentsReady]


def test_who_alone_is_left_of_an_exchange_has_the_result_as_soon_as_its_own_delta_is_here_again() -> None:
    pair, order = _trained(TrainerSettings())
    ann = pair[ANN]
    ann.handle(Received(AGENT, order), 1.0)  # nothing of bob's ever comes
    lost = (Lost(BOB, 1.0, 1, 2),)
    alone = replace(order, version=2, began=1, order=(ANN,), contributors=(ANN,), theta=1.0, owns=(2,), lost=lost)
    asked = ann.handle(Received(AGENT, alone), 2.0)
    assert [effect for effect in asked if not isinstance(effect, Send)] == [
        RecallDelta(1, ann.parameters, held_as=HeldAs(1.0, ANN, 0))
    ]
    assert ann.part is not None
    assert ann.part.broadcast.staged is None
    own = np.linspace(0.0, 1.0, SIZE, dtype=np.float32)
    _hand(pair, ANN, DeltaRecalled(1, own))
    assert ann.part.broadcast.staged is not None
    assert ann.part.broadcast.staged.contributors == {ANN}
    assert np.array_equal(ann.part.broadcast.staged.values, sum_of(own).values)


@pytest.mark.parametrize("is_wanted", [False, True])
def test_the_own_delta_that_is_kept_takes_the_old_models_memory_if_nobody_was_given_that(is_wanted: bool) -> None:
    lineage, names = (Fork(0, 1, "agent.1.1"),), ("ann", "bob")
    pair: dict[Contributor, Trainer] = {
        me: TrainerAtOnce(me, START, "schema", "model", TrainerSettings(), 3, History(lineage, names), Ballot())
        for me in (ANN, BOB)
    }
    for me in pair:
        opened = RoundOpened(9, 4, pair[ANN].digest, (ANN, BOB), 9, lineage=lineage, base=names)
        _hand(pair, me, Received(AGENT, opened))
        own = ModelDelta(np.linspace(0.0, 1.0, SIZE, dtype=np.float32), 1.0, frozenset([me]))
        _hand(pair, me, LocalDeltaReady(4, own, TrainingReport(0.0, 1, 0.0)))
    mark, both = (9, 4, pair[ANN].digest, 1), (ANN, BOB)
    order = BroadcastOrdered(*mark, both, 2.0, both, lineage=lineage, owns=(2, 2), segment_values=16)
    for me in pair:
        _hand(pair, me, Received(AGENT, order))
    if is_wanted:
        pair[ANN].handle(Received(Contributor("cleo", 1), ModelWanted(3)), 1.0)
    before, part = pair[ANN].parameters, pair[ANN].part
    assert part is not None
    effects = pair[ANN].handle(Received(AGENT, RoundClosed(9, 4, part.broadcast.digest)), 2.0)
    assert [effect for effect in effects if isinstance(effect, RecallDelta)] == [RecallDelta(4, before, not is_wanted)]


def _open_anew(pair: dict[Contributor, Trainer], lineage: Lineage) -> None:
    """Another attempt at the round, or a fork that begins with it, has the same own deltas, and goes in segments."""
    w, both = pair[ANN].digest, (ANN, BOB)
    for me in pair:
        _hand(pair, me, Received(AGENT, RoundOpened(10, 1, w, both, 10, lineage, ("ann", "bob"))))
    order = BroadcastOrdered(10, 1, w, 1, both, 2.0, both, lineage=lineage, owns=(2, 2), segment_values=16)
    for me in pair:
        _hand(pair, me, Received(AGENT, order))
    part = pair[ANN].part
    assert part is not None
    assert part.broadcast.staged is not None


@pytest.mark.parametrize("lineage", [(), (Fork(0, 2, "ann.1.10"),)], ids=["attempt", "fork"])
@pytest.mark.parametrize("how", ["by a hop", "in pieces"])
def test_what_is_on_its_way_when_the_round_is_opened_anew_stays_as_it_was(lineage: Lineage, how: str) -> None:
    """Else a new result would come there as this device's own delta."""
    pair, order = _trained(TrainerSettings())
    ann, bobs = pair[ANN], pair[BOB].part
    assert bobs is not None
    bobs.hold = replace(bobs.hold, values=bobs.hold.values * 3)  # so that the mean is not ann's own delta
    bobs.checksums = checksums_by_piece(bobs.hold.values)
    ask: Any = DeltaWanted(1, 9, 9_000_001)
    if how == "in pieces":
        cleo = Contributor("cleo", 1)
        three, lost = (ANN, BOB, cleo), (Lost(cleo, 1.0, 2, 1),)
        ann.handle(Received(AGENT, replace(order, order=three, theta=3.0, contributors=three, owns=(2, 1, 1))), 1.0)
        ann.handle(Received(AGENT, replace(order, version=2, began=1, owns=(2, 1), lost=lost)), 1.1)
        ann.handle(
            DeltaRecalled(1, np.linspace(0.0, 1.0, SIZE, dtype=np.float32)), 1.2
        )  # beside the result from here on
        ask = SegmentsReady(1, 9, 2, checksums=(0,) * 4)
    sends = ann.handle(Received(BOB, ask), 1.5)
    given = [effect.values for effect in sends if isinstance(effect, Send) and isinstance(effect.values, np.ndarray)]
    before = [values.copy() for values in given]
    assert before
    _open_anew(pair, lineage)
    assert all(map(np.array_equal, given, before))


def test_who_hears_late_that_the_round_was_opened_has_the_segments_that_came_before() -> None:
    """Their owners know that they have arrived, and do not give them again."""
    cleo = Contributor("cleo", 1)
    everybody, values = (ANN, BOB, cleo), on_way(np.ones(SIZE // 4))
    trainer = TrainerAtOnce(cleo, START, "schema", "model", TrainerSettings())
    order = BroadcastOrdered(9, 1, trainer.digest, 1, everybody, 2.0, (ANN, BOB), owns=(2, 2, 0), segment_values=16)
    trainer.handle(Received(AGENT, order), 1.0)
    for segment, owner in enumerate((ANN, ANN, BOB, BOB)):
        if segment == 3:
            trainer.handle(Received(AGENT, RoundOpened(9, 1, trainer.digest, everybody, 9)), 2.0)
        message = SegmentMessage(1, 9, 1, segment, start=segment * SIZE // 4)
        trainer.handle(Received(owner, message, values), 2.1)
    assert trainer.part is not None
    assert trainer.part.broadcast.staged is None  # nobody has told checksums
    asks = [effect.message for effect in trainer.handle(Tick(), 9.0) if isinstance(effect, Send)]
    assert [message.asks for message in asks if isinstance(message, SegmentsReady)] == [True, True]
    told = tuple(checksum_of(values.view(np.int32), start) for start in range(0, SIZE, SIZE // 4))
    with pytest.raises(RemoteProtocolError, match="ann does not tell the checksums of its delta"):
        trainer.handle(Received(ANN, SegmentsReady(1, 9, 1)), 9.1)
    for owner, checksums in ((ANN, told), (BOB, (0,) * 4)):
        trainer.handle(Received(owner, SegmentsReady(1, 9, 1, checksums=checksums)), 9.1)
    assert trainer.part.broadcast.staged is not None


def test_what_cannot_be_had_again_is_trained_again() -> None:
    pair, _ = _lent()
    bob = pair[BOB]
    bob.handle(Received(ANN, DeltaWanted(1, 9, 9_000_001)), 2.0)
    assert TrainLocally(1, bob.parameters, room=0) in bob.handle(DeltaRecalled(1, None), 2.1)
    assert bob.hold() is None


def test_an_own_delta_that_comes_after_its_round_counted_it_does_not_count_again() -> None:
    pair, _ = _lent()
    bob = pair[BOB]
    bob.handle(Received(ANN, DeltaWanted(1, 9, 9_000_001)), 2.0)
    _hand(pair, BOB, Tick())
    for me in pair:
        part = pair[me].part
        assert part is not None
        _hand(pair, me, Received(AGENT, RoundClosed(9, 1, part.broadcast.digest)))
    assert bob.round_id == 0  # it lacks some, as the segments never came
    bob.handle(DeltaRecalled(1, np.ones(SIZE, np.float32)), 2.2)
    bob.handle(DeltaRecalled(1, np.ones(SIZE, np.float32)), 2.3)
    assert bob.carry is None


def test_a_vote_for_a_value_that_another_proposal_replaces_is_free_again() -> None:
    """The agent of that proposal has asked a quorum: nobody decided the replaced one. Or nobody may be left to vote."""
    lineage = (Fork(0, 1, "agent.1.1"),)
    history, ballot = History(lineage, ("agent", "ann", "bob")), Ballot(begun=lineage[0].name)
    trainer = TrainerAtOnce(BOB, START, "schema", "model", TrainerSettings(), history=history, ballot=ballot)

    def order(term: int, version: int, digest: bytes = b"") -> None:
        names = term, 1, trainer.digest, version, (ANN, BOB), 1.0, (ANN,), digest
        trainer.handle(Received(AGENT, BroadcastOrdered(*names, lineage=lineage)), 0.0)

    def stage(term: int, version: int, value: float) -> None:
        trainer.handle(Received(ANN, GlobalMessage(1, 1.0, (ANN,), term, version), on_way(START + value / 2)), 0.0)

    for term, replaces in ((9, (10, 1)), (10, (10, 2, b"another one"))):
        order(term, 1)
        stage(term, 1, float(term))
        assert trainer.model_state.was_further()
        assert trainer.model_state.votes(has_staged=True)
        order(*replaces)
        assert trainer.part is not None
        assert trainer.part.broadcast.staged is None
        assert trainer.model_state.votes(has_staged=False)
        assert not any(reached.round_id for reached in trainer.model_state.ballot(9).reached)
    order(11, 1)
    stage(11, 1, 3.0)
    trainer.handle(Received(AGENT, RoundClosed(11, 1, trainer.part.broadcast.digest)), 0.0)
    assert trainer.round_id == 1
    trainer.model_state.note_replaced()  # it has become w(1): nothing replaces it
    assert [reached.round_id for reached in trainer.model_state.ballot(9).reached] == [1]


def test_a_vote_is_not_free_while_the_order_that_follows_may_be_of_the_same_result() -> None:
    """Its agent has not heard of a digest yet, and may close the round by what it hears of the one before."""
    lineage = (Fork(0, 1, "agent.1.1"),)
    history, ballot = History(lineage, ("agent", "ann", "bob")), Ballot(begun=lineage[0].name)
    trainer = TrainerAtOnce(BOB, START, "schema", "model", TrainerSettings(), history=history, ballot=ballot)
    for version in (1, 2):
        names = 9, 1, trainer.digest, version, (ANN, BOB), 1.0, (ANN,)
        trainer.handle(Received(AGENT, BroadcastOrdered(*names, lineage=lineage)), 0.0)
        assert trainer.part is not None
        assert trainer.part.broadcast.staged is None
        assert trainer.model_state.was_further() is (version == 2)
        accepted = trainer.report(9, "agent", 0.0).accepted  # its vote counts as one for what it had staged
        assert (accepted and accepted.version) == (1 if version == 2 else None)
        trainer.handle(Received(ANN, GlobalMessage(1, 1.0, (ANN,), 9, version), on_way(START + 1.0)), 0.0)
        assert trainer.model_state.votes(has_staged=True)


def test_a_vote_that_was_lost_before_counts_for_what_was_staged_since() -> None:
    """That was under a later term than anything forgotten: the term is on the disk."""
    lineage = (Fork(0, 1, "agent.1.1"),)
    standing = ModelState(BOB, START, history=History(lineage, ("bob",)))
    standing.note_further(1)
    again = ModelState(BOB, START, history=History(lineage, ("bob",)), ballot=standing.ballot(9))
    assert not again.votes(has_staged=False)
    again.note_staged(Staged(b"another", 1.0, (BOB,), 10, 1))
    again.note_replaced()
    assert again.recall() == Accepted("agent.1.1", 1, b"another", 10, 1)
    started = ModelState(BOB, START, history=History(lineage, ("bob",)), ballot=again.ballot(11))
    assert started.recall() == again.recall()
    started.note_further(2)
    assert started.recall() is None, "it has had a later result, which others may have decided on"
