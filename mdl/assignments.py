"""Values by dotted keys, as `--set training.learning_rate=0.01` gives them."""

from __future__ import annotations

import tomllib
from typing import Any

from mdl.errors import ConfigError
from mdl.reading import LONGEST_TOML_LINE


def put_assignment(values: dict[str, Any], assignment: str) -> None:
    """Put `key=value` into nested tables. Raises ConfigError in one line for any other text."""
    key, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigError(f"--set {assignment!r}: expected key=value, for example training.learning_rate=0.01")
    put(values, key.strip(), _parse_value(text.strip()))


def put(values: dict[str, Any], key: str, value: object) -> None:
    """Put a value at a dotted key. Raises ConfigError if a part of the key is a value already."""
    if len(key) > LONGEST_TOML_LINE:
        raise ConfigError(f"--set {key[:40]}...: no key has {len(key)} characters")
    *tables, name = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key}: {table} is a value, not a table")
    values[name] = value


def _parse_value(text: str) -> object:
    """Return a TOML value; any other text stays a string, so that names need no quotes on a command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (RecursionError, ValueError):
        raise ConfigError(f"--set {text[:40]}...: nested too deep, or a number of too many digits") from None
