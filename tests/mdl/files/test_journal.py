"""A file beside something more important: what the system refuses is kept, told, and written later."""

import os

import pytest

from mdl import writing as files
from mdl.files.figures import MAX_WAITING, Journal


def test_lines_are_added_to_what_is_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"0\n")
    journal = Journal(path)
    journal.add(b"1")
    journal.add(b"2")
    assert path.read_bytes() == b"0\n1\n2\n"
    assert not journal.waiting


def test_what_is_refused_is_kept_and_written_in_order_when_it_can_be(tmp_path, caplog):
    path = tmp_path / "folder" / "metrics.jsonl"
    journal = Journal(path)
    for number in range(3):
        journal.add(b"%d" % number)
    assert len(caplog.messages) == 1, "said once"
    assert "its lines are kept" in caplog.text
    path.parent.mkdir()
    journal.add(b"3")
    assert path.read_bytes() == b"0\n1\n2\n3\n"
    assert "is written again" in caplog.text


def test_what_waits_is_written_at_the_end(tmp_path):
    journal = Journal(tmp_path / "folder" / "metrics.jsonl")
    journal.add(b"1")
    (tmp_path / "folder").mkdir()
    journal.flush()
    assert journal.path.read_bytes() == b"1\n"


def test_lines_do_not_wait_without_bound(tmp_path):
    journal = Journal(tmp_path / "folder" / "metrics.jsonl")
    for number in range(MAX_WAITING + 5):
        journal.add(b"%d" % number)
    assert len(journal.waiting) == MAX_WAITING
    assert journal.waiting[0] == b"5"


@pytest.mark.parametrize("torn", [b"1", b"\0" * 5000, b"a" * 300_000])
@pytest.mark.parametrize("whole", [b"", b"0\n", b"0" * 70_000 + b"\n"])
def test_a_line_that_a_power_cut_has_torn_takes_no_other_with_it(tmp_path, whole, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(whole + torn)
    for line in (b"2", b"3"):
        Journal(path).add(line)
    assert path.read_bytes() == whole + b"2\n3\n"


@pytest.mark.skipif(os.name == "nt", reason="no such limit there")
def test_a_line_that_was_written_in_part_is_taken_back(tmp_path):
    """As on a full disk: a limit on the size of a file lets a part of a line through."""
    import resource
    import signal

    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    journal.add(b"a" * 50)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (70, before[1]))
        journal.add(b"b" * 50)
        assert path.read_bytes() == b"a" * 50 + b"\n"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    journal.add(b"c")
    assert path.read_bytes().split(b"\n") == [b"a" * 50, b"b" * 50, b"c", b""]


def test_no_descriptor_left_is_no_end(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    journal = Journal(tmp_path / "metrics.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", refuse)
        journal.add(b"1")
    assert "Too many open files" in caplog.text
    journal.add(b"2")
    assert journal.path.read_bytes() == b"1\n2\n"
