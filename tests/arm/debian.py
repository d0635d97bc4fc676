"""Programs of Debian for another processor: downloaded by apt, unpacked into a folder, and run there by qemu.

Nothing is installed and no script of a package runs. apt works in a folder of its own, so root is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# The release that Raspberry Pi OS is built on.
RELEASE, ARCHITECTURE = "trixie", "arm64"
# What a user installs by apt (docs/raspberry-pi.md).
PACKAGES = (
    *("python3-torch", "python3-venv", "python3-numpy", "python3-zmq", "python3-zeroconf", "python3-psutil"),
    "python3-safetensors",
)
# Of this machine's own processor. One program without libraries, from the same release wherever this runs.
_EMULATOR = "qemu-user"
_DOWNLOAD_S = 1_800.0
_APT = """#clear APT::Architectures;
APT::Architecture "{target}";
APT::Architectures {{ "{target}"; "{host}"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"""


class StepError(Exception):
    """A step failed; the text is one line: what failed, where, and what to do."""


def call(
    words: Sequence[str | Path], timeout_s: float, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Return what a command prints. Raises StepError with its last line if it fails or takes too long."""
    try:
        done = subprocess.run(
            list(map(str, words)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment,
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError:
        raise StepError(f"{words[0]} is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise StepError(f"{Path(words[0]).name} took more than {timeout_s:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()[-1]
        raise StepError(f"{Path(words[0]).name} ended with {done.returncode}: {last}")
    return done.stdout


def find_mirror() -> str:
    """Return the address of the Debian archive that this machine's apt is set to. Raises StepError if there is none."""
    codename = call(["sh", "-c", ". /etc/os-release; echo $ID $VERSION_CODENAME"], _DOWNLOAD_S).split()
    if codename[:1] != ["debian"]:
        raise StepError("this machine is not a Debian: name an archive of Debian by --mirror")
    targets = call(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"], _DOWNLOAD_S)
    for address, release, component in (line.split() for line in targets.splitlines() if line.count(" ") == 2):
        if [release, component] == [codename[-1], "main"]:
            return address
    raise StepError("apt's sources name no archive of Debian: name one by --mirror")


def prepare(cache: Path, mirror: str | None) -> tuple[Path, Path]:
    """Return the folder of the unpacked system and the emulator, from the cache if they are there.

    mirror: the archive to download from; None: the one of this machine. Raises StepError.
    """
    system, emulator = cache / "system", cache / "qemu-aarch64"
    made_of = system / "packages.txt"
    wanted = "\n".join((RELEASE, ARCHITECTURE, _EMULATOR, *PACKAGES))
    if made_of.is_file() and made_of.read_text() == wanted:
        return system, emulator
    apt, tools = cache / "apt", cache / "tools"
    for folder in (system, apt, tools):
        shutil.rmtree(folder, ignore_errors=True)
    host = call(["dpkg", "--print-architecture"], _DOWNLOAD_S).strip()
    environment = _own_apt(apt, mirror or find_mirror(), host)
    call(["apt-get", "update"], _DOWNLOAD_S, environment)
    call(["apt-get", "download", f"{_EMULATOR}:{host}"], _DOWNLOAD_S, environment, apt / "cache/archives")
    _unpack(apt, tools)
    shutil.copy2(tools / "usr/bin" / emulator.name, emulator)
    shutil.rmtree(tools)
    needed = ["apt-get", "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES]
    call(needed, _DOWNLOAD_S, environment)
    for name in ("bin", "lib", "sbin"):  # packages go through these links of a Debian system
        (system / "usr" / name).mkdir(parents=True)
        (system / name).symlink_to(f"usr/{name}")
    _unpack(apt, system)
    for library in system.glob("usr/lib/*/*a*/lib*.so.3"):  # of BLAS and LAPACK, which their packages' scripts choose
        (library.parents[1] / library.name).symlink_to(library.relative_to(library.parents[1]))
    made_of.write_text(wanted)
    shutil.rmtree(apt)
    return system, emulator


def _own_apt(folder: Path, mirror: str, host: str) -> dict[str, str]:
    """Make a folder for apt that knows this archive alone; return the environment in which apt uses it."""
    for each in ("state/lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text("")
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} {RELEASE} main\n")
    (folder / "apt.conf").write_text(_APT.format(folder=folder, host=host, target=ARCHITECTURE))
    return os.environ | {"APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C.UTF-8"}


def _unpack(apt: Path, target: Path) -> None:
    """Move what apt has downloaded into the folder, unpacked."""
    target.mkdir(parents=True, exist_ok=True)
    for archive in sorted((apt / "cache/archives").glob("*.deb")):
        call(["dpkg-deb", "-x", archive, target], _DOWNLOAD_S)
        archive.unlink()
