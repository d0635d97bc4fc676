"""A run's rounds as TensorBoard reads them back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mdl.errors import ConfigError
from mdl.peers.view.report import follow_log, scalars, write_log
from mdl.protocol.status_messages import DeviceRecord, RoundSummary


def _round(number: int, accuracy: float | None) -> RoundSummary:
    devices = (DeviceRecord("p1", loss=0.5, accuracy=accuracy), DeviceRecord("p2"))
    seconds = {"train": 0.25, "total": 1.5}
    return RoundSummary(number, 2.0, ("p1", "p2"), (), seconds, 1024, 0.5 / number, accuracy, accuracy, devices=devices)


def _run(out: Path) -> Path:
    rounds = [_round(1, None), _round(2, 0.75), _round(3, 0.875)]
    (out / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rounds))
    return out


def test_what_is_not_known_is_no_point_of_a_curve() -> None:
    (number, values), (_, later) = scalars([_round(1, None), _round(2, 0.75)])
    assert number == 1
    assert values == {
        "mesh/loss": 0.5, "mesh/contributors": 2.0, "mesh/bytes": 1024.0, "seconds/train": 0.25,
        "seconds/total": 1.5, "device/p1/loss": 0.5,
    }  # fmt: skip
    assert later["device/p1/accuracy"] == later["mesh/accuracy"] == 0.75
    assert not [name for name in later if "p2" in name]


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = write_log(_run(tmp_path), "tensorboard")
    assert folder == tmp_path / "tensorboard"
    found = reading.EventAccumulator(str(folder))
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("mesh/accuracy")] == [(2, 0.75), (3, 0.875)]
    assert [each.step for each in found.Scalars("mesh/loss")] == [1, 2, 3]
    assert {"device/p1/loss", "seconds/total"} <= set(found.Tags()["scalars"])
    with pytest.raises(ConfigError, match="is not empty: curves of two runs would be one"):
        write_log(tmp_path, "tensorboard")


def test_wandb_keeps_the_run_for_itself(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    command = [sys.executable, "-m", "mdl", "log", str(_run(tmp_path)), "--to", "wandb", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    folder = Path(json.loads(done.stdout.splitlines()[-1])["folder"])
    (kept,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    written = kept.read_bytes()
    assert b"mesh/accuracy" in written
    assert b"0.875" in written


class Play:
    """A run that writes a round whenever nobody looks; `seen` is what TensorBoard reads back at these moments."""

    def __init__(self, out: Path) -> None:
        self.out, self.number, self.seen = out, 0, []
        self.agents = [out / "peer-1" / "metrics.jsonl", out / "agent" / "metrics.jsonl"]
        for path in self.agents:
            path.parent.mkdir()

    def begin(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> None:
        reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        found = reading.EventAccumulator(str(self.folder))
        found.Reload()
        self.seen.append([each.step for each in found.Scalars("mesh/loss")] if self.number else [])
        self.number += 1
        with self.agents[self.number // 3].open("ab") as file:  # the third is led by another device
            file.write(msgspec.json.encode(_round(self.number, 0.5)) + b"\n")
        if self.number == 4:
            (self.out / "result.json").write_text("{}")


def test_rounds_are_written_while_the_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    play = Play(tmp_path)
    assert follow_log(tmp_path, "tensorboard", None, play.begin, play) == 4
    assert play.folder == tmp_path / "tensorboard"
    assert play.seen == [[], [1], [1, 2], [1, 2, 3]]


def test_ctrl_c_ends_it_with_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def stop() -> None:
        raise KeyboardInterrupt

    assert follow_log(_run(tmp_path), "tensorboard", None, lambda folder: None, stop) == 3
    with pytest.raises(ConfigError, match="gone: no such directory"):
        follow_log(tmp_path / "gone", "tensorboard", None, lambda folder: None, stop)


def test_wandb_follows_a_run_that_has_ended(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    (_run(tmp_path) / "result.json").write_text("{}")
    command = [sys.executable, "-m", "mdl", "log", str(tmp_path), "--to", "wandb", "--follow", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["rounds"] == 3
    (kept,) = Path(told["folder"]).glob("wandb/offline-run-*/run-*.wandb")
    assert b"mesh/accuracy" in kept.read_bytes()


def test_what_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="has no rounds"):
        write_log(tmp_path, "tensorboard")
    monkeypatch.setattr("mdl.peers.view.report.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tensorboard is not installed: pip install 'mdl\[tensorboard\]'"):
        write_log(_run(tmp_path), "tensorboard")
