"""A thousand live devices and one cloud of recommenders, which is killed while vectors come and while it learns.

    python -m benchmarks dccl_fleet --data 'movielens:PATH?least=1' --devices 1000 --rounds 3 --out fleet.json

The cloud is `mdl cloud --task recommend`, a process of its own; the devices are what `mdl learn --task recommend` runs,
a thread and an encrypted connection each, in this process (they learn one after the other: one processor stands for all
of theirs). Each has its user's log in a file; the cloud's log lacks the last quarter of it. Every device says a vector
of each lesson, and a round begins when all are there. SIGKILL hits the cloud when half of the first round's vectors are
on its disk, and when it learns the second round; it is started again on the same port each time.

What devices were told that is taken is compared with what the cloud's books say has counted: each once, in the round
after its lesson. It fails if anything is lost, counted twice, or not done in time.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_data, add_rounds
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.table import show
from mdl.config import Config, load_config
from mdl.errors import MdlError
from mdl.peers.dccl.edge import make_device
from mdl.peers.dccl.model.interactions import Interactions
from mdl.peers.dccl.model.readers import read_interactions
from mdl.protocol.cloud_messages import UpdateTaken
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import Effect, Event, Received, StudyLesson, UpdateReady
from mdl.transport.runtime import Runtime
from mdl.transport.trust.keys import MeshKeys, new_join_code

# Of each user's log, what the cloud knows.
_CLOUDS_SHARE = 0.75
# Devices begin over so long, as people's do not all begin at once.
_START_S = 10.0
_LOOK_S = 0.02


@dataclass
class Told:
    """What all devices were told. taken: (device, number) -> version of the lesson; waited_s: from said to taken."""

    taken: dict[tuple[str, int], int] = field(default_factory=dict)
    waited_s: list[float] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class LiveDevice(threading.Thread):
    """One `mdl learn --task recommend` to its end. turns: of the processor that all devices share."""

    def __init__(
        self, config: Config, keys: MeshKeys, out: Path, rounds: int, turns: threading.Semaphore, told: Told
    ) -> None:
        super().__init__(daemon=True)
        me = Contributor(f"device-{out.name}", int(time.time() * 1000))
        self._device = make_device(config, me, keys, out, "", rounds, fresh=False, key=None)
        self._turns, self._told = turns, told
        self._ready: dict[bytes, tuple[UpdateReady, float]] = {}

    def run(self) -> None:
        runtime = Runtime(self._device.machine, self._device.spoke, {StudyLesson: self._study}, observe=self._note)
        finish = runtime.run()
        with self._told.lock:
            self._told.update_s += self._device.recommendee.update_s
            if finish.exit_code:
                self._told.problems.append(f"{self.name}: {finish.problem or finish.exit_code}")

    def _study(self, effect: StudyLesson) -> Event:
        with self._turns:
            return self._device.recommendee.study(effect)

    def _note(self, now: float, event: Event, _: list[Effect]) -> None:
        if isinstance(event, UpdateReady):
            self._ready[digest_of(event.update)] = event, now
        if isinstance(event, Received) and isinstance(event.message, UpdateTaken):
            found = self._ready.pop(event.message.digest, None)
            if found is not None:
                with self._told.lock:
                    user = self._device.recommendee.user
                    self._told.taken[user, found[0].number] = found[0].version
                    self._told.waited_s.append(now - found[1])


class CloudProcess:
    """`mdl cloud --task recommend`, killed and started again. peak_mb, cpu_s: of all its processes so far."""

    def __init__(self, folder: Path, code: str, log: Path, devices: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        self.out, self.peak_mb, self.cpu_s = folder / "cloud", 0.0, 0.0
        self._log, self._folder = folder / "cloud.log", folder
        self._words = [sys.executable, "-m", "mdl", "cloud", "--task", "recommend", "--data", f"csv:{log}?least=1"]
        self._words += ["--loopback", "--port", str(self.port), "--updates", str(devices), "--patience", "3600"]
        self._words += ["--out", str(self.out), "--seed", "1", "--json"]
        self._environment = {**os.environ, "MDL_CODE": code, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self._environment |= {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CONFIG", "CACHE")}
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                self._words, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=errors
            )

    def kill(self) -> dict[str, int]:
        """SIGKILL; returns the newest version there is by then, and the vectors of it on the disk."""
        self._look()
        self._process.kill()
        self._process.wait()
        return {"version": self.version(), "vectors": self.here(self.version())}

    def end(self) -> None:
        """However this benchmark ends."""
        self._process.kill()

    def stop(self) -> dict[str, Any]:
        """Ctrl-C, and what it says at its end."""
        self._look()
        self._process.send_signal(signal.SIGINT)
        said, _ = self._process.communicate(timeout=60)
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        """Of its database; nothing before that is made."""
        try:
            database = sqlite3.connect(f"file:{self.out / 'vectors.sqlite'}?mode=ro", uri=True)
            try:
                return database.execute(question).fetchall()
            finally:
                database.close()
        except sqlite3.OperationalError:
            return []

    def version(self) -> int:
        rows = self.ask("SELECT max(version) FROM lessons")
        return int((rows and rows[0][0]) or 0)

    def here(self, version: int) -> int:
        """Vectors of this lesson on the disk."""
        rows = self.ask(f"SELECT count(*) FROM vectors WHERE version = {version}")
        return int(rows[0][0]) if rows else 0

    def until(self, claim: Callable[[], bool], patience_s: float, what: str) -> float:
        """Seconds until it is true. Raises Failed."""
        began, pause = time.monotonic(), threading.Event()
        while not claim():
            if self._process.poll() is not None or time.monotonic() - began > patience_s:
                print(self._log.read_text()[-2000:], file=sys.stderr)
                raise Failed(f"{what} did not come")
            pause.wait(_LOOK_S)
        return time.monotonic() - began

    def _look(self) -> None:
        mine = psutil.Process(self._process.pid)
        status = (Path("/proc") / str(mine.pid) / "status").read_text()
        self.peak_mb = max(self.peak_mb, int(status.split("VmHWM:")[1].split()[0]) / 1024)
        self.cpu_s += sum(mine.cpu_times()[:2])


def add_options(parser: Parser) -> None:
    add_data(parser, what="movielens:PATH?least=1, or csv:PATH")
    parser.add_argument("--devices", type=int, default=1000)
    add_rounds(parser, 3)
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds that a part may take")


def run(options: Namespace, sheet: Sheet) -> None:
    """Measure one cloud and its devices. Raises DataError, Failed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = run_fleet(options, Path(folder))
    show(("", ""), [(name, told) for name, told in found.items() if not isinstance(told, list | dict)])
    sheet.tell(found)
    if not found["lost"] == found["counted_twice"] == found["undone"] == 0:
        sheet.problem = "a vector was lost, counted twice, or not done in time"


