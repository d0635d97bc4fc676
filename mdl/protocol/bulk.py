"""The load beside a message that announces it: values in a mesh, packed bytes between a cloud and its learners."""

from __future__ import annotations

from typing import TypeAlias

from mdl.protocol.grid import Vector


class Packed(bytes):
    """A model or an update of a cloud, as bytes. A type of its own, so that a story can tell its length instead."""

    __slots__ = ()


Bulk: TypeAlias = Vector | Packed
