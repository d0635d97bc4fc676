"""The change between two snapshots, as a JSON merge patch (RFC 7396). Pure.

Objects are compared field by field, other values as a whole; None stands for a removed field. Identical objects are not
compared, so that finished rounds cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def merge_patch(before: Any, after: Any) -> Any:
    """Return the patch from `before` to `after`, as builtins; {} if nothing changed.

    Both: structs or dicts of one kind.
    """
    old, new = _fields(before), _fields(after)
    patch = {name: None for name, value in old.items() if value is not None and new.get(name) is None}
    for name, value in new.items():
        known = old.get(name)
        if value is None or value is known:
            continue
        if _is_object(value) and _is_object(known):
            if inner := merge_patch(known, value):
                patch[name] = inner
        elif value != known:
            patch[name] = msgspec.to_builtins(value)
    return patch


def apply_patch(before: Any, patch: Any) -> Any:
    """Apply a patch as RFC 7396 defines it, on builtins, as a reader of changes does."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = apply_patch(after.get(name), value)
    return after


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, msgspec.Struct) and not value.__struct_config__.array_like)


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {name: getattr(value, name) for name in value.__struct_fields__}
