"""A result that a device has most of, from segments: what it lacks is fetched, and all of it if that is another."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer import exchange
from mdl.peers.roles.trainer.exchange import MOST_AT_ONCE, GappedResult, GrowingResult, join_gaps
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.grid import Vector
from mdl.protocol.machine import DeltaRecalled, LocalDeltaReady, Received, Send, Tick
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    GlobalMessage,
    GlobalWanted,
    Lost,
    RoundClosed,
    RoundOpened,
    SegmentMessage,
)
from mdl.protocol.segments import SegmentCut
from mdl.protocol.vocabulary import TrainingReport
from mdl.sim.mesh.search import copy_graph
from tests.peers.roles.at_once import TrainerAtOnce

SIZE, VALUES = 64, 8
AGENT, ANN, BOB, CAT = (Contributor(name, 1) for name in ("agent", "ann", "bob", "cat"))
ALL = ANN, BOB, CAT
START = np.zeros(SIZE, np.float32)
Devices = dict[Contributor, Trainer]
Drops = Callable[[str, Said], bool]


def _say(
    devices: Devices, to: Contributor, event: Received | DeltaRecalled, drops: Drops = lambda who, said: False
) -> list[Send]:
    """What follows from an event, as it was said. drops: what does not arrive."""
    names, said = {each.peer_id: each for each in devices}, list[Send]()
    queue: list[tuple[Contributor, Received | DeltaRecalled]] = [(to, event)]
    while queue:
        me, event = queue.pop(0)
        for effect in devices[me].handle(event, 1.0):
            if isinstance(effect, Send):
                said.append(effect)
                if effect.receiver in names and not drops(effect.receiver, effect.message):
                    queue.append((names[effect.receiver], Received(me, effect.message, effect.values)))
    return said


def _order(devices: Devices) -> BroadcastOrdered:
    return BroadcastOrdered(9, 1, devices[ANN].digest, 1, ALL, 3.0, ALL, owns=(4, 2, 2), segment_values=VALUES)


def _without_the_last_of_ann(who: str, said: Said) -> bool:
    """Ann is lost: Cat does not get the last of her segments, nor one of Bob's."""
    return who == "cat" and isinstance(said, SegmentMessage) and said.segment in (2, 3, 5)


def _own(me: Contributor) -> Vector:
    return np.linspace(ALL.index(me), 1.0, SIZE, dtype=np.float32)


def _exchange(drops: Drops = _without_the_last_of_ann) -> Devices:
    """Three devices in the middle of a round in segments, in which Bob has the whole result."""
    devices: Devices = {me: TrainerAtOnce(me, START, "schema", "model", TrainerSettings()) for me in ALL}
    order = _order(devices)
    for me, device in devices.items():
        device.handle(Received(AGENT, RoundOpened(9, 1, device.digest, ALL, 9)), 0.0)
        own = ModelDelta(_own(me), 1.0, frozenset([me]))
        device.handle(LocalDeltaReady(1, own, TrainingReport(0.0, 1, 0.0)), 0.5)
    for me in devices:
        _say(devices, me, Received(AGENT, order), drops)
    return devices


def _fetch(devices: Devices, **changes: object) -> list[Send]:
    """Ann is lost, so the agent names the result that Bob has; what is said then."""
    del devices[ANN]
    digest = _spread(devices, BOB).digest
    named = BroadcastOrdered(9, 1, devices[BOB].digest, 2, (BOB, CAT), 3.0, ALL, digest)
    named = msgspec.structs.replace(named, **changes)
    return [send for me in devices for send in _say(devices, me, Received(AGENT, named))]


def _spread(devices: Devices, me: Contributor):  # type: ignore[no-untyped-def]
    part = devices[me].part
    assert part is not None
    return part.broadcast


