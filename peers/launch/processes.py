"""The peer processes of `mdl up`: started, watched, stopped; none outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mdl.peers.edge.identity import CODE_VARIABLE
from mdl.peers.edge.small import VARIABLE as THREADS_VARIABLE
from mdl.peers.interrupts import LIFELINE_VARIABLE
from mdl.peers.launch.nursery import Forked, Nursery
from mdl.peers.view.plain import LOG_VARIABLE
from mdl.processes import APART, ask_to_end
from mdl.signals import SIGNALS, blocked
from mdl.transport.trust.keys import DERIVED_VARIABLE
from mdl.writing import make_private_folder, open_private

# A process that was asked to stop is killed after this time.
_STOP_S = 2.5


@dataclass
class Child:
    """One process.

    log: its stderr, the older part in NAME.log.1. output: its stdout, with the JSON line it ends with.
    """

    name: str
    process: subprocess.Popen[bytes] | Forked
    log: Path
    output: Path
    _problem: str | None = None

    def problem(self) -> str:
        """Return in one line why it ended early: its own error, or the signal. Read once, asked for often."""
        if self._problem is None or self.process.poll() is None:
            self._problem = self._read_problem()
        return self._problem

    def _read_problem(self) -> str:
        if (status := self.process.poll()) is not None and status < 0:
            return f"ended by {signal.Signals(-status).name}"
        lines = self.log.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("mdl: ")]
        if said or lines:
            return said[-1].removeprefix("mdl: ") if said else lines[-1]
        return f"exit code {status}"  # a log on a full disk

    def result(self) -> dict[str, Any]:
        """Return the JSON object on its last line, {} if it did not get that far."""
        lines = self.output.read_text(errors="replace").splitlines()
        try:
            found = json.loads(lines[-1]) if lines else {}
        except json.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass
class Children:
    """All processes of a run. Use as a context manager: on the way out every one of them has ended.

    derived: the keys of the code (`MeshKeys.hand_over`); "": each process derives them itself. nursery: forks them;
    None: each one imports torch by itself. beside: processes that are no nodes of the mesh, such as a cloud.
    """

    logs: Path
    code: str
    threads: int
    nursery: Nursery | None = None
    derived: str = ""
    running: list[Child] = field(default_factory=list)
    beside: list[Child] = field(default_factory=list)

    def __enter__(self) -> Children:
        make_private_folder(self.logs)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, *arguments: str, trains: bool = True) -> Child:
        """Run `mdl ARGUMENTS`; it gets the join code by its environment and ends when we do.

        trains: the process needs torch, and waits until the nursery has it.
        """
        log, output = self.logs / f"{name}.log", self.logs / f"{name}.out"
        environment = {
            **os.environ,
            CODE_VARIABLE: self.code,
            LIFELINE_VARIABLE: "1",
            LOG_VARIABLE: str(log.absolute()),
            THREADS_VARIABLE: str(self.threads),
            DERIVED_VARIABLE: self.derived,
        }
        if trains and self.nursery:
            self.nursery.wait_until_ready()  # Ctrl-C ends it
        # -P: a file in the current directory does not replace a library.
        # Ctrl-C in the middle would leave an unknown process, and a traceback in its log.
        with open_private(log, "wb") as errors, open_private(output, "wb") as results, blocked():
            forked = self._fork(name, arguments, results, errors, environment) if trains else None
            process = forked or subprocess.Popen(
                [sys.executable, "-P", "-m", "mdl", *arguments],
                stdin=subprocess.PIPE,
                stdout=results,
                stderr=errors,
                env=environment,
                **APART,
            )
            self.running.append(Child(name, process, log, output))
        return self.running[-1]

    def _fork(
        self, name: str, words: Sequence[str], results: IO[bytes], errors: IO[bytes], environment: dict[str, str]
    ) -> Forked | None:
        if self.nursery is None:
            return None
        reads, writes = os.pipe()
        lifeline = os.fdopen(writes, "wb")
        with os.fdopen(reads, "rb") as given:
            try:
                files, folder = (given, results, errors), Path.cwd()
                process = self.nursery.start(words, files, environment, folder, SIGNALS, f"mdl {name}")
            except OSError:  # it has no torch, say: the process itself tells what is wrong
                lifeline.close()
                self.nursery = None
                return None
        process.stdin = lifeline
        return process

    def stop(self) -> None:
        """Ask all to finish; kill those that have not within 2.5 s."""
        for child in [*self.running, *self.beside]:
            if child.process.poll() is None:
                ask_to_end(child.process)  # Ctrl-C is ignored below `nohup` or a script's `&`
        give_up_at = time.monotonic() + _STOP_S
        for child in [*self.running, *self.beside]:
            try:
                child.process.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            if child.process.stdin:
                child.process.stdin.close()
