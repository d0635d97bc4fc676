"""The modes of a device's learning (Colla 5.4): the classes of its model, and the part of it that learns."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from mdl.errors import ConfigError


class UpdateMode(msgspec.Struct, frozen=True):
    """own_classes: the last layer has the classes this device has seen, and grows with them; else all classes.

    whole: the whole model learns and travels; else the last layer alone.
    """

    own_classes: bool
    whole: bool


# The first three are the paper's; the last is our answer where a frozen body does not fit a device's data.
UPDATE_MODES: Mapping[str, UpdateMode] = MappingProxyType(
    {
        "same-whole": UpdateMode(own_classes=False, whole=True),
        "same-fc": UpdateMode(own_classes=False, whole=False),
        "customisation": UpdateMode(own_classes=True, whole=False),
        "customised-whole": UpdateMode(own_classes=True, whole=True),
    }
)


def find_mode(name: str) -> UpdateMode:
    """Return the mode of this name. Raises ConfigError that names the valid ones."""
    if name not in UPDATE_MODES:
        raise ConfigError(f"cloud.update is {name[:40]!r}: expected one of {', '.join(UPDATE_MODES)}")
    return UPDATE_MODES[name]
