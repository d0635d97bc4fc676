"""The steps of `make test-arm`, with a script in place of mdl: which answers pass, and what is told of the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.arm import run
from tests.arm.debian import StepError, call
from tests.arm.run import Board, lacking, steps

# Answers as mdl does. `wrong` is the step in which it fails, or gives another result.
FAKE = """
import json, pathlib, sys
wrong, step, *words = sys.argv[1:]
if step == "doctor":
    verdict = "fail" if wrong == step else "ok"
    print(json.dumps({"findings": [{"check": "torch", "verdict": verdict, "told": "it ends with SIGILL"}]}))
    sys.exit(4)
if wrong == step:
    print("first line", "the reason", sep="\\n", file=sys.stderr)
    sys.exit(7)
if step == "peer":
    out = pathlib.Path(words[words.index("--out") + 1])
    out.mkdir(parents=True)
    header = f"written by {out.name}".encode()
    values = out.name if wrong == "models" else "the same"
    (out / "global.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values.encode())
    print(json.dumps({"round_id": 1 if wrong == "rounds" else 2}))
"""


def play(wrong: str, folder: Path) -> list[str]:
    fake = folder / "fake.py"
    fake.write_text(FAKE)
    board = Board([sys.executable, fake, wrong], folder, {})
    return [step for step, _ in steps(board, folder / "runs")]


def test_a_device_on_which_all_works_passes_each_step(tmp_path: Path) -> None:
    assert play("nothing", tmp_path) == ["version", "mesh new", "doctor", "peers", "export", "predict"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("--version", "--version: mdl ended with 7: the reason"),
        ("mesh", "mesh: mdl ended with 7: the reason"),
        ("doctor", "doctor: it ends with SIGILL"),
        ("peer", "peer: mdl ended with 7: the reason"),
        ("rounds", "peer: rounds [1] with 1 models, in place of one of round 2"),
        ("models", "peer: rounds [2] with 2 models, in place of one of round 2"),
        ("export", "export: mdl ended with 7: the reason"),
        ("predict", "predict: mdl ended with 7: the reason"),
    ],
)
def test_a_step_that_fails_is_told_in_one_line(wrong: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(StepError) as raised:
        play(wrong, tmp_path)
    assert str(raised.value) == told


def _package(place: Path, name: str, version: str, *needs: str) -> None:
    folder = place / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in needs)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def test_packages_that_debian_lacks_or_has_too_old_are_found(tmp_path: Path) -> None:
    own, debian = tmp_path / "own", tmp_path / "debian"
    elsewhere = "d; sys_platform == 'win32'", "e; extra == 'web'", "f; python_version < '3.12'"
    _package(own, "mdl", "0.1.0", "a>=2.2", "b>=3", "c", *elsewhere)
    _package(debian, "a", "2.6.0+debian", "g==1")  # what Debian's own needs is Debian's to bring
    _package(debian, "b", "2.9")
    assert lacking("mdl", (own, debian), "3.13") == {"b", "c"}
    _package(own, "b", "3.1", "h")
    _package(own, "c", "1.0")
    assert lacking("mdl", (own, debian), "3.13") == {"h"}


def test_a_machine_that_cannot_fetch_packages_ends_it_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["run"])
    assert run.main() == 1
    assert capsys.readouterr().err == "dpkg is not on this machine\n"


def test_a_command_that_fails_tells_its_last_line() -> None:
    with pytest.raises(StepError, match=r"^sh ended with 3: why$"):
        call(["sh", "-c", "echo more >&2; echo why >&2; exit 3"], 60)
    assert json.loads(call(["sh", "-c", "echo 1"], 60)) == 1
