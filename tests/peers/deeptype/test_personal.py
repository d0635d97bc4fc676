"""`mdl personal`: a global model, a person's own, what it takes, and forgetting it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mdl.errors import ConfigError, DataError, MdlError, UnfinishedError
from mdl.files.checkpoint import read_safetensors
from mdl.peers.cli.main import add_groups, app
from mdl.peers.deeptype.home import MODEL, PERSONAL_FILES, PREVIOUS, STUDY, describe, forget, read_record
from mdl.peers.deeptype.model.model_file import load_next_word
from mdl.peers.deeptype.model.personalise import Techniques, begin_study
from mdl.peers.deeptype.model.study import StudySettings, load_study
from mdl.peers.deeptype.train import StudyRun, assess, pretrain, split_sentences
from tests.peers.deeptype.model.examples import invent, invented_text, small_model

PUBLIC, MINE = invent(60, seed=1, longest=10), invent(40, seed=2, longest=10)
SMALL = ("--words", "50", "--hidden", "12", "--epochs", "1", "--batch", "32")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    add_groups()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "public.txt").write_text("\n".join(" ".join(words) for words in PUBLIC))
    (tmp_path / "mine.txt").write_text("\n".join(" ".join([*words, "anna"]) for words in MINE))
    return tmp_path


def _run(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False, standalone_mode=False)
    assert done.exception is None, done.exception
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _fail(kind: type[MdlError], *words: str) -> str:
    with pytest.raises(kind) as found:
        CliRunner().invoke(app, [*words], catch_exceptions=False, standalone_mode=False)
    return str(found.value)


@pytest.mark.slow
def test_from_public_text_to_a_person_and_nothing_left(home: Path) -> None:
    made = _run("personal", "pretrain", "public.txt", *SMALL)
    assert (made["finished"], made["classes"]) == (True, load_next_word(home / "global.safetensors")[1].size.classes)
    assert not (home / "global.safetensors.study").exists()
    told = _run(
        *("personal", "train", "mine.txt", "--model", "global.safetensors", "--out", "me", "--epochs", "2"),
        *("--words", "40", "--test", "0.2"),
    )
    assert told["new_words"] >= 1  # "anna", and perhaps some that the public does not use
    assert told["classes"] == 40
    assert told["before"]["words"] == told["after"]["words"] > 0
    mine = load_next_word(home / "me" / MODEL)[1]
    assert "anna" in mine.table.words
    assert mine.personal_words == told["words"]
    found = _run("personal", "status", "--out", "me")
    assert found["record"]["words"] == told["words"]
    assert found["record"]["trainings"] == 1
    assert found["joules_a_training"] == pytest.approx(1.5 * found["record"]["seconds"])
    assert found["unfinished"] is False
    tested = _run("personal", "eval", "me", "mine.txt", "--ngrams", "public.txt")
    assert set(tested["ngrams"]) == {"1-gram", "2-gram", "3-gram", "mixed"}
    assert 0 <= tested["efficiency"] <= tested["filtered"] < 1
    _run("personal", "train", "mine.txt", "--out", "me", "--epochs", "1", "--words", "40")  # goes on from its own
    assert (home / "me" / PREVIOUS).exists()
    assert _run("personal", "export", "copy.safetensors", "--out", "me")["file"] == "copy.safetensors"
    assert load_next_word(home / "copy.safetensors")[1].table == load_next_word(home / "me" / MODEL)[1].table
    gone = _run("personal", "forget", "--out", "me", "--yes")["deleted"]
    assert MODEL in gone
    assert not (home / "me").exists()


def test_a_global_model_is_compressed_and_trained_again(home: Path) -> None:
    whole = _run("personal", "pretrain", "public.txt", *SMALL)
    thin = _run(
        *("personal", "pretrain", "public.txt", *SMALL, "--start", "global.safetensors", "--rank", "2"),
        *("--out", "thin.safetensors"),
    )
    assert thin["bytes"] < whole["bytes"]
    assert load_next_word(home / "thin.safetensors")[1].size.rank == 2
    told = _fail(
        ConfigError, "personal", "pretrain", "public.txt", "--start", "thin.safetensors", "--rank", "3", "--out", "x"
    )
    assert "compressed to rank 2" in told


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        (DataError, ("pretrain", "gone.txt"), "gone.txt: no such file"),
        (DataError, ("pretrain", "empty.txt"), "no word in it"),
        (ConfigError, ("pretrain", "public.txt", "--optimizer", "best"), "expected one of sgd, adam"),
        (ConfigError, ("pretrain", "public.txt", "--batching", "best"), "expected one of shared"),
        (ConfigError, ("pretrain", "public.txt", "--when", "asleep"), "no condition"),
        (ConfigError, ("train", "mine.txt", "--out", "me"), "give --model FILE"),
        (DataError, ("train", "mine.txt", "--out", "me", "--model", "gone.safetensors"), "does not exist"),
        (DataError, ("train", "mine.txt", "--out", "me", "--model", "mine.txt"), "not a whole safetensors file"),
        (DataError, ("eval", "me", "mine.txt"), "does not exist"),
        (DataError, ("status", "--out", "me"), "nobody has trained"),
        (ConfigError, ("forget", "--out", "me"), "--yes"),
    ],
)
def test_what_is_wrong_is_one_line(home: Path, kind: type[MdlError], words: tuple[str, ...], told: str) -> None:
    (home / "empty.txt").write_text("1 2 3\n")
    found = _fail(kind, "personal", *words)
    assert told in found
    assert "\n" not in found


class _Gate:
    """Lets so many batches through, then forbids for a moment, or asks to stop."""

    def __init__(self, forbids: Callable[[int], str], stops: Callable[[int], bool] = lambda _: False) -> None:
        self.asked = 0
        self._forbids, self._stops = forbids, stops

    @property
    def forbidden_by(self) -> str:
        return self._forbids(self.asked)

    def hold(self) -> bool:
        self.asked += 1
        return self._stops(self.asked)


def _study_run(path: Path, gate: Any, now: Callable[[], float] = lambda: 0.0) -> tuple[Any, StudyRun]:
    table, text = invented_text(12)
    study = begin_study(small_model(table), text, Techniques(), StudySettings(epochs=2))
    return study, StudyRun(study, path, "mine", gate, lambda *_: None, now)


def test_a_run_saves_before_it_waits_and_when_it_stops(tmp_path: Path) -> None:
    path = tmp_path / STUDY
    clock = iter(range(10_000))  # saving takes a second: far too long to do it after each batch
    study, run = _study_run(
        path, _Gate(lambda at: "on battery" if at == 3 else "", lambda at: at == 6), lambda: next(clock)
    )
    saved: list[int] = []
    run.save, save = (lambda: (save(), saved.append(study.progress.steps))), run.save  # type: ignore[method-assign]
    assert not run.run()
    assert 3 in saved  # what it had learned when the pause came
    assert saved[-1] == study.progress.steps == 5
    again, _ = _study_run(path, _Gate(lambda _: ""))
    assert load_study(path, again, "mine")
    assert again.progress == study.progress


def test_saving_takes_a_twentieth_of_the_time(tmp_path: Path) -> None:
    clock = [0.0]

    def now() -> float:
        clock[0] += 1.0  # each look at the clock is a second: a save takes one, a batch one more
        return clock[0]

    _, run = _study_run(tmp_path / STUDY, _Gate(lambda _: ""), now)
    saves = 0

    def counted(save: Callable[[], None] = run.save) -> None:
        nonlocal saves
        saves += 1
        save()

    run.save = counted  # type: ignore[method-assign]
    assert run.run()
    assert 1 < saves < clock[0] / 15


def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_model(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at a batch, then gone on with: bit for bit the model of a run without a stop."""
    _run("personal", "pretrain", "public.txt", *SMALL)
    command = ("personal", "train", "mine.txt", "--model", "global.safetensors", "--epochs", "2", "--words", "40")
    _run(*command, "--out", "whole")
    asked = iter(range(10_000))
    monkeypatch.setattr("mdl.peers.edge.gatekeeper.Gatekeeper.hold", lambda _: next(asked) >= 7)
    with pytest.raises(UnfinishedError) as stopped:
        CliRunner().invoke(app, [*command, "--out", "cut"], catch_exceptions=False, standalone_mode=False)
    assert stopped.value.exit_code == 130
    assert stopped.value.result["steps"] == 7
    assert describe(home / "cut").unfinished
    assert not (home / "cut" / MODEL).exists()
    monkeypatch.undo()
    monkeypatch.chdir(home)
    _run(*command, "--out", "cut")
    whole, cut = (read_safetensors(home / name / MODEL)[0] for name in ("whole", "cut"))
    assert all((whole[name] == cut[name]).all() for name in whole)
    assert read_record(home / "cut").trainings == 1


