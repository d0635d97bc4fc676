"""Files and messages that claim sizes which are not there, for every reader of what others may have made.

    python -m tests.fuzz.sizes    each in this process, with MOST_BYTES of address space and MOST_S of a processor more

A reader ends each in its own one-line error, or with what is really there. `tests/fuzz/test_sizes.py` runs all of them,
and names every function in mdl that parses bytes with the cases that go through it.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from mdl.errors import MdlError

# What a process may take beyond what it has before the first case: a lesson of 64 MB, twice, and as much again.
MOST_BYTES = 256 << 20
# Of a processor, for one case.
MOST_S = 5.0
_HUGE = 1 << 40
# What a user would see as a traceback.
_TRACEBACKS = (
    *(MemoryError, OSError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError),
    *(AttributeError, ImportError, AssertionError, EOFError),
)

Case = Callable[[Path], object]
CASES: dict[str, Case] = {}


def _case(name: str) -> Callable[[Case], Case]:
    def keep(case: Case) -> Case:
        CASES[name] = case
        return case

    return keep


def _file(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def _tensors(metadata: dict[str, str] | None = None, **arrays: Any) -> bytes:
    from safetensors.numpy import save

    return save(arrays or {"a": np.zeros(2, np.float32)}, metadata)


def _json(**fields: object) -> str:
    return json.dumps(fields)


def _header(text: bytes, length: int | None = None, rest: bytes = bytes(8)) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + rest


SAFETENSORS = {
    "a header of exabytes": _header(b"{}", (1 << 63) - 1),
    "a header of 90 MB": _header(b"{}", 90_000_000),
    "a tensor of terabytes": _header(b'{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,8]}}' % _HUGE),
    "a shape that overflows": _header(b'{"a":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,8]}}' % (_HUGE, _HUGE)),
    "offsets of terabytes": _header(b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (_HUGE, _HUGE)),
}


def _npy(shape: str, kind: str = "<f4", rest: bytes = bytes(64)) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + rest


def _zip(**members: bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return whole.getvalue()


@cache
def _bomb(name: str = "x.npy") -> bytes:
    """300 MB of zeros in a zip of 1.3 MB: more than a process here may take."""
    whole = io.BytesIO()
    with (
        zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(name, "w") as member,
    ):
        for _ in range(300):
            member.write(bytes(1 << 20))
    return whole.getvalue()


def _laughs(root: bytes) -> bytes:
    """XML whose entities unpack to 10^9 words."""
    entities = b"".join(b'<!ENTITY l%d "%s">' % (k, b"&l%d;" % (k - 1) * 10 if k else b"lol") for k in range(10))
    return b"<!DOCTYPE %s [%s]><%s><sms type='2' body='&l9;'/></%s>" % (root, entities, root, root)


@cache
def _gzip_bomb() -> bytes:
    """600 MB of one line of zeros, in 2.6 MB."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(b"0" * (1 << 20)) for _ in range(600)), packer.flush()])


# -- lessons, updates and models ------------------------------------------------------------------------------------


def _lesson(**sizes: int) -> bytes:
    known = {"embedding": 8, "hidden": 8, "history": 5, "encoder_layers": 0, "vector": 4, "bottleneck": 4}
    about = json.dumps({"sizes": known | sizes, "titles": []}).encode()
    return _tensors(about=np.frombuffer(about, np.uint8))


def _learn(packed: bytes) -> object:
    from mdl.peers.dccl.model.lesson import read_lesson

    return read_lesson(packed)


_WIDE = {"embedding": 1024, "hidden": 1024, "history": 1024, "vector": 160, "bottleneck": 1024}
CASES["lesson: sizes of 8 GB in 205 bytes"] = lambda _: _learn(_lesson(**_WIDE))
CASES["lesson: eight layers"] = lambda _: _learn(_lesson(**_WIDE, encoder_layers=8))
for _name, _content in SAFETENSORS.items():
    CASES[f"lesson: {_name}"] = lambda _, content=_content: _learn(content)  # type: ignore[misc]


@cache
def _kinds() -> tuple[Any, Any]:
    """Of places, and of windows so long that a large model of them has gigabytes."""
    from mdl.peers.colla.model.model_kinds import RecurrentKind, WindowKind

    return RecurrentKind(("a", "b")), WindowKind("fcn", "fcn", 3, 1 << 16, ("a", "b"))


