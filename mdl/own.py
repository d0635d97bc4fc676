"""The user's own functions: the one place where mdl imports a module because a text names it.

`module:function` is a command: it runs code here. So mdl follows it only where the user said it themselves: on the
command line, in the configuration file that they name, in code. The same words in a file, a message or a story stay a
text. `build_model` and `load_data` take a text for a built-in name only: they cannot import at all.
tests/test_layering.py lists the callers that `own_model`, `own_data` and `own_policy` may have.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mdl.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Own:
    """A function of the user's. text: its name as the user gave it; for data, with options behind a ?."""

    text: str
    function: Callable[..., object] = field(repr=False)

    def __str__(self) -> str:
        return self.text


def own_model(name: str) -> str | Own:
    """Turn the user's `module:function` for a model into the function; return any other name as it is.

    Raises ConfigError in one line if it cannot be imported.
    """
    if ":" not in name:
        return name
    return Own(name, _import(name, f"model {name!r}", "package.module:factory"))


def own_data(spec: str) -> str | Own:
    """Turn the user's spec of data likewise; built-in ones stay. Raises ConfigError, also for a malformed spec."""
    from mdl.data.sources import FACTORY, SOURCES, parse_spec
    from mdl.data.spec import describe_choices

    parsed = parse_spec(spec)
    if parsed.source != FACTORY:
        return spec
    hint = describe_choices(parsed.path.partition(":")[0], [*SOURCES, "package.module:factory"])
    return Own(spec, _import(parsed.path, f"data {spec!r}", hint))


def own_policy(name: str) -> str | Own:
    """Turn the user's policy for pairing devices on the command line likewise; a name with a / is a file.

    Not for a policy in a configuration: `mdl up` hands its own to other processes on their command lines.
    """
    if ":" not in name or "/" in name:
        return name
    return Own(name, _import(name, f"policy {name!r}", "package.module:factory"))


def _import(name: str, what: str, hint: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    # A user's own module stands beside the data, not in an installed package.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        raise ConfigError(f"{what} cannot be imported: {reason}; {hint}") from error
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        meant = did_you_mean(attribute, names, "; did you mean {}?")
        raise ConfigError(f"{what} cannot be imported: AttributeError: {error}{meant}") from error
    if not callable(found):
        raise ConfigError(f"{what} is a {type(found).__name__}, not a function or class")
    function: Callable[..., object] = found
    return function
