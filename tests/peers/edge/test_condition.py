"""When the resource condition of a mesh is another than the record (3.3.3), and when it only wavers."""

from __future__ import annotations

import msgspec
import pytest

from mdl.peers.edge.relearner import ConditionBook, DeviceCondition, MeshCondition, find_changes
from mdl.protocol.vocabulary import ResourceState

USUAL = ResourceState(2_000_000_000, 20.0, 80.0, False)


def settled(resources: ResourceState = USUAL, busy: bool = False, link: float = 10.0, name: str = "b") -> MeshCondition:
    """What is known after a minute of such reports and some rounds."""
    book = ConditionBook()
    for _ in range(3):
        book.close_round({"a": 10.0, name: link})
    for _ in range(120):
        book.hear(name, resources, busy)
    return book.now()


def test_3_3_3_a_mesh_that_is_as_it_was_has_no_changes() -> None:
    assert find_changes(settled(), settled()) == []
    wavers = msgspec.structs.replace(USUAL, free_memory_bytes=1_200_000_000, cpu_percent=40.0, battery_percent=60.0)
    assert find_changes(settled(), settled(wavers, link=19.0)) == []


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (settled(msgspec.structs.replace(USUAL, battery_percent=20.0)), "b: battery 20 % (was 80 %)"),
        (settled(msgspec.structs.replace(USUAL, charging=True)), "b: charging 100 % (was 0 %)"),
        (settled(busy=True), "b: busy 100 % (was 0 %)"),
        (settled(msgspec.structs.replace(USUAL, free_memory_bytes=400_000_000)), "b: memory 400 MB (was 2000)"),
        (settled(msgspec.structs.replace(USUAL, cpu_percent=90.0)), "b: processor 90 % (was 20 %)"),
        (settled(link=4.0), "b: link 4 MB/s (was 10)"),
    ],
    ids=lambda value: value.split()[1] if isinstance(value, str) else "",
)
def test_3_3_3_each_of_the_five_resources_and_the_link_can_differ(now: MeshCondition, told: str) -> None:
    assert find_changes(settled(), now) == [told]


def test_3_3_3_other_devices_are_another_mesh() -> None:
    assert find_changes(settled(), settled(name="c")) == ["b is gone", "c is new"]


def test_one_report_is_no_change() -> None:
    book = ConditionBook()
    book.close_round({"b": 10.0})
    for _ in range(120):
        book.hear("b", USUAL, False)
    record = book.now()
    book.hear("b", ResourceState(1_000_000, 100.0, 1.0, True), True)
    assert find_changes(record, book.now()) == []


def test_what_is_not_known_is_no_change() -> None:
    known, nothing = {"a": settled()["b"]}, {"a": DeviceCondition()}
    assert find_changes(known, nothing) == find_changes(nothing, known) == []
    book = ConditionBook()
    book.close_round({"a": 1.0})
    assert book.now() == nothing  # one round tells no link


def test_a_device_beyond_those_that_are_remembered_has_no_figures() -> None:
    """The record may name one that this book has no room for: its report must not end the node."""
    assert ConditionBook().device("p257") == DeviceCondition()
