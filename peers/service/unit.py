"""The text of a systemd unit: one command of mdl, started with the machine, in bounds, without unneeded rights.

It leaves out MemoryDenyWriteExecute, as torch writes its kernels while it runs, and a watchdog: mdl could only tell it
that the process lives, which systemd sees by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mdl.errors import ConfigError

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
