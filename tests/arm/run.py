"""Run mdl on the emulated processors of a Raspberry Pi 3 and 4, with Debian's own torch (`make test-arm`).

    python -m tests.arm                        # all processors
    python -m tests.arm --cpu cortex-a53       # one

It follows docs/raspberry-pi.md: Debian's packages, a virtual environment that sees them, mdl by pip. On each processor
mdl tells its version and looks around (`mdl doctor`), two peers train a model, and it is exported and used. A step that
fails ends it with code 1 and one line. Downloads stay below `mdl-test-arm` in the user's cache folder; remove that to
fetch them anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.dist import release
from tests.arm.debian import StepError, call, prepare
from tests.integration.product import free_port

ROOT = Path(__file__).resolve().parents[2]
# A Raspberry Pi 3 or Zero 2 W, a Raspberry Pi 4, and all that the emulator knows.
PROCESSORS = ("cortex-a53", "cortex-a72", "max")
# An emulated import of torch takes a minute on a busy machine.
_STEP_S, _INSTALL_S = 1_200, 3_600
_DATA = "motion?people=6&test_people=2&windows=40"
_ROUNDS = 2
# Of wheels for a system as old as Debian 13, the newest first.
_PLATFORMS = ("manylinux_2_34_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64")
_ROW = "{:<12} {:<10} {:>8} {:>10}"


@dataclass(frozen=True)
class Ended:
    """One command that has ended.

    code: its exit code. said, told: what it wrote to stdout and stderr. seconds: from its start.
    memory_mb: the most that one of its processes had resident.
    """

    code: int
    said: str
    told: str
    seconds: float
    memory_mb: int


class Board:
    """A computer on which mdl runs.

    mdl: the words that start it. home: a folder for its files. environment: all variables of its processes.
    """

    def __init__(self, mdl: Sequence[str | Path], home: Path, environment: Mapping[str, str]) -> None:
        self._mdl, self._home = [str(each) for each in mdl], home
        self._environment = dict(environment)

    def run(self, *commands: Sequence[str]) -> list[Ended]:
        """Run commands of mdl beside each other, to their ends. Raises StepError if one does not end."""
        with ExitStack() as files:
            running = [self._start(words, files) for words in commands]
            return [self._wait(*each) for each in running]

    def _start(
        self, words: Sequence[str], files: ExitStack
    ) -> tuple[Sequence[str], subprocess.Popen[str], list[Path], float]:
        folder = Path(tempfile.mkdtemp(dir=self._home))
        outputs = [folder / "stdout", folder / "stderr"]
        said, told = (files.enter_context(each.open("w")) for each in outputs)
        process = subprocess.Popen(
            ["timeout", "--kill-after=10", str(_STEP_S), *self._mdl, *words],
            stdin=subprocess.DEVNULL, stdout=said, stderr=told, cwd=self._home, env=self._environment, text=True,
        )  # fmt: skip
        return words, process, outputs, time.monotonic()

    def _wait(self, words: Sequence[str], process: subprocess.Popen[str], outputs: list[Path], since: float) -> Ended:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        said, told = (each.read_text(errors="replace") for each in outputs)
        if code == 124:
            raise StepError(f"mdl {words[0]} took more than {_STEP_S} s")
        return Ended(code, said, told, time.monotonic() - since, usage.ru_maxrss >> 10)


def steps(board: Board, out: Path) -> Iterator[tuple[str, list[Ended]]]:
    """Do what a new device does, one step a turn. out: an empty folder. Raises StepError for the step that fails."""
    yield "version", [_must(board, "--version")]
    yield "mesh new", [_must(board, "mesh", "new", "home")]
    yield "doctor", [_torch_works(board.run(["doctor", "--json", "--wait", "1"])[0])]
    peers = board.run(*_peers(out))
    for each in peers:
        _check(each, "peer")
    models = {_parameters(out / str(at) / "global.safetensors") for at in (1, 2)}
    rounds = {json.loads(each.said.splitlines()[-1])["round_id"] for each in peers}
    if rounds != {_ROUNDS} or len(models) != 1:
        raise StepError(f"peer: rounds {sorted(rounds)} with {len(models)} models, in place of one of round {_ROUNDS}")
    yield "peers", peers
    yield "export", [_must(board, "export", str(out / "1"), "--format", "torch")]
    yield "predict", [_must(board, "predict", str(out / "1"), "--data", _DATA)]


def _peers(out: Path) -> list[list[str]]:
    """Two devices that are told of each other, each by a port that was free a moment ago."""
    ports = [free_port() for _ in range(2)]
    return [
        ["peer", "--data", _DATA, "--shard", f"{at}/2", "--rounds", str(_ROUNDS), "--name", f"pi-{at}", "--json",
         "--loopback", "--port", str(ports[at - 1]), "--join", f"127.0.0.1:{ports[at % 2]}",
         "--out", str(out / str(at))]
        for at in (1, 2)
    ]  # fmt: skip


def _parameters(file: Path) -> bytes:
    """Return what follows the header of a safetensors file: the header names the device that wrote it."""
    content = file.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def _must(board: Board, *words: str) -> Ended:
    return _check(board.run(words)[0], words[0])


def _check(ended: Ended, step: str) -> Ended:
    if ended.code or "Traceback" in ended.told:
        raise StepError(f"{step}: mdl ended with {ended.code}: {_last_line(ended)}")
    return ended


def _last_line(ended: Ended) -> str:
    return (ended.told.strip() or ended.said.strip() or "it printed nothing").splitlines()[-1]


def _torch_works(ended: Ended) -> Ended:
    """Raise StepError unless the doctor says that torch works; what it says of the network may be anything."""
    try:
        findings = json.loads(ended.said)["findings"]
    except (ValueError, KeyError):
        raise StepError(f"doctor: mdl ended with {ended.code}: {_last_line(ended)}") from None
    told = [each for each in findings if each["check"] == "torch"]
    if [each["verdict"] for each in told] != ["ok"]:
        raise StepError(f"doctor: {told[0]['told'] if told else 'it does not tell of torch'}")
    return ended


def install(cache: Path, system: Path, emulator: Path) -> Path:
    """Return the folder of an environment that sees the system's packages and has this checkout's mdl.

    What Debian lacks, or has too old, comes from the wheels of requirements.lock. Raises StepError.
    """
    environment = cache / "venv"
    python, mdl = environment / "bin" / "python", environment / "bin" / "mdl"
    real = next((system / "usr/bin").glob("python3.[0-9]*"))
    version = real.name.removeprefix("python")
    site = environment / "lib" / f"python{version}" / "site-packages"
    shutil.rmtree(environment, ignore_errors=True)
    for folder in (python.parent, site):
        folder.mkdir(parents=True)
    # In place of the link that `python -m venv` makes: this machine's kernel can start it.
    python.write_text(f'#!/bin/sh\nexec {emulator} -L {system} -0 "$0" {real} "$@"\n')
    mdl.write_text(f"#!{python}\nfrom mdl.__main__ import main\nmain()\n")
    for each in (python, mdl):
        each.chmod(0o755)
    home = f"home = {real.parent}\ninclude-system-site-packages = true\nversion = {version}\n"
    (environment / "pyvenv.cfg").write_text(home)
    with tempfile.TemporaryDirectory() as built:
        with zipfile.ZipFile(release(Path(built) / "dist")[0]) as packed:
            packed.extractall(site)
        places, tried = (site, system / "usr/lib/python3/dist-packages"), set[str]()
        while names := lacking("mdl", places, version):
            if again := names & tried:
                raise StepError(f"requirements.lock: its {min(again)} does not do for Python {version} on Arm")
            tried |= names
            asked = Path(built) / "asked.txt"
            asked.write_text("\n".join(_locked(name) for name in sorted(names)))
            pip = [sys.executable, "-m", "pip", "install", "--target", str(site), "--upgrade", "--no-deps"]
            pip += ["--only-binary=:all:", "--python-version", version, "--require-hashes", "-r", str(asked)]
            call([*pip, *(f"--platform={each}" for each in _PLATFORMS)], _INSTALL_S)
    return environment


def lacking(name: str, places: Sequence[Path], python: str) -> set[str]:
    """Return the packages that the named one needs, also through others, and that are missing or have another version.

    places: folders of packages, of which those of the first are looked into. python: the version, as "3.13".
    """
    found: dict[str, Distribution] = {}
    for place in reversed(places):
        ours: dict[str, Distribution] = {
            canonicalize_name(each.name): each for each in distributions(path=[str(place)])
        }
        found |= ours
    where = {"platform_machine": "aarch64", "sys_platform": "linux", "os_name": "posix", "extra": ""}
    where |= {"python_version": python, "python_full_version": f"{python}.0", "platform_system": "Linux"}
    without, waiting, seen = set[str](), [name], set[str]()
    while waiting:
        if (this := waiting.pop()) in seen:
            continue
        seen.add(this)
        for needed in map(Requirement, found[this].requires or ()):
            if needed.marker and not needed.marker.evaluate(where):
                continue
            other = canonicalize_name(needed.name)
            if other in found and needed.specifier.contains(found[other].version, prereleases=True):
                waiting += [other] if other in ours else []  # what Debian's own need, Debian has
            else:
                without.add(other)
    return without


def _locked(name: str) -> str:
    """Return a package's entry in requirements.lock, with its hashes. Raises StepError if there is none."""
    entry = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    if entry is None:
        raise StepError(f"{name} is neither in Debian in a version that mdl takes nor in requirements.lock")
    return entry[0]


