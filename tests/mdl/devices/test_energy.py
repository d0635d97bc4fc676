"""Meters are read as Linux writes their files; where none tells, the energy is modelled and said to be so."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from mdl.bounds import MAX_JOULES
from mdl.devices.energy import (
    BATTERY,
    BOARD,
    HOW,
    MIXED,
    MODELLED,
    PROCESSOR,
    TRAINING_W,
    Counter,
    EnergyCount,
    MeterReading,
    energy_between,
    parse_rails,
    read_battery,
    read_processor,
)
from mdl.errors import DataError

# As Raspberry Pi OS prints it: numbers of their own, EXT5V and BATT without a current.
RAILS = """ 3V7_WL_SW_A current(0)=0.01000000A
   3V3_SYS_A current(1)=0.50000000A
  VDD_CORE_A current(7)=2.00000000A
 3V7_WL_SW_V volt(8)=3.70000000V
   3V3_SYS_V volt(9)=3.30000000V
  VDD_CORE_V volt(15)=0.75000000V
     EXT5V_V volt(24)=5.09066000V
      BATT_V volt(25)=nanV
"""


def supply(root: Path, name: str, **files: object) -> Path:
    folder = root / "class/power_supply" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_text(f"{content}\n")
    return folder


def package(
    root: Path, number: str, energy_uj: object, name: str = "package-0", most: object = 262_143_328_850
) -> Path:
    folder = root / "class/powercap" / f"intel-rapl:{number}"
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", most)):
        (folder / file).write_text(f"{content}\n")
    return folder


def test_a_battery_that_discharges_tells_power(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", power_now=8_500_000, voltage_now=1)
    assert read_battery(tmp_path, 5.0) == MeterReading(BATTERY, 5.0, 8.5)
    supply(tmp_path, "BAT0", power_now=-8_500_000)
    assert read_battery(tmp_path, 6.0) == MeterReading(BATTERY, 6.0, 8.5), "some drivers tell it so"


@pytest.mark.parametrize("sign", [1, -1])
def test_or_current_times_voltage_with_either_sign(tmp_path: Path, sign: int) -> None:
    supply(
        *(tmp_path, "battery"), type="Battery", status="Discharging", current_now=sign * 500_000, voltage_now=4_000_000
    )
    reading = read_battery(tmp_path, 0.0)
    assert reading
    assert reading.watts == pytest.approx(2.0)


def test_or_the_steps_of_its_energy_where_a_driver_measures_no_power(tmp_path: Path) -> None:
    files = {"type": "Battery", "status": "Discharging", "power_now": 0}
    supply(tmp_path, "BAT0", **files, energy_now=30_000_000)
    before = read_battery(tmp_path, 0.0)
    supply(tmp_path, "BAT0", energy_now=29_990_000)  # 10 mWh less
    after = read_battery(tmp_path, 10.0)
    assert before
    assert after
    assert energy_between(before, after) == pytest.approx(36.0)
    assert energy_between(after, before) is None, "it was charged"


def test_two_batteries_are_one_meter_and_that_of_a_mouse_is_none(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", power_now=8_000_000)
    supply(tmp_path, "BAT1", type="Battery", status="Discharging", power_now=1_500_000)
    supply(tmp_path, "mouse", type="Battery", status="Discharging", scope="Device", power_now=90_000_000)
    reading = read_battery(tmp_path, 0.0)
    assert reading
    assert reading.watts == pytest.approx(9.5)


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", "Unknown", ""])
def test_a_battery_that_does_not_discharge_is_no_meter(tmp_path: Path, status: str) -> None:
    supply(tmp_path, "BAT0", type="Battery", status=status, power_now=20_000_000)
    assert read_battery(tmp_path, 0.0) is None


def test_a_battery_beside_a_charger_is_no_meter(tmp_path: Path) -> None:
    """A weak charger and the battery feed the device together."""
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", power_now=3_000_000)
    supply(tmp_path, "AC", type="Mains", online=0)
    assert read_battery(tmp_path, 0.0)
    supply(tmp_path, "AC", online=1)
    assert read_battery(tmp_path, 0.0) is None
    supply(tmp_path, "AC", online=0)
    supply(tmp_path, "BAT1", type="Battery", status="Charging", power_now=3_000_000)
    assert read_battery(tmp_path, 0.0) is None


def test_packages_are_summed_and_other_zones_are_not(tmp_path: Path) -> None:
    package(tmp_path, "0", 5_000_000)
    package(tmp_path, "1", 7_000_000, name="package-1")
    package(tmp_path, "2", 99_000_000, name="psys")
    package(tmp_path, "0:0", 3_000_000, name="core")
    before = read_processor(tmp_path, 0.0)
    package(tmp_path, "0", 15_000_000)
    package(tmp_path, "1", 8_000_000, name="package-1")
    package(tmp_path, "2", 999_000_000, name="psys")
    package(tmp_path, "0:0", 9_000_000, name="core")
    after = read_processor(tmp_path, 2.0)
    assert before
    assert after
    assert [counter.name for counter in after.counters] == ["intel-rapl:0", "intel-rapl:1"]
    assert energy_between(before, after) == pytest.approx(11.0)


def test_a_counter_of_a_package_begins_anew_at_its_range(tmp_path: Path) -> None:
    package(tmp_path, "0", 99_000_000, most=100_000_000)
    before = read_processor(tmp_path, 0.0)
    package(tmp_path, "0", 4_000_000, most=100_000_000)
    after = read_processor(tmp_path, 1.0)
    assert before
    assert after
    assert energy_between(before, after) == pytest.approx(5.0)


def test_a_counter_that_was_reset_while_the_machine_slept_tells_nothing() -> None:
    before = MeterReading(PROCESSOR, 0.0, counters=(Counter("p", 9_000_000_000, 262_143_000_000),))
    after = MeterReading(PROCESSOR, 1.0, counters=(Counter("p", 1_000_000, 262_143_000_000),))
    assert energy_between(before, after) is None


def test_packages_that_only_root_may_read_are_no_meter(tmp_path: Path) -> None:
    (package(tmp_path, "0", 5_000_000) / "energy_uj").unlink()  # as good as unreadable: tests may run as root
    assert read_processor(tmp_path, 0.0) is None


def test_a_counter_of_a_virtual_machine_that_stands_at_0_is_no_meter(tmp_path: Path) -> None:
    package(tmp_path, "0", 0)
    assert read_processor(tmp_path, 0.0) is None


def test_a_board_s_rails_are_paired_by_name_and_those_without_a_current_do_not_count() -> None:
    assert parse_rails(RAILS) == pytest.approx(0.01 * 3.7 + 0.5 * 3.3 + 2.0 * 0.75)


@pytest.mark.parametrize("text", ["", 'error=1 error_msg="Command not registered"', "EXT5V_V volt(24)=5.1V", "\0\n"])
def test_output_without_rails_is_no_meter(text: str) -> None:
    assert parse_rails(text) is None


@pytest.mark.parametrize("value", ["nanA", "-1.0A", "1e3A", "1.0V ", "999999A", "0.0A", "A", "1.0.0A"])
def test_rails_with_nonsense_are_refused(value: str) -> None:
    with pytest.raises(DataError, match="vcgencmd pmic_read_adc: "):
        parse_rails(f"VDD_A current(1)={value}\nVDD_V volt(2)=5.0V".replace("1.0V ", "1.0x"))


def test_power_between_two_readings_is_a_trapezoid() -> None:
    first, second = MeterReading(BATTERY, 10.0, 4.0), MeterReading(BATTERY, 12.0, 8.0)
    assert energy_between(first, second) == pytest.approx(12.0)
    assert energy_between(first, MeterReading(BATTERY, 60.0, 8.0)) is None, "anything may have happened"
    assert energy_between(first, MeterReading(BOARD, 12.0, 8.0)) is None
    assert energy_between(first, MeterReading(BATTERY, 12.0, counters=(Counter("b", 1),))) is None


def test_without_a_meter_the_processor_s_seconds_are_counted_and_that_is_told(tmp_path: Path) -> None:
    count = EnergyCount(tmp_path)
    count.count(0.0, 20.0)  # the time before is not mdl's training
    count.count(1.0, 21.5)
    assert (count.joules, count.source) == (pytest.approx(1.5 * TRAINING_W), MODELLED)
    assert count.tell() == "2.2 J (modelled, this process)"


def test_each_round_has_its_own_joules(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", power_now=10_000_000)
    count = EnergyCount(tmp_path)
    count.count(0.0, 0.0)
    assert count.round_joules is None
    count.count(1.0, 0.9)
    count.close_round(1.5, 1.0)
    assert (count.joules, count.round_joules) == (pytest.approx(15.0), pytest.approx(15.0))
    count.count(2.5, 2.0)
    assert count.round_joules == pytest.approx(15.0), "of the last one"
    count.close_round(3.0, 2.0)
    assert (count.joules, count.round_joules, count.source) == (pytest.approx(30.0), pytest.approx(15.0), BATTERY)


def test_a_charger_ends_the_measuring_and_both_parts_are_told(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", power_now=10_000_000)
    count = EnergyCount(tmp_path)
    count.count(0.0, 0.0)
    count.count(1.0, 1.0)
    supply(tmp_path, "BAT0", status="Charging", power_now=50_000_000)
    count.count(2.0, 1.5)
    assert (count.joules, count.source) == (pytest.approx(10.0 + 0.5 * TRAINING_W), MIXED)
    supply(tmp_path, "BAT0", status="Discharging", power_now=10_000_000)
    count.count(3.0, 2.5)  # one end alone is measured
    count.count(4.0, 3.5)
    assert count.joules == pytest.approx(20.0 + 1.5 * TRAINING_W)


def test_the_meter_that_sees_most_of_the_device_counts(tmp_path: Path) -> None:
    package(tmp_path, "0", 1_000_000)
    count = EnergyCount(tmp_path)
    count.count(0.0, 0.0)
    package(tmp_path, "0", 3_000_000)
    count.count(1.0, 0.0)
    assert (count.joules, count.source) == (pytest.approx(2.0), PROCESSOR)
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", power_now=10_000_000)
    count.count(2.0, 0.0)
    count.count(3.0, 0.0)
    assert count.joules == pytest.approx(12.0)


def test_a_board_is_waited_for_and_counts_from_its_first_answer_on(tmp_path: Path) -> None:
    answers = [MeterReading(BOARD, 0.0), MeterReading(BOARD, 1.5, 4.0), MeterReading(BOARD, 1.5, 4.0)]
    answers += [MeterReading(BOARD, 3.5, 6.0), MeterReading(BOARD, 3.5, 6.0)]
    told = iter(answers)
    count = EnergyCount(tmp_path, lambda: next(told))
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        count.count(now, now)
    assert (count.joules, count.source) == (pytest.approx(10.0), BOARD)


def test_a_board_that_has_no_meter_or_tells_no_more_is_modelled(tmp_path: Path) -> None:
    answers = iter([MeterReading(BOARD, 0.0), None, None])
    count = EnergyCount(tmp_path, lambda: next(answers))
    for now in (1.0, 2.0, 3.0):
        count.count(now, now)
    assert (count.joules, count.source) == (pytest.approx(2.0 * TRAINING_W), MODELLED)
    hung = EnergyCount(tmp_path, lambda: MeterReading(BOARD, 0.0, 5.0))
    for now in (1.0, 20.0, 40.0):
        hung.count(now, now)
    assert (hung.joules, hung.source) == (pytest.approx(39.0 * TRAINING_W), MODELLED)


@pytest.mark.parametrize("content", ["lots", "1e6", "nan", "9" * 30, "8500000 µW", "\x00", "\ud800", "1\n2", "9" * 18])
def test_a_meter_that_tells_nonsense_is_none_and_that_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    battery = supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    (battery / "power_now").write_bytes(content.encode("utf-8", "surrogatepass"))
    package(tmp_path, "0", 1_000_000)
    count = EnergyCount(tmp_path)
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 1.0, 2.0):
            count.count(now, now)
            package(tmp_path, "0", 1_000_000 + 1_000_000 * int(now + 1))
    assert len(caplog.records) == 1
    assert "power_now" in caplog.text or "BAT0" in caplog.text
    assert (count.joules, count.source) == (pytest.approx(2.0), PROCESSOR), "another meter counts still"


def test_folders_pipes_and_broken_links_are_no_meter(tmp_path: Path) -> None:
    battery = supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    (battery / "power_now").mkdir()
    (battery / "current_now").symlink_to(battery / "nowhere")
    (battery / "energy_now").symlink_to("/dev/zero")
    os.mkfifo(battery / "scope")
    (tmp_path / "class/powercap").write_text("no folder")
    count = EnergyCount(tmp_path)
    count.count(0.0, 0.0)
    count.count(1.0, 1.0)
    assert (count.joules, count.source) == (pytest.approx(TRAINING_W), MODELLED)
    assert EnergyCount(tmp_path / "none").source == MODELLED


def test_joules_stay_within_what_a_report_may_tell(tmp_path: Path) -> None:
    count = EnergyCount(tmp_path)
    count.count(0.0, 0.0)
    count.count(1.0, 1e300)
    assert count.joules == MAX_JOULES


def test_each_source_says_whether_it_was_measured_and_what_it_counts() -> None:
    assert set(HOW) == {BATTERY, BOARD, PROCESSOR, MODELLED, MIXED}
    assert HOW[BATTERY] == "measured by its battery, whole device"
    assert HOW[MODELLED] == "modelled, this process"
