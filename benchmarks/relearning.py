"""What re-learning the schedule costs the device that leads (MDLdroid 3.3.3): memory and processor time.

    python -m benchmarks relearning --seconds 120

Real `mdl peer` processes on loopback train a LeNet on made-up motion data. Who leads has a slot of learning follow its
rounds, in a process of its own; both are watched from the first slot on. Resident memory (RSS) counts pages that
processes share in each of them; the proportional set size (PSS) counts them once. A second run with
`round.relearn=false` is what the same mesh takes without.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.table import show
from mdl.peers.edge.relearner import LEAST_SEEN
from mdl.peers.launch.processes import Child, Children
from mdl.transport.trust.keys import new_join_code

_SAMPLE_S = 0.05
# Four processes that start on two cores, and the rounds that have to be seen before the first slot.
_START_S = 120.0
_MB = 1e6
_DATA = "motion?people=8&windows=100"


@dataclass
class Peaks:
    """Of the leading peer and its slots. Bytes; slots: how many were met (short ones may be missed)."""

    peer_rss: int = 0
    slot_rss: int = 0
    both_pss: int = 0
    slots: set[int] = field(default_factory=set)

    def look(self, peer: psutil.Process) -> None:
        mine, theirs = _rss(peer), 0
        together = _pss(peer)
        for slot in peer.children():
            theirs += _rss(slot)
            together += _pss(slot)
            self.slots.add(slot.pid)
        self.peer_rss, self.slot_rss = max(self.peer_rss, mine), max(self.slot_rss, theirs)
        self.both_pss = max(self.both_pss, together)


def measure(peers: int, seconds: float, relearn: bool) -> dict[str, Any]:
    """One mesh. Raises Failed if nobody leads in time, or no slot begins."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        os.environ |= {"HOME": scratch, "XDG_STATE_HOME": scratch, "XDG_CACHE_HOME": scratch}
        with Children(home / "logs", new_join_code("relearning"), 1) as children:
            for number in range(peers):
                children.start(f"peer-{number}", *_command(number, peers, relearn, home))
            leader = _wait_for_leader(children.running, home, relearn)
            return _watch(psutil.Process(leader.process.pid), seconds) | {"relearn": relearn, "peers": peers}


def _command(number: int, peers: int, relearn: bool, home: Path) -> list[str]:
    settings = [f"round.relearn={str(relearn).lower()}", "busy.cpu_percent=100", f"round.min_peers={peers}"]
    words = ["peer", "--loopback", "--name", f"peer-{number}", "--data", _DATA, "--shard", f"{number + 1}/{peers}"]
    words += ["--model", "lenet", "--policy", "dqn", "--exchange", "chain", "--out", str(home / f"out-{number}")]
    return words + [word for setting in settings for word in ("--set", setting)]


def _wait_for_leader(running: list[Child], home: Path, relearn: bool) -> Child:
    """Who has led enough rounds to learn from, and has begun to if it is to."""
    give_up_at = time.monotonic() + _START_S
    while time.monotonic() < give_up_at:
        for number, child in enumerate(running):
            if child.process.poll() is not None:
                raise Failed(f"{child.name}: {child.problem()}")
            rounds = home / f"out-{number}" / "metrics.jsonl"
            is_leader = rounds.exists() and len(rounds.read_bytes().splitlines()) >= LEAST_SEEN
            if is_leader and (not relearn or psutil.Process(child.process.pid).children()):
                return child
        time.sleep(_SAMPLE_S)
    raise Failed(f"no peer has led and learned within {_START_S:.0f} s")


def _watch(leader: psutil.Process, seconds: float) -> dict[str, Any]:
    peaks, before, began = Peaks(), leader.cpu_times(), time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            peaks.look(leader)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):  # a slot that has just ended
            continue
        time.sleep(_SAMPLE_S)
    minutes, after = (time.monotonic() - began) / 60.0, leader.cpu_times()
    slots_s = after.children_user + after.children_system - before.children_user - before.children_system
    own_s = after.user + after.system - before.user - before.system
    return {
        "peer_rss_mb": round(peaks.peer_rss / _MB, 1),
        "slot_rss_mb": round(peaks.slot_rss / _MB, 1),
        "both_pss_mb": round(peaks.both_pss / _MB, 1),
        "peer_cpu_s_a_minute": round(own_s / minutes, 2),
        "slots_cpu_s_a_minute": round(slots_s / minutes, 2),
        "slots": len(peaks.slots),
    }


def _rss(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _pss(process: psutil.Process) -> int:
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def add_options(parser: Parser) -> None:
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0, help="watched from the first slot on")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure a mesh without and one with re-learning. Raises Failed."""
    results = [measure(given.peers, given.seconds, relearn) for relearn in (False, True)]
    keys = ("peer_rss_mb", "slot_rss_mb", "both_pss_mb", "peer_cpu_s_a_minute", "slots_cpu_s_a_minute", "slots")
    head = ("re-learning (MB)", "peer RSS", "slot RSS", "PSS of both", "peer CPU-s/min", "slots CPU-s/min", "slots")
    show(head, [("on" if one["relearn"] else "off", *(one[key] for key in keys)) for one in results])
    sheet.tell({"seconds": given.seconds, "results": results})
