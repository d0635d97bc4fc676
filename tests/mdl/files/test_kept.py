import errno
import json
import os
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from mdl.errors import DamagedError, DataError, MdlError
from mdl.files.checkpoint import read_safetensors, write_kept_safetensors, write_safetensors
from mdl.files.kept import previous_of, read_kept, read_sealed, seal, unseal, with_previous, write_kept

CONTENTS = [
    b"",
    b"{}",
    b'{"a": 1}',
    b'{\n  "a": [1, 2]\n}',
    b'{"a": 1}\n',
    b"[1, 2]",
    b"x = 1\n",
    b"17",
    b"\x93\x00\xff",
]


@pytest.mark.parametrize("content", CONTENTS)
def test_what_was_sealed_comes_back(content: bytes) -> None:
    sealed = seal(content)
    assert sealed != content
    assert unseal(sealed, "f").split() == content.replace(b"\n}", b"}").split()
    assert unseal(content, "f") == content, "a file of an older version has no checksum"


def test_sealed_files_are_still_what_others_read() -> None:
    assert json.loads(seal(b'{"a": 1}')) == {"a": 1, "mdl_checksum": json.loads(seal(b'{"a": 1}'))["mdl_checksum"]}
    assert json.loads(seal(b"{}")).keys() == {"mdl_checksum"}
    assert tomllib.loads(seal(b"x = 1\n").decode()) == {"x": 1}


@pytest.mark.parametrize("content", CONTENTS)
def test_no_changed_byte_of_a_sealed_file_is_read_as_something_else(content: bytes) -> None:
    sealed = seal(content)
    for at in range(len(sealed)):
        for bit in (0x01, 0x10, 0x80):
            broken = bytearray(sealed)
            broken[at] ^= bit
            try:
                read = unseal(bytes(broken), "f")
            except DataError:
                continue
            # The mark itself is hit: then nothing is unsealed, and what stands before it is as it was.
            assert read == bytes(broken)
            assert sealed[:at].startswith(content.rstrip()[:-1].rstrip())


def _save(path: Path, number: int) -> None:
    write_kept(path, msgspec.json.encode({"number": number}))


def _read(path: Path) -> int:
    return int(json.loads(read_sealed(path, 1000))["number"])


def test_the_version_before_is_read_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.json"
    assert read_kept(path, _read, "") is None
    for number in (1, 2, 3):
        _save(path, number)
    assert (read_kept(path, _read, ""), _read(previous_of(path))) == (3, 2)
    assert not caplog.records
    path.write_bytes(path.read_bytes().replace(b"3", b"4", 1))
    assert read_kept(path, _read, "the last cycle is made again") == 2
    (line,) = caplog.messages
    assert "a.json has changed since it was written" in line
    assert "a.previous.json, written 20" in line
    assert line.endswith("the last cycle is made again")
    caplog.clear()
    path.unlink()
    assert read_kept(path, _read, "x") == 2
    assert "a.json is missing" in caplog.text


def test_a_damaged_file_does_not_take_the_place_of_the_version_before(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    _save(path, 1)
    _save(path, 2)
    path.write_bytes(path.read_bytes().replace(b"2", b"7", 1))
    _save(path, 3)
    assert (_read(path), _read(previous_of(path))) == (3, 1)


def test_without_a_whole_version_one_line_names_the_ways_out(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    _save(path, 1)
    path.write_bytes(path.read_bytes()[:-1].replace(b"1", b"5", 1))
    with pytest.raises(DamagedError, match=r"put a copy of it back, or remove .*a.json to begin anew"):
        read_kept(path, _read, "x")
    with pytest.raises(DamagedError, match="no whole version before it: put a copy of it back, or type --fresh"):
        read_kept(path, _read, "x", "type --fresh")


def test_a_full_disk_leaves_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    _save(path, 1)
    _save(path, 2)

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(MdlError, match="No space left"):
            _save(path, 3)
    assert (_read(path), _read(previous_of(path))) == (2, 1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.json", "a.previous.json"]


def test_a_disk_without_links_moves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "a.json"
    for number in (1, 2, 3):
        _save(path, number)
    assert (_read(path), _read(previous_of(path))) == (3, 2)


def test_a_write_that_was_cut_off_between_the_two_names_is_made_good(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    _save(path, 1)
    os.link(path, previous_of(path))
    _save(path, 2)
    assert (_read(path), _read(previous_of(path))) == (2, 1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.json", "a.previous.json"]


def test_names_of_kept_files_come_with_those_of_the_versions_before() -> None:
    assert with_previous("a.json", "device.key") == ("a.json", "a.previous.json", "device.key", "device.previous.key")


def test_no_changed_byte_of_a_safetensors_file_is_read_as_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {"b": np.arange(40, dtype=np.float32), "a": np.arange(6, dtype=np.int64).reshape(2, 3).T, "n": np.array(5)}
    write_safetensors(path, {**arrays, "none": np.zeros((0, 2), np.uint8)}, {"key": 'a "mdl_checksum": "b'})
    assert load_file(path)["b"].tolist() == arrays["b"].tolist()
    whole, told = path.read_bytes(), read_safetensors(path)
    assert told[1] == {"key": 'a "mdl_checksum": "b'}
    found = 0
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x04
        path.write_bytes(broken)
        try:
            read = read_safetensors(path)
        except DataError:
            found += 1
            continue
        # Of the checksum's own name one byte may change: the values are as they were.
        assert {name: array.tolist() for name, array in read[0].items()} == {
            name: array.tolist() for name, array in told[0].items()
        }
        assert read[1].items() >= told[1].items()
    assert len(whole) - found <= len('"mdl_checksum": "') + 8


def test_a_safetensors_file_has_the_version_before_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for number in (1, 2, 3):
        write_kept_safetensors(path, {"n": np.array(number)}, {})
    assert (read_safetensors(path)[0]["n"], read_safetensors(previous_of(path))[0]["n"]) == (3, 2)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    write_kept_safetensors(path, {"n": np.array(4)}, {})
    assert (read_safetensors(path)[0]["n"], read_safetensors(previous_of(path))[0]["n"]) == (4, 2)
