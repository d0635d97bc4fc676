"""A round in segments as people see it: its chart, its plan, who owns what, and how long it took beside the links."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from mdl.errors import DataError
from mdl.protocol.status_messages import DeviceRecord, MeshStatus, RoundSummary
from mdl.scheduler.explain.draw_chart import draw_chart, draw_devices, draw_svg, real_devices
from mdl.scheduler.explain.recorded_round import chart_real, finished_round, live_round, rebuild

PLAN = "160 segments of 32 KB: a 80, b 80; 1 own none; 1.57 s at best"
OWNS = {"a": 80, "b": 80, "c": 0}
DEVICES = (
    DeviceRecord("a", 0.2, 5.0),
    DeviceRecord("b", 0.5, 5.0, busy=((0.4, 0.7),)),
    DeviceRecord("c", 1.0, 1.25),
    DeviceRecord("d", None, lost="silent"),
)
SUMMARY = RoundSummary(
    *(4, 3.0, ("a", "b", "c"), ()),
    {"train": 1.0, "aggregate": 0.0, "broadcast": 2.0, "apply": 0.1, "total": 3.1},
    20_000_000,
    1.0,
    devices=DEVICES,
    shares=OWNS,
    plan=PLAN,
    bound_s=1.57,
)


def _text(shown: object) -> str:
    console = Console(width=100, record=True, file=io.StringIO(), color_system=None)
    console.print(shown)
    return console.export_text()


def test_each_row_is_in_segments_from_the_last_ready_until_all_have_the_result() -> None:
    chart = chart_real(finished_round(SUMMARY, "run"))
    kinds = {row.device: [(span.kind.value, span.start_s, span.end_s) for span in row.spans] for row in chart.rows}
    assert kinds["b"] == [
        ("training", 0.0, 0.5),
        ("busy", 0.5, 0.7),
        ("waiting", 0.7, 1.0),
        ("segments", 1.0, 3.0),
    ]
    assert kinds["c"][-1] == ("segments", 1.0, 3.0)
    assert kinds["d"] == [("lost", 0.0, 3.0)]
    assert (chart.makespan_s, chart.end_s) == (3.0, 3.0)
    assert chart.title == "run, round 4, in segments"


def test_the_plan_is_told_and_how_long_it_took_beside_what_the_links_allow() -> None:
    real = finished_round(SUMMARY, "run")
    told = _text(draw_chart(chart_real(real), 100))
    assert PLAN in told
    assert "it took 2 s; the links allow 1.57 s at best, as they were known before: 1.27 times that" in told
    assert "gives and gets segments" in told
    devices = _text(draw_devices(real_devices(real)))
    assert "80 (50%)" in devices
    assert "0 (0%)" in devices
    assert "\u2550" not in _text(draw_chart(chart_real(real), 100, plain=True))


def test_a_round_by_hops_says_why_it_did_not_go_in_segments() -> None:
    why = "no device reaches all others"
    hops = msgspec.structs.replace(SUMMARY, shares={}, plan=why)
    assert f"by hops: {why}" in _text(draw_chart(chart_real(finished_round(hops, "run")), 100))
    assert "by hops" not in _text(draw_chart(chart_real(finished_round(SUMMARY, "run")), 100))


def test_a_picture_and_json_have_the_plan_too() -> None:
    chart = chart_real(finished_round(SUMMARY, "run"))
    picture = draw_svg(chart)
    ElementTree.fromstring(picture)
    assert PLAN in picture
    told = msgspec.to_builtins(chart)
    assert told["exchange"] == {"plan": PLAN, "owns": OWNS, "start_s": 1.0, "end_s": 3.0, "bound_s": 1.57}


def test_without_known_links_it_only_tells_how_long_it_took() -> None:
    chart = chart_real(finished_round(msgspec.structs.replace(SUMMARY, bound_s=0.0), "run"))
    assert chart.exchange is not None
    assert chart.exchange.tell() == "it took 2 s"


@pytest.mark.parametrize(("phase", "over"), [("exchanging segments", False), ("closing", True)])
def test_the_live_mesh_shows_the_segments_that_are_on_their_way(phase: str, over: bool) -> None:
    status = MeshStatus(
        *(1, 4, 0, phase, "greedy"),
        devices=DEVICES,
        elapsed_s=1.5,
        shares=OWNS,
        plan=PLAN,
        bound_s=1.57,
        exchanging_s=0.5,
    )
    chart = chart_real(live_round(status, []))
    assert chart.exchange is not None
    assert (chart.exchange.start_s, chart.exchange.end_s) == (1.0, 1.5 if over else None)
    assert chart.exchange.tell().startswith("it took 0.5 s" if over else "it is under way")
    assert next(row for row in chart.rows if row.device == "a").spans[-1].kind.value == "segments"


def test_a_round_in_segments_can_be_rebuilt_and_played_as_a_chain() -> None:
    rebuilt = rebuild(finished_round(SUMMARY, "run"))
    assert rebuilt.names == ("a", "b", "c")
    assert rebuilt.scenario.size_mb == 5.0
    assert [device.link_mb_s for device in rebuilt.scenario.devices] == [5.0, 5.0, 1.25]
    coded = msgspec.structs.replace(SUMMARY, bytes=5_100_000, size=1_250_000)
    assert rebuild(finished_round(coded, "run")).scenario.size_mb == 5.0
    unknown = tuple(msgspec.structs.replace(each, link_mb_s=None) for each in DEVICES)
    with pytest.raises(DataError, match="links are not known"):
        rebuild(finished_round(msgspec.structs.replace(SUMMARY, devices=unknown), "run"))
