"""Names that stay, incarnations that never repeat, and the codes a user knows."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from mdl import locks
from mdl.errors import ConfigError
from mdl.files.checkpoint import CachedModel, ModelCache
from mdl.peers.edge.identity import (
    CODE_VARIABLE,
    claim_identity,
    find_code,
    forget_run,
    kept_runs,
    known_meshes,
    other_runs,
    release_identity,
    remember_code,
    state_home,
)
from mdl.protocol.delta import Contributor
from mdl.transport.trust.keys import new_join_code
from mdl.writing import open_private

# Another process, which claims a directory and stays until its input ends.
CLAIMS = """
import sys
from pathlib import Path
from mdl.peers.edge.identity import claim_identity
claim_identity(Path(sys.argv[1]), sys.argv[2])
print("claimed", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Has the directory until it is killed."""
    command = [sys.executable, "-c", CLAIMS, str(directory.parent), directory.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def start(base: Path, name: str | None = "ann") -> Contributor:
    """Of a process that has ended by now."""
    me, directory = claim_identity(base, name)
    release_identity(directory)
    return me


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    monkeypatch.delenv(CODE_VARIABLE, raising=False)
    yield
    for path in list(locks._held):
        locks.let_go(path.parent)


def test_rule_4_every_start_has_a_higher_incarnation(tmp_path: Path) -> None:
    starts = [start(tmp_path).incarnation for _ in range(5)]
    assert starts == sorted(set(starts))


def test_rule_4_an_incarnation_grows_even_if_the_clock_was_set_back(tmp_path: Path) -> None:
    start(tmp_path)
    far_ahead = 1 << 60
    (tmp_path / "ann" / "incarnation").write_text(str(far_ahead))
    assert start(tmp_path).incarnation == far_ahead + 1


def test_a_damaged_incarnation_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    start(tmp_path)
    (tmp_path / "ann" / "incarnation").write_text("what")
    assert start(tmp_path).incarnation > 1 << 40


def test_a_host_with_two_peers_gives_the_second_a_number(tmp_path: Path) -> None:
    name = start(tmp_path, None).peer_id
    with another_process(tmp_path / name):
        assert start(tmp_path, None).peer_id == f"{name}-2"


def test_a_name_or_directory_that_another_process_uses_is_refused(tmp_path: Path) -> None:
    with another_process(tmp_path / "ann") as process:
        used = re.escape(f"{tmp_path / 'ann'} is used by another process ({process.pid}); choose another --name or")
        with pytest.raises(ConfigError, match=used):
            claim_identity(tmp_path, "ann")
        with pytest.raises(ConfigError, match=used):
            claim_identity(tmp_path, None, tmp_path / "ann")


def test_so_is_one_that_this_process_uses(tmp_path: Path) -> None:
    claim_identity(tmp_path, "ann")
    with pytest.raises(ConfigError, match="is used by this process"):
        claim_identity(tmp_path, "ann")


def test_what_killed_processes_have_half_written_goes_when_their_directory_is_used_again(tmp_path: Path) -> None:
    """Each was as large as a model, and stayed for ever."""
    code = """
import os, signal, sys
from pathlib import Path
from mdl.writing import write_bytes
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
write_bytes(Path(sys.argv[1]), bytes(1000))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "ann" / "model.safetensors")], check=False)
    (tmp_path / "ann" / ".a download of the user's.part").touch()
    assert len(list((tmp_path / "ann").iterdir())) == 2
    start(tmp_path)
    assert {path.name for path in (tmp_path / "ann").iterdir()} == {"incarnation", ".a download of the user's.part"}


def test_wherever_the_clock_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board without a clock of its own gets the time from the network, after its devices have started."""
    with another_process(tmp_path / "ann"):
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1e9)
        with pytest.raises(ConfigError, match="is used by another process"):
            claim_identity(tmp_path, "ann")


@pytest.mark.parametrize("left_behind", [f"{os.getppid()}\n", "what", ""])
def test_the_directory_of_a_process_that_is_gone_is_taken_over(left_behind: str, tmp_path: Path) -> None:
    with another_process(tmp_path / "ann"):
        pass
    (tmp_path / "ann" / "pid").write_text(left_behind)
    _, directory = claim_identity(tmp_path, "ann")
    assert (directory / "pid").read_text() == f"{os.getpid()}\n"


def test_of_many_that_start_at_the_same_moment_one_has_it(tmp_path: Path) -> None:
    won: list[bool] = []
    begin = threading.Barrier(8)

    def claim() -> None:
        begin.wait()
        won.append(locks.take(tmp_path))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1


FORKS = """
import os, sys, time
from pathlib import Path
from mdl.peers.edge.identity import claim_identity
claim_identity(Path(sys.argv[1]), "ann")
if os.fork() == 0:
    print("claimed", flush=True)
    sys.stdin.read()
    os._exit(0)
