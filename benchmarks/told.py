"""How a benchmark of training in one process tells what it has measured: a table, and one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from mdl.errors import MdlError


def tell_measured(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[dict[str, Any]], Iterable[str]],
) -> int:
    """Measure on one thread, and print; what was given wrongly is one line. Returns the exit code."""
    torch.set_num_threads(1)
    try:
        told = measure(options)
    except MdlError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    for line in table(told):
        print(line)
    print(json.dumps(told))
    return 0
