"""The longest step of a device's network loop, and the longest pause between its heartbeats, with a large model.

    python -m benchmarks loop --megabytes 800 --exchange chain shares
    TMPDIR=/media/card python -m benchmarks loop --megabytes 100      # their files on that disk

Two real processes, encrypted links on loopback, file caches, ballots that are synced; local training is a random delta.
A step is one turn of the loop, from what it has waited for to the next wait: while it lasts no heartbeat goes out.
Reports are said every half second; a pause well beyond that is one that others could take for a loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

import zmq

from benchmarks.memory import run_peer, run_peers
from benchmarks.tool.options import Namespace, Parser, add_rounds
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.config import Compress, Exchange
from mdl.protocol.machine import Effect, Event, Send
from mdl.protocol.round_messages import AgentPresent, PeerReport
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Runtime

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


def add_options(parser: Parser) -> None:
    parser.add_argument("--megabytes", type=float, default=800.0)
    add_rounds(parser, 3)
    parser.add_argument("--exchange", nargs="+", choices=get_args(Exchange), default=["chain", "shares"])
    parser.add_argument("--compress", choices=get_args(Compress), default="none", help="round.compress, of segments")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure one mesh of each exchange. Raises Failed."""
    values, results, rows = round(given.megabytes * 1e6 / 4), [], []
    for exchange in given.exchange:
        told = run_peers("benchmarks.loop:watch_peer", values, given.rounds, PEERS, exchange, given.compress)
        steps = sorted((step for each in told for step in each["longest_steps_ms"]), reverse=True)
        pause = max(each["longest_pause_s"] for each in told)
        longest_s = max((second for each in told for second in each["seconds"]), default=0.0)
        rows.append((exchange, *steps[0], pause, f"{longest_s:.1f}"))
        results.append({"exchange": exchange, "longest_steps_ms": steps[:_LONGEST], "longest_pause_s": pause})
    show(("exchange", "longest step ms", "in", "longest pause s", "round s"), rows)
    how = {"megabytes": given.megabytes, "compress": given.compress, "peers": PEERS, "rounds": given.rounds}
    sheet.tell(how | {"results": results})


def watch_peer(name: str, values: int, rounds: int, peers: int, exchange: Exchange, compress: Compress) -> None:
    """One device, in a process of its own; prints what it measured as JSON."""
    run_peer(name, values, rounds, peers, exchange, compress, LoopWatch())