def run_fleet(options: Namespace, folder: Path) -> dict[str, Any]:
    names = write_logs(read_interactions(options.data), options.devices, folder)
    code, told = new_join_code("fleet"), Told()
    cloud = CloudProcess(folder, code, folder / "log.csv", len(names))
    atexit.register(cloud.end)
    pretraining_s = cloud.until(lambda: cloud.version() == 1, options.patience, "the first lesson")
    began = time.monotonic()
    address = f"127.0.0.1:{cloud.port}", MeshKeys.from_code(code)
    fleet = start_devices(options, folder, names, address, told)
    half = len(names) // 2
    cloud.until(lambda: cloud.here(1) >= half or cloud.version() > 1, options.patience, "half of the first vectors")
    killed, opened = [cloud.kill()], psutil.Process().num_fds()
    cloud.start()
    # The second round is learned from the moment on at which the last vector for it is on the disk.
    cloud.until(lambda: cloud.here(2) >= len(names) or cloud.version() > 2, options.patience, "the second vectors")
    killed.append(cloud.kill())
    cloud.start()
    last = options.rounds + 1
    cloud.until(lambda: cloud.version() == last, options.patience, "the last round")
    give_up_at = time.monotonic() + options.patience
    for device in fleet:
        device.join(max(0.0, give_up_at - time.monotonic()))
    took_s = time.monotonic() - began
    ended = cloud.stop()
    told.problems += [f"{device.name} goes on" for device in fleet if device.is_alive()]
    return {
        "devices": len(names),
        "rounds": options.rounds,
        "killed_at": killed,
        **compare(told, cloud, len(names), options.rounds),
        "refused": len(ended["refused"]),
        "problems": told.problems[:5],
        "pretraining_s": round(pretraining_s, 1),
        "took_s": round(took_s, 1),
        "cloud_cpu_s": round(cloud.cpu_s, 1),
        "cloud_peak_mb": round(cloud.peak_mb),
        "update_s_median": float(np.median(told.update_s)),
        "taken_after_s": [round(float(np.percentile(told.waited_s, each)), 2) for each in (50, 95, 100)],
        "descriptors": opened,
    }


