"""How many faults of people's machines and networks `mdl doctor` names, and how often it cries wolf: hosts on a LAN.

    python benchmarks/doctor.py --healthy 20

Network namespaces: needs root, iproute2 and nftables. One line a case, and one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from transport.trust.keys import new_join_code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=20, help="how many healthy hosts are looked at")
    given = parser.parse_args()
    faults, lan = (importlib.import_module(f"tests.integration.{name}") for name in ("doctor_faults", "lan"))
    if reason := lan.why_not() or faults.why_not():
        print(f"doctor: {reason}", file=sys.stderr)
        return 2
    cases = [*faults.FAULTS, *[faults.healthy] * given.healthy]
    rows = _run(faults, lan, cases) + _run(faults, lan, list(faults.ALONE))
    sick = [row for row in rows if row["fault"] != "healthy"]
    told = {
        "faults": len(sick),
        "named": sum(row["named"] for row in sick),
        "healthy": len(rows) - len(sick),
        "false_alarms": sum(row["exit_code"] != 0 for row in rows if row["fault"] == "healthy"),
        "seconds_median": round(statistics.median(row["seconds"] for row in rows), 1),
        "seconds_max": round(max(row["seconds"] for row in rows), 1),
        "cases": rows,
    }
    print(json.dumps(told))
    return 0


def _run(faults: ModuleType, lan: ModuleType, cases: list[Any]) -> list[dict[str, Any]]:
    code, rows = new_join_code("home"), []
    with tempfile.TemporaryDirectory() as folder, lan.Lan(len(cases) + 1) as net:
        member = faults.start_member(net, Path(folder), code)
        try:
            for host, fault in enumerate(cases, 1):
                place = Path(folder) / f"host-{host}"
                exit_code, told, _, took_s = faults.examine(net, host, fault, place, code)
                check, verdict, expected = {**faults.FAULTS, **faults.ALONE}.get(fault, ("", "", 0))
                named = (check, verdict) in faults.names(told) and exit_code == expected
                name = fault.__name__
                rows.append({"fault": name, "exit_code": exit_code, "named": named, "seconds": round(took_s, 1)})
                seen = ", ".join(sorted(f"{check} ({verdict})" for check, verdict in faults.names(told)))
                print(f"{name:26} exit {exit_code}  {took_s:5.1f} s  {seen}", file=sys.stderr, flush=True)
        finally:
            member.close()
    return rows


if __name__ == "__main__":
    sys.exit(main())
