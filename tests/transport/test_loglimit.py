"""What others do often is told once in a while, with its number."""

import logging

import pytest

from mdl.transport.limits import LINES, LINES_OF_A_TEXT, MAX_KEYS, PERIOD_S, FloodFilter, LogLimit

logger = logging.getLogger("somebody")
TEXT = "message refused: %s"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: caplog.messages


def test_a_flood_is_a_few_lines_and_a_number(lines):
    limit = LogLimit(logger)
    for number in range(31_025):
        limit.warning(number / 31_025, "ann", TEXT, number)
    limit.on_time(PERIOD_S - 0.1)
    assert lines() == [f"message refused: {number}" for number in range(LINES)]
    limit.on_time(PERIOD_S)
    assert lines()[LINES:] == [f"and {31_025 - LINES:,} more in the last 10 s like: message refused: {LINES - 1}"]


def test_each_kind_and_each_peer_has_lines_of_its_own(lines):
    limit = LogLimit(logger)
    for _ in range(5):
        limit.warning(0.0, "ann", TEXT, "ann")
        limit.warning(0.0, "bob", TEXT, "bob")
        limit.warning(0.0, "ann", "peer refused: %s", "ann")
    assert len(lines()) == 3 * LINES


def test_after_a_period_lines_come_again_and_what_was_little_is_not_told_twice(lines):
    limit = LogLimit(logger)
    for now in (0.0, PERIOD_S, 2 * PERIOD_S):
        limit.warning(now, "ann", TEXT, now)
    limit.on_time(9 * PERIOD_S)
    assert len(lines()) == 3


def test_names_without_end_share_what_is_left(lines):
    limit = LogLimit(logger)
    for number in range(10_000):
        limit.warning(1.0, f"peer {number}", TEXT, number)
    assert len(lines()) == MAX_KEYS + LINES
    assert len(limit._heard) == MAX_KEYS + 1
    limit.on_time(PERIOD_S + 1.0)
    assert f"and {10_000 - MAX_KEYS - LINES:,} more" in lines()[-1]
    assert not limit._heard


def test_fields_that_are_not_written_are_not_formatted():
    class Costly:
        asked = 0

        def __str__(self):
            self.asked += 1
            return ""

    limit, costly = LogLimit(logger), Costly()
    for _ in range(1000):
        limit.warning(0.0, "ann", TEXT, costly)
    assert costly.asked <= 4 * LINES


def record(text, created, *fields):
    made = logging.LogRecord("x", logging.INFO, "", 0, text, fields, None)
    made.created = created
    return made


def test_a_process_writes_no_text_without_end():
    """The lines of machines, which hear of orders and elections from others."""
    flood = FloodFilter()
    written = [flood.filter(record("%s leads now", 5.0, number)) for number in range(10_000)]
    assert sum(written) == LINES_OF_A_TEXT
    assert flood.filter(record("another text", 5.0))
    later = record("%s leads now", 5.0 + PERIOD_S, "ann")
    assert flood.filter(later)
    assert later.getMessage() == f"ann leads now (and {10_000 - LINES_OF_A_TEXT:,} more like it before)"
    again = record("%s leads now", 6.0 + PERIOD_S, "bob")
    assert flood.filter(again)
    assert again.getMessage() == "bob leads now"


def test_texts_without_end_share_what_is_left():
    flood = FloodFilter()
    written = [flood.filter(record(f"made up {number}", 5.0)) for number in range(10_000)]
    assert sum(written) < 1000
    assert len(flood._heard) < 1000
