"""The tutorials do what they say: their programs and commands are run as they stand on the page."""

import re
import shlex
from pathlib import Path

import pytest

from tests.integration import product

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = re.compile(r"^(?:    |```sh\n)((?:mdl|python) .*)$", re.MULTILINE)
PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    yield home
    home.close()


def take(home, name):
    """Write the page's programs into the folder; returns its commands in their order."""
    page = (DOCS / f"tutorial-{name}.md").read_text()
    for file, text in PROGRAM.findall(page):
        (home.folder / file).write_text(text)
    return [shlex.split(line) for line in COMMAND.findall(page)]


def start(home, words):
    return home.start(*words[1:]) if words[0] == "mdl" else home.start_python(*words[1:], fresh=True)


def run(home, words):
    """One command to its end; all that it says."""
    command = start(home, words)
    assert command.end(4 * product.PATIENCE_S) == 0, command.told[-2000:]
    return command.said + command.told


def test_a_csv_file_is_inspected_trained_on_tested_and_used(home):
    said = [run(home, words) for words in take(home, "csv")]
    assert len(said) == 5
    recorded, inspected, trained, tested, predicted = said
    assert recorded == ""
    assert "read 30,000 rows, left out none" in inspected
    assert "6 rounds in" in trained
    accuracy = float(re.search(r"accuracy ([\d.]+)%", tested).group(1))
    assert accuracy > 80
    assert len(re.findall(r"^new\.csv .*%$", predicted, re.MULTILINE)) > 20


def test_a_loop_of_ones_own_ends_with_one_model_on_both_devices(home):
    made, *loops = take(home, "own-loop")
    run(home, made)
    assert [words[:2] for words in loops] == [["python", "loop.py"]] * 2
    started = [start(home, words) for words in loops]
    assert [each.end(2 * product.PATIENCE_S) for each in started] == [0, 0], [each.told[-2000:] for each in started]
    assert all("after round 5" in each.said for each in started)
    models = [Path(each.said.split("the model is in ")[1].strip()).read_bytes()[-88:] for each in started]
    assert models[0] == models[1]  # the last bytes of the file are the parameters


def test_a_scheduler_is_trained_shown_compared_and_followed_by_a_mesh(home):
    pytest.importorskip("stable_baselines3")
    trained, shown, compared, followed, drawn = (run(home, words) for words in take(home, "scheduler"))
    assert "mean_return" in trained
    assert "three.safetensors: it sees" in shown
    assert re.search(r"^tree +\d", compared, re.MULTILINE)
    assert "1 rounds in" in followed
    assert "policy three.safetensors" in drawn
