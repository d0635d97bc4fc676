"""Two nodes whose way counts as bad: what they say goes as datagrams, and counts as what their link brings."""

import numpy as np
import pytest

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import PeerFound, PeerRevoked, Received
from mdl.protocol.round_messages import ModelMessage, ModelWanted
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links import flows
from mdl.transport.links.standing import Stated
from mdl.transport.trust.keys import MeshKeys, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership
from mdl.transport.wire.codec import encode
from tests.integration.conftest import device_of

pytestmark = pytest.mark.alone

VALUES = np.random.default_rng(1).standard_normal(200_000).astype(np.float32)


@pytest.fixture
def pair(mesh, keys, monkeypatch):
    """a and b, with datagrams between them; the way on loopback is never bad, so it is said to be."""
    monkeypatch.setattr(flows, "is_loopback", lambda host: False)
    mesh.add("a", keys)
    mesh.add("b", keys, join=["a"])
    assert mesh.until(lambda: mesh.of("a", PeerFound) and mesh.of("b", PeerFound))
    meet_by_datagrams(mesh, "a", "b")
    return mesh


def flow(mesh, me, other):
    return mesh.links[me]._outbox.flows._port._partners[other].flow


def meet_by_datagrams(mesh, *pair):
    both = list(zip(pair, reversed(pair), strict=True))
    partners = [mesh.links[me]._outbox.flows._port._partners for me, _ in both]
    assert mesh.until(lambda: all(found and min(p.flow.heard_at for p in found.values()) > 0 for found in partners))
    for me, other in both:
        flow(mesh, me, other).is_wanted = True


def test_values_and_words_go_as_datagrams_and_arrive_whole(pair, monkeypatch):
    monkeypatch.setattr(pair.links["a"]._outbox, "_put", lambda *what: pytest.fail(f"by its link: {what}"))
    pair.links["a"].send("b", ModelMessage(1, b"d"), VALUES, pair.now())
    for number in range(20):
        pair.links["a"].send("b", StatusWanted(number), None, pair.now())
    assert pair.until(lambda: len(pair.of("b", Received)) == 21)
    received = pair.of("b", Received)
    assert [event.message for event in received if event.values is None] == [StatusWanted(n) for n in range(20)]
    assert next(e.values for e in received if e.values is not None).tobytes() == VALUES.tobytes()
    assert {event.sender for event in received} == {Contributor("a", 1)}


def test_a_member_speaks_for_itself_alone_by_datagrams_too(pair):
    pair.events["b"].clear()
    forged = encode(Contributor("c", 1), ModelWanted(3))
    assert flow(pair, "a", "b").put(forged, None, False)
    pair.links["a"].send("b", StatusWanted(1), None, pair.now())
    assert pair.until(lambda: pair.of("b", Received))
    assert [event.message for event in pair.of("b", Received)] == [StatusWanted(1)]
    assert pair.links["b"].counts.refused == 1


def test_who_is_out_has_no_flow_any_more(mesh, monkeypatch):
    monkeypatch.setattr(flows, "is_loopback", lambda host: False)
    keys = MeshKeys.from_code(new_join_code("home", bytes(range(19)), founder_mark(device_of("a").public)))
    owner = Membership(keys, device_of("a"))
    owner.roster.add(owner.found())
    mesh.add_start("a", PeerInfo("a", 1, Role.TRAINER, "", 0), keys, membership=owner, max_values=1)
    mesh.add("b", keys, join=["a"])
    assert mesh.until(lambda: mesh.of("a", PeerFound) and mesh.of("b", PeerFound))
    meet_by_datagrams(mesh, "a", "b")
    theirs = flow(mesh, "b", "a")
    mesh.events["a"] += mesh.links["a"].state(Stated(owner.revoke(device_of("b").public, 5, "lost")))
    assert mesh.of("a", PeerRevoked)
    assert not mesh.links["a"]._outbox.flows.is_way_to("b")
    mesh.events["a"].clear()
    assert theirs.put(encode(Contributor("b", 1), ModelWanted(3)), None, False)
    assert mesh.until(lambda: mesh.of("b", PeerRevoked))
    assert mesh.of("a", Received) == []
