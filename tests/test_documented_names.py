"""What documents and docstrings name in backquotes is there: classes with their members, modules, files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = ("mdl", "transport", "sim", "scheduler", "peers", "tests", "benchmarks", "examples")
TEXTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(path for name in CODE for path in (ROOT / name).rglob("*.py"))]
)
# History tells of what was there.
TEXTS.remove(ROOT / "CHANGELOG.md")
MEMBER = re.compile(r"`([A-Z]\w+)\.(\w+)(?:\(\))?`")
FILE = re.compile(r"`((?:mdl|transport|sim|scheduler|peers|tests|benchmarks)/[\w/]+\.py)`")
MODULE = re.compile(r"`((?:mdl|transport|sim|scheduler|peers)(?:\.\w+)+)`")


def _members() -> dict[str, set[str]]:
    """Class -> what it has; of classes of one name together, with what their bases have."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for name in CODE:
        for path in (ROOT / name).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    text = ast.unparse(node)
                    found.setdefault(node.name, set()).update(
                        re.findall(r"self\.(\w+)", text),
                        re.findall(r"^    (?:async )?(?:def )?(\w+)\b", text, re.MULTILINE),
                    )
                    bases.setdefault(node.name, set()).update(ast.unparse(base) for base in node.bases)
    return {name: own.union(*(found.get(base, set()) for base in bases[name])) for name, own in found.items()}


KNOWN = _members()


def _is_there(name: str) -> bool:
    """Whether a dotted name is a module, a package, or something that one of them mentions."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                text = file.read_text()
                return all(re.search(rf"\b{part}\b", text) for part in parts[count:])
    return False


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_text_names_is_there(path: Path) -> None:
    text = path.read_text()
    wrong = [name for name in FILE.findall(text) if not (ROOT / name).is_file()]
    wrong += [name for name in MODULE.findall(text) if not _is_there(name)]
    wrong += [f"{name}.{part}" for name, part in MEMBER.findall(text) if name in KNOWN and part not in KNOWN[name]]
    assert wrong == []
