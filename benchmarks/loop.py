"""The longest step of a device's network loop, and the longest pause between its heartbeats, with a large model.

    python benchmarks/loop.py --megabytes 800 --exchange chain shares
    TMPDIR=/media/card python benchmarks/loop.py --megabytes 100      # their files on that disk

Two real processes, encrypted links on loopback, file caches, ballots that are synced; local training is a random delta.
A step is one turn of the loop, from what it has waited for to the next wait: while it lasts no heartbeat goes out.
Reports are said every half second; a pause well beyond that is one that others could take for a loss.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from benchmarks.memory import read_peer, run_peer
from mdl.config import Compress, Exchange
from mdl.peers.edge.identity import CODE_VARIABLE
from mdl.protocol.machine import Effect, Event, Send
from mdl.protocol.round_messages import AgentPresent, PeerReport
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Runtime
from mdl.transport.trust.keys import new_join_code

PEERS = 2
# Told of each device, so that one knows where to look.
_LONGEST = 5


class LoopWatch:
    """Looks at a runtime's loop. steps: the longest turns in seconds, each with the event that took longest in it."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, str]] = []
        self.pauses: list[float] = [0.0]
        self._said_at: float | None = None
        self._slowest = (0.0, "")
        self._at = 0.0

    def attach(self, runtime: Runtime[Links]) -> None:
        turn, step = runtime._turn, runtime._step

        def timed_turn(*rest: Any) -> None:
            self._slowest = (0.0, "receiving")
            turn(*rest)
            self._note(time.perf_counter() - self._at)

        def timed_step(event: Event, now: float) -> None:
            begun = time.perf_counter()
            step(event, now)
            kind = type(getattr(event, "message", event)).__name__
            self._slowest = max(self._slowest, (time.perf_counter() - begun, kind))

        runtime._turn, runtime._step = timed_turn, timed_step  # type: ignore[method-assign, assignment]
        runtime._poller = _Poller(self._begin)

    def look(self, now: float, event: Event, effects: list[Effect]) -> None:
        if any(
            isinstance(effect, Send) and isinstance(effect.message, AgentPresent | PeerReport) for effect in effects
        ):
            at = time.perf_counter()
            if self._said_at is not None:
                self.pauses.append(at - self._said_at)
            self._said_at = at

    def told(self) -> dict[str, Any]:
        steps = [[round(1000 * seconds, 1), kind] for seconds, kind in self.steps]
        return {"longest_steps_ms": steps, "longest_pause_s": round(max(self.pauses), 2)}

    def _begin(self) -> None:
        self._at = time.perf_counter()

    def _note(self, seconds: float) -> None:
        self.steps = sorted([*self.steps, (seconds, self._slowest[1])], reverse=True)[:_LONGEST]


class _Poller(zmq.Poller):
    def __init__(self, woken: Callable[[], None]) -> None:
        super().__init__()
        self._woken = woken

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        try:
            return super().poll(timeout)
        finally:
            self._woken()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=800.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exchange", nargs="+", choices=get_args(Exchange), default=["chain", "shares"])
    parser.add_argument("--compress", choices=get_args(Compress), default="none", help="round.compress, of segments")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    values = round(given.megabytes * 1e6 / 4)
    if given.peer:
        watch = LoopWatch()
        with tempfile.TemporaryDirectory() as folder:
            chosen = given.peer, values, given.rounds, PEERS, given.exchange[0]
            run_peer(*chosen, Path(folder), watch, given.compress)
        return 0
    results = []
    print(f"{'exchange':>8} {'longest step ms':>16} {'in':>20} {'longest pause s':>16} {'round s':>8}")
    for exchange in given.exchange:
        try:
            told = _measure(given, exchange)
        except RuntimeError as error:
            print(f"loop: {error}", file=sys.stderr)
            return 4
        steps = sorted((step for each in told for step in each["longest_steps_ms"]), reverse=True)
        pause = max(each["longest_pause_s"] for each in told)
        seconds = [second for each in told for second in each["seconds"]]
        print(
            f"{exchange:>8} {steps[0][0]:16} {steps[0][1]:>20} {pause:16} {max(seconds, default=0.0):8.1f}", flush=True
        )
        results.append({"exchange": exchange, "longest_steps_ms": steps[:_LONGEST], "longest_pause_s": pause})
    how = {"megabytes": given.megabytes, "compress": given.compress, "peers": PEERS, "rounds": given.rounds}
    print(json.dumps({**how, "results": results}))
    return 0


def _measure(given: argparse.Namespace, exchange: str) -> list[dict[str, Any]]:
    environment = {**os.environ, CODE_VARIABLE: new_join_code("loop")}
    words = ["--megabytes", str(given.megabytes), "--rounds", str(given.rounds), "--exchange", exchange]
    words += ["--compress", given.compress]
    peers = [
        subprocess.Popen(
            [sys.executable, __file__, *words, "--peer", f"peer-{index}"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(PEERS)
    ]
    try:
        return [read_peer(peer) for peer in peers]
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()


if __name__ == "__main__":
    sys.exit(main())
