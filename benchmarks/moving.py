"""How long a mesh pauses when a device gets another address in the middle of a run.

Three hosts in network namespaces (tests/integration/lan.py), so it needs root and iproute2; no training. The
pause is the longest time without a round of all three about the move, on any device, from the moment in which
the old address is gone.

    python -m benchmarks moving --moves 8
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tool.hosts import load_helper, need_hosts
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Failed, Sheet
from benchmarks.tool.spread import median
from benchmarks.tool.table import show
from mdl.transport.trust.keys import new_join_code

# Without the address: a lease that is renewed, or a change of the Wi-Fi, takes at least so long.
AWAY_S = 0.5
# After a move the rounds of so long are looked at, and between two.
LOOK_S, PATIENCE_S = 12.0, 60.0
MOVING = 1
# 800 KB: some five rounds a second.
_VALUES = ("--values", 200_000)


def add_options(parser: Parser) -> None:
    parser.add_argument("--moves", type=int, default=8, help="of each kind")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure the pauses of each kind of move. Raises ConfigError, Failed."""
    lan = need_hosts()
    found = {kind: [round(pause, 2) for pause in _measure(lan, kind, given.moves)] for kind in _KINDS}
    rows = [(kind, f"{median(pauses, 1)}", f"{max(pauses):.1f}", len(pauses)) for kind, pauses in found.items()]
    show(("pauses, s", "median", "longest", "moves"), rows)
    sheet.tell({"pauses_s": found, "away_s": AWAY_S})


def _another_lease(net: Any, number: int) -> float:
    before = time.monotonic()
    net.move(MOVING, f"10.213.0.{100 + number}", AWAY_S)
    return before


def _another_subnet(net: Any, number: int) -> float:
    before = time.monotonic()
    net.roam(MOVING, 1 - net.subnets[MOVING], AWAY_S)
    return before


def _no_lease(net: Any, number: int) -> float:
    """Its IPv4 address goes, or comes back."""
    before = time.monotonic()
    verb = "del" if number % 2 == 0 else "add"
    load_helper("lan").ip(f"-n {net.names[MOVING]} addr {verb} {net.hosts[MOVING]}/24 dev eth0")
    return before


_KINDS: dict[str, tuple[tuple[int, ...], Callable[[Any, int], float]]] = {
    "another lease": ((0, 0, 0), _another_lease),
    "another subnet": ((0, 0, 1), _another_subnet),
    "no lease, and one again": ((0, 0, 0), _no_lease),
}


def _measure(lan: Any, kind: str, moves: int) -> list[float]:
    """Seconds of each move's pause."""
    node_of: Any = load_helper("test_lan_moves").Node
    subnets, move = _KINDS[kind]
    pauses, code, folder = [], new_join_code("moves"), Path(tempfile.mkdtemp())
    with lan.Lan(3, subnets=subnets) as net:
        join = f"mesh.join={json.dumps([f'{net.hosts[0]}:5750'])}"
        own: tuple[list[str], ...] = (["mesh.port=5750"], [], [join] if any(subnets) else [])
        nodes = [
            node_of(net, host, code, folder, *_VALUES, "--set", "round.min_peers=3", *own[host]) for host in range(3)
        ]
        for number in range(moves):
            if not all(node.wait_for(3, 3, time.monotonic(), PATIENCE_S) for node in nodes):
                raise Failed(f"no rounds before move {number} ({kind})")
            moved = move(net, number)
            threading.Event().wait(LOOK_S)
            pauses.append(max(_pause(node, moved) for node in nodes))
            print(f"{kind}: {pauses[-1]:.2f} s", file=sys.stderr, flush=True)
    return pauses


def _pause(node: Any, moved: float) -> float:
    """The longest time without a round of all about a move, what was before it left out."""
    ends: list[float] = [
        moved,
        *(at for at, _, count in list(node.rounds) if at >= moved and count == 3),
        time.monotonic(),
    ]
    return max(later - earlier for earlier, later in itertools.pairwise(ends))
