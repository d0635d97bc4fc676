"""A model card says what the model is and how well it does, and nothing of who trained it where."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from torch import nn

from mdl.files.export import ModelDescription, export_model
from mdl.peers.view.report import CARD, Described, _draw, make_card, report_on
from mdl.protocol.status_messages import RoundSummary

TOLD = Described(
    "lenet", 3, 128, ("sit", "walk|run"), "csv:/home/anna/gait/*.csv?label=activity", 7, ("ax", "ay", "az"), 50.0
)


def _round(number: int, accuracy: float | None = 0.75) -> RoundSummary:
    confusion = ((30, 10), (15, 45)) if accuracy is not None else ()
    return RoundSummary(
        number, 2.0, ("annas-phone", "bobs-watch"), (), {}, 0, 0.5, accuracy, 0.74 if accuracy is not None else None,
        confusion=confusion,
    )  # fmt: skip


def test_it_says_what_goes_in_what_comes_out_and_how_good_each_class_is() -> None:
    card = make_card(TOLD, [_round(6, 0.1), _round(7)], 574_888, "global.safetensors")
    assert card.startswith("# lenet: 2 classes\n")
    for line in (
        "| goes in | windows of 128 samples in 3 channels, 50 samples a second (ax, ay, az) |",
        "| comes out | sit, walk\\|run |",
        "| file | 0.57 MB, safetensors |",
        "- 7 rounds",
        "- 2 devices in each round",
        "accuracy 75.0%, macro F1 0.740",
        "| sit | 40 | 75.0% | 66.7% |",
        "| walk\\|run | 60 | 75.0% | 81.8% |",
        "    mdl predict global.safetensors recording.csv",
    ):
        assert line in card.splitlines(), line


def test_it_says_what_a_device_weighed() -> None:
    same, windows = _round(7), msgspec.structs.replace(_round(7), theta=2340.0)
    assert "- each device weighed the same, however many windows it holds" in make_card(TOLD, [same], 1, "m")
    assert "- a device weighed as many windows as it holds, 2,340 in all" in make_card(TOLD, [windows], 1, "m")


def test_it_names_no_device_no_person_and_no_path() -> None:
    own = msgspec.structs.replace(TOLD, model="annas_models:make")
    for told in (TOLD, own, msgspec.structs.replace(TOLD, data="annas_recordings:read?who=bob")):
        card = make_card(told, [_round(7)], 1000, "global.safetensors")
        assert not {word for word in ("anna", "bob", "gait", "home") if word in card.lower()}
    assert "| data | recordings of the devices' owners (csv) |" in make_card(TOLD, [], 1, "m.safetensors")
    assert "| data | `motion` |" in make_card(msgspec.structs.replace(TOLD, data="motion"), [], 1, "m.safetensors")


def test_what_was_not_tested_is_not_claimed() -> None:
    for rounds in ([], [_round(6)], [_round(7, None)]):
        card = make_card(TOLD, rounds, 1000, "global.safetensors")
        assert "Not tested" in card
        assert "accuracy " not in card.replace("an accuracy of this round", "")
    assert "batch norms are those of one device" in make_card(
        msgspec.structs.replace(TOLD, own_batch_norm=True), [], 1, "m"
    )


def _run(out: Path) -> Path:
    described = ModelDescription("lenet", 3, 128, ("sit", "walk"), "motion", round_id=7)
    export_model(out / "global.safetensors", nn.Linear(2, 2), described)
    (out / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(_round(number)) + b"\n" for number in (6, 7)))
    return out


def test_a_run_directory_gets_its_card_and_one_line_says_how_to_have_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdl.peers.view.report.find_spec", lambda name: None)
    lines = report_on(_run(tmp_path))
    assert lines[1:] == ["no pictures of the run: pip install 'mdl[plot]' has them drawn"]
    assert "accuracy 75.0%" in (tmp_path / CARD).read_text()
    assert not (tmp_path / "pictures").exists()


def test_pictures_are_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = report_on(_run(tmp_path))
    assert lines[1:] == [f"pictures of the run are in {tmp_path / 'pictures'}"]
    for name in ("learning.png", "confusion.png"):
        picture = (tmp_path / "pictures" / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 5_000
    assert (tmp_path / "pictures" / "round.svg").read_text().startswith("<svg")


def test_nothing_of_it_makes_a_run_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report_on(tmp_path)[0].startswith("no model card: ")
    (tmp_path / "global.safetensors").write_bytes(b"torn")
    assert report_on(tmp_path)[0].startswith("no model card: ")
    monkeypatch.setattr("mdl.peers.view.report.find_spec", lambda name: object())
    assert _draw(tmp_path, ("sh", "-c", "echo out of paint >&2; exit 3")) == "no pictures of the run: out of paint"
    assert _draw(tmp_path, ("/no/such/program",)) == "no pictures of the run: FileNotFoundError"
