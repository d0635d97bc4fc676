"""The line of docs/android.md that records a phone's sensors writes a file that mdl reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mdl.data import load_data

PAGE = Path(__file__).resolve().parents[1] / "docs" / "android.md"
# What Termux:API prints: an object over nine lines each time, empty until the sensor has told something.
STAND_IN = """#!/bin/sh
echo '{}'
for at in $(seq 400); do
    printf '{\\n"LSM6DSO Accelerometer": {\\n"values": [\\n-0.%03d,\\n1,\\n9.5\\n]\\n}\\n}\\n' $at
done
"""


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_sensors_of_a_phone_become_a_recording(tmp_path: Path) -> None:
    lines = re.findall(r"^    ((?:echo|termux-sensor) .*walking\.csv)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == 2
    (tmp_path / "termux-sensor").write_text(STAND_IN)
    (tmp_path / "termux-sensor").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    script = "\n".join(lines).replace("[now]", "[input_line_number / 180]")  # 20 a second, and none waited for
    for name in ("walking", "sitting"):
        subprocess.run(["sh", "-c", script.replace("walking", name)], cwd=recordings, env=environment, check=True)
    (spec,) = set(re.findall(r"'csv:/root/recordings(\?[^']*)'", PAGE.read_text()))
    data = load_data(f"csv:{recordings}{spec}&window=50&step=50", tmp_path / "cache")
    assert tuple(data.classes) == ("sitting", "walking")
    assert (data.channels, data.channel_units) == (("acc_x", "acc_y", "acc_z"), ("m/s2",) * 3)
    assert data.rate_hz == pytest.approx(20.0)