def test_an_unfinished_training_of_another_text_is_not_gone_on_with(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run("personal", "pretrain", "public.txt", *SMALL)
    command = ("personal", "train", "--model", "global.safetensors", "--out", "me", "--words", "40", "--epochs", "1")
    asked = iter(range(10_000))
    with monkeypatch.context() as patched:
        patched.setattr("mdl.peers.edge.gatekeeper.Gatekeeper.hold", lambda _: next(asked) >= 3)
        assert "interrupted" in _fail(UnfinishedError, *command, "mine.txt")
    assert "--fresh" in _fail(ConfigError, *command, "public.txt")
    assert _run(*command, "public.txt", "--fresh")["finished"]


def test_forgetting_leaves_what_is_not_ours(tmp_path: Path) -> None:
    for name in (*PERSONAL_FILES, f".{MODEL}.77.part", "notes.txt"):
        (tmp_path / name).write_text("x")
    gone = forget(tmp_path)
    assert set(gone) == {*PERSONAL_FILES, f".{MODEL}.77.part"}
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert forget(tmp_path / "never") == []


def test_the_last_part_is_held_out() -> None:
    sentences = [["a"] * 5, ["b"] * 3, ["c"] * 2]
    assert split_sentences(sentences, 0.2) == (sentences[:2], sentences[2:])
    assert split_sentences(sentences, 0) == (sentences, [])


def test_an_interrupted_global_model_is_of_use_and_goes_on(home: Path) -> None:
    settings, out = StudySettings(2, 32, "adam", 0.003), home / "global.safetensors"
    whole = pretrain(home / "public.txt", home / "whole.safetensors", (50, 12, 0), settings)

    def interrupt(*_: object) -> None:
        if not out.exists():
            signal.raise_signal(signal.SIGINT)

    begun = pretrain(home / "public.txt", out, (50, 12, 0), settings, show=interrupt)
    assert not begun.finished
    assert 0 < begun.steps < whole.steps
    model, described = load_next_word(out)
    assert assess(model, described.table, MINE).words > 0
    before = out.read_bytes()
    stopped = pretrain(home / "public.txt", out, (50, 12, 0), settings, start=out, fresh=True, show=_interrupt_now)
    assert not stopped.finished
    assert out.read_bytes() == before  # a model that is gone on from stays, or the same command would begin elsewhere
    out.with_name(f"{out.name}.study").unlink()
    out.unlink()
    pretrain(home / "public.txt", out, (50, 12, 0), settings, show=interrupt)
    assert pretrain(home / "public.txt", out, (50, 12, 0), settings).finished
    ours, theirs = (load_next_word(path)[0].state_dict() for path in (out, home / "whole.safetensors"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def _interrupt_now(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)