for _name, _content in {"one tensor": _tensors(), **SAFETENSORS}.items():
    for _large in ("alexnet", "cnn-lstm", "fcn"):
        CASES[f"kind: windows, {_large}, {_name}"] = lambda _, name=_large, content=_content: _kinds()[  # type: ignore[misc]
            1
        ].unpack_large(content, name)
    CASES[f"kind: places, {_name}"] = lambda _, content=_content: _kinds()[0].unpack_large(content, "32-128")  # type: ignore[misc]


@_case("update: of places")
def _update(_: Path) -> object:
    kind = _kinds()[0]
    ids = np.arange(1 << 20, dtype=np.int32)
    return kind.apply_update(kind.build_small(0), _tensors(class_ids=ids))


@_case("update: of windows")
def _window_update(_: Path) -> object:
    kind = _kinds()[1]
    return kind.apply_update(kind.build_small(0), bytes(8))


@_case("vector: another length")
def _vector(_: Path) -> object:
    from mdl.peers.dccl.model.lesson import read_vector

    return read_vector(bytes(16) + bytes(1 << 20), bytes(16), 4)


@_case("parts: of a lesson")
def _parts(_: Path) -> object:
    from mdl.peers.colla.model.update_codec import unpack_parts

    return unpack_parts(SAFETENSORS["offsets of terabytes"], 3)


def _described(**fields: object) -> bytes:
    known = {"model": "alexnet", "channels": 3, "time": 32, "class_names": ["a", "b"], "data": "motion"}
    return _tensors({"mdl": json.dumps(known | fields)})


def _import(folder: Path, content: bytes) -> object:
    from mdl.files.export import import_model

    return import_model(_file(folder, "m.safetensors", content))


CASES["model: windows of 16 million samples"] = lambda folder: _import(folder, _described(time=1 << 24))
CASES["model: 16 million channels"] = lambda folder: _import(folder, _described(channels=1 << 24, model="cnn-lstm"))
for _name, _content in SAFETENSORS.items():
    CASES[f"model: {_name}"] = lambda folder, content=_content: _import(folder, content)  # type: ignore[misc]


def _words(**sizes: int) -> bytes:
    size = {"classes": 2, "tokens": 4, "hidden": 8, "layers": 1, "rank": 0} | sizes
    told = {"size": size, "table": {"words": ["a"], "characters": "a"}}
    return _tensors({"next_word": json.dumps(told)})


def _next_word(folder: Path, content: bytes) -> object:
    from mdl.peers.deeptype.model.model_file import load_next_word

    return load_next_word(_file(folder, "w.safetensors", content))


CASES["words: hidden units of gigabytes"] = lambda folder: _next_word(folder, _words(hidden=1 << 13, layers=8))
CASES["words: a million words"] = lambda folder: _next_word(folder, _words(classes=1 << 16, tokens=1 << 16))


@_case("study: tensors of another shape")
def _study(folder: Path) -> object:
    from mdl.peers.deeptype.model.study import load_study

    study: Any = SimpleNamespace(restore=lambda *_: None)
    return load_study(_file(folder, "s.safetensors", SAFETENSORS["a tensor of terabytes"]), study, "")


@_case("own: model and origin")
def _own(folder: Path) -> object:
    from mdl.peers.colla.files import OWN, read_progress

    _file(folder, OWN, SAFETENSORS["offsets of terabytes"])
    return read_progress(folder, _kinds()[1])


@_case("policy: layers of terabytes")
def _policy(folder: Path) -> object:
    from mdl.scheduler.policies.qnet_numpy import load_weights

    return load_weights(_file(folder, "p.safetensors", SAFETENSORS["a tensor of terabytes"]))


@_case("policy: a paper's network of a huge mesh")
def _paper(folder: Path) -> object:
    from mdl.scheduler.paper.policy import load_paper_dqn

    told = _json(kind="paper-dqn", n=_HUGE, sizes=[_HUGE, _HUGE], counts=False, rules={})
    return load_paper_dqn(_file(folder, "p.safetensors", _tensors({"mdl": told})))


def _cache(content: bytes) -> Case:
    def load(folder: Path) -> object:
        from mdl.files.checkpoint import ModelCache

        _file(folder, "model.safetensors", content)
        return ModelCache(folder).load()

    return load


