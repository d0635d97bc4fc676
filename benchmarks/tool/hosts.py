"""Helpers of the integration tests, which are not typed, for benchmarks: the network `lan`, the commands `product`."""

from __future__ import annotations

import importlib
from types import ModuleType

from mdl.errors import ConfigError


def load_helper(name: str) -> ModuleType:
    """Return a module of the integration tests."""
    return importlib.import_module(f"tests.integration.{name}")


def need_hosts(*helpers: str) -> ModuleType:
    """Return the module that makes hosts (network namespaces). Raises ConfigError if it cannot do so here.

    helpers: further modules of the integration tests with a `why_not`, which have to be able, too.
    """
    for name in ("lan", *helpers):
        if reason := load_helper(name).why_not():
            raise ConfigError(reason)
    return load_helper("lan")
