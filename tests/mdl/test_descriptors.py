"""Files that are opened while connections hold every descriptor."""

import subprocess
import sys

import pytest

# Opens what it may and more in another thread, as libzmq accepts: again and again, and never gives one back.
GREEDY = """
import os, resource, sys, threading
from pathlib import Path

from mdl.files.ballot import BallotFile
from mdl.protocol.vocabulary import Ballot
from mdl.reading import read_bytes
from mdl.writing import write_bytes
from mdl.descriptors import raise_limit

resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
limit = raise_limit()
folder, taken, is_over, is_full = Path(sys.argv[1]), [], threading.Event(), threading.Event()
ballots = BallotFile(folder / "ballot")
ballots.save(Ballot())

def take():
    while not is_over.is_set():
        try:
            taken.append(os.dup(0))
        except OSError:
            is_full.set()

thread = threading.Thread(target=take, daemon=True)
thread.start()
is_full.wait()
try:
    open(folder / "other", "wb")
except OSError as error:
    print(error.errno)
for _ in range(3):
    ballots.save(Ballot(term=9))
write_bytes(folder / "model", b"whole")
assert read_bytes(folder / "model", 5) == b"whole"
is_over.set()
thread.join()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, 120)
for descriptor in taken:
    os.close(descriptor)
print(BallotFile(folder / "ballot").load().term)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_ballot_is_saved_when_connections_have_taken_every_descriptor(tmp_path):
    said = subprocess.run([sys.executable, "-c", GREEDY, tmp_path], capture_output=True, text=True, timeout=60)
    assert said.stdout.split() == ["24", "9"], said.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_where_no_descriptor_is_left_at_all_the_error_is_told(tmp_path):
    code = """
import os, resource, sys
from pathlib import Path
from mdl.writing import write_bytes
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
try:
    while True:
        os.dup(0)
except OSError:
    pass
write_bytes(Path(sys.argv[1]), b"")
"""
    said = subprocess.run([sys.executable, "-c", code, tmp_path / "model"], capture_output=True, text=True, timeout=60)
    assert "Too many open files" in said.stderr
