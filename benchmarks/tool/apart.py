"""Parts of a measurement in processes of their own, without an option of the command line for it."""

from __future__ import annotations

import importlib
import json
import sys


def words_of(function: str, *arguments: object) -> list[str]:
    """Return the command that calls `module:function` in another Python process. arguments: what JSON can say."""
    return [sys.executable, "-m", "benchmarks.tool.apart", function, json.dumps(arguments)]


def _call(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(*json.loads(arguments))


if __name__ == "__main__":
    _call(*sys.argv[1:])