def test_of_a_result_that_another_device_has_whole_only_what_is_lacking_is_fetched() -> None:
    devices = _exchange()
    assert _spread(devices, CAT).staged is None
    said = _fetch(devices)
    asked = [send.message for send in said if isinstance(send.message, GlobalWanted)]
    given = [send for send in said if isinstance(send.message, GlobalMessage)]
    assert asked == [GlobalWanted(1, 16, 32), GlobalWanted(1, 40, 48)]
    assert [len(send.values) for send in given if send.values is not None] == [16, 8]
    bob, cat = _spread(devices, BOB), _spread(devices, CAT)
    assert (cat.digest, cat.gapped) == (bob.digest, None)
    assert np.array_equal(cat.staged.values, bob.staged.values)
    assert cat.staged.contributors == set(ALL)


def test_what_is_not_in_its_place_yet_is_a_gap_like_what_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_AT_ONCE", 2 * VALUES)
    known = np.arange(SIZE, dtype=np.int32)
    result = GrowingResult(known.copy(), SegmentCut(SIZE, VALUES, (8,)))
    result.lacking = {2}
    assert list(result.gaps()) == [(16, 24)]
    result.leave()
    assert list(result.gaps()) == [(16, 32), (32, 48), (48, 64)]
    result.part(4)
    assert list(result.gaps()) == [(16, 32), (40, 56), (56, 64)]
    assert np.array_equal(result.values[:16], known[:16])
    assert np.array_equal(result.values[32:40], known[32:40])
    assert not result.is_whole
    result.lacking.clear()
    assert not result.is_whole


