import errno
import hashlib
import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from mdl.errors import DataError, MdlError
from mdl.files import checkpoint
from mdl.files.checkpoint import CachedModel, ModelCache, read_safetensors, write_safetensors
from mdl.protocol.delta import digest_of


def _state(round_id: int) -> CachedModel:
    values = np.random.default_rng(round_id).standard_normal(1000, np.float32)
    return CachedModel(values, round_id, "0123456789abcdef", "home", {"incarnation": "7", "note": "ü\n"})


def _same(a: CachedModel | None, b: CachedModel) -> bool:
    return a is not None and (a.values == b.values).all() and (a.round_id, a.extra) == (b.round_id, b.extra)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "new" / "folder")
    assert cache.load() is None
    cache.save(_state(3))
    loaded = ModelCache(tmp_path / "new" / "folder").load()
    assert _same(loaded, _state(3))
    assert loaded is not None
    assert (loaded.mesh, loaded.schema_hash, loaded.digest) == ("home", "0123456789abcdef", digest_of(_state(3).values))


def test_the_newest_is_loaded_and_the_one_before_is_kept(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    for round_id in (1, 2, 3):
        cache.save(_state(round_id))
    assert _same(cache.load(), _state(3))
    cache.path.unlink()
    assert _same(cache.load(), _state(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.previous.safetensors"]


def test_a_file_of_the_version_with_another_hash_is_read_and_checked(tmp_path: Path) -> None:
    cache, state = ModelCache(tmp_path), _state(3)

    def write(values: NDArray[np.float32], digest: str) -> None:
        told = {"extra.note": "x", "round_id": "3", "schema_hash": "s", "mesh": "home", "digest": digest}
        checksum = hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()
        write_safetensors(cache.path, {"values": values}, told | {"checksum": checksum})

    digest = hashlib.blake2b(state.values.tobytes(), digest_size=16).hexdigest()
    write(state.values, digest)
    loaded = cache.load()
    assert loaded is not None
    assert (loaded.round_id, loaded.digest) == (3, digest_of(state.values))
    write(state.values + 1, digest)
    assert cache.load() is None


@pytest.mark.parametrize("length", [0, 5, 100, 2000, -1])
def test_a_torn_file_is_skipped_for_the_one_before(tmp_path: Path, length: int) -> None:
    cache = ModelCache(tmp_path)
    cache.save(_state(1))
    cache.save(_state(2))
    cache.path.write_bytes(cache.path.read_bytes()[:length])
    assert _same(ModelCache(tmp_path).load(), _state(1))


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    cache.save(_state(1))
    cache.save(_state(2))
    whole = cache.path.read_bytes()
    for position in range(0, len(whole), 7):
        broken = bytearray(whole)
        broken[position] ^= 0x10
        cache.path.write_bytes(broken)
        loaded = ModelCache(tmp_path).load()
        # A byte of padding may change without harm; anything else falls back.
        assert _same(loaded, _state(1)) or _same(loaded, _state(2))
        assert loaded is not None
        assert loaded.mesh == "home"


def test_saving_over_a_torn_file_keeps_the_last_whole_one(tmp_path: Path) -> None:
    ModelCache(tmp_path).save(_state(1))
    cache = ModelCache(tmp_path)
    cache.save(_state(2))
    cache.path.write_bytes(b"torn")
    restarted = ModelCache(tmp_path)
    restarted.save(_state(3))
    restarted.path.write_bytes(b"torn")
    assert _same(ModelCache(tmp_path).load(), _state(1))


def test_two_torn_files_are_no_state_at_all(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    cache.path.write_bytes(b"torn")
    cache.previous_path.write_bytes(b"torn too")
    assert cache.load() is None


def test_a_full_disk_is_one_line_and_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ModelCache(tmp_path)
    cache.save(_state(1))

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(MdlError, match=r"cannot save .*model\.safetensors: No space left on device"):
        cache.save(_state(2))
    assert _same(cache.load(), _state(1))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MdlError, match="cannot save"):
        ModelCache(tmp_path / "file").save(_state(1))


def test_files_are_plain_safetensors(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "n": np.array(5),
        "flag": np.array([True, False]),
        "none": np.zeros((0, 2), np.uint8),
    }
    write_safetensors(tmp_path / "x.safetensors", arrays, {"key": "välue"})
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].tolist() == array.tolist()
    assert read_safetensors(tmp_path / "x.safetensors")[1] == {"key": "välue"}


@pytest.mark.parametrize(
    "shape", [(), (0,), (0, 3), (1,), (7,), (8,), (23,), (5, 3), (3, 5), (2, 9), (4, 2, 3), (9, 0)]
)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int64, np.int8, np.bool_])
def test_what_is_read_in_pieces_is_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], kind: type
) -> None:
    monkeypatch.setattr(checkpoint, "_PIECE_VALUES", 8)
    array = np.random.default_rng(0).integers(0, 2, shape).astype(kind)
    write_safetensors(tmp_path / "file", {"a": array, "b": array}, {})
    read, _ = read_safetensors(tmp_path / "file")
    for found in read.values():
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)
        found[...] = 0  # one's own


def test_a_type_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot save c: it is complex64"):
        write_safetensors(tmp_path / "x", {"c": np.zeros(1, np.complex64)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_and_a_foreign_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.safetensors does not exist"):
        read_safetensors(tmp_path / "nothing.safetensors")
    (tmp_path / "foreign").write_bytes(b"hello, this is text")
    with pytest.raises(DataError, match="foreign is not a whole safetensors file"):
        read_safetensors(tmp_path / "foreign")


def test_the_momentum_of_an_outer_optimizer_is_kept_with_the_model(tmp_path: Path) -> None:
    cache, state = ModelCache(tmp_path), _state(3)
    momentum = np.random.default_rng(9).standard_normal(1000, np.float32)
    both = digest_of(np.concatenate([state.values, momentum]))
    cache.save(msgspec.structs.replace(state, momentum=momentum))
    loaded = cache.load()
    assert loaded is not None
    assert loaded.momentum is not None
    np.testing.assert_array_equal(loaded.momentum, momentum)
    assert loaded.digest == both
    content = bytearray(cache.path.read_bytes())
    content[-1] ^= 1
    cache.path.write_bytes(content)
    assert ModelCache(tmp_path).load() is None
    short = msgspec.structs.replace(state, momentum=momentum[:10])
    cache.save(short)
    assert ModelCache(tmp_path).load() is None