for _name, _content in SAFETENSORS.items():
    CASES[f"cache: {_name}"] = _cache(_content)


@_case("cache: an optimizer's tensors of terabytes")
def _state(folder: Path) -> object:
    from mdl.files.state_file import STATE_FILES, StateFile
    from mdl.protocol.delta import new_hash

    told = {"round_id": "1", "schema_hash": "s", "tree": json.dumps({"tensor": [0, "float32", [_HUGE, _HUGE]]})}
    whole = new_hash()
    for key, text in sorted(told.items()):
        whole.update(f"{key}={text}\n".encode())
    whole.update(bytes(8))
    content = _tensors({**told, "blake3": whole.digest().hex()}, **{"0": np.zeros(8, np.uint8)})
    _file(folder, STATE_FILES[0], content)
    return StateFile(folder, "s").load(1)


@_case("init: a model to begin with")
def _init(folder: Path) -> object:
    from mdl.peers.edge.resume import initial_values

    model: Any = SimpleNamespace(values=lambda: np.zeros(2, np.float32), schema=[("a", (2,))])
    return initial_values(_file(folder, "i.safetensors", SAFETENSORS["a shape that overflows"]), model)


@_case("where: a model whose parts are shown")
def _where(folder: Path) -> object:
    from mdl.peers.use.inference import _load_places as load_places

    parts = {"embed.0.weight": np.zeros((0, 9999), np.float32), "lstm.weight_hh_l0": np.zeros((0, 9999), np.float32)}
    log: Any = SimpleNamespace(places=("a", "b"))
    return load_places(_file(folder, "m.safetensors", _tensors(**parts, class_ids=np.arange(2))), log)


# -- data sets ------------------------------------------------------------------------------------------------------


def _load(folder: Path, spec: str) -> object:
    from mdl.data import load_data

    return load_data(spec, folder / "cache", 0)


for _name, _content in {
    "an array of terabytes": _zip(**{"x.npy": _npy(f"({_HUGE}, 3, 4)"), "y.npy": _npy(f"({_HUGE},)", "<i8")}),
    "a shape that overflows": _zip(**{"x.npy": _npy(f"({_HUGE}, {_HUGE}, 4)"), "y.npy": _npy("(1,)", "<i8")}),
    "texts of gigabytes": _zip(**{"x.npy": _npy("(1, 2, 4)"), "y.npy": _npy("(16,)", f"<U{1 << 30}")}),
    "a header of 4 GB": _zip(**{"x.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 32) - 1), "y.npy": b""}),
}.items():
    for _kind in ("npz", "semg", "uci-har"):
        CASES[f"{_kind}: {_name}"] = lambda folder, kind=_kind, content=_content: _load(  # type: ignore[misc]
            folder, f"{kind}:{_file(folder, 'd.npz', content)}"
        )
for _kind in ("npz", "semg", "uci-har"):
    CASES[f"{_kind}: a zip bomb"] = lambda folder, kind=_kind: _load(  # type: ignore[misc]
        folder, f"{kind}:{_file(folder, 'd.npz', _bomb())}"
    )
for _kind in ("semg", "uci-har", "opportunity", "unimib", "mhealth", "pamap2"):
    CASES[f"{_kind}: a zip within a zip bomb"] = lambda folder, kind=_kind: _load(  # type: ignore[misc]
        folder, f"{kind}:{_file(folder, 'd.zip', _zip(**{'a.zip': _bomb()}))}"
    )
    CASES[f"{_kind}: a zip bomb of text"] = lambda folder, kind=_kind: _load(  # type: ignore[misc]
        folder, f"{kind}:{_file(folder, 'd.zip', _bomb('mHealth_subject1.log'))}"
    )
for _name, _content in {
    "a billion columns": b"," * (8 << 20) + b"\n",
    "one line of 64 MB": b"1" * (64 << 20),
    "a quote without an end": b'a,b\n"' + b"x\n" * (1 << 20),
    "nothing but line ends": b"\n" * (1 << 20),
}.items():
    for _kind in ("csv", "places"):
        CASES[f"{_kind}: {_name}"] = lambda folder, kind=_kind, content=_content: _load(  # type: ignore[misc]
            folder, f"{kind}:{_file(folder, 'd.csv', content)}{'?rate=50' if kind == 'csv' else ''}"
        )
for _kind in ("csv", "places"):
    CASES[f"{_kind}: a gzip bomb"] = lambda folder, kind=_kind: _load(  # type: ignore[misc]
        folder, f"{kind}:{_file(folder, 'd.csv.gz', _gzip_bomb())}{'?rate=50' if kind == 'csv' else ''}"
    )
    CASES[f"{_kind}: a zip bomb of text"] = lambda folder, kind=_kind: _load(  # type: ignore[misc]
        folder, f"{kind}:{_file(folder, 'd.zip', _bomb('d.csv'))}{'?rate=50' if kind == 'csv' else ''}"
    )
CASES["csv: a window of a billion rows"] = lambda folder: _load(
    folder, f"csv:{_file(folder, 'd.csv', b'a,label' + chr(10).encode() + b'1,x' + chr(10).encode())}?window=1000000000"
)


def _matlab(packed: bytes) -> bytes:
    return b"MATLAB".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed


@_case("matlab: a matrix of 2^62 values")
def _matrix(_: Path) -> object:
    from mdl.data.readers.unimib import read_matrix

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    sizes = struct.pack("<ii", (1 << 31) - 1, (1 << 31) - 1)
    inside = element(6, struct.pack("<II", 6, 0)) + element(5, sizes) + element(1, b"a") + element(9, bytes(8))
    return read_matrix(_matlab(zlib.compress(element(14, inside))), 1 << 20, "m")


@_case("matlab: a bomb")
def _matlab_bomb(_: Path) -> object:
    from mdl.data.readers.unimib import read_matrix

    packer = zlib.compressobj(1)
    packed = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(400)), packer.flush()])
    return read_matrix(_matlab(packed), 1 << 20, "m")