@pytest.mark.parametrize("most_at_once", [MOST_AT_ONCE, VALUES], ids=["small", "large"])
def test_what_was_staged_comes_about_anew_at_one_step_after_the_other(
    most_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ann is lost, and the exchange goes on without her: what she owned begins anew, where Bob has had all of it."""
    monkeypatch.setattr(exchange, "MOST_AT_ONCE", most_at_once)
    devices = _exchange()
    first = _spread(devices, BOB).staged.values
    before, order = first.copy(), _order(devices)
    del devices[ANN]
    alive, lost = (BOB, CAT), (Lost(ANN, 1.0, 0, 4),)
    order = msgspec.structs.replace(
        order, version=2, began=1, order=alive, theta=2.0, contributors=alive, owns=(2, 2), lost=lost
    )
    bob = _spread(devices, BOB)
    for me in devices:
        _say(devices, me, Received(AGENT, order))
    for me in devices:
        _say(devices, me, DeltaRecalled(1, _own(me)))
    steps = 0
    while bob.exchange.result.behind:
        asks_at = devices[BOB].voice.ask_at
        assert (bob.staged, 1.0 < asks_at - 0.001 * steps < 1.002) == (None, True)
        devices[BOB].handle(Tick(), asks_at)
        steps += 1
    assert steps == (3 if most_at_once == VALUES else 0)  # of those that no message has touched
    while _spread(devices, CAT).exchange.result.behind:
        devices[CAT].handle(Tick(), devices[CAT].voice.ask_at)
    assert bob.staged.values is not first
    assert np.array_equal(first, before)  # who follows the other order may still read it
    assert np.array_equal(bob.staged.values, _spread(devices, CAT).staged.values)


def test_what_was_given_in_an_exchange_that_was_left_keeps_its_memory() -> None:
    """Another device may be in it still, and take what is on its way for a part of the result."""
    devices = _exchange()
    _fetch(devices)
    for me in devices:
        result = _spread(devices, me).staged.values
        devices[me].handle(Received(AGENT, RoundClosed(9, 1, _spread(devices, me).digest)), 3.0)
        assert devices[me].round_id == 1
        assert not np.shares_memory(devices[me].parameters, result)


def test_what_is_here_of_another_result_is_found_by_the_digest_and_all_of_it_is_fetched() -> None:
    devices = _exchange()
    _spread(devices, CAT).exchange.result.values[0] += 1
    given = [send for send in _fetch(devices) if isinstance(send.message, GlobalMessage)]
    assert [len(send.values) for send in given if send.values is not None] == [16, 8, SIZE]
    assert np.array_equal(_spread(devices, CAT).staged.values, _spread(devices, BOB).staged.values)


@pytest.mark.parametrize("drops", [lambda who, said: who == "cat", _without_the_last_of_ann], ids=["nothing", "other"])
def test_nothing_is_kept_of_other_devices_result_or_where_nothing_came(drops: Drops) -> None:
    """One that says without whom it is may differ in each segment."""
    devices = _exchange(drops)
    changes = {"contributors": (BOB, CAT), "theta": 2.0} if drops is _without_the_last_of_ann else {}
    asked = [send.message for send in _fetch(devices, **changes) if isinstance(send.message, GlobalWanted)]
    assert set(asked) == {GlobalWanted(1)}


def test_of_another_result_that_is_ordered_meanwhile_nothing_is_here() -> None:
    devices = _exchange()
    digest = _spread(devices, BOB).digest
    del devices[ANN], devices[BOB]  # Bob does not answer
    cat = devices[CAT]
    order = BroadcastOrdered(9, 1, cat.digest, 2, (BOB, CAT), 3.0, ALL, digest)
    again = msgspec.structs.replace(order, version=3, order=(ANN, CAT))
    other = msgspec.structs.replace(order, version=4, digest=b"another")
    asked = [next(send.message for send in _say(devices, CAT, Received(AGENT, each))) for each in (order, again, other)]
    assert asked == [GlobalWanted(1, 16, 32), GlobalWanted(1, 16, 32), GlobalWanted(1)]


def test_a_result_without_gaps_is_fetched_whole_if_another_order_names_its_digest() -> None:
    """Of other contributors: where nobody's model changes, the digest tells nothing of them."""
    devices = _exchange()
    cat, digest = devices[CAT], _spread(devices, BOB).digest
    order = BroadcastOrdered(9, 1, cat.digest, 2, (BOB, CAT), 3.0, ALL, digest)
    cat.handle(Received(AGENT, order), 2.0)
    for start, stop in ((16, 32), (40, 48)):
        gap = GlobalMessage(1, 3.0, ALL, 9, 2, (), start, stop)
        # Not the digest that TrainerAtOnce has at once: the second order comes while it is computed.
        Trainer.handle(cat, Received(BOB, gap, np.ones(stop - start, np.float32), b"of a part"), 2.1)
    assert _spread(devices, CAT).made is not None
    other = msgspec.structs.replace(order, term=10, version=1, theta=2.0, contributors=(BOB, CAT))
    asked = cat.handle(Received(AGENT, other), 2.2)
    assert [effect.message for effect in asked if isinstance(effect, Send)] == [GlobalWanted(1)]


def test_values_beyond_the_model_are_asked_for_in_vain() -> None:
    devices = _exchange()
    for start, stop in ((0, SIZE + 1), (8, 8), (9, 8), (8, 0)):
        with pytest.raises(RemoteProtocolError, match=f"values {start} to {stop} wanted of {SIZE}"):
            devices[BOB].handle(Received(CAT, GlobalWanted(1, start, stop)), 2.0)


def test_neighbours_are_one_gap_up_to_what_may_be_asked_for_at_once() -> None:
    slices = [slice(start, start + VALUES) for start in (0, 8, 24, 32, 40)]
    assert list(join_gaps(slices)) == [(0, 16), (24, 48)]
    large = [slice(start, start + MOST_AT_ONCE // 2) for start in range(0, 2 * MOST_AT_ONCE, MOST_AT_ONCE // 2)]
    assert list(join_gaps(large)) == [(0, MOST_AT_ONCE), (MOST_AT_ONCE, 2 * MOST_AT_ONCE)]


def test_only_the_gap_that_is_asked_for_is_filled_and_by_as_many_values() -> None:
    gapped = GappedResult(b"it", np.zeros(SIZE, np.int32), join_gaps([slice(0, 8), slice(16, 24)]))
    gap = GlobalMessage(1, 3.0, ALL, 9, 1, (), 0, 8)
    assert not gapped.fill(msgspec.structs.replace(gap, start=16, stop=24), np.ones(8, np.int32))
    with pytest.raises(RemoteProtocolError, match="7 values"):
        gapped.fill(gap, np.ones(7, np.int32))
    other = copy_graph(gapped)
    assert gapped.fill(gap, np.ones(8, np.int32))
    assert (gapped.ask(1), other.ask(1)) == (GlobalWanted(1, 16, 24), GlobalWanted(1, 0, 8))
    assert (gapped.values.sum(), other.values.sum()) == (8, 0)
