"""`--verify` tells a wrong sum from the right one, to the bit."""

import msgspec
import numpy as np
import pytest

from mdl.errors import MdlError
from mdl.peers.edge.device import keep_delta
from mdl.peers.launch.run_directory import Verifier
from mdl.protocol.delta import Contributor, Partial, PartialSum, pair_aggregate
from mdl.protocol.machine import KeepDelta
from mdl.protocol.segments import mask_of, to_bits
from mdl.protocol.status_messages import RoundSummary

PEERS = [Contributor(f"peer-{i}", 1) for i in (1, 2, 3)]


def summary(*peer_ids):
    return RoundSummary(1, float(len(peer_ids)), peer_ids, (), {"total": 1.0}, 0, None)


@pytest.fixture
def own(tmp_path):
    """Three deltas that nearly cancel, kept by their peers."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=1000).astype(np.float32)
    small = generator.normal(size=1000).astype(np.float32) * np.float32(1e-4)
    deltas = [
        PartialSum((1e8 * each).astype(np.int32), 1.0, frozenset([peer]), 2)
        for peer, each in zip(PEERS, (values, -values, small), strict=True)
    ]
    for peer, delta in zip(PEERS, deltas, strict=True):
        keep_delta(tmp_path / peer.peer_id, peer, KeepDelta(1, "own", delta))
    return deltas


def keep_global(folder, peer, delta):
    keep_delta(folder / peer.peer_id, peer, KeepDelta(1, "global", delta))


def test_a_sum_of_deltas_that_cancel_is_exact_and_its_files_go(own, tmp_path):
    verifier = Verifier(tmp_path)
    keep_global(tmp_path, PEERS[0], pair_aggregate(pair_aggregate(own[0], own[1]), own[2]))
    verifier.check(summary("peer-1", "peer-2", "peer-3"))
    assert verifier.worst == 0.0
    assert not list(tmp_path.glob("*/deltas/*"))


def test_a_delta_that_counts_twice_is_seen(own, tmp_path):
    verifier = Verifier(tmp_path)
    twice = PartialSum(2 * own[0].values + own[1].values + own[2].values, 3.0, frozenset(PEERS), 2)
    keep_global(tmp_path, PEERS[0], twice)
    verifier.check(summary("peer-1", "peer-2", "peer-3"))
    assert verifier.worst > 0.1


@pytest.mark.parametrize("change", ["one value", "another grid"])
def test_one_changed_bit_is_seen(own, tmp_path, change):
    verifier = Verifier(tmp_path)
    result = pair_aggregate(pair_aggregate(own[0], own[1]), own[2])
    result.values[7] ^= change == "one value"
    keep_global(tmp_path, PEERS[0], msgspec.structs.replace(result, room=2 + (change == "another grid")))
    verifier.check(summary("peer-1", "peer-2", "peer-3"))
    assert verifier.worst > 0.0


def test_a_contributor_lost_before_it_applied_does_not_stop_the_check(own, tmp_path):
    verifier = Verifier(tmp_path)
    keep_global(tmp_path, PEERS[2], pair_aggregate(pair_aggregate(own[0], own[1]), own[2]))
    verifier.check(summary("peer-1", "peer-2", "peer-3"))
    assert verifier.worst == 0.0


def test_a_delta_that_was_not_kept_is_named(own, tmp_path):
    with pytest.raises(MdlError, match=r"00001-own.safetensors is missing"):
        Verifier(tmp_path).check(summary("peer-1", "peer-4"))


def test_who_was_lost_in_the_middle_counts_in_the_segments_that_have_its_work(own, tmp_path):
    """1,000 values in segments of 300: the lost device is in the first and the last."""
    partial = Partial(PEERS[2], 2.0, 300, to_bits([1, 2], 4))
    lacking = mask_of(partial.lacks, 300, 1000)
    total = own[0].values + own[1].values + np.where(lacking, 0, own[2].values)
    for peer, lacks, is_right in ((PEERS[0], partial.lacks, True), (PEERS[1], b"", False)):
        for each, delta in zip(PEERS, own, strict=True):
            keep_delta(tmp_path / each.peer_id, each, KeepDelta(1, "own", delta))
        told = (Partial(PEERS[2], 2.0, 300, lacks),)
        keep_global(tmp_path, peer, PartialSum(total, 2.0, frozenset(PEERS[:2]), 2, told))
        verifier = Verifier(tmp_path)
        verifier.check(summary("peer-1", "peer-2"))
        assert (verifier.worst == 0.0) is is_right
