"""What hops teach about devices: a hop runs at the speed of its slower end; energy is modelled."""

from __future__ import annotations

import pytest

from mdl.config import BusySection
from mdl.devices.usage import UsageKind
from mdl.errors import ConfigError
from mdl.protocol.vocabulary import ResourceState
from mdl.scheduler.policies.device_book import DeviceBook, is_busy, learn_from_hop

MB = 1_000_000


def test_the_first_hop_shows_both_links() -> None:
    sender, receiver = DeviceBook(), DeviceBook()
    learn_from_hop(sender, receiver, 10 * MB, 2.0)
    assert (sender.link_mb_s, receiver.link_mb_s) == (5.0, 5.0)


def test_a_slow_partner_does_not_make_a_fast_device_look_slow() -> None:
    slow, fast = DeviceBook(link_mb_s=1.0), DeviceBook(link_mb_s=50.0)
    learn_from_hop(slow, fast, 10 * MB, 10.0)
    assert (slow.link_mb_s, fast.link_mb_s) == (1.0, 50.0)


def test_a_hop_that_is_faster_than_known_is_believed_at_once() -> None:
    sender, receiver = DeviceBook(link_mb_s=1.0), DeviceBook(link_mb_s=2.0)
    learn_from_hop(sender, receiver, 10 * MB, 1.0)
    assert (sender.link_mb_s, receiver.link_mb_s) == (10.0, 10.0)


def test_a_slower_hop_moves_the_estimate_by_a_part() -> None:
    sender, receiver = DeviceBook(link_mb_s=10.0), DeviceBook(link_mb_s=20.0)
    learn_from_hop(sender, receiver, 10 * MB, 2.0)
    assert sender.link_mb_s == pytest.approx(10.0 - 0.3 * 5.0)
    assert receiver.link_mb_s == 20.0


@pytest.mark.parametrize(
    ("busy_s", "kind"),
    [
        ([], UsageKind.IDLE),
        ([0.3, 0.5, 0.4], UsageKind.SYNC),
        ([2.0, 3.0, 1.5], UsageKind.INTERACTIVE),
        ([8.0, 12.0], UsageKind.CALL),
        ([0.3, 9.0, 0.4], UsageKind.BIMODAL),
    ],
)
def test_busy_periods_tell_how_a_device_is_used(busy_s: list[float], kind: UsageKind) -> None:
    book, now = DeviceBook(), 0.0
    for length_s in busy_s:
        book.note_use(True, now)
        book.note_use(True, now + length_s / 2)
        now += length_s
        book.note_use(False, now)
        now += 5.0
    assert book.kind(now) is kind


def test_a_device_that_is_busy_for_long_is_in_a_call() -> None:
    book = DeviceBook()
    book.note_use(True, 10.0)
    assert book.busy_for_s(17.0) == 7.0
    assert book.kind(10.5) is UsageKind.SYNC
    assert book.kind(17.0) is UsageKind.CALL


@pytest.mark.parametrize(
    ("resources", "busy"),
    [
        (ResourceState(1 << 30, 50.0), False),
        (ResourceState(1 << 30, 50.0, in_use=True), True),
        (ResourceState(1 << 30, 95.0), True),
        (ResourceState(1 << 20, 50.0), True),
        (ResourceState(1 << 30, 50.0, 3.0, False), True),
        (ResourceState(1 << 30, 50.0, 3.0, True), False),
        (ResourceState(1 << 30, 50.0, 80.0, False, False), False),
    ],
)
def test_3_3_1_any_short_resource_makes_a_device_busy(resources: ResourceState, busy: bool) -> None:
    assert is_busy(resources, BusySection()) is busy


def test_limits_say_what_counts_as_busy() -> None:
    lenient = BusySection(in_use=False, cpu_percent=100.0, battery_percent=0.0, free_memory_mb=0.0)
    assert not is_busy(ResourceState(0, 100.0, 0.5, False, True), lenient)
    with pytest.raises(ConfigError, match=r"busy\.cpu_percent is 0"):
        BusySection(cpu_percent=0)


def test_energy_is_modelled_1_w_to_send_and_0_8_w_to_receive() -> None:
    sender, receiver = DeviceBook(), DeviceBook()
    learn_from_hop(sender, receiver, MB, 10.0)
    assert (sender.energy_j, receiver.energy_j) == (10.0, 8.0)


def test_a_receiver_that_is_known_to_merge_slowly_spends_energy_on_it() -> None:
    sender, receiver = DeviceBook(), DeviceBook(merge_mb_s=2.0)
    learn_from_hop(sender, receiver, 10 * MB, 10.0)
    assert receiver.energy_j == pytest.approx(8.0 + 1.5 * 5.0)


def test_a_faster_merge_is_believed_at_once_and_a_slower_one_in_part() -> None:
    book = DeviceBook()
    for told_mb_s, known_mb_s in ((None, None), (100.0, 100.0), (200.0, 200.0), (100.0, 170.0), (100.0, 170.0)):
        book.learn_merge(told_mb_s)
        assert book.merge_mb_s == known_mb_s


@pytest.mark.parametrize("told_mb_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_merge_speed_that_cannot_be_teaches_nothing(told_mb_s: float) -> None:
    book = DeviceBook()
    book.learn_merge(told_mb_s)
    assert book.merge_mb_s is None


@pytest.mark.parametrize(("size_bytes", "seconds"), [(0, 1.0), (MB, 0.0), (MB, -1.0)])
def test_a_hop_without_size_or_time_teaches_nothing(size_bytes: int, seconds: float) -> None:
    sender, receiver = DeviceBook(), DeviceBook()
    learn_from_hop(sender, receiver, size_bytes, seconds)
    assert (sender, receiver) == (DeviceBook(), DeviceBook())
