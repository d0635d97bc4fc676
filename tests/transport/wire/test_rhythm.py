"""How long to wait for a chunk, and how large the next one may be."""

import pytest

from mdl.transport.wire.codec import CHUNK_BYTES, SMALLEST_CHUNK_BYTES
from mdl.transport.wire.rhythm import CHUNK_S, FIRST_CHUNK_BYTES, FIRST_PATIENCE_S, SHORTEST_PATIENCE_S, Rhythm

LONGEST_S = 5.0


def after(*pauses, size=SMALLEST_CHUNK_BYTES):
    rhythm = Rhythm()
    for pause_s in pauses:
        rhythm.hear(pause_s, size)
    return rhythm


def test_an_unknown_link_gets_time_for_a_handshake_and_middling_chunks():
    assert (Rhythm().patience_s(LONGEST_S), Rhythm().chunk_bytes()) == (FIRST_PATIENCE_S, FIRST_CHUNK_BYTES)


def test_patience_follows_the_pauses_and_how_much_they_vary():
    assert after(*[0.01] * 20).patience_s(LONGEST_S) == SHORTEST_PATIENCE_S
    steady = after(*[1.0] * 40).patience_s(LONGEST_S)
    varying = after(*[0.2, 1.8] * 20).patience_s(LONGEST_S)
    assert steady == pytest.approx(2.0, abs=0.05), "twice the longest"
    assert 3.0 < varying <= LONGEST_S


def test_patience_outlasts_the_bursts_in_which_a_long_way_brings_chunks():
    """A round trip of 0.6 s, as measured: what came is in bursts, and each rest ends with three slow ones."""
    bursts = [2.1, 0.6, 0.0, 0.6, 0.0, 0.0, 0.0]
    assert after(*bursts).patience_s(LONGEST_S) > 2.1 + 0.6
    assert after(*bursts, *[0.01] * 100).patience_s(LONGEST_S) == SHORTEST_PATIENCE_S, "it has become better"


def test_doubt_doubles_the_patience_until_a_chunk_comes_that_was_asked_for_once():
    rhythm = after(*[0.5] * 40)
    for times in (1, 2, 4):
        assert rhythm.patience_s(100.0) == pytest.approx(times, abs=0.01)
        rhythm.doubt()
    assert rhythm.patience_s(LONGEST_S) == LONGEST_S
    rhythm.hear(0.5, SMALLEST_CHUNK_BYTES)
    assert rhythm.patience_s(100.0) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("bytes_s", "size"), [(5e6, CHUNK_BYTES), (240e3, 1 << 16), (100e3, 1 << 15), (40e3, 1 << 14), (5e3, 1 << 14)]
)
def test_a_chunk_takes_half_a_second_at_most_where_that_can_be(bytes_s, size):
    rhythm = after(*[FIRST_CHUNK_BYTES / bytes_s] * 3, size=FIRST_CHUNK_BYTES)
    assert rhythm.chunk_bytes() == size
    assert size == SMALLEST_CHUNK_BYTES or size / bytes_s <= CHUNK_S
