"""Where at 9:00? A device's own model is asked about a moment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mdl.data.readers.places import PlaceOptions, read_stays
from mdl.data.readers.visits import make_sequences
from mdl.errors import ConfigError, DataError
from mdl.peers.colla.files import PERSONAL, write_personal
from mdl.peers.colla.model.classroom import update_client
from mdl.peers.colla.model.distillation import DistillSettings
from mdl.peers.colla.model.model_kinds import UPDATE_MODES, RecurrentKind
from mdl.peers.use.inference import parse_moment, predict_places

DAY = 144


def _log(folder: Path, places: tuple[str, str, str] = ("home", "office", "canteen")) -> str:
    home, office, canteen = places
    rows = [
        f"{day * 86_400 + hour * 3600},{place}"
        for day in range(20)
        for hour, place in ((0, home), (9, office), (12, canteen), (13, office), (18, home))
    ]
    (folder / "ann.csv").write_text("\n".join(["time,place", *rows]) + "\n")
    return f"places:{folder / 'ann.csv'}?hole=0"


def _train(folder: Path) -> str:
    spec = _log(folder)
    log = read_stays(str(folder / "ann.csv"), PlaceOptions(hole=0))
    kind = RecurrentKind(log.places)
    x, y = (torch.from_numpy(part) for part in make_sequences(log.stays["ann"], 16))
    settings = DistillSettings(epochs=60, learning_rate=0.05, label_weight=1.0, patience=0)
    mode, generator = UPDATE_MODES["customised-whole"], torch.Generator().manual_seed(0)
    model = update_client(kind, kind.build_small(0), None, x, y, settings, mode, generator).model
    write_personal(folder, model, {"summary": kind.summary})
    return spec


def test_2_1_the_moment_that_is_asked_about_decides(tmp_path: Path) -> None:
    spec = _train(tmp_path)
    said = {at: predict_places(tmp_path, spec, at, 5)["predictions"][0] for at in ("9:00", "00:00")}
    assert {at: row["place"] for at, row in said.items()} == {"9:00": "office", "00:00": "home"}
    assert said["9:00"]["at"] == "1970-01-21 09:00"


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    spec = _train(tmp_path)
    with pytest.raises(ConfigError, match="record goes on to 1970-01-20 18:10"):
        predict_places(tmp_path, spec, "1970-01-03T09:00", 5)
    with pytest.raises(ConfigError, match="needs --data places:PATH"):
        predict_places(tmp_path, "motion", "9:00", 5)
    other = _log(tmp_path, ("flat", "shop", "park"))
    with pytest.raises(DataError, match="knows other places"):
        predict_places(tmp_path, other, "9:00", 5)
    (tmp_path / PERSONAL).write_bytes(b"garbage")
    with pytest.raises(DataError, match=PERSONAL):
        predict_places(tmp_path, spec, "9:00", 5)


def test_a_clock_is_the_first_one_after_the_record() -> None:
    assert parse_moment("9:00", 10 * DAY + 50) == 10 * DAY + 54
    assert parse_moment("9:00", 10 * DAY + 60) == 11 * DAY + 54
    assert parse_moment("1970-01-02T00:10", 0) == DAY + 1
    for wrong in ("", "25:00", "soon"):
        with pytest.raises(ConfigError, match="expected a time"):
            parse_moment(wrong, 0)
