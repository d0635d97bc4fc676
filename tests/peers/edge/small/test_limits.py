"""What a container's limit leaves for training is said before the system ends a process that takes more."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mdl.errors import ConfigError
from mdl.peers.edge.small import check_limit, check_room, read_memory_limit

MB = 1 << 20


def limited(system: Path, limit_mb: int | None) -> Path:
    """A system whose control group may take so much."""
    (system / "proc/self").mkdir(parents=True)
    (system / "proc/self/cgroup").write_text("0::/mdl.service")
    group = system / "sys/fs/cgroup/mdl.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max" if limit_mb is None else str(limit_mb * MB))
    return system


@pytest.mark.parametrize(
    ("groups", "files", "limit_mb"),
    [
        ("0::/system.slice/mdl.service", {"system.slice/mdl.service/memory.max": "314572800"}, 300),
        ("0::/system.slice/mdl.service", {"system.slice/mdl.service/memory.max": "max"}, None),
        ("0::/a/b", {"a/memory.max": "209715200", "a/b/memory.max": "max"}, 200),
        ("0::/", {"memory.max": "104857600"}, 100),
        ("5:cpu:/x\n4:memory:/x", {"memory/x/memory.limit_in_bytes": "104857600", "cpu/memory.max": "1"}, 100),
        ("4:memory:/x", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("nonsense", {}, None),
        (None, {}, None),
    ],
)
def test_the_limit_of_a_container_or_service_is_read(
    groups: str | None, files: dict[str, str], limit_mb: int | None, tmp_path: Path
) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert read_memory_limit(tmp_path) == limit_mb


@pytest.mark.parametrize(("limit_mb", "trainers"), [(149, 1), (100, 1), (299, 2)])
def test_a_limit_below_what_torch_takes_is_refused_before_it_is_loaded(
    limit_mb: int, trainers: int, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"only {limit_mb} MB .* takes at least {150 * trainers} MB.* without"):
        check_limit(trainers, limited(tmp_path, limit_mb))


@pytest.mark.parametrize(("limit_mb", "is_told"), [(150, True), (400, True), (500, False), (None, False)])
def test_a_narrow_limit_is_told_and_a_wide_one_is_not(
    limit_mb: int | None, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_limit(1, limited(tmp_path, limit_mb))
    assert bool(caplog.messages) is is_told
    if is_told:
        assert f"only {limit_mb} MB of memory may be taken here" in caplog.text


def test_a_model_whose_rounds_do_not_fit_into_the_limit_is_refused_with_what_they_take(tmp_path: Path) -> None:
    system = limited(tmp_path, 300)
    check_room(44 * MB, system, taken_bytes=150 * MB)
    with pytest.raises(ConfigError, match=r"only 300 MB .* takes more than 301 MB.* allow it 602 MB"):
        check_room(45 * MB, system, taken_bytes=150 * MB)
    with pytest.raises(ConfigError, match="only 300 MB of"):
        check_room(0, system, taken_bytes=285 * MB)
    (system / "sys/fs/cgroup/mdl.service/memory.max").write_text("max")
    check_room(1000 * MB, system, taken_bytes=150 * MB)
