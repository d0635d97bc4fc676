"""What `make` installs: each package in one version per Python, with its hashes, from wherever it comes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

LOCK = Path("requirements.lock").read_text()
PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]


def test_each_package_has_hashes_and_no_address_stands_in_the_lock() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert len(entries) > 50
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[^\s;]+", entry), entry[:80]
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry[:80]
    assert not re.search(r"://|--index|--find|\bfile:", LOCK)


def test_whatever_pyproject_asks_for_is_there() -> None:
    extras = PROJECT["optional-dependencies"]
    names = ("cloud", "docs", "images", "postgresql", "train", "web", "dev")
    asked = [*PROJECT["dependencies"], *(each for name in names for each in extras[name])]
    wanted = {re.split(r"[\[>=<; ]", each)[0] for each in asked} - {"mdl", "torch"}
    locked = set(re.findall(r"^([a-z0-9-]+)==", LOCK, re.MULTILINE))
    assert wanted <= locked, wanted - locked
    assert "torch" not in locked, "of that there are builds for CPUs and for CUDA (Makefile)"
