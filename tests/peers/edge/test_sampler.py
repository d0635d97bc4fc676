"""What a device tells about itself: how fast it merges is measured at the merge, not guessed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from mdl.config import BusySection, DeviceSection
from mdl.devices.energy import TRAINING_W
from mdl.errors import ConfigError
from mdl.peers.edge.sampler import BatteryBudget, MergeTimer, Sampler
from mdl.protocol.delta import Contributor, PartialSum, pair_aggregate
from mdl.protocol.vocabulary import ResourceState
from mdl.scheduler.policies.device_book import is_busy
from mdl.transport.links.sockets import LinkCounts


def _delta(name: str, value: float) -> PartialSum:
    return PartialSum(np.full(1000, value, np.int32), 1.0, frozenset([Contributor(name, 1)]))


def test_a_timed_merge_is_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([10.0, 10.5, 20.0, 21.5])
    monkeypatch.setattr("mdl.peers.edge.sampler.time.perf_counter", lambda: next(times_s))
    timer, mine, theirs = MergeTimer(), _delta("a", 1.0), _delta("b", 3.0)
    assert timer.rate_mb_s() is None
    merged, plain = timer(mine, theirs), pair_aggregate(mine, theirs)
    assert (merged.theta, merged.contributors) == (plain.theta, plain.contributors)
    assert (merged.values == plain.values).all()
    assert timer.rate_mb_s() == pytest.approx(0.004 / 0.5)
    assert timer.rate_mb_s() == pytest.approx(0.004 / 0.5), "as before: nothing has been merged since"
    timer(mine, theirs)
    assert timer.rate_mb_s() == pytest.approx(0.004 / 1.5)


def test_resources_tell_the_speed_of_the_last_merges() -> None:
    timer = MergeTimer()
    sampler = Sampler(merges=timer)
    assert sampler(LinkCounts()).resources.merge_mb_s is None
    timer(_delta("a", 1.0), _delta("b", 3.0))
    assert sampler(LinkCounts()).resources.merge_mb_s == timer.rate_mb_s() is not None
    assert Sampler()(LinkCounts()).resources.merge_mb_s is None


class Sensor(NamedTuple):
    current: float


def test_the_warmest_sensor_is_told_and_one_that_is_broken_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tell() -> dict[str, list[Sensor]]:
        asked.append(1)
        return {"board": [Sensor(41.26), Sensor(65_261.0)], "disk": [Sensor(-273.1), Sensor(38.0)]}

    monkeypatch.setattr("mdl.peers.edge.sampler.psutil.sensors_temperatures", tell, raising=False)
    sampler = Sampler()
    assert [sampler(LinkCounts()).resources.temperature_c for _ in range(11)] == [41.3] * 11
    assert len(asked) == 2, "some take milliseconds: not at every look"
    monkeypatch.setattr("mdl.peers.edge.sampler.psutil.sensors_temperatures", dict, raising=False)
    assert Sampler()(LinkCounts()).resources.temperature_c is None


def test_what_the_system_does_not_tell_is_as_it_was_the_last_time_and_all_else_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look opens files, and strangers can use up a process's descriptors; phones close some for good."""

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    told, untold = Sampler(), Sampler()
    before = told(LinkCounts(1))
    monkeypatch.setattr("mdl.peers.edge.sampler.psutil.virtual_memory", refuse)
    monkeypatch.setattr(
        "mdl.peers.edge.sampler.psutil.sensors_temperatures",
        lambda: {"t": [SimpleNamespace(current=41.3)]},
        raising=False,
    )
    monkeypatch.setattr("mdl.peers.edge.sampler._LOOKS_A_TEMPERATURE", 1)
    after = told(LinkCounts(2, ways_s={"b": 0.6})).resources
    assert (after.free_memory_bytes, after.temperature_c) == (before.resources.free_memory_bytes, 41.3)
    assert told(LinkCounts(2, ways_s={"b": 0.6})).sent_bytes == 2
    assert told(LinkCounts(2, ways_s={"b": 0.6})).ways_s == {"b": 0.6}
    assert untold(LinkCounts()).resources.free_memory_bytes == 0, "so it is given no more than it must have"


def test_eq_4_what_is_left_of_the_memory_that_is_offered_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        rss = 300_000_000

        def memory_info(self) -> Process:
            return self

        def cpu_percent(self, _: None) -> float:
            return 0.0

    monkeypatch.setattr("mdl.peers.edge.sampler.psutil.Process", Process)
    sampler = Sampler(DeviceSection(max_memory_mb=350.0))
    resources = sampler(LinkCounts()).resources
    assert resources.memory_left_bytes == 50_000_000
    assert resources.may_take(50_000_000)
    assert not resources.may_take(50_000_001)
    assert Sampler()(LinkCounts()).resources.memory_left_bytes is None
    sampler.check_offer(50_000_000)
    with pytest.raises(ConfigError, match=r"--max-memory 350: mdl takes 300 MB .* 60.0 MB; offer at least 361"):
        sampler.check_offer(60_000_000)


def test_eq_4_a_battery_share_is_used_while_the_device_discharges() -> None:
    budget = BatteryBudget(10.0)
    assert budget.count(80.0, charging=False) == 10.0
    assert budget.count(76.0, charging=False) == 6.0
    assert budget.count(79.0, charging=True) == 6.0
    assert budget.count(78.0, charging=False) == 5.0
    assert budget.count(60.0, charging=False) == 0.0
    assert BatteryBudget(100.0).count(50.0, charging=False) is None
    assert budget.count(None, charging=False) is None


def test_eq_4_who_has_used_its_share_is_busy_and_receives_nothing() -> None:
    spent = ResourceState(1 << 30, 5.0, 60.0, False, battery_left_percent=0.0)
    assert is_busy(spent, BusySection())
    assert not spent.may_take(0)
    assert not is_busy(msgspec.structs.replace(spent, battery_left_percent=0.5), BusySection())


def test_energy_is_modelled_from_the_processor_s_time_and_each_round_has_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken_s = [50.0]
    monkeypatch.setattr("mdl.peers.edge.sampler._SYSFS", tmp_path)
    monkeypatch.setattr("mdl.peers.edge.sampler.find_board", lambda: lambda: None)
    monkeypatch.setattr("mdl.peers.edge.sampler.time.process_time", lambda: taken_s[0])
    sampler = Sampler()
    first = sampler(LinkCounts()).resources
    assert (first.energy_j, first.round_energy_j, first.energy_from) == (0.0, None, "modelled")
    taken_s[0] = 52.0
    sampler.close_round()
    taken_s[0] = 53.0
    second = sampler(LinkCounts()).resources
    assert (second.energy_j, second.round_energy_j) == (3.0 * TRAINING_W, 2.0 * TRAINING_W)
    assert sampler.tell_energy() == f"{3.0 * TRAINING_W:.1f} J (modelled, this process)"


def test_energy_is_that_of_the_battery_while_it_discharges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]
    monkeypatch.setattr("mdl.peers.edge.sampler._SYSFS", tmp_path)
    monkeypatch.setattr("mdl.peers.edge.sampler.time.monotonic", lambda: now[0])
    battery = tmp_path / "class/power_supply/BAT0"
    battery.mkdir(parents=True)
    for name, content in (("type", "Battery"), ("status", "Discharging"), ("power_now", "7000000")):
        (battery / name).write_text(f"{content}\n")
    sampler = Sampler()
    sampler(LinkCounts())
    now[0] = 2.0
    resources = sampler(LinkCounts()).resources
    assert (resources.energy_j, resources.energy_from) == (pytest.approx(14.0), "battery")
