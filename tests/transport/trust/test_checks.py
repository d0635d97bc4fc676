"""What others can have this node compute: bounded for each, for all together, and at the door."""

from mdl.bounds import MAX_MEMBERS
from mdl.transport.trust.checks import Checks


def allowed(checks, source, now, asked=5_000):
    return sum(checks.may(source, now) for _ in range(asked))


def test_one_member_has_enough_for_the_largest_mesh_and_then_a_few_a_second():
    checks = Checks()
    assert MAX_MEMBERS <= allowed(checks, "ann", 0.0) < 1.1 * MAX_MEMBERS
    assert allowed(checks, "ann", 1.0) == 20
    assert allowed(checks, "bob", 1.0) >= MAX_MEMBERS, "another one has its own"


def test_all_together_have_a_bound_however_many_names_they_use():
    checks = Checks()
    allowed_at_once = sum(allowed(checks, f"x{number}", 0.0, 100) for number in range(1000))
    assert allowed_at_once == 4 * MAX_MEMBERS
    assert sum(allowed(checks, f"x{number}", 1.0, 100) for number in range(1000)) == 400


def test_the_door_has_a_bound_that_takes_nothing_from_members():
    checks = Checks()
    assert allowed(checks, "", 0.0) == 512
    assert allowed(checks, "", 1.0) == 50
    assert checks.may("ann", 1.0)


def test_who_said_something_forged_is_not_heard_for_a_while_and_the_door_stays_open():
    checks = Checks()
    checks.note_forged("ann", 0.0)
    checks.note_forged("", 0.0)
    assert (checks.may("ann", 59.0), checks.may("ann", 60.0), checks.may("", 0.0)) == (False, True, True)
