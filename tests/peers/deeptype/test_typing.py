"""`mdl type`: keys, what is learned, and a log without text."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mdl.errors import ConfigError
from mdl.peers.deeptype.home import LOG, MODEL, read_record
from mdl.peers.deeptype.model.keyboard import Keyboard, OnlineLearner
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.next_word import NextWordModel
from mdl.peers.deeptype.model.personalise import Techniques, begin_study
from mdl.peers.deeptype.model.study import StudySettings
from mdl.peers.deeptype.model.text import TokenTable, build_table, encode
from mdl.peers.deeptype.typing_session import TypingSession, run_typing, type_here
from tests.peers.deeptype.model.examples import invent, small_model


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _trained() -> tuple[NextWordModel, TokenTable]:
    sentences = invent(40, seed=1, longest=10)
    table = build_table(sentences, 40)
    model = small_model(table, 16)
    settings = StudySettings(epochs=3, batch=32, optimizer="adam", learning_rate=0.02)
    begin_study(model, encode(sentences, table), Techniques(fine_tune=False, batching="shared"), settings).run()
    return model, table


def _session(learning_rate: float = 0.0) -> tuple[TypingSession, list[dict[str, Any]], TokenTable]:
    model, table = _trained()
    learner = OnlineLearner(model.output, learning_rate) if learning_rate else None
    told: list[dict[str, Any]] = []
    clock = iter(range(1_000_000))
    return TypingSession(Keyboard(model, table, learner), told.append, lambda: next(clock) / 1000), told, table


def _type(session: TypingSession, text: str) -> None:
    for key in text:
        session.press(key)


def test_words_signs_and_sentences() -> None:
    session, _, table = _session()
    word = table.words[0]
    _type(session, f"{word.upper()}, {word}!")
    assert session.line == f"{word.upper()}, {word}! "
    assert (session.words, session.typed, session.saved) == (2, 2 * len(word), 0)
    assert session.suggestions == []  # a sentence begins
    _type(session, "x\x7f\x7f\x7f\n")
    assert session.line == ""


def test_a_number_takes_a_suggestion_and_saves_the_rest() -> None:
    session, _, _ = _session()
    session.press("b")
    first = session.suggestions[1]
    session.press("2")
    assert session.line == first + " "
    assert (session.typed, session.saved) == (1, len(first) - 1)
    session.press(".")
    assert session.line == first + ". "
    before = session.words
    session.press("9")  # no such suggestion: a sign like others
    assert session.words == before


def test_the_log_has_times_and_counts_and_no_text() -> None:
    session, told, table = _session(0.5)
    for _ in range(20):
        _type(session, table.words[5] + " ")
    session.close()
    assert [record["words"] for record in told] == [16, 4]
    assert sum(record["typed"] for record in told) == session.typed
    assert told[0]["step_ms"] > 0
    assert told[0]["inference_ms"] > 0
    assert told[0]["between_ms"] > 0
    assert session.steps == 1
    for record in told:
        assert all(value is None or isinstance(value, int | float) for value in record.values())


def test_what_was_learned_is_kept_and_the_next_session_begins_with_it(tmp_path: Path) -> None:
    model, table = _trained()
    save_next_word(tmp_path / "global.safetensors", model, table, trained_words=9)
    home = tmp_path / "me"

    def type_some(session: TypingSession) -> None:
        for _ in range(40):
            _type(session, table.words[5] + " ")

    def break_off(session: TypingSession) -> None:
        type_some(session)
        raise KeyboardInterrupt

    first, interrupted = run_typing(home, tmp_path / "global.safetensors", break_off, 3, True, 1.0)
    assert interrupted
    assert first.steps == 2
    learned, described = load_next_word(home / MODEL)
    assert (described.trained_words, described.personal_words) == (9, 40)
    assert not torch.equal(next(learned.output.parameters()), next(model.output.parameters()))
    assert torch.equal(learned.lstm.weight_hh_l0, model.lstm.weight_hh_l0)  # only the last layer learns
    again, interrupted = run_typing(home, None, type_some, 3, True, 0.0)
    assert not interrupted
    assert again.steps == 0
    assert read_record(home).typed == first.typed + again.typed
    lines = (home / LOG).read_text()
    assert table.words[5] not in lines
    assert len(lines.splitlines()) == 6
    with pytest.raises(ConfigError, match="--model FILE"):
        run_typing(tmp_path / "nobody", None, type_some, 3, True, 0.5)


def test_without_a_terminal_it_says_so() -> None:
    session, _, _ = _session()
    with pytest.raises(ConfigError, match="needs a terminal"):
        type_here(session)


def test_in_a_terminal_keys_arrive_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pseudo-terminal: suggestions are drawn after each key, Ctrl-D ends."""
    session, _, table = _session()
    master, slave = pty.openpty()
    drawn = bytearray()

    def use() -> None:
        """Type once something is drawn, for then keys are taken one by one; read until the terminal is closed."""
        with contextlib.suppress(OSError):
            drawn.extend(os.read(master, 4096))
            os.write(master, f"{table.words[0]} b".encode())
            os.write(master, b"1\x04")
            while piece := os.read(master, 4096):
                drawn.extend(piece)

    user = threading.Thread(target=use)
    with os.fdopen(slave, "r", closefd=False) as stdin, os.fdopen(slave, "w", closefd=False) as stdout:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        user.start()
        type_here(session)
    os.close(slave)
    user.join()
    os.close(master)
    assert session.words == 2
    assert session.line.startswith(f"{table.words[0]} b")
    assert b"1 " in drawn
    assert b"saved" in drawn


def test_a_terminal_that_closes_saves_what_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, table = _trained()
    save_next_word(tmp_path / "global.safetensors", model, table)
    master, slave = pty.openpty()

    def use() -> None:
        os.read(master, 4096)
        os.write(master, f"{table.words[0]} {table.words[1]}".encode())
        while b"saved" not in os.read(master, 4096):
            pass
        os.close(master)

    user = threading.Thread(target=use)
    stdin, stdout = os.fdopen(slave, "r", closefd=False), os.fdopen(slave, "w", closefd=False)
    with stdin, contextlib.suppress(OSError), stdout:  # what it could not write is tried once more when it is closed
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        user.start()
        session, interrupted = run_typing(tmp_path / "me", tmp_path / "global.safetensors", type_here, 3, True, None)
        user.join()
        monkeypatch.undo()
    os.close(slave)
    assert interrupted
    assert (tmp_path / "me" / MODEL).exists()
    assert read_record(tmp_path / "me").typed == session.typed


def test_what_was_learned_is_saved_every_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So kill -9 loses a minute at most."""
    model, table = _trained()
    save_next_word(tmp_path / "global.safetensors", model, table)
    monkeypatch.setattr("mdl.peers.deeptype.typing_session._SAVE_EVERY_S", -1.0)
    there: list[bool] = []

    def type_and_look(session: TypingSession) -> None:
        for _ in range(16):
            there.append((tmp_path / "me" / MODEL).exists())
            _type(session, table.words[5] + " ")
        there.append((tmp_path / "me" / MODEL).exists())

    run_typing(tmp_path / "me", tmp_path / "global.safetensors", type_and_look, 3, True, 0.5)
    assert there == [False] * 16 + [True]
