"""The exhaustive search: what a departure does, how a mesh is copied, and that nothing is broken within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdl.errors import UnfinishedError
from mdl.peers.cli import sim as cli_sim
from mdl.peers.roles.trainer import model_state
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.trials.campaign import (
    Bound,
    dump_found,
    load_found,
    search_all,
    search_from,
    silent_machines,
    start_walk,
    tell_found,
)
from mdl.protocol.machine import Received
from mdl.protocol.round_messages import BroadcastOrdered, RoundClosed, RoundOpened
from mdl.sim.mesh.search import (
    CrashDuring,
    CutDuring,
    Late,
    Lose,
    Sever,
    SuspendAfter,
    Walk,
    copy_graph,
    explore,
    first_departures,
    follow,
)

ROOT = Path(__file__).resolve().parents[3]
TWO, THREE = Bound(2, 1), Bound(3, 1)


def _walk(bound: Bound = TWO) -> Walk:
    with silent_machines():
        return start_walk(bound, record=True)


def _end(walk: Walk) -> Walk:
    with silent_machines():
        while walk.step():
            pass
    return walk


def _step_of(walk: Walk, message: type, receiver: str) -> int:
    """The number of the step at which this process first hears this."""
    steps = [step for step in _end(copy_graph(walk)).mesh.story or [] if step.who]
    return next(
        number
        for number, step in enumerate(steps, 1)
        if step.who and step.who.peer_id == receiver and isinstance(step.event, Received)
        if type(step.event.message) is message
    )


def _heard(walk: Walk, peer_id: str) -> list[tuple[float, str]]:
    return [
        (step.at_s, type(step.event.message).__name__)
        for step in walk.mesh.story or []
        if step.who and step.who.peer_id == peer_id and isinstance(step.event, Received)
    ]


def _digests(walk: Walk) -> set[bytes]:
    return {node.holder.digest for node in walk.mesh.nodes.values() if node.holder}


# -- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_goes_the_same_way_and_leaves_the_other_as_it_was() -> None:
    walk = _walk()
    assert follow(walk, (Lose(step=_step_of(walk, BroadcastOrdered, "p1")),))
    before = copy_graph(walk)
    one, other = _end(copy_graph(before)), _end(copy_graph(before))
    assert (one.steps, one.mesh.now, _digests(one)) == (other.steps, other.mesh.now, _digests(other))
    assert (before.steps, before.mesh.now) == (walk.steps, walk.mesh.now)
    assert _digests(_end(walk)) == _digests(one)


def test_what_was_one_object_stays_one_and_what_never_changes_is_shared() -> None:
    values, shared = np.zeros(2), {"a": 1}
    one = {"first": shared, "second": [shared], "values": values, "last": deque([1, 2], 3)}
    two = copy_graph(one)
    assert two["first"] is two["second"][0] is not shared  # type: ignore[index]
    assert two["values"] is values
    assert (two["last"], two["last"].maxlen) == (one["last"], 3)  # type: ignore[attr-defined]


def test_a_call_that_waits_is_one_to_the_copy() -> None:
    said: list[str] = []
    call = copy_graph({"call": partial(said.append, "now")})
    assert call["call"].func is not said.append
    books: dict[str, Any] = {"said": [], "call": None}
    books["call"] = partial(_note, books)
    copy = copy_graph(books)
    copy["call"]()
    assert (books["said"], copy["said"]) == ([], ["noted"])


def _note(books: dict[str, Any]) -> None:
    books["said"].append("noted")


def test_what_cannot_be_copied_is_said() -> None:
    with pytest.raises(TypeError, match="generator"):
        copy_graph({"a": (number for number in range(3))})


# -- departures -------------------------------------------------------------------------------------------------------


def test_without_departures_all_stand_at_the_last_round() -> None:
    walk = _end(_walk(Bound(3, 2)))
    assert not walk.kind
    assert {node.holder.round_id for node in walk.mesh.nodes.values() if node.holder} == {2}


def test_a_lost_message_is_not_heard_and_a_late_one_later() -> None:
    walk = _walk()
    step = _step_of(walk, RoundOpened, "p1")
    opened = next(at for at, name in _heard(_end(copy_graph(walk)), "p1") if name == "RoundOpened")
    lost, late = copy_graph(walk), copy_graph(walk)
    assert follow(lost, (Lose(step=step),))
    assert follow(late, (Late(step=step, for_s=0.1),))
    assert next(at for at, name in _heard(_end(lost), "p1") if name == "RoundOpened") > opened
    assert next(at for at, name in _heard(_end(late), "p1") if name == "RoundOpened") == pytest.approx(opened + 0.1)
    assert lost.told == ("RoundOpened of p0 to p1 is lost",)


def test_a_process_crashes_with_some_of_its_messages_said_and_comes_back_from_its_disk() -> None:
    walk = _walk()
    step = _step_of(walk, RoundOpened, "p1")
    assert follow(walk, (CrashDuring(step=step, said=1, for_s=3.5),))
    assert not walk.mesh.nodes["p1"].running
    _end(walk)
    assert walk.mesh.nodes["p1"].info.incarnation == 2
    assert not walk.kind


def test_a_device_that_is_cut_off_is_heard_again_later() -> None:
    walk = _walk()
    step = _step_of(walk, RoundOpened, "p1")
    assert follow(walk, (CutDuring(step=step, for_s=3.5),))
    begun = walk.mesh.now
    _end(walk)
    heard = [at for at, _ in _heard(walk, "p0") if begun < at]
    assert heard[0] >= begun + 3.5
    assert len(_digests(walk)) == 1


def test_a_severed_link_carries_nothing_and_the_others_all() -> None:
    walk = _walk(THREE)
    step = _step_of(walk, RoundOpened, "p1")
    assert follow(walk, (Sever(step=step, for_s=3.5),))
    assert walk.told == ("nothing passes between p1 and the sender of RoundOpened of p0, for 3.5 s",)
    begun = walk.mesh.now
    _end(walk)
    heard = {"p1": list[float](), "p2": list[float]()}
    for told in walk.mesh.story or []:
        if told.who and told.who.peer_id == "p0" and isinstance(told.event, Received) and begun < told.at_s:
            heard.setdefault(told.event.sender.peer_id, []).append(told.at_s)
    assert heard["p2"][0] < begun + 3.5 <= heard["p1"][0]
    assert len(_digests(walk)) == 1


def test_what_comes_to_a_suspended_device_waits_for_it() -> None:
    walk = _walk()
    step = _step_of(walk, RoundOpened, "p1")
    assert follow(walk, (SuspendAfter(step=step, for_s=1.5),))
    copy, begun = copy_graph(walk), walk.mesh.now
    for way in (walk, copy):
        after = [at for at, _ in _heard(_end(way), "p1") if at > begun]
        assert after[0] == begun + 1.5


def test_departures_are_possible_from_the_first_round_on_until_the_last_is_had() -> None:
    walk = _walk()
    opened, closed = _step_of(walk, RoundOpened, "p1"), _step_of(walk, RoundClosed, "p1")
    with silent_machines():
        steps = [departure.step for departure in first_departures(walk, (Lose, Late, CrashDuring, CutDuring))]
    assert steps[0] <= opened < closed
    assert closed <= steps[-1] <= closed + 4


def test_schedules_of_two_departures_are_all_different() -> None:
    with silent_machines():
        walk = start_walk(TWO)
        first = first_departures(start_walk(TWO), (Lose,))[-5]
        assert follow(walk, (first,))
        ends = [end.departures for end in explore(walk, 1, (Lose,))]
    assert len(ends) == len(set(ends)) > 3
    assert all(one == first and other.step > first.step for one, other in ends)


# -- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "bound",
    [TWO, Bound(2, 2), THREE, Bound(2, 1, agent=True)],
    ids=["2x1", "2x2", "3x1", "2x1 and an agent"],
)
def test_nothing_is_broken_by_any_one_departure(bound: Bound) -> None:
    searched = search_all(bound, 1, 1)
    assert searched.found is None
    assert (searched.depth, searched.done) == (1, searched.parts)
    assert searched.schedules > 100


@pytest.mark.slow
def test_a_group_that_waits_for_its_majority_breaks_nothing_either() -> None:
    assert search_all(Bound(3, 1, on_partition="wait", kinds=("crash", "cut")), 1, 1).found is None


@pytest.mark.slow
@pytest.mark.parametrize("remembered", [16, 1])
def test_two_starts_of_a_mesh_that_meet_late_are_counted_apart(
    monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """p1 and p2 begin without p0, p2 and p0 without p1. The start that more devices worked in stands, so that after
    six rounds nothing is counted apart, even where a single round is remembered (before: 16 had to be)."""
    monkeypatch.setattr(model_state, "_SMALL_ROUNDS", remembered)
    bound = Bound(3, 1, policy="tree", kinds=("cut",))
    part = search_from(bound, 2, [(CrashDuring(step=34, said=0, for_s=3.5),)])
    assert part.found is None
    assert (part.apart, part.schedules > 0) == (0, True)


def test_what_breaks_is_told_in_order_stored_and_stepped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelState, "add", lambda self, *works: None)
    found = search_all(TWO, 1, 1).found
    assert found is not None
    assert (found.kind, len(found.departures), len(found.told)) == ("lost", 1, 1)
    again = load_found(dump_found(found))
    assert again == found
    told, walk = tell_found(again.bound, again.departures)
    assert told == found
    assert any(step.event == found.told[0] for step in walk.mesh.story or [])


def test_ctrl_c_ends_a_search_with_what_was_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    from mdl.peers.trials import campaign as module

    def interrupted(*args: Any) -> Any:
        if args[1]:
            raise KeyboardInterrupt
        return search_from(*args)

    monkeypatch.setattr(module, "search_from", interrupted)
    searched = search_all(TWO, 1, 1)
    assert (searched.interrupted, searched.depth, searched.schedules) == (True, 1, 1)


def test_several_processes_find_as_much_as_one() -> None:
    bound = Bound(2, 1, kinds=("cut",))
    one, two = search_all(bound, 1, 1), search_all(bound, 1, 2)
    assert (one.schedules, one.steps, one.found) == (two.schedules, two.steps, two.found)


def _mdl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mdl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)


def test_the_command_tells_how_far_it_went() -> None:
    done = _mdl("sim", "search", "--peers", 2, "--kinds", "cut", "--processes", 1, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["depth"], told["done"] == told["parts"], told["kinds"]) == (1, True, ["cut"])


def test_the_story_of_what_breaks_is_saved_and_gone_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelState, "add", lambda self, *works: None)
    with pytest.raises(UnfinishedError) as end:
        cli_sim.search(2, 1, 1, 1, "cut", "greedy", processes=1, out=tmp_path, as_json=True)
    story = tmp_path / "story.json"
    assert f"again: mdl sim search --story {story}" in str(end.value)
    assert (end.value.exit_code, end.value.result["kind"]) == (4, "lost")
    assert end.value.result["told"][0] in (tmp_path / "story.txt").read_text()
    with pytest.raises(UnfinishedError, match="lost"):
        cli_sim.search(story=story, as_json=True)
    monkeypatch.undo()
    cli_sim.search(story=story, as_json=True)


def test_a_wrong_kind_and_a_wrong_story_are_one_line_each(tmp_path: Path) -> None:
    wrong = _mdl("sim", "search", "--kinds", "crash,burn")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "burn" in wrong.stderr
    story = tmp_path / "story.json"
    story.write_text('{"bound": {"peers": 2}}')
    wrong = _mdl("sim", "search", "--story", story)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "mdl sim search" in wrong.stderr
