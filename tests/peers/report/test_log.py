"""A run's rounds as TensorBoard reads them back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mdl.errors import ConfigError
from mdl.protocol.status_messages import DeviceRecord, RoundSummary
from peers.report.log import scalars, write_log


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
    command = [sys.executable, "-m", "peers", "log", str(_run(tmp_path)), "--to", "wandb", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    folder = Path(json.loads(done.stdout.splitlines()[-1])["folder"])
    (kept,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    written = kept.read_bytes()
    assert b"mesh/accuracy" in written
    assert b"0.875" in written


def test_what_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="has no rounds"):
        write_log(tmp_path, "tensorboard")
    monkeypatch.setattr("peers.report.log.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tensorboard is not installed: pip install 'mdl\[tensorboard\]'"):
        write_log(_run(tmp_path), "tensorboard")