@_case("images: a picture of 10^10 pixels")
def _picture(folder: Path) -> object:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    size = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")
    for name in ("a", "b"):
        (folder / name).mkdir()
        _file(folder / name, "p.png", png)
    return _load(folder, f"images:{folder}")


@_case("shared: windows of terabytes")
def _parcel(folder: Path) -> object:
    from mdl.data.parcel import read_parcel

    arrays = {"x.npy": _npy(f"({_HUGE}, 3, 4)"), "y.npy": _npy("(1,)", "<i8")}
    return read_parcel(_file(folder, "p.npz", _zip(**arrays)))


@_case("windows: an entry of the cache of terabytes")
def _entry(folder: Path) -> object:
    from mdl.data.cache import _map

    for side in ("train", "test"):
        for name in ("x", "y", "subject", "group"):
            _file(folder, f"{side}_{name}.npy", _npy(f"({_HUGE}, 3, 4)"))
    try:
        return _map(folder, "train")
    except ValueError as error:  # the entry is built again
        raise MdlError(str(error)) from None


@_case("clusters: a billion columns")
def _clusters(folder: Path) -> object:
    from mdl.data.readers.places import read_clusters

    return read_clusters(_file(folder, "c.csv", b"," * (8 << 20)))


def _log(name: str, content: Callable[[], bytes]) -> Case:
    def read(folder: Path) -> object:
        from mdl.peers.dccl.model.readers import read_interactions

        return read_interactions(f"{name.partition('-')[0]}:{_file(folder, name.partition('-')[2], content())}")

    return read


CASES["log: a billion columns"] = _log("csv-l.csv", lambda: b"," * (8 << 20) + b"\n")
CASES["log: columns without a header"] = _log("csv-l.tsv", lambda: b"1\t" * (4 << 20) + b"\n")
CASES["log: objects nested deep"] = _log("csv-l.jsonl", lambda: b'{"user":' * (1 << 19))
CASES["log: a gzip bomb"] = _log("csv-l.csv.gz", _gzip_bomb)
CASES["log: a zip bomb"] = _log("movielens-l.zip", lambda: _bomb("ml/u.data"))
CASES["log: sequences of terabytes"] = _log("npz-l.npz", lambda: _zip(**{"items.npy": _npy(f"({_HUGE},)", "<i8")}))


def _phones(name: str, content: Callable[[], bytes]) -> Case:
    def read(folder: Path) -> object:
        from mdl.scheduler.rounds.world import read_phones

        return read_phones(_file(folder, name, content()))

    return read


