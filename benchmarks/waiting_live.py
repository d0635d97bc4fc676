"""Time to accuracy on real processes: rounds that wait for all devices, beside rounds that do not.

    python -m benchmarks waiting_live --data uci-har:PATH --recordings phone_traces.csv.gz --seeds 200 201 202

Nine devices are network namespaces whose links are limited and drift, so it needs root and iproute2. Each trains UCI
HAR by person; a training lasts as long as on its class of phone, and stands still while a recorded phone is busy. No
rule was tuned on these phones. A world is paired: the same devices, uses and links for each rule. With `--faster 4` all
times of a world are a quarter, those of the rule as well, and the delta has a quarter of 10 MB.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.links.paced_device import Pace
from benchmarks.tool.hosts import need_hosts
from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser, add_data, add_seeds, add_settings
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from benchmarks.waiting import table
from mdl.config import RoundSection
from mdl.data import DataSet, default_cache_dir, load_data
from mdl.devices.usage import Periods
from mdl.errors import ConfigError
from mdl.files.figures import read_run
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.own import own_data
from mdl.peers.edge.identity import CODE_VARIABLE
from mdl.scheduler.rounds.world import SLOT_S, World, draw_recorded_world, of_part, read_phones
from mdl.transport.trust.keys import new_join_code

# Accuracies in percent: of all test windows, then of the worst of the test people.
TARGETS = ("80", "84", "86", "88", "90", "worst 75")
_WORST = 75.0
# 2.4 MB for UCI HAR, most of them in one layer: little to compute and much to send.
_MODEL = "cnn?channels=8,16&hidden=1300"
_SIZE_MB = 10.0
_DEFAULT = RoundSection()
RULES = {"half": (_DEFAULT.wait_for, _DEFAULT.grace_s), "third": (0.34, _DEFAULT.grace_s), "all": (1.0, 0.0)}
_EQUAL_MBIT, _EQUAL_TRAIN_S = 40.0, 4.0
_LOOK_S = 0.25


def add_options(parser: Parser) -> None:
    add_data(parser, what="for example uci-har:PATH")
    add_seeds(parser, (200, 201, 202))
    parser.add_argument("--recordings", type=Path, required=True, help="a table of recorded phones")
    parser.add_argument("--rules", nargs="+", default=["half", "all"], choices=list(RULES), help="all beside the first")
    parser.add_argument("--peers", type=int, default=9)
    parser.add_argument("--model", default=_MODEL, help="a model's name")
    parser.add_argument("--faster", type=float, default=4.0, help="all of a world is so many times as fast")
    parser.add_argument("--limit-s", type=float, default=600.0, help="a run ends then, whatever it has reached")
    parser.add_argument("--equal", action="store_true", help="equal devices that nobody uses, on equal links")
    add_settings(parser)


def run(given: Namespace, sheet: Sheet) -> None:
    """Train each world by each rule, in turns. Raises ConfigError, DataError."""
    lan = need_hosts()
    torch.set_num_threads(1)
    data = load_data(own_data(given.data), default_cache_dir(), seed=0)
    phones = of_part(read_phones(given.recordings), "held-out")
    runs: list[dict[str, Any]] = []
    sheet.tell({"data": data.name, "runs": runs})
    for place, rule in in_turns(len(given.seeds), given.rules):
        seed = given.seeds[place - 1]
        world = draw_recorded_world(phones, given.peers, _SIZE_MB, seed)
        runs.append(_Run(data, world, given, seed, rule).play(lan))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        sheet.save()
    columns = ("rule", "left out a round", "least share", *(f"to {each} %" for each in TARGETS))
    show(columns, table(runs, given.rules, TARGETS))


class _Run:
    """One mesh in one world. Seconds count from the first round's opening."""

    def __init__(self, data: DataSet, world: World, given: Namespace, seed: int, rule: str) -> None:
        self._data, self._world, self._given, self._seed, self._rule = data, world, given, seed, rule
        self._model = FlatModel(build_model(given.model, data.shape[0], data.shape[1], len(data.classes), seed))
        self._reached: dict[str, float] = {}
        self._first_s = 0.0
        self._ended = threading.Event()

    def play(self, lan: ModuleType) -> dict[str, Any]:
        """Run until all targets are reached, or the time is up."""
        size = self._given.peers
        with tempfile.TemporaryDirectory() as folder, lan.Lan(size, [self._mbit(at, 0.0) for at in range(size)]) as net:
            models = Path(folder) / "models"
            models.mkdir()
            log = (Path(folder) / "log").open("w")
            begun_s = time.monotonic()
            os.environ |= self._environment(folder)
            for place in range(size):
                self._start(net, place, Path(folder), begun_s, log.fileno())
            links = threading.Thread(target=self._drift, args=(net, begun_s))
            links.start()
            try:
                self._watch(models, begun_s)
            finally:
                self._ended.set()
                links.join()
            net.remove()
            rounds = read_run(Path(folder))
            if not rounds:
                raise ConfigError(f"no round was closed: {(Path(folder) / 'log').read_text()[-500:]}")
        names = [f"dev{place}" for place in range(size)]
        counts = [sum(name in each.contributors for each in rounds) for name in names]
        left_out = size - sum(counts) / len(rounds)
        opened_s = self._first_s - rounds[0].seconds.get("total", 0.0)
        return {
            "seed": self._seed,
            "rule": self._rule,
            "rounds": len(rounds),
            "left_out": round(left_out, 2),
            "least_share": round(min(counts) / max(1e-9, sum(counts) / size), 2),
            "round_s": round(float(np.median([each.seconds.get("total", 0.0) for each in rounds])), 2),
            "seconds": {target: round(at_s - opened_s, 1) for target, at_s in self._reached.items()},
        }

    def _start(self, net: Any, place: int, folder: Path, begun_s: float, log: int) -> None:
        given, device = self._given, self._world.devices[place]
        train_s = _EQUAL_TRAIN_S if given.equal else device.period_s
        busy: Periods = () if given.equal else device.busy
        faster = tuple((begin / given.faster, end / given.faster) for begin, end in busy)
        home = folder / str(place)
        home.mkdir()
        pace = home / "pace.json"
        pace.write_bytes(msgspec.json.encode(Pace(begun_s, train_s / given.faster, faster, 1_000 * self._seed + place)))
        wait_for, grace_s = RULES[self._rule]
        settings = [f"data.spec={given.data}", f"data.shard={place + 1}/{given.peers}", f"model.name={given.model}"]
        settings += [f"seed={self._seed}", f"round.min_peers={given.peers}", "round.relearn=false"]
        settings += [f"round.wait_for={wait_for}", f"round.grace_s={grace_s / given.faster}", "busy.cpu_percent=100"]
        settings += ["training.rounds_per_epoch=16", "training.schedule=constant", *given.set]
        net.start(place, ROOT / "benchmarks" / "links" / "paced_device.py", home, pace, *settings, stderr=log)

    def _environment(self, folder: str) -> dict[str, str]:
        own = {"HOME": folder, "XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config"}
        own |= {"XDG_CACHE_HOME": str(default_cache_dir().parent), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return own | {CODE_VARIABLE: new_join_code("waiting")}

    def _mbit(self, place: int, at_s: float) -> float:
        return _EQUAL_MBIT if self._given.equal else round(8.0 * self._world.devices[place].link_at(at_s), 2)

    def _drift(self, net: Any, begun_s: float) -> None:
        """Links change slot by slot, as in the world."""
        slot_s = SLOT_S / self._given.faster
        while not self._given.equal and not self._ended.wait(slot_s):
            at_s = (time.monotonic() - begun_s) * self._given.faster
            for place in range(self._given.peers):
                net.limit(place, self._mbit(place, at_s))

    def _watch(self, models: Path, begun_s: float) -> None:
        """Test each model as it comes."""
        tested: set[str] = set()
        while time.monotonic() - begun_s < self._given.limit_s and len(self._reached) < len(TARGETS):
            self._ended.wait(_LOOK_S)
            for path in sorted(models.glob("*.npy"), key=lambda path: int(path.stem)):
                if path.name not in tested:
                    tested.add(path.name)
                    self._test(np.load(path), path.stat().st_mtime - (time.time() - time.monotonic()) - begun_s)

    def _test(self, parameters: Any, at_s: float) -> None:
        self._first_s = self._first_s or at_s
        self._model.load(parameters)
        test, classes = self._data.test, len(self._data.classes)
        people = [test.subject == person for person in np.unique(test.subject)]
        found = [evaluate(self._model.module, test.x[rows], test.y[rows], classes).accuracy for rows in people]
        windows = [int(rows.sum()) for rows in people]
        accuracy, worst = 100.0 * float(np.average(found, weights=windows)), 100.0 * min(found)
        for target in TARGETS:
            if (worst >= _WORST) if target.startswith("worst") else (accuracy >= float(target)):
                self._reached.setdefault(target, at_s)
