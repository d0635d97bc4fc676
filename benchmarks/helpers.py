"""What benchmarks take from the integration tests, which are not typed: the network `lan`, the commands `product`."""

from __future__ import annotations

import importlib
import signal
import sys
from types import ModuleType


def load_helper(name: str) -> ModuleType:
    return importlib.import_module(f"tests.integration.{name}")


def load_lan() -> ModuleType:
    """Network namespaces. SIGTERM, as of `timeout`, ends the benchmark in order from now on, so that none is left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return load_helper("lan")
