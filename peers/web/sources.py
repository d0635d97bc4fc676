"""The subjects of a page: a live mesh, a run directory, or a cloud by itself. Each only reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from mdl.bounds import Count, PeerId, Seconds, Share
from mdl.errors import DataError
from mdl.files.figures import ROUNDS_KEPT, LineTail
from mdl.peers.view.snapshot import CyclePart, Told
from mdl.peers.view.watch import Watcher
from mdl.protocol.counts import Score
from mdl.reading import decode_json, read_bytes
from mdl.scheduler.explain.recorded_round import read_real_rounds
from mdl.scheduler.policies.registry import SHARES, quick_policies

# The intervals at which the agent is asked: with an open page, and without one.
_HURRIED_S, _CALM_S = 0.1, 1.0
# A result has some hundred bytes.
_LARGEST_RESULT_BYTES = 1 << 20
_MOST_CYCLES = 200
# The interval of looks at a file that a run writes.
_LOOK_S = 1.0


class SnapshotSource(Protocol):
    """A source of the snapshot."""

    def told(self) -> Told: ...

    def hurry(self, is_watched: bool) -> None:
        """Note that a page is open from now on, or that none is."""
        ...


class CycleLine(msgspec.Struct, frozen=True):
    """One line of cycles.jsonl (`peers/colla/files.py`)."""

    version: Count
    groups: dict[str, tuple[PeerId, ...]] = {}
    scores: dict[PeerId, float] = {}
    left_out: tuple[PeerId, ...] = ()
    seconds: Seconds = 0.0


class _Result(msgspec.Struct, frozen=True):
    """The results of `mdl up --baselines` in result.json."""

    accuracy_alone: Share | None = None
    accuracy_central: Share | None = None
    score_alone: Score | None = None
    score_central: Score | None = None


class Cycles:
    """Follows the cycles.jsonl of a cloud. path: None if none is known."""

    def __init__(self, path: Path | None) -> None:
        self._tail = LineTail(path) if path else None
        self._found: dict[int, CyclePart] = {}

    def look(self) -> Mapping[int, CyclePart] | None:
        """Return the cycles by version; None if no cloud is known."""
        while self._tail and (lines := self._tail.new()):
            for line in lines:
                cycle = decode_json(line, CycleLine, "cycles.jsonl")
                self._found[cycle.version] = CyclePart(cycle.groups, cycle.scores, cycle.left_out, cycle.seconds)
            for version in sorted(self._found)[:-_MOST_CYCLES]:
                del self._found[version]
        return dict(self._found) if self._tail else None


class LiveMesh:
    """A mesh, as a watcher hears it. cycles: of a cloud with files on this machine. classes: names, once known."""

    def __init__(self, watcher: Watcher, cycles: Path | None = None, classes: tuple[str, ...] = ()) -> None:
        self._watcher, self._cycles = watcher, Cycles(cycles)
        self.classes = classes

    def name_classes(self, names: tuple[str, ...]) -> None:
        """Set the class names. May be called from any thread."""
        self.classes = names

    def told(self) -> Told:
        told = self._watcher.told()
        return msgspec.structs.replace(told, cycles=self._cycles.look(), policies=POLICIES, classes=self.classes)

    def hurry(self, is_watched: bool) -> None:
        self._watcher.machine.interval_s = _HURRIED_S if is_watched else _CALM_S


class RunDirectory:
    """A finished run: its rounds, its cloud's cycles, its baselines. Raises DataError if the directory holds none."""

    def __init__(self, path: Path) -> None:
        rounds = read_real_rounds(path)[-ROUNDS_KEPT:]
        result = _read_result(path / "result.json")
        cycles = Cycles(path / "cloud" / "cycles.jsonl" if (path / "cloud").is_dir() else None).look()
        self._told = Told(
            *(path.resolve().name, str(path), None, 0.0, tuple(rounds), {}, cycles),
            alone=result.accuracy_alone if result.score_alone is None else result.score_alone,
            central=result.accuracy_central if result.score_central is None else result.score_central,
            policies=POLICIES,
            classes=_read_classes(path / "global.safetensors"),
            problem=f"a run that is over: {len(rounds)} rounds",
        )

    def told(self) -> Told:
        return self._told

    def hurry(self, is_watched: bool) -> None:
        """Do nothing: a finished run never changes."""


class OwnCloud:
    """A cloud by itself, from the file that it writes."""

    def __init__(self, name: str, cycles: Path) -> None:
        self._name, self._cycles = name, Cycles(cycles)

    def told(self) -> Told:
        cycles = self._cycles.look()
        return Told(self._name, "cloud", cycles=cycles, problem="a cloud: devices in meshes dial it")

    def hurry(self, is_watched: bool) -> None:
        """Do nothing: the file is read in any case."""


class Poller:
    """Calls `notify` repeatedly, for a source that cannot tell by itself that there is news."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify, self._over = notify, threading.Event()
        self._thread = threading.Thread(target=self._run, name="mdl-look", daemon=True)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._notify()


POLICIES = (*quick_policies(), SHARES)


def _read_classes(model: Path) -> tuple[str, ...]:
    from mdl.files.export import read_description  # imports torch, which the page of a live mesh does not need

    try:
        return read_description(model).class_names
    except DataError:
        return ()  # from a user's own training loop, or an interrupted run


def _read_result(path: Path) -> _Result:
    try:
        return decode_json(read_bytes(path, _LARGEST_RESULT_BYTES), _Result, str(path))
    except DataError:
        return _Result()  # an interrupted run has none
