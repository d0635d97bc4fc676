"""Somebody who types a text into `mdl type` in a real terminal (tmux), and takes a suggestion as soon as it is shown.

    python -m benchmarks type_in_tmux --model tweets.safetensors --text BLOGS.jsonl.gz --author 171019 --words 200

Reads the screen after each key, as a person does; ends with Ctrl-C, and checks that what was learned was saved. Told
are the characters saved, of all and of each quarter, and the latencies that the log has.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Failed, Sheet
from mdl.peers.deeptype.home import LOG, MODEL
from mdl.peers.deeptype.train import read_sentences

_WIDTH = 220
# To start, load torch and a model on a busy machine; and for a key to be shown.
_START_S, _KEY_S = 120.0, 20.0
_SHOWN = re.compile(r"^(?:\d \S+ *)*.*saved \d+%")


class Screen:
    """A terminal of its own that runs one command."""

    def __init__(self, command: list[str]) -> None:
        self._server = f"mdl-{uuid.uuid4().hex[:8]}"
        self._tmux("new-session", "-d", "-x", str(_WIDTH), "-y", "50", *command)
        self._tmux("set-option", "remain-on-exit", "on")

    def lines(self) -> list[str]:
        """What is on the screen, without empty lines at its end and spaces at theirs."""
        return [line.rstrip() for line in self._tmux("capture-pane", "-p").rstrip().split("\n")]

    def send(self, key: str) -> None:
        self._tmux("send-keys", *(("-l", key) if len(key) == 1 else (key,)))

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._server, "kill-server"], check=False, capture_output=True)

    def _tmux(self, *words: str) -> str:
        return subprocess.run(["tmux", "-L", self._server, *words], check=True, capture_output=True, text=True).stdout


def add_options(parser: Parser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="a global model, of `mdl personal pretrain`")
    parser.add_argument("--text", type=Path, required=True, help="what is typed")
    parser.add_argument("--author", default="", help="of a .jsonl: this one's text")
    parser.add_argument("--skip", type=int, default=0, help="words of it that are passed over")
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.5, help="of learning while typing")


def run(options: Namespace, sheet: Sheet) -> None:
    """Type, and read the log of `mdl type`. Raises DataError, Failed."""
    sentences = _take(read_sentences(options.text, options.author), options.skip, options.words)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "me"
        words = ["type", "--model", str(options.model.resolve()), "--out", str(home), "--rate", str(options.rate)]
        screen = Screen([sys.executable, "-m", "mdl", *words])
        try:
            needed = _type(screen, sentences)
            screen.send("C-c")
            _await(lambda: any("interrupted, saved" in line for line in screen.lines()), _START_S, "its end")
        finally:
            screen.close()
        sheet.tell(_summarise(needed) | _read_log(home / LOG) | {"saved": (home / MODEL).exists()})


def _type(screen: Screen, sentences: list[list[str]]) -> list[tuple[int, int]]:
    """(length, characters typed) of each word."""
    _await(lambda: _SHOWN.match(_head(screen)) is not None, _START_S, "the first line")
    needed = []
    for sentence in sentences:
        line = ""
        for word in sentence:
            typed = ""
            while typed != word:
                shown = _suggestions(_head(screen, line))
                if word in shown:
                    screen.send(str(shown.index(word) + 1))
                    break
                typed += word[len(typed)]
                screen.send(typed[-1])
                _await_line(screen, line + typed)
            else:
                screen.send("Space")
            needed.append((len(word), len(typed)))
            line += word + " "
            _await_line(screen, line.rstrip())
        screen.send("Enter")
        _await_line(screen, "")
    return needed


def _await_line(screen: Screen, line: str) -> None:
    _await(lambda: _line(screen) == line, _KEY_S, repr(line))


def _head(screen: Screen, line: str = "") -> str:
    lines = screen.lines()
    return lines[-2] if line.strip() and len(lines) > 1 else lines[-1] if not line.strip() else ""


def _line(screen: Screen) -> str:
    """The sentence: below the suggestions, which are the last line while it is empty."""
    last = screen.lines()[-1]
    return "" if _SHOWN.match(last) else last


def _suggestions(head: str) -> list[str]:
    return re.findall(r"\d (\S+)", head.partition("  saved")[0])


def _await(claim: Callable[[], bool], patience_s: float, what: str) -> None:
    give_up = time.monotonic() + patience_s
    while not claim():
        if time.monotonic() > give_up:
            raise Failed(f"not shown in {patience_s:.0f} s: {what}")


def _take(sentences: list[list[str]], skip: int, words: int) -> list[list[str]]:
    """Whole sentences that fit the screen, after so many words."""
    taken: list[list[str]] = []
    passed = count = 0
    for sentence in sentences:
        passed += len(sentence)
        if passed > skip and len(" ".join(sentence)) < _WIDTH - 10:
            taken.append(sentence)
            count += len(sentence)
            if count >= words:
                break
    return taken


def _summarise(needed: list[tuple[int, int]]) -> dict[str, object]:
    quarters = [needed[len(needed) * at // 4 : len(needed) * (at + 1) // 4] for at in range(4)]
    shares = [round(_share(part), 3) for part in quarters]
    print(f"{len(needed)} words: {_share(needed):.1%} of the characters saved; by quarters {shares}")
    return {"words": len(needed), "saved_share": round(_share(needed), 4), "quarters": shares}


def _share(needed: list[tuple[int, int]]) -> float:
    total = sum(length for length, _ in needed)
    return 1 - sum(typed for _, typed in needed) / total if total else 0.0


def _read_log(path: Path) -> dict[str, object]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    names = ("inference_ms", "step_ms", "between_ms")
    found = {name: median([each[name] for each in records if each[name] is not None] or [0.0]) for name in names}
    print(", ".join(f"{name} {value:.1f}" for name, value in found.items()), "(medians of medians, in the process)")
    return dict(found)
