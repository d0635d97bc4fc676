"""`mdl type`: loads this person's model, or a global one, learns from what is typed, and keeps it.

`TypingSession` is the typing, key by key: what is shown, what is learned, and how long each took. It knows no terminal.
Letters and apostrophes make a word; 1, 2, 3 take a suggestion; a space or another sign ends the word; . ! ? and Enter
end the sentence. The typed text stays in this process: the log has times and counts of every 16 words, never text.

`type_here` is a session in a terminal: one line with suggestions, one with the sentence; keys come as they are pressed.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch

from mdl.bounds import Count, Share
from mdl.errors import ConfigError
from mdl.files.figures import Journal
from mdl.peers.deeptype.home import LOG, MODEL, identify, prepare_folder, read_record, write_record
from mdl.peers.deeptype.model.keyboard import STEP_SAMPLES, Keyboard, OnlineLearner
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.personalise import online_rate
from mdl.peers.deeptype.model.text import split_words
from mdl.peers.interrupts import handled, interrupt

_ENDS_SENTENCE = frozenset(".!?…\r\n")
_BACKSPACE = ("\x7f", "\b")
# A longer pause is no time between two keys: the person has left.
_LONGEST_PAUSE_S = 10.0


class TypingSession:
    """One session of typing; see the module. tell: is given a record for the log after every 16 words, and at the end.

    now: seconds. line: the sentence as it is shown. typed, saved: characters of words so far; steps: of learning.
    """

    def __init__(
        self, keyboard: Keyboard, tell: Callable[[dict[str, Any]], None], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.line = ""
        self.typed = self.saved = self.steps = self.words = 0
        self.suggestions: list[str] = []
        self._keyboard, self._tell, self._now = keyboard, tell, now
        self._last_key_s: float | None = None
        self._times: dict[str, list[float]] = {"inference": [], "step": [], "between": []}
        self._told = (0, 0, 0)

    def press(self, key: str) -> None:
        """Take one key: a character, or "\\x7f" for backspace. Other keys do nothing."""
        began = self._now()
        if self._last_key_s is not None and began - self._last_key_s < _LONGEST_PAUSE_S:
            self._times["between"].append(began - self._last_key_s)
        self._last_key_s = began
        if key in _BACKSPACE:
            self._erase()
        elif key.isdecimal() and 0 < int(key) <= len(self.suggestions):
            self._take(self.suggestions[int(key) - 1])
        elif key.isalpha() or (key in "'’" and self._keyboard.typed):
            self._keyboard.type(key.lower())
            self.line += key
        elif key.isprintable() or key in _ENDS_SENTENCE:
            self._end_word()
            self._show_sign(key)
        self.suggestions = self._keyboard.suggest()
        self._times["inference"].append(self._now() - began)

    def close(self) -> None:
        """End the session: report the rest."""
        if any(self._times.values()):
            self._report()

    @property
    def saved_share(self) -> float:
        """The share of all characters of words that were not typed."""
        return self.saved / (self.typed + self.saved) if self.typed + self.saved else 0.0

    def _erase(self) -> None:
        if self._keyboard.typed:
            self._keyboard.erase()
            self.line = self.line[:-1]
        elif self.line:
            # A learned word is not unlearned: only the shown line changes.
            self.line = self.line[:-1]

    def _take(self, word: str) -> None:
        typed = len(self._keyboard.typed)
        self.line = self.line[: len(self.line) - typed] + word + " "
        self._finish(word, typed)

    def _end_word(self) -> None:
        typed = self._keyboard.typed
        if typed:
            # The usual rule: "rock'n" is a word, "'tis'" is "tis".
            found = [word for words in split_words(typed) for word in words]
            self._finish(found[0] if found else typed, len(typed))

    def _finish(self, word: str, typed: int) -> None:
        began = self._now()
        self.typed += typed
        self.saved += max(0, len(word) - typed)
        self.words += 1
        if self._keyboard.finish(word):
            self.steps += 1
            self._times["step"].append(self._now() - began)
        if self.words % STEP_SAMPLES == 0:
            self._report()

    def _show_sign(self, key: str) -> None:
        if key in _ENDS_SENTENCE:
            self._keyboard.end_sentence()
            # A suggestion that was taken brought a space with it.
            self.line = "" if key in "\r\n" else self.line.rstrip() + key + " "
        elif not (key == " " and self.line.endswith(" ")):
            self.line += key

    def _report(self) -> None:
        words, typed, saved = self._told
        record: dict[str, Any] = {
            "words": self.words - words,
            "typed": self.typed - typed,
            "saved": self.saved - saved,
        }
        for name, seconds in self._times.items():
            record[f"{name}_ms"] = round(1000 * median(seconds), 3) if seconds else None
            record[f"{name}_most_ms"] = round(1000 * max(seconds), 3) if seconds else None
            seconds.clear()
        self._told = (self.words, self.typed, self.saved)
        self._tell(record)


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


_END = "\x04"  # Ctrl-D
_READ_BYTES = 1024


def type_here(session: TypingSession) -> None:
    """Run a typing session until Ctrl-D.

    Ctrl-C raises KeyboardInterrupt, a terminal that closes OSError. Raises ConfigError without a terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("mdl type needs a terminal to type into; mdl personal eval MODEL TEXT tests on a text")
    with _keys_at_once():
        _write("\n")
        _draw(session)
        for key in _read_keys():
            session.press(key)
            if key in "\r\n":
                _write("\n\n")  # the sentence stays on the screen
            _draw(session)
    _write("\n")


def _read_keys() -> Iterator[str]:
    """Yield characters; sequences of cursor keys and the like are skipped."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    while True:
        chunk = os.read(sys.stdin.fileno(), _READ_BYTES)
        if not chunk:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        keys = decoder.decode(chunk)
        if keys.startswith("\x1b"):
            continue
        for key in keys:
            if key == _END:
                return
            yield key


def _draw(session: TypingSession) -> None:
    width = shutil.get_terminal_size().columns - 1
    shown = "   ".join(f"{number} {word}" for number, word in enumerate(session.suggestions, 1))
    head = f"{shown:<50}  saved {session.saved_share:.0%}"
    _write(f"\x1b[1A\r\x1b[2K{head[:width]}\n\r\x1b[2K{session.line[-width:]}")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Let the terminal hand over each key, and show none by itself; Ctrl-C stays a signal."""
    try:
        import termios
        import tty
    except ImportError:
        raise ConfigError("mdl type needs a terminal of Linux, macOS or another Unix") from None
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
