"""systemd on this machine: the place of units, the rights of root and users, and the calls of `systemctl`."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import platformdirs
import psutil

from mdl.errors import ConfigError, MdlError
from mdl.peers.edge.small import choose_threads, usable_cores
from mdl.peers.service.unit import LEAST_MB, PREFIX, Service, write_unit
from mdl.writing import make_private_folder, write_bytes

_RUNNING = Path("/run/systemd/system")
_SYSTEM_UNITS = Path("/etc/systemd/system")
_CODES = Path("/etc/mdl")
_COMMAND_S = 60.0
# The share of this machine's memory that a service may take, unless the user says another number.
_SHARE = 0.6


def is_system() -> bool:
    """Return True for root, which installs services of the machine; other users install services of their own."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def plan(
    name: str,
    words: tuple[str, ...],
    code: str | None,
    user: str,
    memory_mb: int | None,
    writes: tuple[Path, ...] = (),
    store: str = "",
    of_machine: bool | None = None,
) -> tuple[Service, str]:
    """Return the service, and the join code that belongs beside it ("" if none does). user: of a system service.

    code: of the mesh; None if the words need none. writes: folders of results. store: the address of a cloud's
    database, which is kept beside the unit, too; "" if the words need none. of_machine: a system service; None: if root
    asks. Raises ConfigError.
    """
    total_mb = psutil.virtual_memory().total >> 20
    memory_mb = memory_mb or max(LEAST_MB, int(total_mb * _SHARE))
    if not LEAST_MB <= memory_mb <= total_mb:
        raise ConfigError(f"--memory {memory_mb}: {LEAST_MB} to {total_mb} MB, what a peer needs and this machine has")
    program, threads = _program(), choose_threads(usable_cores())
    if is_system() if of_machine is None else of_machine:
        import pwd

        if user and user not in {each.pw_name for each in pwd.getpwall()}:
            raise ConfigError(f"--as {user}: there is no such user on this machine")
        file = _CODES / f"{name}.code" if code else None
        store_file = _CODES / f"{name}.store" if store else None
        return Service(name, program, words, threads, memory_mb, user, writes, None, file, store_file), code or ""
    if user:
        raise ConfigError(f"--as {user}: only root installs services for others: sudo mdl service install ...")
    kinds = (platformdirs.user_state_dir, platformdirs.user_config_dir, platformdirs.user_cache_dir)
    own = tuple(Path(kind("mdl")) for kind in kinds)
    store_file = _own_secrets() / f"{name}.store" if store else None
    return Service(name, program, words, threads, memory_mb, None, (*own, *writes), Path.cwd(), None, store_file), ""


def install(service: Service, code: str, store: str = "") -> Path:
    """Write the unit, enable it and start it; return the unit's file. Raises MdlError if systemd refuses."""
    text = write_unit(service)
    for folder in service.writes:
        make_private_folder(folder)
    if service.code_file:
        write_bytes(service.code_file, f"{code}\n".encode())
    if service.store_file:
        write_bytes(service.store_file, f"{store}\n".encode())
    file = units() / service.unit
    write_bytes(file, text.encode())
    file.chmod(0o644)  # it holds no secret, and systemd complains of fewer rights
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", service.unit)
    return file


def remove(unit: str) -> None:
    """End a unit and remove it; models and codes of the mesh stay. Raises MdlError if systemd refuses."""
    _systemctl("disable", "--now", unit)
    (units() / unit).unlink(missing_ok=True)
    name = unit.removeprefix(PREFIX).removesuffix(".service")
    folder = _CODES if is_system() else _own_secrets()
    for secret in (folder / f"{name}.code", folder / f"{name}.store"):
        secret.unlink(missing_ok=True)
    _systemctl("daemon-reload")


def state(unit: str) -> dict[str, str]:
    """Return systemd's properties of a unit, each as its own text."""
    wanted = "ActiveState,SubState,NRestarts,MainPID,MemoryCurrent,ExecMainStatus,ActiveEnterTimestamp"
    told = _systemctl("show", unit, f"--property={wanted}")
    return dict(line.split("=", 1) for line in told.splitlines() if "=" in line)


def read_log(unit: str, lines: int) -> list[str]:
    """Return the last lines of its log. Raises MdlError if there is no journal."""
    return _run([*_journal(unit, lines), "--output=cat"]).splitlines()


def show_log(unit: str, lines: int, follow: bool) -> None:
    """Show the same with times, on this process's own output; follow: until Ctrl-C."""
    words = [*_journal(unit, lines), *(["--follow"] if follow else [])]
    try:
        done = subprocess.run(words, check=False)
    except OSError as error:
        raise MdlError(f"{words[0]}: {error}") from None
    if done.returncode:
        raise MdlError(f"{' '.join(words)} ended with {done.returncode}")


def installed() -> list[str]:
    """Return the units that were installed here, by name."""
    return sorted(file.name for file in units().glob(f"{PREFIX}*.service"))


def find_unit(name: str | None) -> str:
    """Return the unit of this name, or the only one. Raises ConfigError."""
    there = installed()
    unit = f"{PREFIX}{name}.service" if name else there[0] if len(there) == 1 else ""
    if unit in there:
        return unit
    known = ", ".join(each.removeprefix(PREFIX).removesuffix(".service") for each in there) or "none"
    whose = "on this machine" if is_system() else "by this user"
    raise ConfigError(f"name a service: {f'no {name} among those ' if name else ''}installed {whose}: {known}")


def units() -> Path:
    return _SYSTEM_UNITS if is_system() else Path(platformdirs.user_config_dir("systemd")) / "user"


def lingers() -> bool:
    """Return True if this user's services run without a login; a system service always does."""
    return is_system() or (Path("/var/lib/systemd/linger") / getpass.getuser()).exists()


def need_systemd() -> None:
    """Raise ConfigError if systemd does not run."""
    if not _RUNNING.is_dir() or shutil.which("systemctl") is None:
        raise ConfigError(
            "service: systemd does not run on this machine. mdl service install --print shows the job for launchd or "
            "Windows, or the unit; another supervisor has to start its ExecStart"
        )


def _own_secrets() -> Path:
    """Return the folder for secrets of this user's own services."""
    return Path(platformdirs.user_config_dir("mdl")) / "services"


def _program() -> tuple[str, ...]:
    """Return the command `mdl` of this very installation."""
    command = shutil.which("mdl", path=sysconfig.get_path("scripts"))
    return (command,) if command else (sys.executable, "-P", "-m", "mdl")


def _journal(unit: str, lines: int) -> list[str]:
    return ["journalctl", "--no-pager", f"--lines={lines}", f"--{'unit' if is_system() else 'user-unit'}={unit}"]


def _systemctl(*words: str) -> str:
    return _run(["systemctl", *([] if is_system() else ["--user"]), *words])


def _run(command: list[str]) -> str:
    """Return the output of a command. Raises MdlError with the last line of its complaint."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MdlError(f"{' '.join(command)}: {error}") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise MdlError(f"{' '.join(command)}: {said}")
    return done.stdout
