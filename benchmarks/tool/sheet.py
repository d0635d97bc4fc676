"""The form of all results: one JSON object, printed as the last line and written to the file of `--out`.

`benchmark`, `command` and the machine's facts say what was measured where; `figures` are the result. A file has
besides, under `all`, what the figures were made of. No folder of this machine is in it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tool.machine import facts

# The folders of a path, within a word such as uci-har:FOLDER/FILE?level=person.
_FOLDERS = re.compile(r"[^\s:=?,|]*/")


class Failed(RuntimeError):
    """A run gave no figure; the text is one line for the user."""


class Sheet:
    """The result of one call, as it grows. words: of the command line. out: the file that keeps it; None: none does.

    figures: what is printed. all: what only the file has. problem: why the call fails although it has figures.
    """

    def __init__(self, name: str, words: Sequence[str], out: Path | None) -> None:
        self.figures: dict[str, Any] = {}
        self.all: Any = None
        self.problem = ""
        self._out = out
        command = shlex.join(["python", "-m", "benchmarks", name, *(_FOLDERS.sub("", word) for word in words)])
        self._head = {"benchmark": name, "command": command, **facts()}

    def tell(self, figures: dict[str, Any]) -> None:
        """Add figures."""
        self.figures |= figures

    def before(self) -> dict[str, Any]:
        """Return the figures that the file of `--out` has from an earlier call; {} without one."""
        if self._out is None or not self._out.exists():
            return {}
        found: dict[str, Any] = json.loads(self._out.read_text())
        return dict(found.get("figures", {}))

    def save(self) -> None:
        """Write what there is, so that an interrupted call keeps it."""
        if self._out is None:
            return
        self._out.parent.mkdir(parents=True, exist_ok=True)
        rest = {} if self.all is None else {"all": self.all}
        self._out.write_text(json.dumps(self._told() | rest, indent=1) + "\n")

    def line(self) -> str:
        """Return the result as one line of JSON."""
        return json.dumps(self._told())

    def _told(self) -> dict[str, Any]:
        return {**self._head, "figures": self.figures}
