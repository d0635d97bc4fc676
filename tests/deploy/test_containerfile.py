"""The image: all of mdl and nothing else goes in, no secret with it, and it runs as nobody in particular."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
STEPS = [line.split(None, 1) for line in TEXT.splitlines() if re.match(r"[A-Z]+ ", line)]


def _all(word: str) -> list[str]:
    return [rest for step, rest in STEPS if step == word]


def test_everything_that_is_installed_from_is_copied_and_nothing_else() -> None:
    copied = {source for rest in _all("COPY") for source in rest.split()[:-1]}
    packages = {"mdl", "transport", "sim", "scheduler", "peers"}
    assert copied == packages | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert all((ROOT / source).exists() for source in copied)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


def test_it_runs_as_a_user_of_its_own_by_number_and_ends_cleanly() -> None:
    order = [step for step, _ in STEPS]
    (user,) = _all("USER")
    assert user.isdigit()
    assert int(user) > 0
    assert f"--uid {user}" in TEXT
    assert "RUN" not in order[order.index("USER") :]
    assert _all("STOPSIGNAL") == ["SIGTERM"]
    assert _all("ENTRYPOINT") == ['["/opt/mdl/bin/mdl"]']


def test_no_secret_is_baked_in() -> None:
    assert not re.search(r"(?i)(ENV|ARG).*(code|token|password|secret)", TEXT)
    assert not re.search(r"[a-z0-9-]+:(?:[2-9a-z]{4}-){4}[2-9a-z]{4}", TEXT)