time.sleep(60)
"""


def test_a_child_that_outlives_its_process_does_not_have_it(tmp_path: Path) -> None:
    """As workers that load data, which are forked."""
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        process.kill()
        process.wait()
        claim_identity(tmp_path, "ann")


def test_where_a_disk_has_no_locks_a_device_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert claim_identity(tmp_path, "ann")[0].peer_id == "ann"
    assert "nothing keeps a second process of this name out" in caplog.text


def test_who_has_opened_a_file_that_was_removed_meanwhile_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locks.take(tmp_path)
    opened = open_private(tmp_path / "pid", "ab")
    locks.let_go(tmp_path)
    opening = iter([opened])
    monkeypatch.setattr(locks, "open_private", lambda *how: next(opening, None) or open_private(*how))
    assert locks.take(tmp_path)
    assert opened.closed
    assert (tmp_path / "pid").exists()


@pytest.mark.parametrize("name", ["", "a b", "../up", "x" * 41, "é"])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use 1 to 40 letters, digits"):
        claim_identity(tmp_path, name)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to"):
        claim_identity(tmp_path / "file", "ann")


def test_a_code_is_kept_for_this_user_alone_and_found_by_its_mesh() -> None:
    code = new_join_code("lab")
    path = remember_code(code)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert known_meshes() == {"lab": code}
    assert find_code("lab", None) == find_code(None, None) == code


def test_a_given_code_and_the_environment_come_before_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_code(new_join_code("lab"))
    given, environment = new_join_code("lab"), new_join_code("lab")
    monkeypatch.setenv(CODE_VARIABLE, environment)
    assert find_code("lab", None) == environment
    assert find_code("lab", given) == given


def test_a_code_of_another_mesh_is_refused_naming_both() -> None:
    with pytest.raises(ConfigError, match="the code is for mesh 'lab', not 'home'"):
        find_code("home", new_join_code("lab"))


def test_without_a_code_the_user_is_told_what_to_give() -> None:
    with pytest.raises(ConfigError, match="--code @FILE; `mdl mesh new NAME` makes one"):
        find_code(None, None)
    with pytest.raises(ConfigError, match=r"no code is known for mesh 'lab'.*known: -"):
        find_code("lab", None)
    remember_code(new_join_code("lab"))
    remember_code(new_join_code("home"))
    with pytest.raises(ConfigError, match=r"no mesh is named.*--mesh NAME, one of: home, lab"):
        find_code(None, None)


def test_a_code_may_come_from_a_file_which_is_the_users_alone_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, path = new_join_code("lab"), tmp_path / "lab.code"
    path.write_text(code + "\n")
    path.chmod(0o644)
    assert find_code("lab", f"@{path}") == code
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "others on this machine could read" in caplog.text
    assert code not in caplog.text
    with pytest.raises(ConfigError, match=r"cannot read .*absent"):
        find_code(None, f"@{tmp_path}/absent")


def test_a_remembered_code_that_others_could_read_is_narrowed_when_it_is_used() -> None:
    code = new_join_code("lab")
    path = remember_code(code)
    path.chmod(0o644)
    find_code("lab", None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    remember_code(code)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_user_is_asked_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    code, questions = new_join_code("lab"), []

    def ask(question: str) -> str:
        questions.append(question)
        return f" {code}\n"

    assert find_code("lab", None, ask) == find_code(None, None, ask) == code
    assert questions == ["join code of mesh lab: ", "join code: "]
    remember_code(code)
    assert find_code("lab", None, ask) == find_code(None, None, ask) == code
    monkeypatch.setenv(CODE_VARIABLE, new_join_code("home"))
    assert find_code("home", None, ask) != code
    assert len(questions) == 2


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"hello", b"", b"x" * 5000, b"lab:\x1b[31m"])
def test_a_code_file_with_something_else_is_left_out_and_named(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = remember_code(new_join_code("lab")).with_name("torn.code")
    path.write_bytes(content)
    assert list(known_meshes()) == ["lab"]
    assert str(path) in caplog.text
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        find_code(None, f"@{path}")
    assert "\n" not in str(caught.value)


def test_a_released_name_can_be_taken_by_another_process(tmp_path) -> None:
    _, directory = claim_identity(tmp_path, "ann")
    release_identity(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["incarnation"]


def keep(mesh: str, device: str, round_id: int) -> Path:
    directory = state_home(mesh) / device
    ModelCache(directory).save(CachedModel(np.ones(4, np.float32), round_id, "schema", mesh, {"model": "lenet"}))
    return directory


def test_runs_are_listed_and_one_is_forgotten_without_the_others() -> None:
    remember_code(new_join_code("home"))
    for mesh, device, round_id in (("home", "phone", 7), ("home--gait", "phone", 3), ("home--gait", "watch", 3)):
        keep(mesh, device, round_id)
    assert [(each.mesh, each.run, each.device, each.round_id) for each in kept_runs()] == [
        ("home", "", "phone", 7), ("home", "gait", "phone", 3), ("home", "gait", "watch", 3),
    ]  # fmt: skip
    keep("homestead", "phone", 1)
    assert other_runs("home") == ["home--gait"]
    assert other_runs("home--gait") == ["home"]
    assert forget_run("homestead") == 1
    assert forget_run("home", "gait") == 2
    assert [each.run for each in kept_runs()] == [""]
    assert list(known_meshes()) == ["home"]
    with pytest.raises(ConfigError, match="nothing is kept of home/gait"):
        forget_run("home", "gait")


def test_a_run_that_goes_on_is_not_forgotten() -> None:
    directory = keep("home", "phone", 7)
    keep("home", "a-watch", 7)
    with another_process(directory), pytest.raises(ConfigError, match="is used by another process"):
        forget_run("home")
    assert len(kept_runs()) == 2
    assert not (directory.parent / "a-watch" / "pid").exists()
