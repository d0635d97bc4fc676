"""Where the processes of a measurement run: all on loopback, or each on a host of its own with a limited link.

A place is written LINKS@MB: `4x40@5` is 4 hosts of 40 Mbit/s and a delta of 5 MB, `3x40+10@5` three and a slow one,
`4~40@5` 4 hosts that share one channel of 40 Mbit/s, `8@46.4` 8 processes on loopback.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

from benchmarks.tool.hosts import load_helper

_LINKS = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)")
_END_S = 20.0


@dataclass(frozen=True)
class Case:
    """text: as it was asked for. size: devices. megabytes: of a delta. mbit: of each link, () on loopback.

    shared_mbit: of the one channel that all share; 0: each has its own.
    """

    text: str
    size: int
    megabytes: float
    mbit: tuple[float, ...] = ()
    shared_mbit: float = 0.0

    @property
    def values(self) -> int:
        return round(self.megabytes * 1e6 / 4)

    @property
    def bound_s(self) -> float | None:
        """What no exact round can beat: B = max(max_i M / r_i, 2(N-1)M / sum_i r_i); None on loopback."""
        megabits = 8 * self.megabytes
        if self.shared_mbit:
            return 2 * (self.size - 1) * megabits / self.shared_mbit
        if not self.mbit:
            return None
        return max(megabits / min(self.mbit), 2 * (self.size - 1) * megabits / sum(self.mbit))

    def open(self, more: int = 0) -> Any:
        """The hosts, for a `with` block. more: hosts beside the devices, with links as fast as the fastest."""
        if not self.mbit and not self.shared_mbit:
            return Loopback()
        mbit = [*(self.mbit or [self.shared_mbit] * self.size)]
        return load_helper("lan").Lan(self.size + more, mbit + [max(mbit)] * more, shared_mbit=self.shared_mbit)


def parse_case(text: str) -> Case:
    """Raises ValueError, in words for the user."""
    links, at, size = text.partition("@")
    try:
        megabytes = float(size)
        if not at or not megabytes > 0:
            raise ValueError
        if links.isdecimal():
            return _checked(Case(text, int(links), megabytes))
        if "~" in links:
            number, _, rate = links.partition("~")
            return _checked(Case(text, int(number), megabytes, (), float(rate)))
        mbit: list[float] = []
        for part in links.split("+"):
            found = _LINKS.fullmatch(part)
            if found is None:
                raise ValueError
            mbit += [float(found[2])] * int(found[1] or 1)
    except ValueError:
        raise ValueError(f"{text!r}: write LINKS@MB, for example 4x40@5, 3x40+10@5, 4~40@5 or 8@46.4") from None
    return _checked(Case(text, len(mbit), megabytes, tuple(mbit)))


def _checked(case: Case) -> Case:
    if not 2 <= case.size <= 64:
        raise ValueError(f"{case.text!r}: 2 to 64 devices can be measured, not {case.size}")
    return case


class Loopback:
    """As `tests.integration.lan.Lan`, without hosts: all processes on 127.0.0.1."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(
        self, host: int, *arguments: object, stderr: Any = None, python: str = sys.executable
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [python, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        self.processes.append(process)
        return process


def read_all(processes: list[Any], patience_s: float) -> list[str]:
    """What each says until it ends. Raises TimeoutError if one of them does not."""
    told = [""] * len(processes)

    def read(number: int) -> None:
        told[number] = processes[number].stdout.read()

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(len(processes))]
    for thread in threads:
        thread.start()
    waited = threading.Timer(patience_s, lambda: [process.kill() for process in processes])
    waited.start()
    for thread in threads:
        thread.join()
    is_late = not waited.is_alive()
    waited.cancel()
    if is_late:
        raise TimeoutError(f"not over after {patience_s:.0f} s")
    return told


def why_not_package(python: str, package: str) -> str:
    """Return why another environment's Python cannot import a package; "" if it can."""
    try:
        found = subprocess.run([python, "-c", f"import {package}"], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if found.returncode == 0 else (found.stderr.splitlines() or ["it failed"])[-1]
