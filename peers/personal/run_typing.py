"""`mdl type`: loads this person's model, or a global one, learns from what is typed, and keeps it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from mdl.bounds import Count, Share
from mdl.errors import ConfigError
from mdl.files.journal import Journal
from mdl.peers.interrupts import handled, interrupt
from mdl.peers.personal.home import LOG, MODEL, prepare_folder, read_record, write_record
from mdl.peers.personal.shared import identify
from mdl.peers.personal.typing_session import TypingSession
from mdl.personal.online import OnlineLearner
from mdl.personal.words.keyboard import Keyboard
from mdl.personal.words.model_file import load_next_word, save_next_word
from mdl.personal.words.personalise import online_rate

# The most that kill -9 loses; saving takes a tenth of a second, between two words.
_SAVE_EVERY_S = 60.0


class Typed(msgspec.Struct, frozen=True):
    """A session. typed, saved: characters of words. steps: of learning. saved_share: saved of both."""

    words: Count
    typed: Count
    saved: Count
    steps: Count
    saved_share: Share


def run_typing(
    folder: Path,
    start: Path | None,
    terminal: Callable[[TypingSession], None],
    top: int,
    filtered: bool,
    learning_rate: float | None,
) -> tuple[Typed, bool]:
    """Type until the terminal ends, and save what was learned; return the session, and True if it was interrupted.

    start: for a person without a model yet; ConfigError without either. learning_rate: 0 learns nothing, None suits the
    model.
    """
    place = folder / MODEL if (folder / MODEL).exists() else start
    if place is None:
        raise ConfigError(f"{folder} has no personal model yet: begin with a global one, --model FILE")
    # One character is one step of a small network: a second thread would only wait.
    torch.set_num_threads(1)
    model, described = load_next_word(place)
    base = described.base if place == folder / MODEL else identify(model, described.table)
    rate = online_rate(model) if learning_rate is None else learning_rate
    learner = OnlineLearner(model.output.requires_grad_(False), rate) if rate else None
    journal = Journal(folder / LOG)
    saved_at = time.monotonic()

    def save() -> None:
        if learner:
            personal = described.personal_words + session.words
            told = described.trained_words, personal, base, described.own_words
            save_next_word(folder / MODEL, model, described.table, *told)

    def tell(record: dict[str, Any]) -> None:
        nonlocal saved_at
        journal.add(msgspec.json.encode({"time": round(time.time()), **record}))
        if time.monotonic() - saved_at > _SAVE_EVERY_S:
            save()
            saved_at = time.monotonic()

    prepare_folder(folder)
    session = TypingSession(Keyboard(model, described.table, learner, top, filtered), tell)
    interrupted = False
    with handled(interrupt):
        try:
            terminal(session)
        except (KeyboardInterrupt, OSError):  # OSError: the terminal is gone
            interrupted = True
    session.close()
    if learner:
        learner.flush()
    save()
    _add_to_record(folder, session)
    return Typed(session.words, session.typed, session.saved, session.steps, session.saved_share), interrupted


def _add_to_record(folder: Path, session: TypingSession) -> None:
    record = read_record(folder)
    changed = msgspec.structs.replace(
        record,
        typed=record.typed + session.typed,
        saved=record.saved + session.saved,
        online_steps=record.online_steps + session.steps,
    )
    write_record(folder, changed)
