"""`make test-container`: the steps of deploy/Containerfile in a Debian that debootstrap unpacks, by chroot.

Needs root, debootstrap and `make dist`; no container engine. The base image is a minimal Debian with python3; each step
has mounts of its own that end with it. Then mdl runs as the image's user: its version, two devices for two rounds.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SUITE, _PACKAGES = "bookworm", "python3,python3-venv,ca-certificates"
# Started in mounts of its own: what is mounted below BASE goes with this process.
_ENTER = """
base=$1; shift
mount --bind "$base" "$base"
mount -t proc proc "$base/proc"
mount --rbind /dev "$base/dev"
for folder in $BOUND; do mkdir -p "$base$folder"; mount --bind "$folder" "$base$folder"; done
exec chroot "$@"
"""
_MESH = """
export MDL_CODE=$({mdl} mesh new home) OMP_NUM_THREADS=1
set -- peer --loopback --data 'motion?people=6&test_people=2&windows=40' --set round.rounds=2 --set round.min_peers=2
{mdl} "$@" --name left --shard 1/2 & left=$!
{mdl} "$@" --name right --shard 2/2
right=$?
wait $left && [ $right = 0 ]
"""


class Image:
    """A folder that becomes the image, and what its later steps are done with."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.user = "0"
        self.folder = "/"
        # How pip is told here where wheels are.
        self.environment = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        self.environment["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

    def do(self, step: str, rest: str) -> None:
        match step:
            case "FROM":
                self._unpack()
            case "ARG" | "ENV":
                self.environment |= dict(word.split("=", 1) for word in shlex.split(rest))
            case "COPY":
                *sources, target = rest.split()
                for file in (file for source in sources for file in ROOT.glob(source)):
                    place = self.base / target.lstrip("/") / file.name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, place)
            case "RUN":
                self.run(rest)
            case "USER":
                self.user = rest
            case "WORKDIR":
                self.folder = rest
            case "VOLUME" | "STOPSIGNAL" | "ENTRYPOINT" | "CMD":
                pass
            case _:
                raise SystemExit(f"{step}: a step that this does not know")

    def run(self, script: str) -> str:
        """Run a line in the image, as its user; return what it prints. Raises SystemExit if it fails."""
        bound = [value for name, value in self.environment.items() if name.startswith("PIP_") and Path(value).is_dir()]
        command = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            _ENTER,
            "enter",
            str(self.base),
            f"--userspec={self.user}:{self.user}",
        ]
        command += [str(self.base), "/bin/sh", "-c", f"cd {shlex.quote(self.folder)} && {script}"]
        environment = self.environment | {"BOUND": " ".join(bound)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"ended with {done.returncode}: {script}\n{done.stdout[-2000:]}")
        return done.stdout

    def _unpack(self) -> None:
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(self.base)]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise SystemExit(f"debootstrap failed: {self.base / 'debootstrap' / 'debootstrap.log'} says why")
        (self.base / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
        for file in ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
            if Path(file).exists():
                shutil.copy(file, self.base / file.lstrip("/"))


def read_steps(text: str) -> list[tuple[str, str]]:
    """Return the steps of a Containerfile: the word that each begins with, and the rest of its line."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(step[1], step[2].strip()) for line in whole if (step := re.match(r"([A-Z]+)\s+(.*)", line))]


def main(base: Path) -> None:
    """base: an empty folder, of some 1.5 GB afterwards."""
    if os.geteuid() or not shutil.which("debootstrap"):
        raise SystemExit("it needs root and debootstrap: sudo apt-get install debootstrap")
    if not list((ROOT / "dist").glob("*.whl")):
        raise SystemExit("there is no wheel in dist/: make dist")
    began_s, image = time.monotonic(), Image(base)
    for step, rest in read_steps((ROOT / "deploy" / "Containerfile").read_text()):
        print(f"{time.monotonic() - began_s:6.0f} s  {step} {rest[:90]}", flush=True)
        image.do(step, rest)
    mdl = "/opt/mdl/bin/mdl"
    if image.run("command -v cc gcc clang make || true"):
        raise SystemExit("there is a compiler in the image")
    print(image.run(f"{mdl} --version").strip())
    image.run(_MESH.format(mdl=mdl))
    size = subprocess.run(["du", "-sm", str(base)], capture_output=True, text=True, check=True).stdout.split()[0]
    print(f"{time.monotonic() - began_s:6.0f} s  two devices have trained two rounds; the image has {size} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
