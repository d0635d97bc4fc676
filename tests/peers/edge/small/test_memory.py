"""Freed memory goes back to the system, not in every short round, and nowhere that it cannot; so do pages of libraries
that are as their file has them.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from mdl.peers.edge import small as memory
from mdl.peers.edge.small import Spare, forget_loading, set_up_heap, untouched_files

SMAPS = """\
7f0000000000-7f0004000000 r--p 00000000 08:01 77  /lib/libtorch_cpu.so
Rss:               48000 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
7f0004000000-7f0018000000 r-xp 04000000 08:01 77  /lib/libtorch_cpu.so
Anonymous:             0 kB
7f0018000000-7f0018400000 r--p 18000000 08:01 77  /lib/libtorch_cpu.so
Anonymous:          3100 kB
7f0018400000-7f0018800000 rw-p 18400000 08:01 77  /lib/libtorch_cpu.so
Anonymous:             0 kB
7f0019000000-7f0019001000 r-xp 00000000 08:01 78  /lib/libsmall.so
Anonymous:             0 kB
7f0020000000-7f0024000000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0030000000-7f0034000000 r-xp 00000000 00:00 0   [vdso]
Anonymous:             0 kB
"""


class _Library:
    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def malloc_trim(self, pad: int) -> None:
        self.asked.append((pad,))

    def mallopt(self, *given: int) -> None:
        self.asked.append(given)

    def madvise(self, start: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> None:
        self.asked.append((start.value or 0, size.value, advice))


def test_memory_is_given_back_at_most_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    library, now = _Library(), [10.0]
    monkeypatch.setattr(memory, "_library", lambda: library)
    monkeypatch.setattr(memory.time, "monotonic", lambda: now[0])
    spare = Spare()
    for now[0] in (10.1, 11.9, 12.1, 12.2, 13.0, 14.2):
        spare.give_back()
    assert library.asked == [(0,), (0,)]


def test_where_the_c_library_has_no_such_thing_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_library", lambda: None)
    set_up_heap()
    Spare(0.0).give_back()
    forget_loading()


def test_only_large_mappings_of_files_go_that_nobody_has_changed() -> None:
    kept = [(0x7F0000000000, 0x7F0004000000), (0x7F0004000000, 0x7F0018000000)]
    assert list(untouched_files(SMAPS.splitlines())) == kept


def test_an_emulator_that_says_0_of_all_mappings_loses_no_relocations() -> None:
    """Under qemu a peer jumped to an address that its library had before it was moved (SIGSEGV)."""
    told = "7f0000000000-7f0004000000 r--p 00000000 08:01 77  /lib/libtorch_cpu.so\nRss: 0 kB\nAnonymous: 0 kB\n"
    assert list(untouched_files(told.splitlines())) == []
    assert list(untouched_files(told.replace("Rss: 0", "Rss: 4").splitlines())) != []


def test_the_system_is_asked_for_just_these(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library, smaps = _Library(), tmp_path / "smaps"
    monkeypatch.setattr(memory, "_library", lambda: library)
    monkeypatch.setattr(memory, "_SMAPS", smaps)
    forget_loading()  # a system without it
    smaps.write_text(SMAPS)
    forget_loading()
    assert library.asked == [(0x7F0000000000, 0x4000000, 4), (0x7F0004000000, 0x14000000, 4)]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no such file here")
def test_libraries_work_on_when_their_pages_are_gone() -> None:
    forget_loading()
    values = torch.arange(6.0).reshape(2, 3)
    assert torch.nn.functional.linear(values, torch.ones(1, 3)).tolist() == [[3.0], [12.0]]


def test_what_glibc_is_asked_is_what_it_has() -> None:
    library = memory._library()
    if library is None:
        pytest.skip("not glibc")
    assert all(library.mallopt(option, value) == 1 for option, value in memory._HEAP.items())
    assert library.malloc_trim(0) in (0, 1)
