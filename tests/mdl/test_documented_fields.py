"""Every field of the configuration, of what travels, of events and effects has a line of its own in its docstring."""

from __future__ import annotations

import re

import msgspec
import pytest

from mdl import config
from mdl.protocol import (
    cloud_messages,
    machine,
    messages,
    round_messages,
    sharing_messages,
    statements,
    status_messages,
    vocabulary,
)

MODULES = (
    config,
    cloud_messages,
    machine,
    messages,
    round_messages,
    status_messages,
    vocabulary,
    sharing_messages,
    statements,
)
STRUCTS = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
]
# Not a table of the configuration, but what its numbers may be.
OTHERS = (config.Range,)


@pytest.mark.parametrize("kind", [kind for kind in STRUCTS if kind not in OTHERS], ids=lambda kind: kind.__name__)
def test_each_field_is_documented_on_a_line_of_its_own_in_order(kind: type[msgspec.Struct]) -> None:
    own = kind.__struct_fields__[len(getattr(kind.__base__, "__struct_fields__", ())) :]
    lines = re.findall(r"^    ([a-z_0-9]+): \S", kind.__doc__ or "", re.MULTILINE)
    assert tuple(lines) == own
