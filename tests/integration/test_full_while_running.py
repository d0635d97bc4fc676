"""A disk that fills while a mesh trains on it: the run ends with one line, and what was trained is kept elsewhere."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from mdl.files.export import import_model
from tests.integration import product

# Room for the file caches of two devices and some rounds, and quickly filled.
DISK = "size=8m"
FAILED, INTERRUPTED = 4, 130


@pytest.fixture
def disk(tmp_path):
    """A folder on a small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", folder], check=False).returncode:
        pytest.skip("a disk that fills needs root, and leave to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def home(tmp_path, tmp_path_factory):
    home = product.Home(tmp_path / "home", tmp_path_factory.getbasetemp() / "cache")
    yield home
    home.close()


def fill(folder):
    """To the last byte, again: what was being written leaves room when it is given up."""
    with (folder / "filler").open("ab", buffering=0) as filler:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                for _ in range(1 << 17):
                    filler.write(bytes(size))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["its last round", "Ctrl-C"])
def test_a_disk_that_fills_is_one_line_and_the_model_is_saved_elsewhere(home, disk, tmp_path, end):
    out, spare = disk / "run", tmp_path / "spare"
    spare.mkdir()
    epochs = 12 if end == "its last round" else 1000
    run = home.start("up", "-n", 2, "--epochs", epochs, "--data", product.SMALL, "--out", out, "--json",
                     TMPDIR=str(spare))  # fmt: skip
    metrics = out / "agent" / "metrics.jsonl"
    assert product.until(lambda: len(product.read_lines(metrics)) >= 2), run.told
    fill(disk)
    trained = len(product.read_lines(metrics))
    if end == "Ctrl-C":
        run.interrupt()
    assert product.until(lambda: fill(disk) or run.code is not None, 3 * product.PATIENCE_S), run.told
    assert run.end() == FAILED, run.told
    logs = [path.read_text() for path in (out / "logs").iterdir()]
    assert not [text for text in (run.told, *logs) if "Traceback" in text]
    assert "No space left on device" in run.complaint
    (kept,) = [word.rstrip(";,") for word in run.complaint.split() if word.startswith(str(spare))]
    assert run.result()["model"] == kept
    _, saved = import_model(Path(kept))
    assert saved.round_id >= trained
    if end == "its last round":
        assert saved.round_id == epochs
    assert not product.processes_of(out)
