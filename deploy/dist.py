"""`make dist`: a wheel, an sdist, their checksums and the release's notes, of what git knows, into dist/."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMS, NOTES = "SHA256SUMS", "NOTES.md"
_BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"


def release(out: Path) -> tuple[Path, Path]:
    """Write all files of a release into an empty folder; return the wheel and the sdist.

    The same commit gives the same wheel: files carry the commit's time. Raises SystemExit with what went wrong.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _copy_known(Path(folder))
        environment = os.environ | {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").strip()}
        command = [sys.executable, "-c", _BUILD, str(out.absolute())]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the build failed:\n{done.stderr[-4000:]}")
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted((wheel, sdist))]
    (out / SUMS).write_text("".join(lines))
    (out / NOTES).write_text(cut_notes((ROOT / "CHANGELOG.md").read_text(), wheel.name.split("-")[1]))
    return wheel, sdist


def cut_notes(changelog: str, version: str) -> str:
    """Return what the changelog says of a version. Raises SystemExit if it says nothing."""
    found = re.search(
        rf"^## \[?{re.escape(version)}\]?(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section ## {version} with a text: write it before a release")
    return f"# mdl {version}\n\n{found[1].strip()}\n"


def _copy_known(folder: Path) -> None:
    """Copy the files that git knows, as they stand here; links stay links."""
    for name in filter(None, _git("ls-files", "-z").split("\0")):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            file.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, file)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout.decode()


if __name__ == "__main__":
    target = ROOT / "dist"
    if target.exists():
        shutil.rmtree(target)
    release(target)
    print(*sorted(str(file.relative_to(ROOT)) for file in target.iterdir()), sep="\n")
