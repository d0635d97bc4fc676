"""The devices that a mesh would not wait for, told of a scenario and of a real round."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.peers.cli.schedule import app
from mdl.peers.view.snapshot import _tell_lost
from mdl.peers.web.app import what_if
from mdl.protocol.status_messages import LEFT_OUT, DeviceRecord, RoundSummary
from mdl.scheduler.explain.draw_chart import close_round, tell_closed
from mdl.scheduler.explain.recorded_round import pick_round
from mdl.scheduler.rounds.participation import Bounds, mesh_rule

RULE = mesh_rule("half", Bounds(wait_for=0.51))
WHY = f"{LEFT_OUT}2 of 3 were ready after 4.1 s, and it needs about 14.0 s more; its work comes by round 21"


def _scenario(*ready_s: float, **last: object) -> Scenario:
    devices = [ScenarioDevice(ready, 10.0, 100.0) for ready in ready_s]
    devices[-1] = msgspec.structs.replace(devices[-1], **last)
    return Scenario("s", "by hand", 1.0, 0.0, tuple(devices))


def test_a_slow_device_is_left_out_and_the_reason_names_it() -> None:
    closed = close_round(_scenario(1.0, 1.0, 17.0, busy=((0.0, 40.0),)), "abc", RULE, 12)
    assert (closed.at_s, closed.left_out) == (pytest.approx(3.0), ("c",))
    assert closed.told == (
        "closed at 3.0 s with 2 of 3: c needs about 14 s more (in use for 3 s); its work comes with a later round, "
        "at the latest round 21"
    )


def test_devices_that_are_ready_within_the_grace_all_take_part() -> None:
    assert close_round(_scenario(1.0, 1.0, 2.0), "abc", RULE).left_out == ()
    assert close_round(_scenario(1.0, 30.0), "ab", RULE).at_s == 30.0  # two wait for both


def test_a_device_that_dies_first_is_not_waited_for() -> None:
    closed = close_round(_scenario(1.0, 1.0, 2.0, dies_at_s=1.5), "abc", RULE)
    assert closed.told == "closed at 1.0 s with 2 of 2"
    alone = close_round(_scenario(1.0, 2.0, dies_at_s=1.5), "ab", RULE)
    assert alone.told == "closed at 1.0 s with 1 of 1"


def test_a_change_that_changes_nothing_is_one_line() -> None:
    before, after = (close_round(_scenario(1.0, 1.0, ready), "abc", RULE) for ready in (1.0, 30.0))
    assert tell_closed(before, before) == ["the round, as before: closed at 1.0 s with 3 of 3"]
    was, now = tell_closed(before, after)
    assert was == "the round before: closed at 1.0 s with 3 of 3"
    assert now.startswith("the round now: closed at 3.0 s with 2 of 3: c needs about 27 s more")


def test_what_if_tells_whom_a_mesh_would_not_wait_for() -> None:
    words = ["what-if", "dynamic:6:8", "--set", "2.ready=30", "--policies", "fifo"]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout.splitlines()[-1])
    assert told["takes_part"]["before"]["left_out"] == []
    assert told["takes_part"]["after"]["left_out"] == ["2"]
    said = " ".join(CliRunner().invoke(app, words).stdout.split())
    assert "the round now: closed at" in said
    assert "2 needs about" in said


def _run(folder: Path) -> Path:
    devices = tuple(DeviceRecord(name, 1.0, 8.0, merge_mb_s=90.0) for name in "ab")
    devices += (DeviceRecord("c", lost=WHY),)
    seconds = {"train": 1.0, "broadcast": 0.5, "total": 3.0}
    summary = RoundSummary(
        12, 2.0, ("a", "b"), (), seconds, 0, None, lost=("c",), devices=devices, shares={"a": 4, "b": 4}, size=250_000
    )
    (folder / "metrics.jsonl").write_bytes(msgspec.json.encode(summary) + b"\n")
    return folder


def test_show_and_what_if_tell_why_a_real_round_went_on_without_a_device(tmp_path: Path) -> None:
    run = str(_run(tmp_path))
    for words, begin in ((["show", run], "without"), (["what-if", run, "--set", "a.link=1"], "recorded without")):
        assert f"{begin} c: {WHY}" in " ".join(CliRunner().invoke(app, words).stdout.split())
        told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout.splitlines()[-1])
        assert told["lost"] == [f"c: {WHY}"]
    played = what_if(pick_round(tmp_path, 12), "greedy", ["a.link=1"], ["greedy"])
    assert played.estimates[0] == f"c: {WHY}: not played here", "the page tells it, too"


def test_the_page_is_told_why_a_device_was_left_out() -> None:
    devices = (DeviceRecord("a", 1.0), DeviceRecord("b", lost="no report for 9 s"), DeviceRecord("c", lost=WHY))
    summary = RoundSummary(12, 1.0, ("a",), (), {}, 0, None, lost=("b", "c"), devices=devices)
    assert _tell_lost(summary) == ("b", f"c (later: {WHY.removeprefix(LEFT_OUT)})")
