"""`mdl service`: one command of mdl as a systemd unit, a launchd job, or a Windows task, and systemd on this machine.

A systemd unit starts with the machine, in bounds, without unneeded rights. It leaves out MemoryDenyWriteExecute, as
torch writes its kernels while it runs, and a watchdog: mdl could only tell it that the process lives, which systemd
sees by itself. The place of units, the rights of root and users, and the calls of `systemctl` are here, too.

A launchd job runs on macOS, as this user, from login on, at low priority. launchd bounds no memory and does not tell
exit codes apart: after a failure it tries again each minute.

A Windows task runs as this user, from logon on, below the usual priority. It bounds no memory and sets no variable, so
torch chooses its number of threads.
"""

from __future__ import annotations

import getpass
import os
import plistlib
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import platformdirs
import psutil

from mdl.errors import ConfigError, MdlError
from mdl.peers.edge.small import VARIABLE, choose_threads, usable_cores
from mdl.peers.view.plain import LOG_VARIABLE
from mdl.writing import make_private_folder, write_bytes

# The beginning of a unit's name in `systemctl`.
PREFIX = "mdl-"
# The credential with a system service's join code; systemd hands it over in memory, to this service alone.
CREDENTIAL = "join-code"
# The credential with the address of a database, which may name its password.
STORE = "store"
# A LeNet peer takes 250 MB: below this no training is possible (docs/raspberry-pi.md).
LEAST_MB = 400
_LARGEST_TASKS = 256  # threads of torch on many cores, and one process that learns the schedule
NICE = 10

_NOT_NEEDED = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
PrivateTmp=yes
PrivateDevices={private_devices}
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
"""


@dataclass(frozen=True)
class Service:
    """A unit to be written.

    name: without `mdl-` and `.service`. program: starts mdl; words: follow it.
    threads: that train. memory_mb: it is slowed down at nine tenths of this, and ended beyond.
    user: that it runs as: "" for one that systemd makes up, None for a service of the installing user.
    writes: folders that it may write, beside those that systemd makes for it. directory: its working one.
    code_file: with the join code, for a system service. store_file: with the address of the cloud's database.
    """

    name: str
    program: tuple[str, ...]
    words: tuple[str, ...]
    threads: int
    memory_mb: int
    user: str | None = None
    writes: tuple[Path, ...] = ()
    directory: Path | None = None
    code_file: Path | None = None
    store_file: Path | None = None

    @property
    def label(self) -> str:
        """Its name among those of other programs."""
        return f"{PREFIX}{self.name}"

    @property
    def unit(self) -> str:
        return f"{self.label}.service"

    @property
    def command(self) -> tuple[str, ...]:
        """All words of the command line; for a system service without its secrets, which systemd names."""
        store = ("--store", f"@{self.store_file}") if self.store_file and not self.is_system else ()
        return (*self.program, *self.words, *store)

    @property
    def is_system(self) -> bool:
        return self.user is not None


def write_unit(service: Service) -> str:
    """Return the unit's text. Raises ConfigError for a word that no unit can hold."""
    starts = " ".join(quote(word) for word in service.command)
    credential = " --code @%d/" + CREDENTIAL if service.code_file else ""
    store = f" --store @%d/{STORE}" if service.store_file and service.is_system else ""
    # A line that ends with a backslash would go on in the next one.
    told = f"mdl {' '.join(service.words)}"[:200].replace("\\", "/").replace("%", "%%")
    private_devices = "no" if any("cuda" in word or "mps" in word for word in service.words) else "yes"
    parts = [
        "[Unit]",
        f"Description={told}",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=600",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={starts}{credential}{store}",
        "# 2: what it was told is wrong, which no further start mends. 130: it was told to end, and has saved.",
        "Restart=on-failure",
        "RestartSec=10",
        "RestartPreventExitStatus=2",
        "SuccessExitStatus=130",
        "TimeoutStopSec=60",
        *_place(service),
        "",
        f"Environment=OMP_NUM_THREADS={service.threads}",
        f"Nice={NICE}",
        "IOSchedulingClass=idle",
        "CPUWeight=20",
        f"CPUQuota={service.threads * 100}%",
        f"MemoryHigh={service.memory_mb * 9 // 10}M",
        f"MemoryMax={service.memory_mb}M",
        f"TasksMax={_LARGEST_TASKS}",
        "OOMScoreAdjust=500",
        "",
        _NOT_NEEDED.format(private_devices=private_devices),
        "[Install]",
        f"WantedBy={'multi-user' if service.is_system else 'default'}.target",
        "",
    ]
    return "\n".join(parts)


