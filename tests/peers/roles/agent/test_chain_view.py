"""What a policy sees of a round, and who stands where in the broadcast tree (3.2.3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mdl.peers.roles.agent.aggregation import chain_view
from mdl.peers.roles.agent.distribution import order_broadcast
from mdl.peers.roles.agent.ledger import RoundLedger
from mdl.peers.roles.membership.members import Members
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.segments import tree_children, tree_parent
from mdl.protocol.vocabulary import Activity, Holding, HopDecision, HopOutcome, ResourceState
from mdl.scheduler.policies.chain import DeviceState

A, B, C, D = (Contributor(name, 1) for name in "abcd")


def _mesh(*training: Contributor, **resources: ResourceState) -> tuple[RoundLedger, Members]:
    ledger, members = RoundLedger(1, frozenset([A, B, C, D]), 1), Members(4.0)
    for peer in (A, B, C, D):
        holding = None if peer in training else Holding(1.0, (peer,))
        given = resources.get(peer.peer_id, ResourceState(1 << 30, 5.0))
        report = PeerReport(1, 1, 0, b"", "s", "m", 250_000, Activity.HOLDING, 1, 1, holding=holding, resources=given)
        members.hear(peer, report, 1.0)
        ledger.take(peer, report, 1.0)
    return ledger, members


def _states(ledger: RoundLedger, members: Members) -> str:
    letters = {state: state.name for state in DeviceState}
    return " ".join(letters[device.state] for device in chain_view(ledger, members, 2.0).devices)


def test_each_device_stands_where_the_ledger_says() -> None:
    ledger, members = _mesh(D)
    assert _states(ledger, members) == "FREE FREE FREE TRAINING"
    ledger.order_hop(A, B, "", 1.0)
    assert _states(ledger, members) == "SEND GET FREE TRAINING"
    ledger.lose(C, "silent")
    assert _states(ledger, members) == "SEND GET DEAD TRAINING"


def test_a_restarted_device_is_dead_in_this_round() -> None:
    ledger, members = _mesh()
    report = PeerReport(1, 0, 0, b"", "s", "m", 1, Activity.WAITING, 0)
    members.hear(Contributor("b", 2), report, 2.0)
    assert _states(ledger, members) == "FREE DEAD FREE FREE"


def test_a_device_in_use_comes_last_and_yet_comes() -> None:
    busy = ResourceState(1 << 30, 5.0, in_use=True)
    assert _states(*_mesh(a=busy)) == "BUSY FREE FREE FREE"
    ledger, members = _mesh(a=busy)
    ledger.order_hop(B, C, "", 1.0)
    assert _states(ledger, members) == "BUSY SEND GET FREE"
    assert _states(*_mesh(a=busy, b=busy, c=busy)) == "FREE FREE FREE FREE"


def test_the_size_of_a_delta_and_the_devices_resources_reach_the_policy() -> None:
    ledger, members = _mesh(a=ResourceState(123, 7.0, 55.0, True, False))
    view = chain_view(ledger, members, 2.0)
    device = view.devices[0]
    assert (view.size_mb, view.time_s) == (1.0, 2.0)
    seen = (device.free_memory_bytes, device.cpu_percent, device.battery_percent, device.charging, device.in_use)
    assert seen == (123, 7.0, 55.0, True, False)
    assert (device.theta, device.n_agg) == (1.0, 0)


def test_eq_7_counts_receptions_and_the_columns_of_the_learned_count_hops() -> None:
    ledger, members = _mesh()
    for sender, receiver in ((A, B), (B, C)):
        hop = ledger.order_hop(sender, receiver, "", 1.0)
        merged = HopDecision(hop.hop_id, sender, HopOutcome.MERGED, 1.0, 40)
        ledger.take(receiver, msgspec.structs.replace(ledger.reports[receiver], hops=(merged,)), 1.5)
    devices = chain_view(ledger, members, 2.0).devices
    assert [(device.n_agg, device.received) for device in devices] == [(1, 0), (2, 1), (1, 1), (0, 0)]


@pytest.mark.parametrize(
    ("poor", "rich"),
    [
        ({"in_use": True}, {}),
        ({"battery_percent": 20.0, "charging": False}, {"battery_percent": 20.0, "charging": True}),
        ({"free_memory_bytes": 1 << 20}, {}),
    ],
)
def test_3_2_3_the_resource_rich_are_the_inner_nodes(poor: dict[str, Any], rich: dict[str, Any]) -> None:
    states = {
        name: ResourceState(**{"free_memory_bytes": 1 << 30, "cpu_percent": 5.0} | given)
        for name, given in (("b", poor), ("c", rich), ("d", rich))
    }
    _, members = _mesh(**states)
    assert order_broadcast([A, B, C, D], [A], members) == (A, C, B, D)


def test_a_slow_link_is_fed_by_the_root_at_once_and_feeds_nobody() -> None:
    peers = [Contributor(name, 1) for name in "abcdef"]
    members = Members(4.0)
    for link_mb_s, peer in enumerate(peers, 1):
        report = PeerReport(1, 1, 0, b"", "s", "m", 4, Activity.HOLDING, 1, 1, resources=ResourceState(1 << 30, 5.0))
        change = members.hear(peer, report, 1.0)
        assert change is not None
        change.member.device.link_mb_s = float(link_mb_s)
    order = order_broadcast(peers, [peers[5]], members)
    slowest, place = peers[0], order.index(peers[0])
    assert (tree_parent(place), tree_children(place, 6)) == (0, [])
    assert order[1] == peers[4]
    assert set(order) == set(peers)
    assert slowest not in (order[0], order[1])


def test_3_2_3_a_fast_link_stands_before_much_memory() -> None:
    _, members = _mesh(b=ResourceState(1 << 40, 5.0))
    member = members.get(D)
    assert member is not None
    member.device.link_mb_s = 50.0
    assert order_broadcast([A, B, C, D], [A], members) == (A, D, C, B)


def test_whoever_has_the_result_stands_first_and_who_is_no_recipient_stands_nowhere() -> None:
    _, members = _mesh()
    assert order_broadcast([A, C, D], [D, C], members) == (D, C, A)


def test_a_device_without_a_report_is_the_poorest() -> None:
    _, members = _mesh(b=ResourceState(1 << 30, 5.0, in_use=True))
    silent = Contributor("0", 1)
    assert order_broadcast([silent, B, C], [], members) == (C, B, silent)
