"""Measure a full roster: the time to read it when a node starts, and for each statement that comes to it.

Real keys and signatures, made in this process; seconds are of its processor time. "kept" is the file as this device has
written it, whose mark spares the signatures; "unmarked" is the same file as an older version wrote it.

    python -m benchmarks roster_room
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

from benchmarks.tool.options import Namespace, Parser, add_runs
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.table import show
from mdl.peers.edge.identity import codes_home, remember_code
from mdl.peers.edge.membership import KEY_VARIABLE, device_key, keep_roster, open_membership
from mdl.protocol.statements import MAX_ENROLLED, AnyStatement, Enrolled, claim_of
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, is_signed, new_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.trust.roster import Roster

REVOKED = 1_000


def add_options(parser: Parser) -> None:
    add_runs(parser, 3, "the best of so many counts")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure a full roster."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HOME": folder, "XDG_CONFIG_HOME": folder, KEY_VARIABLE: bytes(32).hex()}
        told = measure(given.runs)
    show(("", ""), told.items())
    sheet.tell(told)


def measure(repeats: int) -> dict[str, float]:
    owner = device_key()
    code = new_join_code("home", bytes(19), founder_mark(owner.public))
    keys = MeshKeys.from_code(code)
    remember_code(code)
    membership = Membership(keys, owner)
    membership.roster.add(membership.found())
    enrolments = [enrol(keys, number) for number in range(MAX_ENROLLED)]
    revocations = membership.revoke(bytes(32), 1, ""), *(membership.revoke(made_up(at), 1, "") for at in range(REVOKED))
    said: list[AnyStatement] = [*(each for some in revocations for each in some), *enrolments]

    def fill() -> None:
        for statement in said:
            membership.roster.add(statement)

    added_s = seconds(fill, 1)
    last, claim = enrolments[-1], claim_of(keys.mesh_id, enrolments[-1])
    signature_s = seconds(lambda: [is_signed(last.device, claim, last.signature) for _ in range(500)], repeats) / 500
    keep_roster(membership)
    kept_s = seconds(lambda: open_membership(keys), repeats)
    for mark in codes_home().glob("*.roster-mark"):
        mark.unlink()
    unmarked_s = seconds(lambda: open_membership(keys), repeats)
    statements = membership.roster.statements()
    bare_s = seconds(lambda: Roster(keys, statements, lambda *_: True), repeats)
    roster = Roster(keys, statements[:-500], lambda *_: True)

    def tell_one_by_one() -> None:
        for statement in statements[-500:]:
            roster.add(statement)
            _ = roster.digest

    one_s = seconds(tell_one_by_one, 1) / 500
    return {
        "statements": len(statements),
        "a check of one signature, ms": round(1e3 * signature_s, 3),
        "a statement, its signatures checked, ms": round(1e3 * added_s / len(said), 3),
        "a statement without its signatures, ms": round(1e3 * bare_s / len(statements), 3),
        "a statement and the digest after it, without, ms": round(1e3 * one_s, 3),
        "a full roster is read, kept, s": round(kept_s, 3),
        "a full roster is read, unmarked, s": round(unmarked_s, 3),
    }


def enrol(keys: MeshKeys, number: int) -> Enrolled:
    return Membership(keys, DeviceKey.of(made_up(number))).enrol(f"p{number}")


def made_up(number: int) -> bytes:
    return number.to_bytes(32, "big")


def seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)
