"""Works of one fate become one, so that memory is bounded and nothing is lost for it."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.peers.roles.trainer.model_state import Round, TrainedWork, add_up_counted, add_up_plain, total
from mdl.protocol.vocabulary import Fork

START = (Fork(0, 3, "agent.1.1"),)
ALONE = tuple((*START, Fork(number, 1, f"me.1.{number}")) for number in range(1, 5))
MESH = (START, 40)


def _work(value: float, *counted: Round, rounds: tuple[Round, ...] = (), since: int = 0) -> TrainedWork:
    return TrainedWork(np.full(2, value, np.float32), ((int(value), b""),), rounds, counted, since)


def _values(works: tuple[TrainedWork, ...]) -> list[float]:
    return sorted(float(work.values[0]) for work in works)


def _known(works: tuple[TrainedWork, ...]) -> list[int]:
    return [round_id for work in works for round_id, _ in work.trained]


def test_of_a_fork_there_is_one_sum_if_the_model_is_large() -> None:
    works = [_work(2.0**number, (ALONE[0], number)) for number in range(2, 11)]
    added = add_up_counted(works, 10, is_small=False)
    (last, whole) = added[::-1]
    assert (whole.since, whole.counted, float(whole.values[0])) == (2, ((ALONE[0], 9),), 1020.0)
    assert last is works[-1]  # it is of this round


@pytest.mark.parametrize("rounds", [3, 8, 40, 1000])
def test_of_a_small_one_sums_grow_with_their_age_so_that_little_is_lost_where_a_fork_is_left(rounds: int) -> None:
    works: tuple[TrainedWork, ...] = ()
    for number in range(1, rounds + 1):
        works = add_up_counted([*works, _work(1.0, (ALONE[0], number))], number + 1, is_small=True)
    spans = [(work.since, work.counted[0][1]) for work in works]
    assert [first for first, _ in spans] == [1, *(last + 1 for _, last in spans[:-1])]
    assert [last - first + 1 for first, last in spans] == [float(work.values[0]) for work in works]
    assert all(last - first + 1 <= max(1, rounds - 3 - last) for first, last in spans)
    assert len(works) <= 24


def test_sums_are_not_kept_without_end_either() -> None:
    works = [_work(1.0, (fork, 2 * number)) for fork in ALONE for number in range(1, 20)]
    added = add_up_counted(works, 40, is_small=True)
    assert [(work.since, work.counted[0], work.values[0]) for work in added] == [(2, (fork, 38), 19) for fork in ALONE]


def test_what_another_fork_has_counted_too_stays_apart_while_there_are_few() -> None:
    works = [_work(1.0, (ALONE[0], number), MESH) for number in range(2, 8)]
    assert add_up_counted(works, 40, is_small=True) == tuple(works)


def test_of_many_those_that_only_the_same_others_have_counted_become_one_and_nothing_is_lost() -> None:
    """A device that was alone four times, for five rounds each, and brought all of that into one round of the mesh."""
    works = [_work(2.0**number, (fork, 5 + number % 5), MESH) for number, fork in enumerate(ALONE * 5)]
    whole = total(works)
    added = add_up_counted(works, 40, is_small=True)
    assert (len(works), len(added)) == (20, 4)
    assert total(added) == pytest.approx(whole)
    assert {work.counted[1] for work in added} == {MESH}
    assert [(work.since, work.counted[0]) for work in added] == [(5, (fork, 9)) for fork in ALONE]


def test_what_may_be_counted_elsewhere_still_is_no_part_of_such_a_sum() -> None:
    open_round = (ALONE[1], 12)
    works = [_work(2.0**number, (ALONE[0], number), MESH) for number in range(12)]
    works.append(_work(0.5, (ALONE[0], 12), MESH, rounds=(open_round,)))
    added = add_up_counted(works, 40, is_small=True)
    assert (len(added), _values(added)[0], added[-1].rounds) == (2, 0.5, (open_round,))


def test_of_what_was_never_given_away_there_is_one_sum() -> None:
    given = _work(8.0, rounds=(MESH,))
    assert _values(add_up_plain([_work(1.0), given, _work(2.0)])) == [3.0, 8.0]
    assert add_up_plain([given]) == (given,)


def test_of_a_long_sum_the_first_trainings_are_known_and_the_last() -> None:
    """Where it is left: a fork's first model is the others', too, if that round had the same result there."""
    works: tuple[TrainedWork, ...] = ()
    for number in range(1, 41):
        works = add_up_counted([*works, _work(float(number), (ALONE[0], number))], 60, is_small=False)
    assert _known(works) == [*range(1, 9), *range(33, 41)]
