"""Who the agent is: one device's view of claims, silence and whose turn it is. Times are chosen, nothing sleeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.peers.roles.membership.members import Members, TrainerSeen
from mdl.peers.roles.membership.succession import Succession, SuccessionSettings, outranks
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import AgentPresent, HopReleased, PeerReport
from mdl.protocol.vocabulary import Activity, Fork, Lineage, ResourceState

ME, ANN, BOB, CAT = (Contributor(name, 1) for name in ("me", "ann", "bob", "cat"))
SETTINGS = SuccessionSettings(heartbeat_s=0.5, lost_after_s=4.0, settle_s=0.8, step_s=0.5, start_s=3.0, meet_s=0.6)
START: Lineage = (Fork(0, 3, "ann.1.1"),)
SPLIT = (*START, Fork(4, 1, "bob.1.9"))


def _succession(is_dedicated: bool = False, me: Contributor = ME) -> Succession:
    return Succession(me, SETTINGS, is_dedicated, 0.0)


def _claim(
    term: int, *successors: str, lineage: Lineage = START, quorum: bool = True, round_id: int = 4
) -> AgentPresent:
    return AgentPresent(term, round_id, lineage, quorum, successors)


def _order(term: int) -> HopReleased:
    return HopReleased(term, 1, 1)


def _led_by(agent: Contributor = ANN, term: int = 5, successors: tuple[str, ...] = ()) -> Succession:
    succession = _succession()
    assert succession.hear_claim(agent, _claim(term, *successors), 1.0)
    return succession


def _candidates(*peers: Contributor, **memory: int) -> list[TrainerSeen]:
    """Others that were heard lately, with so much memory, 1 if not told."""
    members = Members(4.0)
    for peer in peers:
        resources = ResourceState(memory.get(peer.peer_id, 1), 1.0)
        report = PeerReport(1, 0, 0, b"", "s", "m", 4, Activity.WAITING, 0, resources=resources)
        members.hear(peer, report, 1.0)
    return members.alive()


def _office_at(succession: Succession, candidates: list[TrainerSeen], since: float) -> float:
    """How long after `since` this device wants the office, looking every tenth of a second."""
    return next(tenth / 10 for tenth in range(200) if succession.wants_office(candidates, since + tenth / 10))


# -- whom to obey -----------------------------------------------------------------------------------------------------


def test_the_first_agent_that_is_heard_is_obeyed() -> None:
    succession = _led_by(ANN, 5, ("bob", "me"))
    assert (succession.agent, succession.term, succession.successors) == ("ann", 5, ("bob", "me"))
    assert succession.admits(ANN, _order(5), 1.1)


def test_only_the_agents_orders_are_obeyed_and_none_of_an_older_term() -> None:
    succession = _led_by(ANN, 5)
    assert not succession.admits(BOB, _order(5), 1.1)
    assert not succession.admits(BOB, _order(9), 1.1)
    assert succession.admits(ANN, _order(7), 1.2)
    assert not succession.admits(ANN, _order(6), 1.3)
    assert (succession.agent, succession.term) == ("ann", 7)


def test_an_agent_of_a_higher_term_is_obeyed_and_the_one_before_no_more() -> None:
    succession = _led_by(ANN, 5)
    assert succession.hear_claim(BOB, _claim(6), 1.5)
    assert succession.agent == "bob"
    assert not succession.admits(ANN, _order(5), 1.6)
    assert not succession.hear_claim(ANN, _claim(5), 1.7)
    assert succession.agent == "bob"


def test_of_two_agents_of_one_term_the_one_that_was_heard_first_is_obeyed() -> None:
    """Terms are dealt out by the peer id, so that this is a fault; whatever is decided, it must not go to and fro."""
    succession = _led_by(ANN, 5)
    assert not succession.hear_claim(BOB, _claim(5), 1.5)
    assert succession.hear_claim(ANN, _claim(5), 1.6)
    assert succession.agent == "ann"


def test_an_agent_that_was_given_up_is_obeyed_again_when_it_is_heard_again() -> None:
    succession = _led_by(ANN, 5)
    succession.give_up(9.0)
    assert not succession.hear_claim(BOB, _claim(4), 9.1)
    assert not succession.hear_claim(BOB, _claim(5), 9.2)
    assert succession.hear_claim(ANN, _claim(5), 9.3)
    assert succession.agent == "ann"


@pytest.mark.parametrize(("names", "goes_on", "obeyed_s"), [((), False, 8), (("me",), False, 60), ((), True, 60)])
def test_an_agent_that_does_not_hear_this_device_and_leads_another_mesh_is_obeyed_for_a_while(
    names: tuple[str, ...], goes_on: bool, obeyed_s: int
) -> None:
    succession = _led_by(ANN, 5)
    for second in range(2, 60):
        claim = _claim(5, "bob", *names)
        if succession.is_unheard_by(ANN, claim, second):
            break
        succession.hear_claim(ANN, claim, second, goes_on)
    assert (succession.agent == "ann", second) == (obeyed_s == 60, min(obeyed_s + 2, 59))


def test_who_was_given_up_for_that_is_ignored_for_a_while_or_until_it_names_this_device() -> None:
    succession = _led_by(ANN, 5)
    succession.hear_claim(ANN, _claim(5, "bob"), 9.0, goes_on=False)
    assert succession.agent == ""
    assert succession.is_unheard_by(ANN, _claim(5, "bob"), 24.0)
    assert not succession.is_unheard_by(ANN, _claim(5, "bob", "me"), 24.0)
    assert not succession.is_unheard_by(BOB, _claim(5, "bob"), 24.0)
    assert not succession.is_unheard_by(ANN, _claim(5, "bob"), 25.0)


def test_a_device_that_slept_gives_its_agent_time_to_hear_it_again() -> None:
    succession = _led_by(ANN, 5)
    succession.forgive(100.0)
    assert succession.hear_claim(ANN, _claim(5, "bob"), 105.0, goes_on=False)


def test_an_agent_of_another_lineage_is_obeyed_only_with_a_majority_or_a_senior_lineage() -> None:
    succession = _led_by(ANN, 5)
    assert succession.hear_claim(ANN, _claim(5, round_id=5), 1.0)
    assert not succession.hear_claim(BOB, _claim(9, lineage=SPLIT), 1.1)
    assert succession.agent == "ann"
    other = _succession()
    other.hear_claim(BOB, _claim(9, lineage=SPLIT), 1.0)
    assert not other.hear_claim(ANN, _claim(5, round_id=5), 1.1)  # too low a term to be heard: it will speak above ours
    assert other.hear_claim(ANN, _claim(10, round_id=5), 1.2)
    assert other.agent == "ann"


@pytest.mark.parametrize(
    ("claim", "other", "goes_on"),
    [
        (_claim(6), _claim(5), True),
        (_claim(5), _claim(6), False),
        (_claim(5, quorum=False), _claim(4), True),
        (_claim(5, lineage=SPLIT), _claim(4, quorum=False), True),
        (_claim(5, quorum=False), _claim(4, lineage=SPLIT), False),
        (_claim(1, round_id=5), _claim(9, lineage=SPLIT), True),
        (_claim(9, lineage=SPLIT), _claim(1, round_id=5), False),
        (_claim(1, lineage=SPLIT), _claim(9), True),
        (_claim(1, quorum=False), _claim(9, lineage=(), quorum=False), True),
    ],
    ids=[
        "higher term",
        "lower term",
        "on one lineage the term alone",
        "fork with a majority against a rump",
        "rump against a fork with a majority",
        "senior lineage",
        "junior lineage",
        "a fork that holds all that the other has",
        "a mesh that has begun against one that has not",
    ],
)
def test_which_of_two_agents_goes_on(claim: AgentPresent, other: AgentPresent, goes_on: bool) -> None:
    assert outranks(claim, BOB, other, "ann") is goes_on
    assert outranks(other, ANN, claim, "bob") is not goes_on


def test_of_two_claims_that_are_equal_the_ids_decide_so_that_one_steps_down() -> None:
    assert outranks(_claim(5), BOB, _claim(5), "ann")
    assert not outranks(_claim(5), ANN, _claim(5), "bob")


# -- silence ----------------------------------------------------------------------------------------------------------


def test_an_agent_is_given_up_once_when_it_has_been_silent_for_long_enough() -> None:
    succession = _led_by(ANN, 5)
    assert not succession.watch(2.4)
    assert succession.deadline(2.4) == pytest.approx(2.5)  # three heartbeats
    assert succession.watch(2.5)
    assert (succession.agent, succession.term) == ("", 5)
    assert not succession.watch(2.6)


def test_orders_are_signs_of_life_like_heartbeats() -> None:
    succession = _led_by(ANN, 5)
    for tenth in range(1, 60):
        assert not succession.watch(1 + tenth / 2)
        assert succession.admits(ANN, _order(5), 1 + tenth / 2)


def test_on_a_bad_network_the_agent_has_longer_but_never_longer_than_lost_after_s() -> None:
    succession = _led_by(ANN, 5)
    for now in (2.4, 3.8, 5.2):
        succession.hear_claim(ANN, _claim(5), now)
    assert not succession.watch(5.2 + 3.9)
    assert succession.watch(5.2 + 4.0)


def test_nobody_gives_itself_up() -> None:
    succession = _succession()
    succession.take_office(0)
    assert not succession.watch(1000.0)


def test_the_agent_was_not_silent_while_this_process_was_suspended() -> None:
    succession = _led_by(ANN, 5)
    succession.forgive(60.0)
    assert not succession.watch(62.4)
    assert succession.watch(62.5)


def test_a_suspended_device_without_an_agent_listens_again_before_it_leads() -> None:
    succession = _led_by(ANN, 5)
    succession.give_up(2.5)
    succession.forgive(60.0)
    assert not succession.wants_office([], 63.2)
    assert succession.wants_office([], 63.3)


# -- whose turn it is -------------------------------------------------------------------------------------------------


def test_the_first_named_successor_leads_after_settle_s_and_each_further_one_a_step_later() -> None:
    order = ("cat", "me", "bob")
    waits = []
    for name in ("cat", "me", "bob"):
        succession = _succession(me=Contributor(name, 1))
        succession.hear_claim(ANN, _claim(5, *order), 1.0)
        assert succession.watch(2.5)
        waits.append(_office_at(succession, _candidates(ME, BOB, CAT, bob=99), 2.5))
    assert waits == [0.8, 1.3, 1.8]


def test_a_successor_that_is_not_heard_is_not_waited_for() -> None:
    succession = _led_by(ANN, 5, ("cat", "bob", "me"))
    succession.give_up(2.5)
    assert _office_at(succession, _candidates(ME), 2.5) == 0.8


def test_without_names_the_one_with_most_resources_leads() -> None:
    for name, wait_s in (("bob", 0.8), ("me", 1.3), ("cat", 1.8)):
        succession = _succession(me=Contributor(name, 1))
        succession.hear_claim(ANN, _claim(5), 1.0)
        succession.give_up(2.5)
        assert _office_at(succession, _candidates(ME, BOB, CAT, bob=9, me=5, cat=1), 2.5) == wait_s


def test_the_names_of_the_last_agent_that_named_any_are_kept() -> None:
    succession = _led_by(ANN, 5, ("cat", "me"))
    succession.hear_claim(ANN, _claim(5), 1.1)
    assert succession.successors == ("cat", "me")
    succession.hear_claim(BOB, _claim(8, "me"), 1.2)
    assert succession.successors == ("me",)


def test_a_device_that_never_heard_an_agent_waits_longer_so_that_one_can_be_found() -> None:
    assert _office_at(_succession(), _candidates(ME), 0.0) == 3.0


def test_a_dedicated_agent_comes_first_whoever_was_named() -> None:
    fresh = _succession(is_dedicated=True)
    assert _office_at(fresh, _candidates(ANN, BOB), 0.0) == 1.0
    succession = _succession(is_dedicated=True)
    succession.hear_claim(ANN, _claim(5, "bob", "cat"), 1.0)
    succession.give_up(2.5)
    assert _office_at(succession, _candidates(BOB, CAT), 2.5) == 0.3


def test_who_obeys_an_agent_wants_no_office() -> None:
    assert not _led_by(ANN, 5).wants_office([], 1000.0)


@pytest.mark.parametrize("rank", [0, 1, 4])
def test_the_deadline_is_never_later_than_the_time_to_lead_and_never_now(rank: int) -> None:
    """A driver that sleeps until the deadline misses nothing, and one that does so again and again does not spin."""
    others = [Contributor(f"other{number}", 1) for number in range(rank)]
    succession = _led_by(ANN, 5, (*(peer.peer_id for peer in others), "me"))
    candidates = _candidates(*others, ME)
    now = 2.5
    assert succession.watch(now)
    steps = 0
    while not succession.wants_office(candidates, now):
        assert succession.deadline(now) > now
        now = succession.deadline(now)
        steps += 1
    assert now - 2.5 <= 0.8 + rank * 0.5 + 0.5 / 2
    assert steps <= 2 + 2 * rank


@given(silent_since=st.floats(0.0, 1e7))
def test_the_first_successor_leads_at_the_very_time_its_deadline_says(silent_since: float) -> None:
    succession = _led_by(ANN, 5, ("me",))
    succession.give_up(silent_since)
    assert succession.wants_office([], succession.deadline(silent_since))


def test_a_fresh_device_waits_for_an_agent_no_longer_than_others_are_still_coming() -> None:
    succession = _succession()
    for now, others in ((0.4, (ANN,)), (0.9, (ANN, BOB)), (1.0, (ANN, BOB))):
        assert not succession.wants_office(_candidates(ME, *others), now)
        succession.meet(_candidates(ME, *others), now)
    assert 0.9 + _office_at(succession, [], 0.9) == pytest.approx(0.9 + SETTINGS.meet_s, abs=0.11)


def test_alone_or_beside_one_that_knows_an_agent_it_waits_for_that_one() -> None:
    for report in (None, PeerReport(1, 0, 0, b"", "s", "m", 4, Activity.WAITING, 0, agent="bob")):
        succession, here = _succession(), _candidates(ME)
        if report:
            members = Members(4.0)
            members.hear(ANN, report, 0.2)
            here += members.alive()
        succession.meet(here, 0.2)
        assert _office_at(succession, [], 0.0) == pytest.approx(SETTINGS.start_s, abs=0.11)


# -- in office --------------------------------------------------------------------------------------------------------


def test_who_takes_office_speaks_above_every_term_it_heard_of() -> None:
    succession = _led_by(ANN, 5)
    succession.give_up(2.5)
    term = succession.take_office(heard_term=1_000_000)
    assert term > 1_000_000
    assert (succession.agent, succession.term) == ("me", term)


def test_a_device_in_office_yields_to_a_higher_term_and_not_to_a_lower_one() -> None:
    succession = _succession()
    term = succession.take_office(0)
    assert not succession.hear_claim(ANN, _claim(term - 1), 1.0)
    assert succession.agent == "me"
    assert succession.hear_claim(ANN, _claim(term + 1), 1.1)
    assert succession.agent == "ann"


def test_the_first_successor_leads_within_takeover_s_of_the_agents_last_word() -> None:
    """On the worst network that is borne; with the tenth of a second that this test looks at."""
    succession = _led_by(ANN, 5, ("me",))
    now = 1.0
    while now < 40.0:
        now += 3.9
        succession.hear_claim(ANN, _claim(5, "me"), now)
    last_word = now
    while not (succession.watch(now) or succession.wants_office(_candidates(ME), now)) or succession.agent:
        now += 0.1
    while not succession.wants_office(_candidates(ME), now):
        now += 0.1
    assert now - last_word <= SETTINGS.takeover_s + 0.2
    assert SETTINGS.takeover_s <= 5.0
