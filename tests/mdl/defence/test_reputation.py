"""Suspicion is traced through contributors, fades, and leaves a device out when several others have it."""

from __future__ import annotations

import pytest

from mdl.defence.limits import (
    DOUBTED,
    FAINT,
    HALF_LIFE,
    MOST_SUSPECTS,
    STILL,
    SUSPECTED,
    Quarantine,
    Suspects,
    Suspicion,
    accusers,
    accusers_needed,
    suspects_needed,
)

NAMES = [f"p{number}" for number in range(10)]


def accused_by(*who: str, devices: int = 10, round_id: int = 5) -> dict[str, dict[str, Suspicion]]:
    """What the devices of a mesh say, of whom these suspect p0."""
    surely = {"p0": Suspicion(1.0, round_id, "it is 10 times as long as ours")}
    return {name: surely if name in who else {} for name in NAMES[:devices]}


def test_a_delta_that_is_refused_accuses_its_device_a_mean_of_several_makes_them_doubted_and_no_more() -> None:
    suspects = Suspects()
    suspects.accuse(["ann"], 3, "turned")
    assert suspects.known["ann"] == Suspicion(1.0, 3, "turned")
    for round_id in (3, 4, 5, 6):
        suspects.accuse(["bob", f"other{round_id}"], round_id, "long")  # bob is in all of them
    suspects.accuse(["ann", "bob"], 6, "long")
    known = suspects.known
    assert FAINT < known["bob"].now(6) == DOUBTED < STILL < SUSPECTED < known["ann"].now(6)


def test_a_refusal_that_says_little_has_to_come_again() -> None:
    suspects = Suspects()
    suspects.accuse(["ann"], 3, "long", blame=0.3)
    assert FAINT < suspects.known["ann"].now(3) < SUSPECTED
    suspects.accuse(["ann"], 5, "long", blame=0.3)
    assert suspects.known["ann"].now(5) > SUSPECTED


def test_suspicion_halves_and_is_forgotten() -> None:
    suspicion = Suspicion(1.0, 10, "")
    assert suspicion.now(10 + HALF_LIFE) == 0.5
    assert suspicion.now(9) == 1.0
    suspects = Suspects({"ann": Suspicion(FAINT, 0, "")})
    suspects.clear(["ann", "nobody"], 0)
    assert not suspects.known


def test_work_that_is_as_it_should_be_speaks_for_a_device() -> None:
    suspects = Suspects()
    suspects.accuse(["ann"], 3, "turned")
    suspects.clear(["ann"], 3)
    assert suspects.known["ann"].weight == 0.5


def test_a_device_remembers_so_many_suspects_and_no_more() -> None:
    suspects = Suspects()
    suspects.accuse(["first"], 1, "turned")
    for number in range(2 * MOST_SUSPECTS):
        suspects.accuse([f"p{number}", "somebody"], 1, "long")
    assert len(suspects.known) == MOST_SUSPECTS
    assert "first" in suspects.known


@pytest.mark.parametrize(("devices", "needed"), [(2, 2), (3, 2), (4, 2), (6, 3), (9, 4), (10, 4), (100, 34)])
def test_more_than_a_third_have_to_suspect_it(devices: int, needed: int) -> None:
    assert accusers_needed(devices) == needed


@pytest.mark.parametrize(("devices", "needed"), [(2, 2), (3, 2), (4, 2), (5, 3), (6, 3), (10, 5), (100, 50)])
def test_half_have_to_suspect_it_to_leave_it_out_of_rounds_to_come(devices: int, needed: int) -> None:
    assert suspects_needed(devices) == needed


def test_a_colluding_minority_cannot_have_anybody_left_out() -> None:
    quarantine = Quarantine()
    assert quarantine.look(accused_by("p6", "p7", "p8", "p9"), 5) == {}
    assert list(quarantine.look(accused_by("p5", "p6", "p7", "p8", "p9"), 5)) == ["p0"]


def test_a_liar_that_refuses_everybody_is_out_and_has_no_say() -> None:
    surely = Suspicion(1.0, 5, "it is a lie")
    said = {"ann": {"liar": surely, "bob": surely}, "bob": {"liar": surely}, "cleo": {}}
    said["liar"] = {name: surely for name in ("ann", "bob", "cleo")}
    assert list(Quarantine().look(said, 5)) == ["liar"]  # bob was refused by one other, and by the liar


def test_nobody_accuses_itself_out() -> None:
    assert accusers("p0", accused_by("p0", "p1"), 5) == ["p1"]


def test_of_two_devices_neither_can_have_the_other_left_out() -> None:
    assert Quarantine().look(accused_by("p1", devices=2), 5) == {}


def test_the_reason_says_how_many_and_what() -> None:
    quarantine = Quarantine()
    quarantine.look(accused_by("p1", "p2", devices=3), 5)
    assert quarantine.out == {"p0": "2 devices refused its work; p1: it is 10 times as long as ours"}


def test_who_is_left_out_comes_back_after_a_bounded_time() -> None:
    quarantine, said = Quarantine(), accused_by("p1", "p2", devices=3, round_id=5)
    for round_id in (6, 7, 5 + 2 * HALF_LIFE):
        assert list(quarantine.look(said, round_id)) == ["p0"]
    assert quarantine.look(said, 5 + 2 * HALF_LIFE + 1) == {}


def test_a_new_agent_comes_to_the_same_from_what_devices_say() -> None:
    said = accused_by("p1", "p2", "p3", "p4", "p5")
    first, second = Quarantine(), Quarantine()
    first.look(said, 5)
    second.look(said, 8)
    assert first.out == second.out
