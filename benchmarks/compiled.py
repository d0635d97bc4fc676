"""A copy of mdl whose machines and simulated mesh are compiled, for campaigns: 1.5 to 1.8 times as many seeds.

    python -m benchmarks compiled ../fast                 # three minutes of one core; needs a C compiler
    cd ../fast && PYTHONPATH=. python -m mdl sim run --wide --faults hard --seeds 100000 --seed-from 21000000

mypyc, which comes with mypy, compiles what its types say. It knows no msgspec structs and no subclasses of built-in
exceptions: structs go to a module of their own beside the one that they came from, which stays Python. Plans are drawn
by Python too: compiled, the arguments of a call are evaluated in another order, and the same seed draws another plan.

A Python that was built with profile-guided optimisation, as distributions have, takes 0.87 of the time of one that was
not.

At the end both run the same seeds (--check), and every verdict has to be the same: messages, events, virtual seconds.
What a seed finds in the copy is told by `mdl sim run` here in the same words.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.tool.machine import ROOT
from benchmarks.tool.options import Namespace, Parser
from benchmarks.tool.sheet import Sheet
from mdl.errors import ConfigError

# It imports the code of the folder that it is started in.
_SEEDS = str(ROOT / "benchmarks" / "faults" / "seeds.py")
# What a simulated mesh spends its time in.
_FOLDERS = ("mdl/peers/roles", "mdl/sim/mesh")
_FILES = ("mdl/scheduler/policies/greedy.py", "mdl/protocol/delta.py", "mdl/protocol/segments.py")
_SPLIT = (
    "mdl/peers/roles/trainer/model_state.py",
    "mdl/peers/roles/trainer/guard.py",
    "mdl/peers/roles/trainer/trainer.py",
    "mdl/peers/roles/membership/members.py",
    "mdl/peers/roles/membership/succession.py",
    "mdl/sim/mesh/driver.py",
    "mdl/sim/mesh/invariants.py",
    "mdl/protocol/delta.py",
)
_STRUCT = re.compile(r"\((msgspec\.)?Struct|\(AssertionError\)")
_BUILD = """
from mypyc.build import mypycify
from setuptools import setup
setup(name="machines", ext_modules=mypycify(["--ignore-missing-imports", "--follow-imports=silent", *{files!r}]))
"""


def add_options(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, help="a folder that is not there yet")
    parser.add_argument("--check", type=int, default=288, help="seeds that both run")


def run(options: Namespace, sheet: Sheet) -> None:
    """Make the copy, and compare it. Raises ConfigError."""
    out: Path = options.folder
    if out.exists():
        raise ConfigError(f"{out} is there already: give a folder that is not")
    shutil.copytree(ROOT / "mdl", out / "mdl", ignore=shutil.ignore_patterns("__pycache__"))  # and what it links to
    build(out)
    python, compiled = _in_process(ROOT, options.check), _in_process(out, options.check)
    is_same, ratio = python["digest"] == compiled["digest"], python["seconds"] / compiled["seconds"]
    print(f"{options.check} seeds: {ratio:.2f} times as fast")
    sheet.tell({"seeds": options.check, "is_same": is_same, "ratio": ratio, "python": python, "compiled": compiled})
    sheet.problem = "" if is_same else "verdicts differ"


def build(out: Path) -> None:
    """Compile what is compiled, in place. Raises CalledProcessError if the compiler does not take it."""
    for name in _SPLIT:
        split_structs(out / name)
    found = [path.relative_to(out).as_posix() for folder in _FOLDERS for path in sorted((out / folder).rglob("*.py"))]
    files = [
        name
        for name in (*found, *_FILES)
        if not name.endswith("__init__.py") and not _STRUCT.search((out / name).read_text())
    ]
    for name in files:  # it knows no slots
        path = out / name
        path.write_text(path.read_text().replace("@dataclass(slots=True)", "@dataclass"))
    (out / "build_machines.py").write_text(_BUILD.format(files=files))
    print(f"compiling {len(files)} modules", file=sys.stderr)
    subprocess.run(
        [sys.executable, "build_machines.py", "-q", "build_ext", "--inplace"], cwd=out, check=True, stdout=sys.stderr
    )


def split_structs(path: Path) -> None:
    """Move a module's structs, with all that it imports and names, to a module beside it."""
    source = path.read_text()
    lines, tree = source.split("\n"), ast.parse(source)
    structs = [node for node in tree.body if isinstance(node, ast.ClassDef) and _STRUCT.search(lines[node.lineno - 1])]
    first, *rest = [
        node
        for node in tree.body
        if node in structs or isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
    ]
    beside = path.with_name(f"{path.stem}_structs.py")
    beside.write_text("\n".join("\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in (first, *rest)) + "\n")
    moved = {number for node in structs for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    last = max(node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    module = ".".join(beside.relative_to(_root_of(path)).with_suffix("").parts)
    kept = [line for number, line in enumerate(lines, 1) if number not in moved]
    kept.insert(last, f"from {module} import {', '.join(node.name for node in structs)}")
    path.write_text("\n".join(kept))


def _root_of(path: Path) -> Path:
    """The folder that the packages are in."""
    return next(parent for parent in path.parents if not (parent / "__init__.py").exists())


def _in_process(where: Path, count: int) -> dict[str, Any]:
    """Return seconds of processor time, and a digest of the verdicts, of the code at this place."""
    done = subprocess.run(
        [sys.executable, _SEEDS, str(count)], cwd=where, env={**os.environ, "PYTHONPATH": str(where)}, check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    return told