CASES["phones: a gzip bomb"] = _phones("p.csv.gz", _gzip_bomb)
CASES["phones: a long line"] = _phones(
    "p.csv", lambda: b"device,Timestamp,usage,isInteractive,level,status,temperature\n" + b"1" * (48 << 20)
)


def _corpus(name: str, content: Callable[[], bytes]) -> Case:
    def read(folder: Path) -> object:
        from mdl.peers.deeptype.model.corpus import read_lines_of

        return sum(1 for _ in read_lines_of(_file(folder, name, content()), ""))

    return read


CASES["text: one line of 64 MB"] = _corpus("t.txt", lambda: b"a" * (64 << 20))
CASES["text: a gzip bomb"] = _corpus("t.txt.gz", _gzip_bomb)
CASES["text: a zip bomb"] = _corpus("t.zip", lambda: _bomb("a.txt"))
CASES["text: a chat nested deep"] = _corpus("result.json", lambda: b'{"messages":' + b"[" * (1 << 20))
CASES["text: an SMS backup of entities"] = _corpus("sms.xml", lambda: _laughs(b"smses"))
CASES["text: an SMS backup of one text of 64 MB"] = _corpus(
    "sms.xml", lambda: b'<smses><sms type="1" body="' + b"a" * (64 << 20)
)
CASES["text: entries nested deep"] = _corpus("t.jsonl", lambda: b"[" * (1 << 20))

# -- other files ----------------------------------------------------------------------------------------------------


@_case("config: a gigabyte")
def _config(folder: Path) -> object:
    from mdl.config import load_config

    with (folder / "c.toml").open("wb") as file:
        file.truncate(1 << 30)
    return load_config(folder / "c.toml", {})


@_case("config: nested deep")
def _deep_config(folder: Path) -> object:
    from mdl.config import load_config

    return load_config(_file(folder, "c.toml", b"a = " + b"[" * 4000), {})


@_case("plan: a huge mesh")
def _plan(_: Path) -> object:
    from mdl.sim.plans.fault_plan import load_plan

    return load_plan(_json(seed=0, peers=_HUGE, rounds=_HUGE).encode())


@_case("story: a search")
def _found(_: Path) -> object:
    from mdl.peers.trials.campaign import load_found

    return load_found(b"[" * (1 << 20))


@_case("story: of a run")
def _story(folder: Path) -> object:
    from mdl.peers.trials.story_file import load_story

    return load_story(_file(folder, "s.jsonl", b'{"a":' * (1 << 20)))


@_case("scenario: nested deep")
def _scenarios(folder: Path) -> object:
    from mdl.devices.scenario import load_scenarios

    return load_scenarios(_file(folder, "s.jsonl", b"[" * (1 << 20) + b"\n"))


@_case("rounds: one line of 64 MB")
def _rounds(folder: Path) -> object:
    from mdl.files.figures import read_rounds

    return list(read_rounds(_file(folder, "metrics.jsonl", b"1" * (64 << 20))))


@_case("roster: an array of 2^32 statements")
def _roster(folder: Path) -> object:
    from mdl.peers.edge.membership import _decode, _read_roster
    from mdl.transport.trust.keys import MeshKeys, new_join_code

    keys = MeshKeys.from_code(new_join_code("home"))
    path = _file(folder, "home.roster", b"\xdd\xff\xff\xff\xff")
    return _decode(path, _read_roster(path), keys, lambda statement: False)


@_case("names: a line of 64 MB")
def _names(folder: Path) -> object:
    from mdl.peers.cloud.names import DEVICES, open_names

    _file(folder, DEVICES, b"a" * (64 << 20))
    return open_names(folder)


@_case("names: a gigabyte")
def _many_names(folder: Path) -> object:
    from mdl.peers.cloud.names import DEVICES, open_names

    with (folder / DEVICES).open("wb") as file:
        file.truncate(1 << 30)
    return open_names(folder)


@_case("record: nested deep")
def _record(folder: Path) -> object:
    from mdl.files.kept import read_sealed
    from mdl.reading import decode_json

    return decode_json(read_sealed(_file(folder, "r.json", b"[" * (1 << 20)), 2 << 20), dict, "r")


