"""`mdl schedule`: what is drawn, compared, changed, replayed and decided."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from mdl.devices.scenario import Scenario, ScenarioDevice, save_scenarios
from mdl.devices.usage import UsageKind
from mdl.errors import ConfigError, DataError, MdlError, MeshNotFoundError
from mdl.peers.cli.schedule import answer_all, app
from mdl.peers.trials.campaign import Campaign, silent_machines
from mdl.peers.trials.run_plan import run_plan
from mdl.peers.view.compare import compare, describe_comparison
from mdl.peers.view.schedule_source import as_playable, find_subject
from mdl.protocol.status_messages import DeviceRecord, HopSummary, MeshStatus, RoundSummary
from mdl.scheduler.explain.chart import Chart, SpanKind
from mdl.scheduler.explain.decide_lines import MAX_LINE_BYTES, Decider
from mdl.scheduler.explain.draw_chart import (
    ShownDevice,
    draw_chart,
    draw_devices,
    draw_svg,
    real_devices,
    write_picture,
)
from mdl.scheduler.explain.recorded_round import chart_real, finished_round, live_round, rebuild
from mdl.scheduler.explain.replay_run import RECORDED, replay_run
from mdl.scheduler.explain.watched_play import Bench, chart_play, parse_policies, play_watched
from mdl.scheduler.explain.what_if import apply_changes, parse_changes, play_both
from mdl.scheduler.policies.chain import ChainView, Decision, Pair, Wait
from mdl.scheduler.policies.registry import POLICIES, RegisteredPolicy, make_policy
from mdl.sim.timing.scenario import draw_scenario

# -- charts -----------------------------------------------------------------------------------------------------------


def _device(ready_s: float = 0.0, **given: Any) -> ScenarioDevice:
    return ScenarioDevice(ready_s, 10.0, 100.0, **given)


def _scenario(*devices: ScenarioDevice) -> Scenario:
    """A transfer takes 1 s, a merge 0.1 s."""
    return Scenario("s", "test", 10.0, 0.0, devices)


def _chart(scenario: Scenario, policy: str = "ring", names: tuple[str, ...] = ()) -> Chart:
    played, watched = play_watched(scenario, Bench().policy(policy, scenario), names=names)
    return chart_play("title", scenario, played, watched.notes, names)


def _spans(chart: Chart, device: str) -> list[tuple[str, float, float, str]]:
    row = next(row for row in chart.rows if row.device == device)
    return [
        (span.kind.value, pytest.approx(span.start_s), pytest.approx(span.end_s), span.partner) for span in row.spans
    ]


def test_a_row_tells_what_its_device_did_from_the_start_to_the_end() -> None:
    chart = _chart(_scenario(_device(), _device(0.5), _device()))
    assert _spans(chart, "0") == [("waiting", 0.0, 0.5, ""), ("send", 0.5, 1.5, "1"), ("done", 1.5, 2.7, "")]
    assert _spans(chart, "1") == [
        ("training", 0.0, 0.5, ""),
        ("receive", 0.5, 1.5, "0"),
        ("merge", 1.5, 1.6, "0"),
        ("send", 1.6, 2.6, "2"),
        ("done", 2.6, 2.7, ""),
    ]
    assert (chart.makespan_s, chart.end_s) == (pytest.approx(2.7), pytest.approx(2.7))


def test_a_hop_that_stands_still_because_one_of_the_two_is_busy_shows_it_at_both() -> None:
    busy = _device(kind=UsageKind.SYNC, busy=((0.5, 1.0), (3.0, 4.0)))
    chart = _chart(_scenario(_device(), busy))
    assert [kind for kind, *_ in _spans(chart, "0")] == ["send", "stalled", "send", "done"]
    assert [kind for kind, *_ in _spans(chart, "1")] == ["receive", "stalled", "receive", "merge"]
    assert (chart.hops[0].stalled_s, chart.hops[0].stalled_by) == (pytest.approx(0.5), ("1",))
    assert "0.50 s of it stood still: 1 was busy" in _text(chart, 120)


def test_a_hop_that_a_death_undoes_is_told_as_such_and_its_sender_holds_again() -> None:
    chart = _chart(_scenario(_device(), _device(dies_at_s=1.05), _device(3.0)))
    first, second = chart.hops
    assert (first.sender, first.receiver, first.outcome) == ("0", "1", "undone by a death")
    assert (first.end_s, second.outcome) == (pytest.approx(1.05), "merged")
    assert [kind for kind, *_ in _spans(chart, "0")] == ["send", "done", "waiting", "send", "done"]
    assert _spans(chart, "1")[-1][0] == "lost"


@pytest.mark.parametrize("family", ["paper", "hetero", "dynamic", "dying"])
@pytest.mark.parametrize("policy", ["greedy", "tree"])
def test_rows_have_neither_gaps_nor_overlaps_and_hops_stand_in_both_rows(family: str, policy: str) -> None:
    for seed in range(4):
        chart = _chart(draw_scenario(family, 6, seed), policy)
        for row in chart.rows:
            assert row.spans[0].start_s == 0.0
            assert row.spans[-1].end_s == chart.end_s
            assert all(one.end_s == other.start_s for one, other in pairwise(row.spans))
        in_hop = {SpanKind.SEND, SpanKind.RECEIVE, SpanKind.STALLED, SpanKind.MERGE}
        rows = {row.device: row for row in chart.rows}
        for hop in chart.hops:
            assert any(span.partner == hop.receiver and span.kind in in_hop for span in rows[hop.sender].spans)
            assert any(span.partner == hop.sender and span.kind in in_hop for span in rows[hop.receiver].spans)


def test_who_waits_is_told_for_whom_and_what_that_one_did_meanwhile() -> None:
    chart = _chart(_scenario(_device(), _device(0.5), _device()))
    first, second = chart.delays
    assert (first.device, first.partner, first.waited_s) == ("0", "1", pytest.approx(0.5))
    assert first.why == "1 trained until 0.500 s"
    assert (second.device, second.waited_s) == ("2", pytest.approx(1.6))
    assert second.why == "1 was in its hop with 0 until 1.600 s"


def test_a_device_that_became_busy_itself_did_not_wait_in_that_time() -> None:
    busy = _device(kind=UsageKind.SYNC, busy=((1.0, 5.0),))
    chart = _chart(_scenario(busy, _device(2.0)))
    delay = next(delay for delay in chart.delays if delay.device == "0")
    assert (delay.waited_s, delay.why) == (
        pytest.approx(1.0),
        "1 trained until 2.000 s; then 0 itself was busy until 5.000 s",
    )


class _Patient:
    """Waits for the third device although two are free; then as ring."""

    name = "patient"

    def decide(self, view: ChainView) -> Decision:
        if len(view.free()) == 2 and view.may_wait():
            return Wait("the third is better")
        return POLICIES["ring"].make().decide(view)

    def explain(self, view: ChainView) -> list[tuple[str, float]]:
        return [("0 sends", -1.0), ("wait", -2.0), ("0 -> 1", -1.0), ("0 -> 2", -1.5)]


def test_the_reason_of_a_policy_that_waits_is_told_with_its_values() -> None:
    scenario = _scenario(_device(), _device(), _device(1.0))
    played, watched = play_watched(scenario, _Patient())
    chart = chart_play("title", scenario, played, watched.notes)
    assert (chart.waits[0].reason, chart.waits[0].time_s) == ("the third is better", 0.0)
    assert "1 was free too: the policy waited (the third is better)" in [delay.why for delay in chart.delays]
    assert chart.hops[0].q == (("0 sends", -1.0), ("wait", -2.0), ("0 -> 1", -1.0), ("0 -> 2", -1.5))
    assert "Q: 0 sends -1.00, wait -2.00; 0 -> 1 -1.00, 0 -> 2 -1.50" in _text(chart, 120)


def _text(chart: Chart, width: int, plain: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(draw_chart(chart, width, plain))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_chart_fits_its_terminal_and_names_each_hop_and_reason() -> None:
    chart = _chart(draw_scenario("dynamic", 9, 17), "greedy")
    for width in (60, 80, 150):
        text = _text(chart, width)
        assert max(map(len, text.splitlines())) <= width
    for hop in chart.hops:
        assert f"{hop.sender} → {hop.receiver}" in text
        assert hop.reason in text


def test_a_chart_can_be_drawn_with_ascii_alone() -> None:
    chart = _chart(draw_scenario("dynamic", 5, 1), "tree")
    assert _text(chart, 80, plain=True).isascii()


def test_a_name_that_a_hop_has_no_room_for_is_left_out() -> None:
    scenario = _scenario(_device(), _device(), _device(30.0))
    text = _text(_chart(scenario, "fifo", names=("one", "an-endless-name", "three")), 80)
    row = next(line for line in text.splitlines() if line.startswith("an-endless-name"))
    assert "←one" not in row
    assert len(row) <= 80


def test_what_everybody_trained_through_is_cut_off() -> None:
    chart = _chart(_scenario(_device(100.0), _device(100.1)))
    assert chart.start_s == pytest.approx(100.0 - 0.1 * 1.2)
    assert _chart(_scenario(_device(0.5), _device(0.6))).start_s == 0.0


def test_a_picture_is_well_formed_and_has_every_row_whatever_devices_are_called(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    scenario = draw_scenario("dynamic", 3, 1)
    chart = _chart(scenario, "greedy", names=("<a>", 'b"&', "c"))
    root = ElementTree.fromstring(draw_svg(chart))
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"<a>", 'b"&', "c", "title"} <= texts
    write_picture(chart, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text() == draw_svg(chart)
    for wrong in ("x.gif", "missing/x.svg"):
        with pytest.raises(ConfigError, match="--out"):
            write_picture(chart, tmp_path / wrong)


def test_a_policy_hears_the_names_that_people_see() -> None:
    chart = _chart(_scenario(_device(), _device()), "fifo", names=("left", "right"))
    assert {chart.hops[0].sender, chart.hops[0].receiver} == {"left", "right"}
    assert "left" in _chart(_scenario(_device(), _device()), "greedy", names=("left", "right")).hops[0].reason


# -- rounds that were really run --------------------------------------------------------------------------------------


def _hop(number: int, sender: str, receiver: str, ordered_s: float, **given: Any) -> HopSummary:
    """A transfer of 10 MB in 1 s; 0.1 s more until the agent knows."""
    known: dict[str, Any] = {"outcome": "merged", "decided_s": ordered_s + 1.1, "reason": "ring: it is next"}
    known |= {"size_bytes": 10_000_000, "transfer_s": 1.0}
    return HopSummary(number, sender, receiver, ordered_s=ordered_s, **known | given)


HOPS = (_hop(1, "a", "b", 0.5), _hop(2, "b", "c", 1.6))
DEVICES = (
    DeviceRecord("a", 0.2, 10.0, 80.0, False),
    DeviceRecord("b", 0.5, 10.0, busy=((0.0, 0.3),)),
    DeviceRecord("c", 0.1, None, busy=((0.0, 0.05), (0.2, None))),
    DeviceRecord("d", None, lost="silent"),
)


def _summary(number: int = 1, **given: Any) -> RoundSummary:
    seconds = {"train": 0.5, "aggregate": 2.2, "total": 3.0}
    hops = tuple((hop.sender, hop.receiver) for hop in HOPS)
    line = RoundSummary(number, 3.0, ("a", "b", "c"), hops, seconds, 20_000_000, 1.0, schedule=HOPS, devices=DEVICES)
    return msgspec.structs.replace(line, **given)


def _run(directory: Path, *summaries: RoundSummary) -> Path:
    (directory / "agent").mkdir(parents=True)
    lines = b"".join(msgspec.json.encode(summary) + b"\n" for summary in summaries)
    (directory / "agent" / "metrics.jsonl").write_bytes(lines)
    (directory / "config.toml").write_text('[round]\npolicy = "ring"\n')
    return directory


def test_a_real_round_is_drawn_from_its_record() -> None:
    chart = chart_real(finished_round(_summary(), "run"))
    assert _spans(chart, "a") == [
        ("training", 0.0, 0.2, ""),
        ("waiting", 0.2, 0.5, ""),
        ("send", 0.5, 1.6, "b"),
        ("done", 1.6, 2.7, ""),
    ]
    for row in chart.rows:
        assert all(one.end_s == other.start_s for one, other in pairwise(row.spans))
    assert _spans(chart, "c")[1:3] == [("waiting", 0.1, 0.2, ""), ("busy", 0.2, 1.6, "")]
    assert _spans(chart, "d") == [("lost", 0.0, 2.7, "")]
    assert [delay.why for delay in chart.delays if delay.device == "a"] == ["b trained until 0.500 s"]


def test_an_aborted_hop_leaves_its_sender_waiting() -> None:
    aborted = _hop(1, "a", "b", 0.5, outcome="aborted", decided_s=0.9, transfer_s=0.0, size_bytes=0)
    chart = chart_real(finished_round(_summary(schedule=(aborted, *HOPS[1:])), "run"))
    assert [kind for kind, *_ in _spans(chart, "a")] == ["training", "waiting", "send", "waiting"]
    assert chart.hops[0].outcome == "aborted"


def test_a_line_of_an_older_version_is_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="round 1 tells no schedule"):
        finished_round(_summary(schedule=(), devices=()), "run")


def _status(phase: str, **given: Any) -> MeshStatus:
    known: dict[str, Any] = {"elapsed_s": 0.8, "devices": DEVICES, "hops": ()}
    return MeshStatus(1, 7, 0, phase, "ring", **known | given)


def test_the_live_mesh_shows_the_open_round_and_between_two_rounds_the_last() -> None:
    under_way = _hop(1, "a", "b", 0.5, outcome="ordered", decided_s=None)
    live = live_round(_status("aggregating", hops=(under_way,)), [_summary(6)])
    assert (live.number, live.is_over, live.end_s) == (7, False, 0.8)
    chart = chart_real(live)
    assert (_spans(chart, "a")[-1], chart.makespan_s) == (("send", 0.5, 0.8, "b"), None)
    last = live_round(_status("aggregating"), [_summary(6)])
    assert (last.number, last.where) == (6, "live mesh (round 7 is open, 3 of 4 are ready)")
    over = live_round(_status("broadcasting", hops=HOPS), [])
    assert (over.is_over, over.end_s) == (True, pytest.approx(2.7))


def test_a_mesh_that_has_ordered_nothing_yet_is_no_error_of_the_user() -> None:
    with pytest.raises(MeshNotFoundError, match="no round is open"):
        live_round(_status("gathering", devices=()), [])


def test_a_rebuilt_round_takes_as_long_on_the_model_as_it_was_measured() -> None:
    rebuilt = rebuild(finished_round(_summary(), "run"))
    assert rebuilt.names == ("a", "b", "c")
    assert rebuilt.scenario.size_mb == 10.0
    assert rebuilt.scenario.latency_s == pytest.approx(0.1)
    assert [device.link_mb_s for device in rebuilt.scenario.devices] == [10.0, 10.0, pytest.approx(10.0)]
    assert any("left out" in text and "d" in text for text in rebuilt.estimates)
    idle = tuple(msgspec.structs.replace(device, busy=()) for device in DEVICES)
    assert _replayed(_summary(devices=idle)) == pytest.approx(2.7, abs=0.01)


def test_a_rebuilt_device_merges_as_fast_as_it_told_and_that_is_no_latency() -> None:
    devices = tuple(msgspec.structs.replace(device, busy=(), merge_mb_s=200.0) for device in DEVICES)
    rebuilt = rebuild(finished_round(_summary(devices=devices), "run"))
    assert [device.merge_mb_s for device in rebuilt.scenario.devices] == [200.0, 200.0, 200.0]
    assert rebuilt.scenario.latency_s == pytest.approx(0.05)
    assert _replayed(_summary(devices=devices)) == pytest.approx(2.7, abs=0.01)


def test_show_tells_what_is_known_of_each_device() -> None:
    devices = tuple(msgspec.structs.replace(device, merge_mb_s=2500.0, kind=3) for device in DEVICES[:1])
    shown = real_devices(finished_round(_summary(devices=devices), "run"))
    assert shown == (ShownDevice("a", 0.2, 10.0, 2500.0, "call", 80.0),)
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_devices([*shown, ShownDevice("b", None, None, None, "idle", None)]))
    lines = [line.split() for line in console.file.getvalue().splitlines()[-2:]]  # type: ignore[attr-defined]
    assert lines == [["a", "0.200", "10", "2500", "80", "%", "call"], ["b", *["not", "known"] * 2, "mains", "idle"]]


def _replayed(summary: RoundSummary) -> float:
    from mdl.scheduler.explain.recorded_round import RecordedOrder

    rebuilt = rebuild(finished_round(summary, "run"))
    return play_watched(rebuilt.scenario, RecordedOrder(rebuilt.pairs))[0].makespan_s


def test_what_a_simulated_mesh_recorded_takes_as_long_on_the_model_within_3_percent() -> None:
    with silent_machines():
        _, mesh = run_plan(Campaign(level="none").plan(901))
    assert mesh.rounds
    for summary in mesh.rounds:
        assert _replayed(summary) == pytest.approx(rebuild(finished_round(summary, "mesh")).measured_s, rel=0.03)


def test_a_run_is_played_again_under_other_policies(tmp_path: Path) -> None:
    idle = tuple(msgspec.structs.replace(device, busy=()) for device in DEVICES)
    run = _run(tmp_path / "run", _summary(1, devices=idle), _summary(2, devices=idle), _summary(3, schedule=()))
    found = replay_run(run, None, ("fifo", "tree"))
    assert [each.number for each in found.rounds] == [1, 2]
    assert list(found.rounds[0].played) == [RECORDED, "fifo", "tree"]
    assert found.recorded_policy == "ring"
    assert "tells no schedule" in found.left_out[3]
    first, second = (each.played["fifo"] for each in found.rounds)
    assert sum(second.energy_j) == pytest.approx(2 * sum(first.energy_j))
    with pytest.raises(DataError, match="no round 9"):
        replay_run(run, 9, ("fifo",))


# -- compare and what-if ----------------------------------------------------------------------------------------------


def test_policies_are_compared_on_the_same_scenarios_by_the_optimum() -> None:
    scenarios = [draw_scenario("paper", 5, seed) for seed in range(6)]
    found = describe_comparison(compare(("fifo", "ring", "optimal"), "paper", scenarios, 6, lambda *_: None))
    fifo, ring, optimal = found["policies"]
    assert (found["reference"], found["played"]) == ("optimal", 6)
    assert fifo["over_percent"] == pytest.approx(0.0, abs=0.01)
    assert ring["over_percent"] > 20.0
    assert ring["interval_95_s"] > 0.0
    assert ring["over_percent"] == pytest.approx(
        100.0 * (ring["everywhere_s"] / optimal["everywhere_s"] - 1.0), abs=1e-2
    )
    assert (optimal["decision_ms_median"], fifo["lost"]) == (None, 0)
    played = [play_watched(scenario, make_policy("ring"))[0].makespan_s for scenario in scenarios]
    assert ring["makespan_s"] == pytest.approx(sum(played) / 6)


def test_no_scenario_is_played_by_a_policy_that_remembers_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "counting", RegisteredPolicy("counts", _Counting))
    bench, scenario = Bench(), draw_scenario("paper", 3, 1)
    first, second = (bench.policy("counting", scenario) for _ in range(2))
    first.decide(ChainView(0.0, 1.0, ()))
    assert second.decide(ChainView(0.0, 1.0, ())) == Wait("asked 1 times")


def test_ctrl_c_keeps_what_all_policies_have_played() -> None:
    def interrupt(played: int, planned: int) -> None:
        if played == 3:
            raise KeyboardInterrupt

    scenarios = (draw_scenario("paper", 4, seed) for seed in range(100))
    found = compare(("fifo", "ring"), "paper", scenarios, 100, interrupt)
    assert (found.interrupted, found.played) == (True, 3)
    assert [len(score.makespan_s) for score in found.scores.values()] == [3, 3]


@pytest.mark.parametrize("text", ["gredy", "greedy,nosuch", " , "])
def test_a_policy_that_there_is_not_is_named_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_policies(text)
    assert "\n" not in str(error.value)


def test_a_change_is_applied_to_its_device_alone() -> None:
    scenario = draw_scenario("hetero", 5, 3)
    assignments = ["3.battery=4", "3.charging=false", "2.link=0.5", "1.busy=0-5", "4.ready=2", "0.dies=3"]
    changed = apply_changes(scenario, parse_changes(assignments, ("0", "1", "2", "3", "4"))).devices
    assert (changed[3].battery_percent, changed[3].charging, changed[2].link_mb_s) == (4.0, False, 0.5)
    assert (changed[1].busy, changed[1].kind, changed[4].ready_s) == (((0.0, 5.0),), UsageKind.ONCE, 2.0)
    assert (changed[0].dies_at_s, changed[0].link_mb_s) == (3.0, scenario.devices[0].link_mb_s)


@pytest.mark.parametrize(
    "text",
    ["link=3", "9.link=3", "1.lnk=3", "1.link=0", "1.link=nan", "1.busy=5-2", "1.busy=x", "1.kind=9", "1.charging=no"],
)
def test_a_change_that_cannot_be_made_is_refused_with_what_is_valid(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--set .*(expected|valid|devices)"):
        parse_changes([text], ("0", "1"))


def test_a_slow_link_changes_the_chain_and_its_time() -> None:
    scenario = _scenario(_device(), _device(), _device())
    changed = apply_changes(scenario, parse_changes(["2.link=1"], ("0", "1", "2")))
    (outcome,) = play_both(scenario, changed, ("ring",), ("0", "1", "2"))
    assert (outcome.before.makespan_s, outcome.after.makespan_s) == (pytest.approx(2.2), pytest.approx(11.2))
    assert outcome.same_hops == 2


# -- one decision a line ----------------------------------------------------------------------------------------------


def _observation(*states: str, **given: Any) -> dict[str, Any]:
    devices = [{"id": index, "state": state} for index, state in enumerate(states)]
    return {"id": 1, "t": 0.0, "mb": 10.0, "devices": devices} | given


def _ask(decider: Decider, observation: object) -> dict[str, Any]:
    answer = decider.answer(json.dumps(observation).encode())
    assert b"\n" not in answer
    found: dict[str, Any] = json.loads(answer)
    return found


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_two_idle_devices_are_paired_even_if_all_else_is_left_out(policy: str) -> None:
    answer = _ask(Decider(make_policy(policy)), _observation("free", "free"))
    assert sorted(answer["pair"]) == [0, 1]
    assert answer["reason"]


def test_ids_are_answered_as_they_were_given() -> None:
    names = [{"id": "phone", "state": "free"}, {"id": 7, "state": "free"}]
    answer = _ask(Decider(make_policy("fifo")), {"mb": 1, "devices": names})
    assert answer["pair"] == ["phone", 7]


@pytest.mark.parametrize("policy", ["dqn", "greedy", "greedy-risk", "dp"])
@pytest.mark.parametrize(
    "extreme",
    [{"mb": 1e300}, {"mb": 1e-320}, {"bw": 1e-320}, {"compute": 1e308}, {"eta_ready": 1e308}, {"energy": 1e300}],
)
def test_a_number_beyond_any_mesh_is_named_and_ends_no_policy(policy: str, extreme: dict[str, float]) -> None:
    devices = [{"id": index, "state": "free", "bw": 1.0, **extreme} for index in range(3)]
    devices = [{name: value for name, value in device.items() if name != "mb"} for device in devices]
    answer = _ask(Decider(make_policy(policy)), {"mb": extreme.get("mb", 1.0), "devices": devices})
    assert next(iter(extreme)) in answer["error"]


def test_waiting_is_never_answered_when_nothing_is_under_way_and_two_are_idle() -> None:
    decider = Decider(make_policy("ring"))
    assert _ask(decider, _observation("busy", "free", "free"))["wait"] is True
    answer = _ask(decider, _observation("done", "free", "free", idle=[1, 2], id=2))
    assert sorted(answer["pair"]) == [1, 2]

    class Stubborn:
        name = "stubborn"

        def decide(self, view: ChainView) -> Decision:
            return Wait("I wait")

    for observation in (_observation("free", "free"), _observation("free", "free", "free", "done", idle=[0, 1])):
        answer = _ask(Decider(Stubborn()), observation)
        assert sorted(answer["pair"]) == [0, 1]
        assert "I wait" in answer["reason"]


def test_a_time_that_is_left_may_be_a_hair_below_zero_and_no_more() -> None:
    decider = Decider(make_policy("greedy"))
    observation = _observation("free", "free", "busy")
    observation["devices"][2]["eta_ready"] = -1e-12
    assert "pair" in _ask(decider, observation)
    observation["devices"][2]["eta_ready"] = -1
    assert "eta_ready" in _ask(decider, observation)["error"]


def test_fewer_than_two_idle_devices_are_waited_for() -> None:
    decider = Decider(make_policy("greedy"))
    assert _ask(decider, _observation("free", "training"))["wait"] is True
    assert _ask(decider, _observation("free", "free", "training", idle=[0]))["wait"] is True


def test_who_has_been_free_longest_is_remembered_until_a_new_iteration() -> None:
    decider = Decider(make_policy("fifo"))
    _ask(decider, _observation("busy", "busy", "free", t=0.0))
    assert _ask(decider, _observation("free", "busy", "free", t=1.0))["pair"] == [2, 0]
    assert _ask(decider, _observation("free", "free", "free", t=2.0))["pair"] == [2, 0]
    assert _ask(decider, _observation("free", "free", "free", t=0.0, id=2))["pair"] == [0, 1]


class _Counting:
    """Remembers how often it was asked."""

    name = "counting"

    def __init__(self) -> None:
        self.seen: list[float] = []

    def decide(self, view: ChainView) -> Decision:
        self.seen.append(view.time_s)
        return Wait(f"asked {len(self.seen)} times")


def test_what_a_policy_remembers_ends_with_the_iteration() -> None:
    decider = Decider(_Counting())
    for _ in range(2):
        answer = _ask(decider, _observation("free", "free", "training"))
    assert answer["reason"] == "asked 2 times"
    assert _ask(decider, _observation("free", "free", "training", id="next"))["reason"] == "asked 1 times"


class _ByLines:
    """Decides a view as another program would have it decided: over the protocol, and nothing else."""

    def __init__(self, policy: str) -> None:
        self.name = policy
        self._decider = Decider(make_policy(policy))

    def decide(self, view: ChainView) -> Decision:
        devices = [
            {"id": int(each.peer_id), "state": each.state.value, "bw": each.link_mb_s, "compute": each.merge_mb_s}
            | {"kind": int(each.kind), "cls": each.device_class, "battery": each.battery_percent}
            | {"charging": each.charging, "busy_for": each.busy_for_s, "eta_ready": each.eta_ready_s}
            | {"op_left": each.op_left_s, "nagg": each.n_agg, "theta": each.theta, "energy": each.energy_j}
            for each in view.devices
        ]
        observation = {"id": 1, "t": view.time_s, "mb": view.size_mb, "lat": view.latency_s, "devices": devices}
        idle = [int(each.peer_id) for each in view.free()]
        answer = _ask(self._decider, observation | {"n": len(devices), "idle": idle})
        if "wait" in answer:
            return Wait(answer["reason"])
        sender, receiver = answer["pair"]
        return Pair(str(sender), str(receiver), answer["reason"])


@pytest.mark.parametrize("policy", ["greedy", "greedy-risk", "tree", "ring"])
def test_a_policy_decides_by_lines_as_it_does_in_the_agent(policy: str) -> None:
    for family in ("hetero", "dynamic", "dying"):
        scenario = draw_scenario(family, 7, 5)
        by_lines, direct = (play_watched(scenario, each)[0] for each in (_ByLines(policy), make_policy(policy)))
        assert by_lines == direct


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"", "JSON"),
        (b"nonsense", "JSON"),
        (b"[]", "object"),
        (b"{}", "devices"),
        (b'{"devices": [{"id": 0, "state": "free"}]}', "mb"),
        (b'{"mb": 1, "devices": [{"id": 0, "state": "free"}, {"id": 1, "state": "fre"}]}', "devices[1]: .*state"),
        (b'{"mb": 1, "devices": [{"id": 0, "state": "free", "bw": -1}]}', "devices[0]: .*bw"),
        (b'{"mb": 1, "devices": [{"id": 0, "state": "free", "kind": 6}]}', "devices[0]: .*kind"),
        (b'{"mb": 1, "devices": [{"id": null, "state": "free"}]}', "devices[0]: .*id"),
        (b'{"mb": 1, "devices": [{"id": 0, "state": "free"}, {"id": "0", "state": "free"}]}', "devices[1].id"),
        (b'{"mb": 1, "n": 2, "devices": [{"id": 0, "state": "free"}]}', "n: 2"),
        (b'{"mb": 1, "idle": [4], "devices": [{"id": 0, "state": "free"}]}', "idle[0]"),
        (b'{"mb": 1, "idle": [0], "devices": [{"id": 0, "state": "done"}]}', "idle[0]"),
        (b"[" * 100_000, "nested|recursion|object"),
        (b'{"mb": 1, "x": "' + b"y" * MAX_LINE_BYTES + b'"}', "bytes"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_bad_line_is_answered_with_the_field_and_the_next_one_as_ever(line: bytes, field: str) -> None:
    import re

    decider = Decider(make_policy("greedy"))
    answer = json.loads(decider.answer(line))
    assert set(answer) == {"error"}
    assert re.search(field.replace("[", r"\[").replace("]", r"\]"), answer["error"])
    assert sorted(_ask(decider, _observation("free", "free"))["pair"]) == [0, 1]


def test_a_field_that_no_observation_has_is_told_once() -> None:
    told: list[str] = []
    decider = Decider(make_policy("fifo"), told.append)
    observation = _observation("free", "free")
    observation["devices"][1]["batery"] = 3
    for _ in range(2):
        _ask(decider, observation)
    assert told == ["field 'batery' of a device is unknown and ignored; did you mean 'battery'?"]


def test_lines_are_read_and_answered_one_by_one_whatever_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdl.scheduler.explain.decide_lines.MAX_LINE_BYTES", 1000)
    line = json.dumps(_observation("free", "free")).encode()
    lines = io.BytesIO(b"x" * 5000 + b"\n" + line + b"\n" + b"\n" + line)
    answers = io.BytesIO()
    answer_all(Decider(make_policy("fifo")), lines, answers)
    kinds = [next(iter(json.loads(answer))) for answer in answers.getvalue().splitlines()]
    assert kinds == ["error", "pair", "error", "pair"]


# -- the commands -----------------------------------------------------------------------------------------------------


def _mdl(*arguments: object) -> dict[str, Any]:
    """The object on the last line of stdout."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_command_ends_with_one_object(tmp_path: Path) -> None:
    scenarios, run = tmp_path / "s.jsonl", _run(tmp_path / "run", _summary(1), _summary(2))
    save_scenarios([draw_scenario("dynamic", 4, seed) for seed in range(2)], scenarios)
    shown = _mdl("show", scenarios, "--index", 1, "--policy", "tree", "--out", tmp_path / "x.svg")
    assert (len(shown["hops"]), shown["policy"], shown["recorded"]) == (3, "tree", False)
    assert (tmp_path / "x.svg").exists()
    assert _mdl("show", "paper:3:1")["rows"][2]["device"] == "2"
    recorded = _mdl("show", run, "--round", 1)
    assert (recorded["recorded"], recorded["policy"], recorded["hops"][0]["reason"]) == (
        True,
        "ring",
        "ring: it is next",
    )
    assert _mdl("show", run, "--policy", "fifo")["estimated"]
    assert _mdl("compare", "--policies", "fifo,tree", "--scenarios", scenarios)["played"] == 2
    assert _mdl("compare", "--policies", "fifo", "--family", "paper", "--n", 4, "--count", 3)["planned"] == 3
    changed = _mdl("what-if", "paper:4:1", "--set", "2.link=0.5", "--policies", "fifo,ring")
    assert [each["policy"] for each in changed["policies"]] == ["fifo", "ring"]
    assert changed["policies"][0]["makespan_change_percent"] > 0
    assert _mdl("replay", run, "--policies", "fifo")["measured_s_mean"] == pytest.approx(2.7)