def quote(word: str) -> str:
    """Quote one word of a command line for systemd: no specifier, no variable, no second line."""
    escaped = check_word(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def check_word(word: str) -> str:
    """Return a word that stays in its line, as it is. Raises ConfigError for another one."""
    if not word.isprintable():
        raise ConfigError(f"service: {ascii(word)[:80]} holds a character that no service's file can")
    return word


def _place(service: Service) -> list[str]:
    """Return the lines about its user, and the folders that it may write."""
    writes = " ".join(quote(f"-{path.absolute()}") for path in service.writes)
    lines = [f"ReadWritePaths={writes}"] if writes else []
    if service.user is None:
        where = [f"WorkingDirectory={_escape_path(service.directory)}"] if service.directory else []
        return [*where, "ProtectHome=read-only", *lines]
    identity = [f"User={service.user}", "ProtectHome=read-only"] if service.user else ["DynamicUser=yes"]
    state = f"mdl/{service.name}"
    return [
        *identity,
        f"StateDirectory={state}",
        "StateDirectoryMode=0700",
        f"CacheDirectory={state}",
        "CacheDirectoryMode=0700",
        f"WorkingDirectory=%S/{state}",
        f"Environment=HOME=%S/{state} XDG_STATE_HOME=%S/{state} XDG_CONFIG_HOME=%S/{state} XDG_CACHE_HOME=%C/{state}",
        *([f"LoadCredential={CREDENTIAL}:{_escape_path(service.code_file)}"] if service.code_file else []),
        *([f"LoadCredential={STORE}:{_escape_path(service.store_file)}"] if service.store_file else []),
        *lines,
    ]


def _escape_path(path: Path) -> str:
    """Escape a path in a line that systemd takes as it is, but for specifiers.

    Raises ConfigError for a path that would not stay in its line, or would be read differently.
    """
    text = str(path)
    if not text.isprintable() or text != text.strip() or text.endswith("\\"):
        raise ConfigError(
            f"service: the directory {ascii(text)[:200]} cannot stand in a unit: it has a line break or another "
            "hidden character, or ends with a space or backslash. Change to another one (cd) and install again"
        )
    return text.replace("%", "%%")


_AGAIN_S = 60
_ENDS_S = 60


def write_plist(service: Service) -> str:
    """Return the job's text, for ~/Library/LaunchAgents/mdl-NAME.plist.

    Raises ConfigError for a word that no job can hold.
    """
    log = str(Path.home() / "Library" / "Logs" / f"{service.label}.log")
    job = {
        "Label": service.label,
        "ProgramArguments": [check_word(word) for word in service.command],
        "WorkingDirectory": check_word(str(service.directory or Path.home())),
        # mdl keeps the log within bounds, which launchd does not.
        "EnvironmentVariables": {VARIABLE: str(service.threads), LOG_VARIABLE: check_word(log)},
        "StandardErrorPath": log,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _AGAIN_S,
        "ExitTimeOut": _ENDS_S,
        "ProcessType": "Background",
        "Nice": NICE,
        "LowPriorityIO": True,
        "Umask": 0o077,
    }
    return plistlib.dumps(job, sort_keys=False).decode()


def how_to_load(service: Service) -> str:
    """Return what to type with the text that was printed."""
    file = f"~/Library/LaunchAgents/{service.label}.plist"
    return (
        f"save it as {file}, then: launchctl bootstrap gui/$(id -u) {file}; "
        f"launchctl bootout gui/$(id -u)/{service.label} ends it"
    )


_SPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
# Parts of a command that the Task Scheduler replaces: %NAME%, $(Arg0).
_REPLACED = re.compile(r"%[^%]+%|\$\(")
# Below normal; 4 to 6 are normal, 10 is idle.
_PRIORITY = "8"
_SETTINGS = {
    "MultipleInstancesPolicy": "IgnoreNew",
    # `--when` decides about the battery.
    "DisallowStartIfOnBatteries": "false",
    "StopIfGoingOnBatteries": "false",
    "StartWhenAvailable": "true",
    "ExecutionTimeLimit": "PT0S",  # none; three days otherwise
    "Priority": _PRIORITY,
}


def write_task(service: Service) -> str:
    """Return the task's text, for `schtasks /Create /XML`, in ASCII.

    Raises ConfigError for a word that no task can hold.
    """
    program, *words = (_check(word) for word in service.command)
    task = ElementTree.Element("Task", xmlns=_SPACE, version="1.2")
    _add(task, "RegistrationInfo", Description=" ".join(("mdl", *service.words))[:200])
    _add(_add(task, "Triggers"), "LogonTrigger", Enabled="true")
    _add(_add(task, "Principals"), "Principal", LogonType="InteractiveToken", RunLevel="LeastPrivilege")
    _add(_add(task, "Settings", **_SETTINGS), "RestartOnFailure", Interval="PT1M", Count="5")
    where = _check(str(service.directory or Path.home()))
    _add(
        _add(task, "Actions"), "Exec", Command=program, Arguments=subprocess.list2cmdline(words), WorkingDirectory=where
    )
    ElementTree.indent(task)
    # ASCII is read correctly in whatever encoding a shell writes the file.
    body = ElementTree.tostring(task, "us-ascii", xml_declaration=False).decode()
    return f'<?xml version="1.0"?>\n{body}\n'


def how_to_create(service: Service) -> str:
    """Return what to type with the text that was printed."""
    return (
        f"save it as {service.label}.xml, then: schtasks /Create /TN {service.label} /XML {service.label}.xml; "
        f"schtasks /Run /TN {service.label} starts it at once, schtasks /Delete /TN {service.label} takes it away"
    )


def _check(word: str) -> str:
    check_word(word)
    if found := _REPLACED.search(word):
        raise ConfigError(f"service: {word[:80]!r} holds {found[0][:40]!r}, which the Task Scheduler would replace")
    return word


def _add(parent: ElementTree.Element, name: str, **texts: str) -> ElementTree.Element:
    """Add an element, with an element for each text."""
    made = ElementTree.SubElement(parent, name)
    for key, text in texts.items():
        ElementTree.SubElement(made, key).text = text
    return made


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