@_case("record: a ballot of two gigabytes")
def _ballot(folder: Path) -> object:
    from mdl.files.ballot import BallotFile

    with (folder / "ballot").open("wb") as file:
        file.truncate(1 << 31)
    return BallotFile(folder / "ballot").load()


@_case("record: an incarnation of a gigabyte")
def _incarnation(folder: Path) -> object:
    from mdl.peers.edge.identity import _next_incarnation

    with (folder / "incarnation").open("wb") as file:
        file.truncate(1 << 30)
    return _next_incarnation(folder / "incarnation")


@_case("record: sensors of a gigabyte")
def _sensors(folder: Path) -> object:
    from mdl.peers.edge.gatekeeper import read_sensors_file

    with (folder / "s.json").open("wb") as file:
        file.truncate(1 << 30)
    return read_sensors_file(folder / "s.json")


# -- messages -------------------------------------------------------------------------------------------------------


def _said(frame: bytes) -> Case:
    def read(_: Path) -> object:
        from mdl.transport.wire.codec import decode

        return decode(frame)

    return read


_MESSAGES = {
    "an array of 2^32": b"\xdd\xff\xff\xff\xff",
    "a map of 2^32": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GB": b"\xdb\xff\xff\xff\xff",
    "bytes of 4 GB": b"\xc6\xff\xff\xff\xff",
    "an extension of 4 GB": b"\xc9\xff\xff\xff\xff\x01",
    "arrays in arrays": b"\x91" * (1 << 19),
    "a megabyte more than a header": bytes(3 << 20),
}
for _name, _content in _MESSAGES.items():
    CASES[f"message: {_name}"] = _said(_content)


@_case("message: a transfer of terabytes")
def _transfer(_: Path) -> object:
    from mdl.protocol.delta import Contributor
    from mdl.protocol.sharing_messages import PartMessage
    from mdl.transport.wire.codec import Envelope, TransferOffered
    from mdl.transport.wire.incoming import IncomingTransfers

    offered = TransferOffered(1, 1 << 34, msgspec.convert({"sharing_id": bytes(16), "part": 0}, PartMessage))
    assert Envelope
    return IncomingTransfers(1 << 20).on_offered(Contributor("a", 1), offered, 0.0)


@_case("message: a segment that is no whole number of values")
def _segment(_: Path) -> object:
    from mdl.transport.wire.bulk import read_segment

    return read_segment(memoryview(bytes((1 << 20) + 1)))


@_case("message: packed values of another size")
def _packed(_: Path) -> object:
    from mdl.transport.wire.bulk import read_segment

    return read_segment(memoryview((2**32 - 1).to_bytes(4, "little") + bytes(1 << 10)), is_packed=True)


@_case("message: an announcement")
def _announcement(_: Path) -> object:
    import base64

    from mdl.protocol.messages import PROTOCOL_VERSION
    from mdl.transport.discovery.mdns import fingerprint_of, read_description

    said = base64.b64encode(b"\xdd\xff\xff\xff\xff").decode()
    record = {"fingerprint": fingerprint_of(None, "home"), "version": str(PROTOCOL_VERSION), "s0": said}
    return read_description(record, 1, None, "home", [])


def run(names: list[str]) -> list[dict[str, object]]:
    """What each case ended with: seconds of the processor, and what was raised."""
    told: list[dict[str, object]] = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            try:
                CASES[name](Path(folder))
                ended = ""
            except MdlError as error:
                ended = "MdlError" if "\n" not in str(error) else f"several lines: {error}"
            except _TRACEBACKS as error:
                ended = f"{type(error).__name__}: {error}"[:300]
            told.append({"name": name, "ended": ended, "seconds": time.process_time() - began})
        gc.collect()
    return told


def main() -> None:
    """Each case of the lines of stdin; one JSON object a line on stdout."""
    names = [line for line in sys.stdin.read().splitlines() if line] or list(CASES)
    os.environ["XDG_CACHE_HOME"] = tempfile.gettempdir()
    import mdl.data  # noqa: F401
    from mdl.files import export  # noqa: F401
    from mdl.peers.dccl.model import readers  # noqa: F401
    from mdl.peers.edge import membership  # noqa: F401

    _kinds()
    _bomb()
    _gzip_bomb()
    gc.collect()
    gc.freeze()  # else each case looks at all of torch again
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in run(names):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
