"""The snapshot says what the agent told, and a change says what changed."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mdl.peers.view import snapshot as schema
from mdl.peers.view import terminal
from mdl.peers.view.snapshot import CyclePart, Snapshot, SnapshotTaker, Told, apply_patch, merge_patch, take_snapshot
from mdl.peers.view.terminal import draw_addresses, draw_energy, draw_mesh
from mdl.protocol.counts import Fit, Labelling
from mdl.protocol.status_messages import DeviceRecord, HopSummary, MemberStatus, MeshStatus, RoundSummary
from mdl.protocol.vocabulary import Activity, PeerInfo, ResourceState, Role, Transfer

ROOT = Path(__file__).resolve().parents[3]
RESOURCES = ResourceState(1 << 30, 12.0, 80.0, True, False, temperature_c=41.5)
AGENT = PeerInfo("boss", 1, Role.AGENT, "10.0.0.1", 1)


def _member(name: str, activity: Activity = Activity.HOLDING, **given: Any) -> MemberStatus:
    return MemberStatus(name, 1, given.pop("alive", True), activity, 4, given.pop("heard_s_ago", 0.1), **given)


MEMBERS = (
    _member("ann", resources=RESOURCES, theta=1.0, loss=0.5, link_mb_s=12.0),
    _member("bob", Activity.RECEIVING, transfer=Transfer("ann", 25, 100)),
    _member("cat", alive=False, heard_s_ago=7.8),
    _member("dan", problem="its model is alexnet, the mesh's is lenet"),
    _member("eve", problem="paused: on battery"),
    _member("fay", problem="revoked: by ann"),
    _member("gil", problem="quarantined: its work points away from everybody else's"),
)
HOP = HopSummary(7, "ann", "bob", "ordered", 1.5, None, "greedy: ann is the slowest")
STATUS = MeshStatus(
    *(9, 5, 20, "aggregating, waits for cat", "greedy", MEMBERS, (HOP,)),
    agent="boss",
    devices=(DeviceRecord("ann", 1.0), DeviceRecord("bob", 1.2), DeviceRecord("cat", None, lost="silent")),
    elapsed_s=2.0,
    cuts=("ann and cat do not reach each other",),
)


def _line(number: int, **given: Any) -> RoundSummary:
    devices = (DeviceRecord("ann", 1.0, loss=0.4, accuracy=0.75), DeviceRecord("bob", 1.1))
    seconds = {"train": 1.0, "aggregate": 0.5, "total": 2.0}
    return RoundSummary(number, 2.0, ("ann", "bob"), (), seconds, 80, 0.4, 0.7, 0.6, devices=devices, **given)


TOLD = Told("home", "here", STATUS, 0.05, (_line(3), _line(4, lost=("cat",))), {"boss": AGENT}, policies=("greedy",))


def test_channels_unlike_all_others_are_shown_in_the_terminal_and_on_the_page() -> None:
    line = "ax of device ann: 9.8 times smaller than all others': in g?"
    status = msgspec.structs.replace(STATUS, unlike=(line,))
    snapshot = take_snapshot(msgspec.structs.replace(TOLD, status=status))
    assert line in snapshot.mesh.cuts
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(draw_mesh(snapshot))
    assert line in console.export_text()


def test_a_curve_says_where_the_set_of_devices_changed() -> None:
    others = msgspec.structs.replace(_line(5), contributors=("ann", "cat"))
    told = msgspec.structs.replace(TOLD, rounds=(*TOLD.rounds, others, msgspec.structs.replace(others, round=6)))
    snapshot = take_snapshot(told)
    changed = {number: point.changed for number, point in snapshot.learning.rounds.items()}
    assert changed == {"3": "", "4": "", "5": "with cat, without bob", "6": ""}
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(draw_mesh(snapshot))
    assert "from round 5 with cat, without bob" in console.export_text()


def test_each_device_is_told_with_its_state_and_why() -> None:
    devices = take_snapshot(TOLD).mesh.devices
    assert {name: each.state for name, each in devices.items()} == {
        "ann": "holding", "bob": "receiving", "boss": "waiting", "cat": "silent", "dan": "refused", "eve": "paused",
        "fay": "revoked", "gil": "quarantined",
    }  # fmt: skip
    assert devices["dan"].doing == "refused: its model is alexnet, the mesh's is lenet"
    assert devices["eve"].doing == "paused: on battery"
    assert devices["gil"].doing == "quarantined: its work points away from everybody else's"
    assert devices["cat"].silent_s == 7
    assert (devices["bob"].arrived, devices["bob"].arrives_from) == (0.25, "ann")
    ann = devices["ann"]
    assert (ann.battery_percent, ann.charging, ann.temperature_c, ann.link_mb_s) == (80.0, True, 41.5, 12.0)
    assert (devices["boss"].role, devices["boss"].leads) == ("agent", True)
    assert (devices["boss"].host, devices["boss"].port, ann.host) == ("10.0.0.1", 1, "")


def test_who_was_revoked_is_told_so_unless_a_new_device_has_its_name() -> None:
    told = msgspec.structs.replace(TOLD, revoked={"cat": "lost in the train", "hal": "", "ann": "sold"})
    devices = take_snapshot(told).mesh.devices
    assert (devices["cat"].state, devices["cat"].doing) == ("revoked", "revoked: lost in the train")
    assert (devices["hal"].state, devices["hal"].doing) == ("revoked", "revoked by an owner")
    assert devices["ann"].state == "holding"
    assert take_snapshot(msgspec.structs.replace(told, status=None)).mesh.devices["cat"].state == "revoked"


def test_the_open_round_is_a_chart_whose_last_spans_go_on() -> None:
    part = take_snapshot(TOLD).round
    assert part
    assert (part.number, part.goal, part.is_open, part.phase) == (5, 20, True, "aggregating, waits for cat")
    assert part.chart
    assert part.chart.hops["1"].reason == "greedy: ann is the slowest"
    ann = part.chart.rows["ann"]
    assert [(span.kind, span.end_s) for span in ann] == [("training", 1.0), ("waiting", 1.5), ("send", None)]


def test_between_rounds_the_last_one_is_shown() -> None:
    gathering = msgspec.structs.replace(STATUS, phase="gathering", devices=(), hops=(), round_id=4)
    part = take_snapshot(msgspec.structs.replace(TOLD, status=gathering)).round
    assert part
    assert part.chart
    assert not part.is_open
    assert all(span.end_s is not None for row in part.chart.rows.values() for span in row)


def test_while_a_round_is_open_the_one_before_is_there_too_and_is_drawn_once() -> None:
    taker = SnapshotTaker()
    part = taker.take(TOLD).round
    assert part
    assert part.before
    assert part.before.title == "finished, round 4"
    assert part.chart is not part.before
    again = taker.take(TOLD).round
    assert again
    assert again.before is part.before


def test_a_round_in_which_nothing_was_ordered_is_drawn_from_its_opening_on() -> None:
    devices = (DeviceRecord("ann", 1.9), DeviceRecord("bob", None))
    status = msgspec.structs.replace(STATUS, hops=(), devices=devices)
    part = take_snapshot(msgspec.structs.replace(TOLD, status=status)).round
    assert part
    assert part.chart
    assert part.chart.start_s == 0.0


def test_an_agent_that_is_silent_leads_no_more() -> None:
    mesh = take_snapshot(msgspec.structs.replace(TOLD, heard_s_ago=9.0)).mesh
    assert mesh.agent == ""
    assert mesh.told == "no agent was heard for 9 s; it was boss"


def test_without_a_status_who_was_found_is_told() -> None:
    told = Told("home", peers={"ann": PeerInfo("ann", 1, Role.TRAINER, "10.0.0.2", 1)})
    assert take_snapshot(told).mesh.devices["ann"].state == "found"
    assert take_snapshot(told).round is None


def test_finished_rounds_tell_what_was_learned() -> None:
    found = take_snapshot(TOLD)
    assert list(found.learning.rounds) == ["3", "4"]
    point = found.learning.rounds["4"]
    assert (point.accuracy, point.losses, point.accuracies, point.lost) == (0.7, {"ann": 0.4}, {"ann": 0.75}, ("cat",))
    assert found.schedule.rounds == (3, 4)


def test_the_confusion_is_that_of_the_last_round_that_tells_one() -> None:
    assert take_snapshot(TOLD).learning.confusion == ()
    lines = (_line(3, confusion=((1, 0), (0, 1))), _line(4, confusion=((3, 1), (0, 2))), _line(5))
    learning = take_snapshot(msgspec.structs.replace(TOLD, rounds=lines)).learning
    assert (learning.confusion, learning.confusion_round) == (((3, 1), (0, 2)), 4)


@pytest.mark.parametrize(("names", "shown"), [(("sit", "run"), ("sit", "run")), (("sit",), ()), ((), ())])
def test_names_of_classes_are_shown_where_they_are_those_of_the_confusion(
    names: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    told = msgspec.structs.replace(TOLD, rounds=(_line(3, confusion=((1, 0), (0, 1))),), classes=names)
    assert take_snapshot(told).learning.classes == shown


def test_cycles_of_a_cloud_are_told_by_version() -> None:
    cycles = {1: CyclePart(), 2: CyclePart({"0": ("ann",)}, {"ann": 0.9}, ("bob",), 3.0)}
    cloud = take_snapshot(msgspec.structs.replace(TOLD, cycles=cycles)).cloud
    assert cloud
    assert (cloud.version, cloud.cycles["2"].groups) == (2, {"0": ("ann",)})


def test_a_change_names_what_changed_and_nothing_else() -> None:
    taker = SnapshotTaker()
    before = taker.take(TOLD)
    assert merge_patch(before, taker.take(TOLD)) == {}
    told = msgspec.structs.replace(
        TOLD, status=msgspec.structs.replace(STATUS, members=(MEMBERS[0],)), rounds=(_line(4),)
    )
    gone = dict.fromkeys(("bob", "cat", "dan", "eve", "fay", "gil"))
    change = merge_patch(before, taker.take(told))
    assert change["mesh"] == {"devices": gone}
    assert change["learning"]["rounds"].keys() == {"3", "4"}


def test_rounds_that_are_over_are_made_once() -> None:
    taker = SnapshotTaker()
    first, second = taker.take(TOLD), taker.take(TOLD)
    assert first.learning.rounds["3"] is second.learning.rounds["3"]


_VALUES = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 1), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(st.sampled_from("abcd"), _VALUES, max_size=4)


@given(_OBJECTS, _OBJECTS)
def test_a_change_makes_what_was_into_what_is(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert apply_patch(before, merge_patch(before, after)) == after


@given(_OBJECTS)
def test_no_change_is_empty(value: dict[str, Any]) -> None:
    assert merge_patch(value, msgspec.json.decode(msgspec.json.encode(value))) == {}


def test_changes_of_snapshots_lead_from_one_to_the_other() -> None:
    taker = SnapshotTaker()
    moments = [
        Told("home"),
        TOLD,
        msgspec.structs.replace(TOLD, heard_s_ago=5.0, cycles={1: CyclePart()}),
        msgspec.structs.replace(TOLD, status=None, rounds=()),
    ]
    before: Any = {}
    shown: Any = {}
    for told in moments:
        after = taker.take(told)
        shown, before = apply_patch(shown, merge_patch(before, after)), after
        assert shown == _without_none(_plain(after))


def _plain(found: Snapshot) -> Any:
    return msgspec.to_builtins(found)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return value


def test_the_status_is_drawn_with_every_device() -> None:
    console = Console(width=150, file=io.StringIO())
    with console.capture() as capture:
        console.print(draw_mesh(take_snapshot(TOLD), TOLD.rounds))
    text = capture.get()
    assert "round 5 of 20" in text
    assert "led by boss" in text
    assert "refused: its model" in text
    assert "greedy: ann is the slowest" in text
    assert "receiving 25% from ann" in text


STRUCTS = [
    kind
    for kind in vars(schema).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == schema.__name__
]


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_field_is_described_where_it_stands(kind: type[msgspec.Struct]) -> None:
    """The pages, the metrics and the terminal take the descriptions from there (docs/reference.py)."""
    assert tuple(re.findall(r"^    (\w+): \S", kind.__doc__ or "", re.MULTILINE)) == kind.__struct_fields__


def test_a_field_of_a_device_is_shown_by_what_stands_beside_it() -> None:
    assert set(schema.SHOWN) <= set(schema.DevicePart.__struct_fields__)
    assert all(how.form in terminal._FORMS for how in schema.SHOWN.values() if how.column)
    page = (ROOT / "peers/web/page/views.js").read_text()
    forms = re.search(r"^const FORMS = \{(.*)\};$", page, re.MULTILINE)
    assert forms
    assert {how.form for how in schema.SHOWN.values() if how.fact} <= set(re.findall(r"(\w+)(?=[:,])", forms[1]))


def test_numbers_and_labels_are_told_by_their_own_measures() -> None:
    last = TOLD.rounds[-1]
    plain = msgspec.structs.replace(last, accuracy=None, macro_f1=None, confusion=())
    of_numbers = msgspec.structs.replace(plain, fits=(Fit(5.5, 4.0, 0.75), Fit(1.0, 1.0, None)))
    told = msgspec.structs.replace(TOLD, rounds=(of_numbers,), classes=("pulse", "power"))
    learning = take_snapshot(told).learning
    point = learning.rounds[str(last.round)]
    assert (learning.targets, learning.measure, learning.classes) == ("numbers", "R²", ("pulse", "power"))
    assert (point.accuracy, point.score, point.fits[0].rmse, point.fits[1].r2) == (None, 0.75, 5.5, None)
    of_labels = msgspec.structs.replace(plain, labelling=Labelling(0.8, 0.5), macro_f1=0.7)
    learning = take_snapshot(msgspec.structs.replace(told, rounds=(of_labels,))).learning
    point = learning.rounds[str(last.round)]
    assert (learning.measure, point.score, point.macro_f1) == ("micro F1", 0.8, 0.7)
    assert point.labelling
    assert point.labelling.exact == 0.5


def test_classes_are_scored_by_their_accuracy() -> None:
    learning = take_snapshot(TOLD).learning
    assert (learning.targets, learning.measure) == ("classes", "accuracy")
    assert all(point.score == point.accuracy and point.scores == point.accuracies for point in learning.rounds.values())


def test_one_view_has_the_hops_the_rounds_and_where_each_device_is() -> None:
    console = Console(width=150, file=io.StringIO())
    with console.capture() as capture:
        console.print(draw_mesh(take_snapshot(TOLD), TOLD.rounds, "Ctrl-C ends"), draw_addresses(take_snapshot(TOLD)))
    text = capture.get()
    assert "led by boss by greedy: aggregating, waits for cat" in text
    assert "hops of this round\nann → bob  ordered  greedy: ann is the slowest\nround   3" in text
    assert "without: cat" in text
    assert "Ctrl-C ends" in text
    assert re.search(r"boss +agent +10\.0\.0\.1:1", text)


def test_a_device_in_its_own_line_of_the_view_fits_eighty_columns() -> None:
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(draw_mesh(take_snapshot(TOLD)))
    [head] = [line for line in capture.get().splitlines() if line.startswith("device")]
    assert head.split() == ["device", "doing", "round", "theta", "loss", "cpu", "free", "MB/s", "gave", "battery"]


def test_an_agent_that_stands_by_is_told_too() -> None:
    told = Told("home", peers={"boss": AGENT})
    assert take_snapshot(told).mesh.devices["boss"].state == "found"


def test_energy_is_told_with_its_source_for_devices_that_tell_it() -> None:
    given = {
        "ann": ResourceState(1, 1.0, energy_j=412.25, round_energy_j=3.5, energy_from="modelled"),
        "bob": ResourceState(1, 1.0, energy_j=51_234.0, energy_from="battery"),
        "cat": ResourceState(1, 1.0, energy_j=1.0, energy_from="sun"),
        "dan": RESOURCES,
    }
    members = tuple(_member(name, resources=resources) for name, resources in given.items())
    snapshot = take_snapshot(msgspec.structs.replace(TOLD, status=msgspec.structs.replace(STATUS, members=members)))
    ann = msgspec.to_builtins(snapshot)["mesh"]["devices"]["ann"]
    assert (ann["energy_j"], ann["round_energy_j"], ann["energy_from"]) == (412.25, 3.5, "modelled")
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(draw_energy(snapshot))
    assert [re.split(r"  +", line.rstrip()) for line in capture.get().splitlines()] == [
        ["ann", "3.5 J in its last round", "412.2 J since it started", "modelled, this process"],
        ["bob", "51.2 kJ since it started", "measured by its battery, whole device"],
        ["cat", "1.0 J since it started", "sun"],
    ], "a later version may have another source"
