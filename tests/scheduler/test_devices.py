"""What hops teach about devices: a hop runs at the speed of its slower end; energy is modelled."""

from __future__ import annotations

import pytest

from scheduler.devices import DeviceBook, learn_from_hop

MB = 1_000_000


def test_the_first_hop_shows_both_links() -> None:
    sender, receiver = DeviceBook(), DeviceBook()
    learn_from_hop(sender, receiver, 10 * MB, 2.0)
    assert (sender.link_mb_s, receiver.link_mb_s) == (5.0, 5.0)


def test_a_slow_partner_does_not_make_a_fast_device_look_slow() -> None:
    slow, fast = DeviceBook(link_mb_s=1.0), DeviceBook(link_mb_s=50.0)
    learn_from_hop(slow, fast, 10 * MB, 10.0)
    assert (slow.link_mb_s, fast.link_mb_s) == (1.0, 50.0)


def test_a_faster_hop_than_known_raises_both_estimates() -> None:
    sender, receiver = DeviceBook(link_mb_s=1.0), DeviceBook(link_mb_s=2.0)
    learn_from_hop(sender, receiver, 10 * MB, 1.0)
    assert sender.link_mb_s == pytest.approx(1.0 + 0.3 * 9.0)
    assert receiver.link_mb_s == pytest.approx(2.0 + 0.3 * 8.0)


def test_energy_is_modelled_1_w_to_send_and_0_8_w_to_receive() -> None:
    sender, receiver = DeviceBook(), DeviceBook()
    learn_from_hop(sender, receiver, MB, 10.0)
    assert (sender.energy_j, receiver.energy_j) == (10.0, 8.0)


@pytest.mark.parametrize(("size_bytes", "seconds"), [(0, 1.0), (MB, 0.0), (MB, -1.0)])
def test_a_hop_without_size_or_time_teaches_nothing(size_bytes: int, seconds: float) -> None:
    sender, receiver = DeviceBook(), DeviceBook()
    learn_from_hop(sender, receiver, size_bytes, seconds)
    assert (sender, receiver) == (DeviceBook(), DeviceBook())
