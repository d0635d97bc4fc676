"""Real processes, one of which alters what it gives: it is named in that round, and no round has its values."""

import pytest

from mdl.protocol.round_messages import PieceMessage, SegmentMessage
from tests.integration.altering_node import WAYS
from tests.integration.test_faults import HERE, Mesh

VALUES = 40_000  # ten segments
ALTERING = HERE / "altering_node.py"
# A load passes p1, p2 and p3 in this order; p4 has the result.
SETTINGS = {"round__min_peers": 4, "round__policy": "ring", "busy__cpu_percent": 100}


def _start(mesh, way, liar, third=""):
    mesh.start_as([ALTERING, way], liar)
    if third:
        mesh.start_as([ALTERING, "looks away"], third)
    mesh.start("agent", *(name for name in ("p1", "p2", "p3", "p4") if name not in (liar, third)))


def _check(mesh, liar):
    _, _, said = mesh.wait_for(lambda name, line: name != liar and liar in line.get("accuses", {}))
    round_id, reason = said["accuses"][liar]
    assert "not the sum of its deltas" in reason or "theta" in reason or "is not the result" in reason, reason
    mesh.wait_for(lambda name, line: name != liar and line.get("global", 0) >= round_id)  # that round ends
    here = mesh.here()
    mesh.wait_for(lambda name, line: name != liar and line.get("global", 0) >= round_id + 2, here)
    mesh.check()  # and each result is the sum of its contributors' own deltas
    accused = {name for who, line in mesh.told("accuses") if who != liar for name in line["accuses"]}
    assert accused == {liar}
    return round_id


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way, (kind, _) in WAYS.items() if kind in (PieceMessage, SegmentMessage)])
def test_in_segments(tmp_path, way):
    with Mesh(tmp_path, None, VALUES, round__exchange="shares", **SETTINGS) as mesh:
        _start(mesh, way, "p2")
        first = _check(mesh, "p2")
        assert first == (2 if "earlier" in way else 1)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one value of a load", "one value of the result", "the result of an earlier round"])
def test_by_hops(tmp_path, way):
    liar = "p4" if "result" in way else "p2"
    with Mesh(tmp_path, None, VALUES, round__exchange="chain", **SETTINGS) as mesh:
        _start(mesh, way, liar)
        first = _check(mesh, liar)
        assert first <= 3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["other contributors of a load", "tells no checksum"])
def test_a_device_is_in_no_round(tmp_path, way):
    with Mesh(tmp_path, None, VALUES, round__exchange="chain", **SETTINGS) as mesh:
        _start(mesh, way, "p2")
        for count in (1, 2, 3):
            mesh.wait_for(lambda name, line, count=count: name == "p1" and line.get("global", 0) >= count)
        mesh.check()
        assert not any("p2" in dict(line["contributors"]) for name, line in mesh.told("global") if name == "p1")


@pytest.mark.slow
def test_one_of_four_looks_away(tmp_path):
    with Mesh(tmp_path, None, VALUES, round__exchange="shares", **SETTINGS) as mesh:
        _start(mesh, "one value of a segment", "p2", "p3")
        _, _, said = mesh.wait_for(lambda name, line: name == "p1" and "p2" in line.get("accuses", {}))
        round_id = said["accuses"]["p2"][0]
        mesh.wait_for(lambda name, line: name == "p1" and line.get("global", 0) >= round_id + 2)
        mesh.check()
