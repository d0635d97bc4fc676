"""What the figures of MDLdroid's evaluation are made of, from what devices have told."""

import json

import pytest

from benchmarks.evaluation.lan import WARM_UP, joules_of_radio, least_seconds, round_seconds, show, summarise
from benchmarks.evaluation.rounds import Option, over_seeds, parse_option
from benchmarks.evaluation.target import judge
from benchmarks.links.places import parse_case
from benchmarks.mdldroid import Kept
from benchmarks.tool.sheet import Sheet
from mdl.devices.energy import RECEIVE_W, SEND_W


def told(ready, applied, sent, received, extra):
    cpu = [0.1 * number for number in range(len(sent))]
    return {"ready": ready, "applied": applied, "sent": sent, "received": received, "cpu": cpu, "extra_bytes": extra,
            "values": 250_000}  # fmt: skip


def two_devices():
    first = told([0, 10, 20, 30], [5, 15, 25, 36], [0, 9, 9, 5e6 + 9, 1e7 + 9], [0] * 5, [9e9, 9e9, 1e6, 2e6])
    other = told([1, 9, 21, 30], [4, 16, 24, 35], [0] * 5, [0, 0, 0, 1e6, 2e6], [0, 0, 0, 0])
    return [first, other]


def test_a_round_is_from_the_last_delta_to_the_last_result():
    assert round_seconds(two_devices()) == [4, 6, 4, 6]


def test_joules_are_bytes_at_the_rate_of_the_link():
    first, other = two_devices()
    assert joules_of_radio(first, 40.0) == pytest.approx(SEND_W * 1.0)
    assert joules_of_radio(other, 8.0) == pytest.approx(RECEIVE_W * 1.0)


def test_the_busiest_device_counts_and_warming_up_does_not():
    told = summarise(two_devices(), 40.0)
    assert told["rounds"] == 4 - WARM_UP
    assert told["round_s_median"] == 5
    assert told["radio_j_busiest"] == pytest.approx(SEND_W)
    assert told["memory_deltas_busiest"] == 2.0


def test_too_few_rounds_are_no_figure():
    with pytest.raises(RuntimeError, match="warm up"):
        summarise([told([0], [1], [0, 1], [0, 1], [0])], 40.0)


def test_a_master_takes_all_in_and_gives_to_all():
    least = least_seconds(parse_case("6x40@5"))
    assert least["master"] == pytest.approx(10.0)
    assert least["master in segments"] == pytest.approx(5.0)
    assert least["mesh"] == pytest.approx(5 / 3)


def test_loopback_has_no_bound_and_is_shown(capsys):
    case = parse_case("3@46.4")
    assert least_seconds(case) == {}
    one = summarise(two_devices(), 0.0)
    show(case, {"master": one, "mesh, chain": one, "mesh, shares": {"failed": "gone"}})
    told = capsys.readouterr().out
    assert told.startswith("3@46.4: loopback")
    assert "| mesh, shares | failed: gone |" in told


def test_the_target_is_reached_when_the_last_device_has_that_model():
    devices = [
        {"begun": [100.0, 104.0], "applied": [104.0, 108.0, 112.0], "values": 5},
        {"begun": [101.0, 105.0], "applied": [105.0, 107.0, 113.0], "values": 5},
    ]
    one = judge(devices, [0.5, 0.91, 0.89], 0.9)
    assert (one["round"], one["seconds"], one["best"], one["last"]) == (2, 8.0, 0.91, 0.89)
    assert judge(devices, [0.5, 0.6, 0.7], 0.9)["seconds"] is None


def test_options_are_written_as_in_the_paper():
    assert parse_option("10-E20") == Option(10, 20)
    assert (parse_option("10-E20").rounds, str(Option(1, 40))) == (200, "1-E40")
    for wrong in ("E20", "0-E20", "1-E0", "1-20"):
        with pytest.raises(ValueError, match="as in 1-E20"):
            parse_option(wrong)


def test_the_median_over_seeds():
    runs = [{"accuracy": accuracy, "train_s": 1.0} for accuracy in (0.9, 0.7, 0.8)]
    assert over_seeds(runs)["accuracy"] == 0.8


def test_what_was_measured_is_not_measured_again_but_what_failed_is(tmp_path):
    path = tmp_path / "out.json"

    def fail():
        raise RuntimeError("no device")

    assert Kept(Sheet("mdldroid", [], path), "lan").get("a", fail) == {"failed": "no device"}
    assert Kept(Sheet("mdldroid", [], path), "lan").get("a", lambda: {"x": 1}) == {"x": 1}
    assert Kept(Sheet("mdldroid", [], path), "lan").get("a", fail) == {"x": 1}
    assert Kept(Sheet("mdldroid", [], path), "fig3").get("a", lambda: {"x": 2}) == {"x": 2}
    assert json.loads(path.read_text())["figures"] == {"lan": {"a": {"x": 1}}, "fig3": {"a": {"x": 2}}}
