"""How many faults of people's machines and networks `mdl doctor` names, and how often it cries wolf: hosts on a LAN.

    python -m benchmarks doctor                # all; or --only fresh, --only wrong_netmask,plain

Network namespaces: needs root, iproute2 and nftables.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tool.hosts import load_helper, need_hosts
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.spread import median
from benchmarks.tool.table import show


@dataclass(frozen=True)
class Row:
    """kind: faults, fresh, homes or healthy. expected: the check that names it, its verdict, the exit code."""

    kind: str
    fault: Callable[[Any], None]
    expected: tuple[str, str, int] = ("", "", 0)

    @property
    def name(self) -> str:
        return self.fault.__name__


def add_options(parser: Parser) -> None:
    parser.add_argument("--only", default="", help="faults, fresh, homes, healthy, or names of cases, with commas")


def run(given: Namespace, sheet: Sheet) -> None:
    """Try all cases. Raises ConfigError."""
    only = set(filter(None, given.only.split(",")))
    lan = need_hosts("doctor_case")
    case = load_helper("doctor_case")
    together, apart = _rows()
    rows = _run(case, lan, [each for each in together if not only or only & {each.kind, each.name}])
    for each in apart:
        if not only or only & {each.kind, each.name}:
            rows += _run(case, lan, [each], hosts=3)
    told: dict[str, Any] = {}
    for kind in ("faults", "fresh", "homes", "healthy"):
        of_it = [row for row in rows if row["kind"] == kind]
        told[kind] = {"cases": len(of_it), "right": sum(row["right"] for row in of_it)}
    show(("", "cases", "right"), [(kind, *counts.values()) for kind, counts in told.items()])
    seconds = [row["seconds"] for row in rows]
    sheet.tell(told | {"seconds_median": median(seconds, 1), "seconds_max": max(seconds), "cases": rows})


def _rows() -> tuple[list[Row], list[Row]]:
    """Those on one LAN, and those that need one each."""
    kinds = ("faults", "fresh", "homes", "healthy")
    faults, fresh, homes, healthy = (load_helper(f"doctor_{name}") for name in kinds)
    together = [Row("faults", *each) for each in faults.FAULTS.items()]
    together += [Row("fresh", *each) for each in fresh.FRESH.items()]
    together += [Row("homes", *each) for each in homes.HOMES.items()]
    together += [Row("healthy", each) for each in healthy.HEALTHY]
    apart = [Row("faults", *each) for each in faults.ALONE.items()]
    apart += [Row("fresh", *each) for each in fresh.APART.items()]
    return together, apart + [Row("homes", *each) for each in homes.APART.items()]


def _run(case: Any, lan: Any, cases: Iterable[Row], hosts: int = 0) -> list[dict[str, Any]]:
    """Each on a host of its own of one LAN."""
    cases, rows = list(cases), []
    if not cases:
        return []
    with tempfile.TemporaryDirectory() as folder, lan.Lan(hosts or len(cases) + 1) as net:
        member = case.start_member(net, Path(folder))
        try:
            for host, each in enumerate(cases, 1):
                place = Path(folder) / f"host-{host}"
                exit_code, told, errors, took_s = case.examine(net, host, each.fault, place, member)
                found = case.names(told)
                check, verdict, expected = each.expected
                right = exit_code == expected and (each.kind == "healthy" or (check, verdict) in found)
                rows.append({"case": each.name, "kind": each.kind, "right": right, "exit_code": exit_code})
                rows[-1]["seconds"] = round(took_s, 1)
                seen = ", ".join(sorted(f"{check} ({verdict})" for check, verdict in found)) or errors[-300:].strip()
                mark = "right" if right else "WRONG"
                print(f"{mark} {each.name:32} exit {exit_code} {took_s:5.1f} s  {seen}", file=sys.stderr, flush=True)
                if not right:
                    for finding in told.get("findings", ()):
                        print(f"      {finding['verdict']} {finding['check']}: {finding['told']}", file=sys.stderr)
        finally:
            member.close()
    return rows
