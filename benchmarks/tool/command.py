"""The command line of all benchmarks: list them, show one's options, run one.

A benchmark is a module of `benchmarks/` with two functions. `add_options(parser)` declares its own options.
`run(given, sheet)` measures, prints its tables, and tells the sheet its figures. The rest happens here: the parser, the
last line of JSON, the file of `--out`, and one clear line for a mistake.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.tool.registry import BENCHMARKS, RESULTS, find
from benchmarks.tool.sheet import Failed, Sheet
from mdl.errors import MdlError

PROGRAM = "python -m benchmarks"
_FAILED, _INTERRUPTED, _TERMINATED = 4, 130, 143
Run = Callable[[argparse.Namespace, Sheet], None]


def main(words: Sequence[str]) -> int:
    """Run what the words say; return the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(list_all())
        return 0
    name = words[0]
    # As of `timeout`: network namespaces and processes are taken down in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        parser, run = load(name)
        given = parser.parse_args(words[1:])
        sheet = Sheet(name, words[1:], given.out)
        run(given, sheet)
    except (MdlError, Failed) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, MdlError) else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    if sheet.figures:
        sheet.save()
        print(sheet.line(), flush=True)
    if sheet.problem:
        print(f"{name}: {sheet.problem}", file=sys.stderr)
        return _FAILED
    return 0


def list_all() -> str:
    """Return a line for each benchmark."""
    width = max(len(each.name) for each in BENCHMARKS)
    lines = [f"usage: {PROGRAM} NAME [options]; {PROGRAM} NAME --help shows the options", ""]
    return "\n".join([*lines, *(f"{each.name:{width}}  {each.line}" for each in (*BENCHMARKS, RESULTS))])


def load(name: str) -> tuple[argparse.ArgumentParser, Run]:
    """Return the parser of a benchmark's options, and the function that measures.

    Raises ConfigError for an unknown name.
    """
    found = find(name)
    module = importlib.import_module(found.module)
    claim = f"The figures are in {found.claim}." if found.claim else None
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {name}", description=module.__doc__, epilog=claim, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    module.add_options(parser)
    parser.add_argument("--out", type=Path, help="write the result there too, as JSON")
    run: Run = module.run
    return parser, run
