"""Whole rounds on a virtual clock: what is brought, when, and that no rule sees the future."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from mdl.devices.energy import MERGE_W
from mdl.errors import LocalProtocolError
from mdl.scheduler.rounds.learned import RULES, make_rule
from mdl.scheduler.rounds.participation import FRESH, TOGETHER, Close, Decision, RoundSeen, WaitFor
from mdl.scheduler.rounds.simulate import PlayedWorld, RoundsMesh, play_world
from mdl.scheduler.rounds.world import FAMILIES, HORIZON_S, World, draw_world
from tests.scheduler.rounds.worlds import device, world

# The exchange of two over links of 10 MB/s: 10 MB each way.
PAIR_S = 1.0


def _play(given: World, rule: str, level: float = 8.0) -> PlayedWorld:
    return play_world(given, make_rule(rule), level)


def test_all_closes_with_the_slowest_and_each_round_is_worth_one() -> None:
    played = _play(world(device(2.0), device(3.0), device(5.0)), "all", 3.0)
    assert [each.worth for each in played.rounds] == pytest.approx([1.0, 1.0, 1.0])
    first, second, _ = played.rounds
    assert (first.opened_s, first.closed_s) == pytest.approx((0.0, 5.0))
    assert second.closed_s == pytest.approx(first.ended_s + 5.0)
    assert second.members == {index: ((1, pytest.approx(1.0)),) for index in range(3)}
    assert played.shares() == [1.0, 1.0, 1.0]
    assert played.longest_gap() == 0


def test_a_device_that_is_left_out_trains_on_and_brings_its_sum_later() -> None:
    """Two fast devices close at 2 s; the slow one of 9 s brings one period, of parameters that have grown old."""
    played = _play(world(device(2.0), device(2.0), device(9.0)), "k-of-n?wait_for=0.6", 4.0)
    brought = next(each for each in played.rounds if 2 in each.members)
    work = brought.members[2]
    assert sum(periods for _, periods in work) == pytest.approx(1.0)
    assert work[0][0] == 0
    assert [version for version, _ in work] == sorted({version for version, _ in work})
    assert brought.number > 2
    assert all(version < brought.number for version, _ in work)
    # Results arrived in the background, so that its later work began from newer parameters.
    assert work[-1][0] > 0


def test_a_device_that_could_give_and_was_left_out_trains_one_more_period() -> None:
    mesh = RoundsMesh(world(device(2.0), device(2.0), device(2.0), device(50.0)))
    mesh.wait(2.0)
    mesh.close(Close(("0", "1"), "test"))
    assert mesh.see().devices[2].progress == pytest.approx(mesh.now_s / 2.0)
    for _ in range(40):
        mesh.wait(1.0)
    seen = mesh.see().devices
    assert seen[2].progress == pytest.approx(2.0)
    assert seen[0].progress == pytest.approx(1.0)
    assert (seen[2].left_out, seen[2].took_part, seen[2].base_age) == (1, 0, 1)
    assert (seen[0].left_out, seen[0].took_part, seen[0].base_age) == (0, 1, 0)


def test_a_waiting_device_does_not_train_beyond_its_period() -> None:
    mesh = RoundsMesh(world(device(2.0), device(30.0)))
    for _ in range(20):
        mesh.wait(20.0)
    assert mesh.see().devices[0].progress == pytest.approx(1.0)
    assert mesh.joules[0] == pytest.approx(2.0 * MERGE_W)


def test_a_device_that_becomes_busy_is_dropped_keeps_its_work_and_brings_it_later() -> None:
    busy = device(2.0, busy=((2.5, 60.0),))
    played = _play(world(device(2.0), device(2.0), busy), "third", 6.0)
    first = played.rounds[0]
    assert first.dropped == (2,)
    assert set(first.members) == {0, 1}
    # The plan takes 1.53 s for three links: dropped at twice that and 1 s more, then their results go out.
    assert first.ended_s - first.closed_s > 2 * 1.53 + 1.0
    assert first.ended_s < 10.0
    later = next(each for each in played.rounds[1:] if 2 in each.members)
    assert later.members[2][0] == (0, pytest.approx(1.0))
    assert later.ended_s >= 60.0


def test_a_kept_device_is_never_dropped_and_nobody_is_without_the_bound() -> None:
    given = world(device(2.0), device(2.0), device(2.0, busy=((2.5, 60.0),)))
    for close in (Close(("0", "1", "2"), "test", 2.0, 1.0, ("2",)), Close(("0", "1", "2"), "test")):
        mesh = RoundsMesh(given)
        mesh.wait(2.0)
        played = mesh.close(close)
        assert played is not None
        assert set(played.members) == {0, 1, 2}
        assert played.ended_s > 60.0


def test_an_exchange_of_two_without_one_is_abandoned_and_nothing_is_lost() -> None:
    mesh = RoundsMesh(world(device(2.0), device(2.0, busy=((2.5, 60.0),)), device(500.0)))
    mesh.wait(2.0)
    assert mesh.close(Close(("0", "1"), "test", 2.0, 1.0)) is None
    assert (mesh.abandoned, mesh.rounds) == (1, [])
    assert mesh.opened_s == mesh.now_s == pytest.approx(2.0 + 2 * 1.15 * PAIR_S + 1.0)
    seen = mesh.see()
    assert seen.number == 1
    assert [each.progress for each in seen.devices[:2]] == pytest.approx([1.0, 1.0])
    assert all(each.left_out == 0 for each in seen.devices)


def test_results_on_their_way_take_part_of_the_links_of_the_next_exchange() -> None:
    """The third device's link is slow, so that its result takes 20 s from the others' links."""
    ended = []
    for slow_mb_s in (0.5, 10.0):
        mesh = RoundsMesh(world(device(2.0), device(2.0), device(90.0, slow_mb_s)))
        mesh.wait(2.0)
        mesh.close(Close(("0", "1"), "test"))
        mesh.wait(2.0)
        played = mesh.close(Close(("0", "1"), "test"))
        assert played is not None
        ended.append(played.ended_s - played.closed_s)
    # 10 MB, and half of the 9 MB that are left: 1.45 times the bytes.
    assert ended[0] == pytest.approx(1.44 * ended[1], rel=0.02)


@pytest.mark.parametrize("devices", [("0",), ("0", "2"), ("0", "0"), ("0", "nobody"), ()])
def test_a_rule_that_closes_with_an_impossible_set_is_a_bug(devices: tuple[str, ...]) -> None:
    mesh = RoundsMesh(world(device(2.0), device(2.0), device(9.0)))
    mesh.wait(2.0)
    with pytest.raises(LocalProtocolError):
        mesh.close(Close(devices, "test"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_no_work_counts_twice_and_none_comes_from_the_future(family: str, rule: str) -> None:
    for seed in range(900_000, 900_002):
        given = draw_world(family, 5, 5.0, seed)
        played = _play(given, rule, 3.0)
        for index, each in enumerate(given.devices):
            brought = [work for done in played.rounds if index in done.members for work in done.members[index]]
            trained_s = sum(periods for _, periods in brought) * each.period_s
            assert trained_s * MERGE_W <= played.joules[index] + 1e-6
            assert trained_s <= played.ended_s
            bases = [version for version, _ in brought]
            assert bases == sorted(bases)
        for done in played.rounds:
            assert done.opened_s <= done.closed_s < done.ended_s
            assert len(done.members) >= 2
            for work in done.members.values():
                assert sum(periods for _, periods in work) >= 1.0 - 1e-6
                assert all(0 <= version < done.number and periods > 0.0 for version, periods in work)


@pytest.mark.parametrize("most", [2, 9])
@pytest.mark.parametrize("rule", sorted(set(RULES) - {"all"}))
def test_no_device_is_left_out_more_often_than_the_bound(rule: str, most: int) -> None:
    gaps = []
    for seed in range(900_000, 900_002):
        given = draw_world("dynamic", 7, 10.0, seed)
        gaps.append(_play(given, f"{rule}?left_out_at_most={most}", 10.0).longest_gap())
    assert max(gaps) <= most
    assert most == 9 or max(gaps) == most


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_same_world_gives_the_same_rounds(rule: str) -> None:
    first, again = (_play(draw_world("dynamic", 5, 5.0, 900_000), rule, 3.0) for _ in range(2))
    assert first == again


class _Recording:
    """A rule that keeps what it saw, with the time."""

    name = "recording"

    def __init__(self, rule: str) -> None:
        self.rule, self.seen = make_rule(rule), list[tuple[RoundSeen, Decision]]()

    def decide(self, seen: RoundSeen) -> Decision:
        decision = self.rule.decide(seen)
        self.seen.append((seen, decision))
        return decision


def test_a_rule_never_sees_when_a_busy_time_ends() -> None:
    """Two worlds differ after 8 s alone, one in the end of a busy time: until then rules see the same."""
    views = []
    for end_s in (9.0, 300.0):
        given = world(device(2.0), device(3.0), device(9.0), device(4.0, busy=((1.0, end_s),)))
        rule = _Recording("third")
        mesh = RoundsMesh(given)
        while mesh.now_s < 8.0:
            decision = rule.decide(mesh.see())
            if isinstance(decision, WaitFor):
                mesh.wait(decision.until_s)
            else:
                mesh.close(decision)
        views.append([told for told in rule.seen if told[0].devices[3].busy_for_s < 7.0])
    assert views[0] == views[1]
    assert any(seen.devices[3].busy_for_s > 0.0 for seen, _ in views[0])


def test_a_link_is_seen_as_it_was_last_measured() -> None:
    links = device(2.0).links_mb_s.copy()
    links[2:] = 20.0  # from 10 s on
    mesh = RoundsMesh(world(replace(device(100.0), links_mb_s=links), device(100.0)))
    told = []
    for _ in range(5):
        told.append((round(mesh.now_s), mesh.see().devices[0].link_mb_s))
        mesh.wait(mesh.now_s + 4.0)
    assert told == [(0, 10.0), (4, 10.0), (8, 10.0), (12, 10.0), (16, 20.0)]


def test_an_endless_wait_ends_with_the_world() -> None:
    mesh = RoundsMesh(world(device(2.0), device(2.0)))
    for _ in range(50):
        mesh.wait(inf)
    assert mesh.over
    assert mesh.now_s >= HORIZON_S


def test_the_worth_of_a_round_falls_with_members_and_age() -> None:
    played = _play(world(device(2.0), device(2.0), device(900.0)), "k-of-n?wait_for=0.6&left_out_at_most=inf", 2.0)
    covered = (2.0 + FRESH) / 3.0
    assert played.rounds[0].worth == pytest.approx(covered**0.5 * (2.0 / 3.0) ** TOGETHER)
    assert played.rounds[1].worth == pytest.approx(((2.0 + FRESH**2) / 3.0) ** 0.5 * (2.0 / 3.0) ** TOGETHER)
    assert played.reached_s(0.1) == played.rounds[0].ended_s
    assert played.reached_s(1e9) == inf
