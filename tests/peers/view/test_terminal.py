"""The live view and the line of a round, while and after its deltas travel in segments."""

from __future__ import annotations

import io

from rich.console import Console

from mdl.peers.view.snapshot import Told, take_snapshot
from mdl.peers.view.terminal import describe_summary, draw_mesh
from mdl.protocol.status_messages import DeviceRecord, MemberStatus, MeshStatus, RoundSummary
from mdl.protocol.vocabulary import Activity, Transfer

PLAN = "160 segments of 32 KB: ann 80, bob 80; 1 own none; 1.57 s at best"
OWNS = {"ann": 80, "bob": 80, "eve": 0}


def _drawn(height: int, **told: object) -> list[str]:
    members = (
        MemberStatus("ann", 1, True, Activity.HOLDING, 3, 0.1, transfer=Transfer("bob", 3_000_000, 4_000_000)),
        MemberStatus("bob", 1, True, Activity.STAGED, 3, 0.1),
        MemberStatus("eve", 1, True, Activity.HOLDING, 3, 0.1),
    )
    devices = tuple(DeviceRecord(name, 1.0) for name in OWNS)
    status = MeshStatus(1, 4, 0, "exchanging segments", "greedy", members, devices=devices, elapsed_s=3.0, **told)  # type: ignore[arg-type]
    console = Console(width=90, record=True, file=io.StringIO(), color_system=None)
    console.print(draw_mesh(take_snapshot(Told("home", status=status)), height=height))
    return console.export_text().splitlines()


def test_one_line_tells_how_far_the_segments_are_and_each_device_its_part() -> None:
    lines = _drawn(40, shares=OWNS, plan=PLAN, exchanging_s=1.2)
    line = next(line for line in lines if line.startswith("segments"))
    assert line.startswith("segments: 58% are there after 1.2 s; 160 segments of 32 KB: ann 80")
    assert any("segments 75%, owns 80" in line for line in lines)
    assert any("segments 0%, owns 0" in line for line in lines)
    assert any("bob" in line and "has the round's result" in line for line in lines)


def test_without_segments_a_transfer_is_told_as_ever() -> None:
    assert any("holding 75% from bob" in line for line in _drawn(40))


def test_the_line_of_a_round_in_segments_has_its_plan_and_its_time() -> None:
    summary = RoundSummary(4, 3.0, ("ann", "bob"), (), {"broadcast": 2.0}, 20, 1.0, shares=OWNS, plan=PLAN)
    assert describe_summary(summary).endswith(f"{PLAN}, took 2 s")
