"""The tool of all benchmarks: its registry holds what is there, and all results have one form."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.tool.command import load, main
from benchmarks.tool.options import training_of
from benchmarks.tool.registry import BENCHMARKS, RESULTS, Benchmark
from benchmarks.tool.results import RECORD, pack, unpack
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.config import TrainingSettings
from mdl.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
# Of processor time: importing torch is most of it.
_QUICK_S = 15.0


def test_the_registry_names_exactly_what_is_in_the_folder() -> None:
    there = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("__"))
    assert [each.name for each in BENCHMARKS] == there


@pytest.mark.parametrize("each", BENCHMARKS, ids=lambda each: each.name)
def test_a_benchmark_has_one_sentence_and_a_page_that_mentions_its_command(each: Benchmark) -> None:
    assert re.fullmatch(r"[A-Z].{20,100}\.", each.line), each.line
    text = (ROOT / each.claim).read_text()
    assert re.search(rf"python -m benchmarks {each.name}\b", text), f"{each.claim} does not mention {each.name}"


@pytest.mark.parametrize("name", [each.name for each in (*BENCHMARKS, RESULTS)])
def test_help_of_a_benchmark_is_quick_and_has_its_options(name: str) -> None:
    began = time.process_time()
    told = load(name)[0].format_help()
    assert time.process_time() - began < _QUICK_S
    assert told.startswith(f"usage: python -m benchmarks {name} ")
    assert "--out" in told


def test_the_list_has_a_line_each_and_imports_no_torch() -> None:
    look = (
        "import sys; from benchmarks.tool.command import main; main([]); assert not {'torch', 'zmq'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + len(BENCHMARKS) + 1
    assert [line.split()[0] for line in lines[2:]] == [each.name for each in (*BENCHMARKS, RESULTS)]


def test_an_unknown_name_is_one_line_with_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memroy", "--peers", "2"]) == 2
    assert capsys.readouterr().err == "memroy: there is no benchmark 'memroy'; did you mean 'memory'?\n"
    assert main(["zzzzzz"]) == 2
    assert capsys.readouterr().err == "zzzzzz: there is no benchmark 'zzzzzz'; python -m benchmarks lists them\n"


def test_one_module_makes_all_parsers() -> None:
    makers = [path for path in FOLDER.rglob("*.py") if "ArgumentParser(" in path.read_text()]
    assert [path.relative_to(FOLDER).as_posix() for path in makers] == ["tool/command.py"]


def test_a_sheet_keeps_its_figures_and_no_folder_of_the_machine(tmp_path: Path) -> None:
    out = tmp_path / "some" / "sheet.json"
    words = ["--data", "uci-har:/far/away/HAR.zip?level=person", "--code", "../before,.", "--out", str(out)]
    sheet = Sheet("round", words, out)
    assert sheet.before() == {}
    sheet.tell({"seconds": [1.0, 2.0]})
    sheet.all = [1.0, 1.0]
    sheet.save()
    told = json.loads(out.read_text())
    assert told["command"] == (
        "python -m benchmarks round --data 'uci-har:HAR.zip?level=person' --code before,. --out sheet.json"
    )
    assert told == json.loads(sheet.line()) | {"all": [1.0, 1.0]}
    assert {"date", "commit", "cores", "load", "python", "torch"} < told.keys()
    assert Sheet("round", words, out).before() == {"seconds": [1.0, 2.0]}


def test_a_table_is_aligned_as_a_page_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    show(("", "s", "paper"), [("a long name", 1.5, None), ("b", "0.25", "2 x")], "title")
    assert capsys.readouterr().out.splitlines() == [
        "title",
        "|             |    s | paper |",
        "|-------------|------|-------|",
        "| a long name |  1.5 |       |",
        "| b           | 0.25 |   2 x |",
    ]


def test_what_is_compared_takes_turns() -> None:
    assert list(in_turns(2, "ab")) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_training_settings_come_from_json_and_mistakes_are_one_line() -> None:
    parser = load("weights")[0]
    given = parser.parse_args(["--data", "motion", "--set", '{"learning_rate": 0.5}'])
    assert training_of(given, TrainingSettings(planned_rounds=7)) == TrainingSettings(
        planned_rounds=7, learning_rate=0.5
    )
    for wrong in ("{", '{"learning_rate": "fast"}'):
        given = parser.parse_args(["--data", "motion", "--set", wrong])
        with pytest.raises(ConfigError, match="--set"):
            training_of(given, TrainingSettings())


def test_raw_results_are_packed_to_the_same_file_and_unpacked_where_the_record_fits(tmp_path: Path) -> None:
    folder, file, record = tmp_path / "results", tmp_path / "dist" / "all.tar", tmp_path / "all.sha256"
    with pytest.raises(DataError, match="no results"):
        pack(folder, file, record)
    (folder / "more").mkdir(parents=True)
    (folder / "b.json").write_text("{}\n")
    (folder / "more" / "a.json").write_text("[1]\n")
    assert pack(folder, file, record) == 2
    assert record.read_text() == f"{hashlib.sha256(file.read_bytes()).hexdigest()}  all.tar\n"
    before = file.read_bytes()
    (folder / "b.json").touch()
    pack(folder, file, record)
    assert file.read_bytes() == before
    assert unpack(file, tmp_path / "again", record) == 2
    assert (tmp_path / "again" / "more" / "a.json").read_text() == "[1]\n"
    file.write_bytes(before.replace(b"[1]", b"[2]"))
    with pytest.raises(DataError, match=r"SHA-256 is .*; all\.sha256 has "):
        unpack(file, tmp_path / "third", record)
    assert not (tmp_path / "third").exists()


def test_the_tree_has_the_record_of_the_raw_results_and_none_of_them() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}  mdl-benchmark-results\.tar\n", RECORD.read_text())
    words = ["git", "ls-files", "benchmarks", "docs"]
    known = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "benchmarks/results.sha256" in known
    assert not [name for name in known if name.endswith(".json")]