def compare(told: Told, cloud: CloudProcess, devices: int, rounds: int) -> dict[str, Any]:
    """The devices' word against the cloud's books."""
    counted = cloud.ask("SELECT device, number, version FROM counted")
    by_vector: dict[tuple[str, int], list[int]] = {}
    for device, number, version in counted:
        by_vector.setdefault((device, number), []).append(version)
    per_lesson: dict[tuple[str, int], int] = {}
    for device, _, version in counted:
        per_lesson[device, version] = per_lesson.get((device, version), 0) + 1
    return {
        "taken": len(told.taken),
        "counted": len(counted),
        "by_round": {version: vectors for version, vectors in cloud.ask("SELECT version, vectors FROM lessons")},
        "lost": sum(by_vector.get(vector) != [version + 1] for vector, version in told.taken.items()),
        "counted_twice": sum(count > 1 for count in per_lesson.values()),
        "undone": devices * rounds - len(told.taken) + len(told.problems),
    }


def write_logs(data: Interactions, devices: int, folder: Path) -> list[str]:
    """log.csv, which the cloud has, and users/NAME.csv, which only that user's device has. Returns the names."""
    (folder / "users").mkdir()
    whole, names = ["user,item"], []
    for user in np.flatnonzero(data.lengths >= 8)[:devices]:
        name, items = f"u{data.users[user]}", [data.titles[item - 1] for item in data.of(int(user))]
        whole += [f"{name},{item}" for item in items[: int(_CLOUDS_SHARE * len(items))]]
        (folder / "users" / f"{name}.csv").write_text("\n".join(["user,item", *(f"{name},{item}" for item in items)]))
        names.append(name)
    (folder / "log.csv").write_text("\n".join(whole))
    if len(names) < devices:
        print(f"fleet: the log has {len(names)} users with 8 interactions", file=sys.stderr)
    return names


def start_devices(
    options: Namespace, folder: Path, names: list[str], cloud: tuple[str, MeshKeys], told: Told
) -> list[LiveDevice]:
    """All of them, within _START_S. cloud: its address and keys."""
    address, keys = cloud
    fleet, turns = [], threading.Semaphore(1)
    for name in names:
        spec = f"csv:{folder / 'users' / name}.csv"
        overrides = {"cloud.address": address, "data.spec": spec, "seed": 1, "cloud.patience_s": 1e6}
        try:
            config = load_config(None, overrides)
            fleet.append(LiveDevice(config, keys, folder / "devices" / name, options.rounds, turns, told))
        except MdlError as error:
            told.problems.append(f"{name}: {error}")
    for place, device in enumerate(fleet):
        threading.Timer(_START_S * place / len(fleet), device.start).start()
    return fleet
