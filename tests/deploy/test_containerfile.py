"""The image: all of mdl and nothing else goes in, no secret with it, and it runs as nobody in particular."""

from __future__ import annotations

import re
from pathlib import Path

from deploy.try_container import read_steps

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text()
STEPS = read_steps(TEXT)


def _all(word: str) -> list[str]:
    return [rest for step, rest in STEPS if step == word]


def test_the_wheel_goes_in_and_nothing_else() -> None:
    copied = {source for rest in _all("COPY") for source in rest.split()[:-1]}
    assert copied == {"constraints.txt", "dist/*.whl"}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    (installs,) = _all("RUN")
    assert "--only-binary :all:" in installs
    assert not re.search(r"\b(apt|gcc|cc|make|build-essential)\b", installs)


def test_it_runs_as_a_user_of_its_own_by_number_and_ends_cleanly() -> None:
    order = [step for step, _ in STEPS]
    (user,) = _all("USER")
    assert user.isdigit()
    assert int(user) > 0
    assert f"--uid {user}" in _all("RUN")[0]
    assert "RUN" not in order[order.index("USER") :]
    assert _all("STOPSIGNAL") == ["SIGTERM"]
    assert _all("ENTRYPOINT") == ['["/opt/mdl/bin/mdl"]']


def test_no_secret_is_baked_in() -> None:
    assert not re.search(r"(?i)(ENV|ARG).*(code|token|password|secret)", TEXT)
    assert not re.search(r"[a-z0-9-]+:(?:[2-9a-z]{4}-){4}[2-9a-z]{4}", TEXT)