def test_commands_print_for_people(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", _summary(1), _summary(2))
    for arguments, expected in (
        (["show", "dynamic:4:1"], "decisions"),
        (["show", str(run)], "waits, and why"),
        (["compare", "--count", "2", "--n", "3"], "all have it s"),
        (["what-if", "paper:4:1", "--set", "1.battery=4"], "dies"),
        (["replay", str(run)], "estimated"),
    ):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0
        assert expected in done.stdout


def test_nothing_in_a_reason_or_a_folder_is_markup(tmp_path: Path) -> None:
    hops = tuple(msgspec.structs.replace(hop, reason="[/x][red]") for hop in HOPS)
    run = _run(tmp_path / "[run]", _summary(1, schedule=hops, devices=DEVICES[:3]))
    for arguments in (["show", str(run)], ["replay", str(run)], ["what-if", str(run), "--set", "a.link=1"]):
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert (done.exit_code, "[run]" in done.stdout.replace("\n", "")) == (0, True)


@pytest.mark.parametrize("name", ["[red]", "a\x1b[2J", "a\u202e", "a b", "../a", ""])
def test_a_name_that_is_none_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    hops = tuple(msgspec.structs.replace(hop, sender=name) for hop in HOPS)
    run = _run(tmp_path / "run", _summary(1, schedule=hops, devices=DEVICES[:3]))
    done = CliRunner().invoke(app, ["show", str(run)])
    assert isinstance(done.exception, DataError), done.output
    assert str(done.exception).isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "nosuch"],
        ["show", "dynamc:9:3"],
        ["show", "dynamic:9:3", "--round", "2"],
        ["show", "dynamic:9:3", "--policy", "gredy"],
        ["show", "dynamic:9:3", "--out", "x.gif"],
        ["compare", "--policies", "foo"],
        ["compare", "--policies", "optimal", "--n", "13", "--count", "1"],
        ["what-if", "dynamic:5:3"],
        ["replay", "nosuch"],
        ["decide", "--policy", "optimal"],
    ],
    ids=" ".join,
)
def test_wrong_input_is_one_line_that_says_what_would_be_valid(arguments: list[str]) -> None:
    with pytest.raises(MdlError) as error:
        CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_a_scenario_of_a_file_is_found_by_its_index(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    save_scenarios([draw_scenario("paper", 3, seed) for seed in range(3)], path)

    def look() -> Any:
        raise AssertionError("a file is no live mesh")

    assert as_playable(find_subject(str(path), 2, None, look)).scenario.scenario_id == "paper-3-2"
    with pytest.raises(ConfigError, match="0 to 2"):
        find_subject(str(path), 3, None, look)