def main() -> int:
    """Print a table of all steps; return 1, with one line, if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="append", choices=PROCESSORS, help="only this processor; may be given again")
    parser.add_argument("--mirror", help="an archive of Debian; the one of this machine's apt by default")
    asked = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mdl-test-arm"
    try:
        since = time.monotonic()
        system, emulator = prepare(cache, asked.mirror)
        told = f"{call([emulator, '--version'], _STEP_S).splitlines()[0]}: packages"
        print(f"{told} {time.monotonic() - since:.0f} s", flush=True)
        since = time.monotonic()
        environment = install(cache, system, emulator)
        print(f"mdl installed: {time.monotonic() - since:.0f} s", flush=True)
        print(_ROW.format("processor", "step", "seconds", "memory MB"))
        for processor in asked.cpu or PROCESSORS:
            with tempfile.TemporaryDirectory() as home:
                variables = {"HOME": home, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "QEMU_CPU": processor}
                board = Board([environment / "bin" / "mdl"], Path(home), variables)
                for step, ended in steps(board, Path(home) / "runs"):
                    seconds, memory = (max(getattr(each, name) for each in ended) for name in ("seconds", "memory_mb"))
                    print(_ROW.format(processor, step, f"{seconds:.0f}", memory), flush=True)
    except StepError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
