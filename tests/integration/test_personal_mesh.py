"""People's devices in a mesh: each trains the shared model with the others, and keeps its own words and last layer.

Everything that leaves a process is written down before it is encrypted, and searched for 200 words that only the two
people use.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mdl.peers.deeptype.home import MODEL, SHARED
from mdl.peers.deeptype.model.model_file import load_next_word, save_next_word
from mdl.peers.deeptype.model.text import build_table
from mdl.transport.trust.keys import new_join_code
from tests.integration import product
from tests.peers.deeptype.model.examples import invent, small_model

CAPTURE = """
import asyncio.selector_events, os, socket, sys
import zmq.sugar.socket
from mdl.peers.cli.main import main

file = open(os.path.join(os.environ["CAPTURED"], str(os.getpid())), "ab", buffering=0)

def wrapped(kind, name):
    plain = getattr(kind, name)
    def send(self, data, *others, **named):
        for part in data if isinstance(data, (list, tuple)) else [data]:
            file.write(bytes(memoryview(part).cast("B")) if not hasattr(part, "bytes") else part.bytes)
        return plain(self, data, *others, **named)
    setattr(kind, name, send)

for name in ("send", "send_multipart"):
    wrapped(zmq.sugar.socket.Socket, name)
wrapped(asyncio.selector_events._SelectorDatagramTransport, "sendto")
for name in ("send", "sendall", "sendto"):
    wrapped(socket.socket, name)
sys.argv[0] = "mdl"
main()
"""
# Two processes train, test and write their models, on a machine that may be busy.
PATIENCE_S = 3 * product.PATIENCE_S
PEOPLE, ROUNDS = ("ada", "bob"), 2


def _own_words(person: str) -> list[str]:
    """100 words that nobody else has, made up and longer than what chance makes of floats."""
    generator = np.random.default_rng(len(person) + ord(person[0]))
    return ["q" + "".join(generator.choice(list("abcdefghijklmnopqrstuvwxyz"), 9)) for _ in range(100)]


def _write_text(path: Path, person: str, seed: int) -> None:
    """Each own word three times, which is what takes a word into the vocabulary."""
    own = [word for word in _own_words(person) for _ in range(3)]
    said = invent(60, seed=seed, longest=10)
    lines = [[*words, *own[at :: len(said)]] for at, words in enumerate(said)]
    path.write_text("\n".join(" ".join(words) for words in lines))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[product.Home]:
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    home.environment["MDL_CODE"] = new_join_code("evening")
    (home.folder / "captured.py").write_text(CAPTURE)
    (tmp_path / "captured").mkdir()
    home.environment["CAPTURED"] = str(tmp_path / "captured")
    public = invent(200, seed=9, longest=10)
    # Words that the people do not use make room for theirs.
    unused = [[f"unused{letter}{other}" for letter in "abcdefghijklmno" for other in "abcdefghijklmno"]]
    table = build_table([*public, *unused], 400)
    save_next_word(home.folder / "global.safetensors", small_model(table, 16), table)
    yield home
    home.close()


@pytest.mark.slow
def test_people_train_a_shared_model_and_nothing_that_is_sent_holds_a_word_of_theirs(home: product.Home) -> None:
    agent = home.start("agent", "--loopback", "--rounds", ROUNDS)
    devices = {}
    for seed, person in enumerate(PEOPLE, 2):
        _write_text(home.folder / f"{person}.txt", person, seed)
        devices[person] = home.start_python(
            *(
                home.folder / "captured.py",
                "personal",
                "join",
                f"{person}.txt",
                "--model",
                "global.safetensors",
                "--out",
                f"of-{person}",
            ),
            *("--name", f"device-of-{person}", "--loopback", "--epochs", 3, "--rate", 0.01, "--json"),
        )
    assert [device.end(PATIENCE_S) for device in devices.values()] == [0, 0], [
        device.told for device in devices.values()
    ]
    assert agent.end() == 0, agent.told

    shared = [load_next_word(home.folder / f"of-{person}" / SHARED)[0].state_dict() for person in PEOPLE]
    before = load_next_word(home.folder / "global.safetensors")[0].state_dict()
    assert all(np.array_equal(shared[0][name], shared[1][name]) for name in before)
    assert not all(np.array_equal(shared[0][name], before[name]) for name in before)
    for person in PEOPLE:
        known = load_next_word(home.folder / f"of-{person}" / MODEL)[1].table.words
        assert len(set(known) & set(_own_words(person))) >= 90

    captured = b"".join(path.read_bytes() for path in Path(home.environment["CAPTURED"]).iterdir())
    assert b"device-of-ada" in captured  # what is searched is what was sent,
    assert len(captured) > ROUNDS * sum(values.nbytes for values in map(np.asarray, before.values()))  # values too
    found = [word for person in PEOPLE for word in _own_words(person) if word.encode() in captured.lower()]
    assert not found
