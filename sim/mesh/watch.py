"""How others look at a mesh while it runs: faults that wait for a message, and the story that is told of it."""

from __future__ import annotations

import msgspec

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Send
from sim.mesh.process import Node


class Watch:
    """Faults that wait for a message look at the mesh through this. Does nothing by itself."""

    def before(self, node: Node, event: Event) -> bool:
        """False if the process dies before it handles this."""
        return True

    def saying(self, node: Node, send: Send) -> None:
        """The process is about to send this; may crash it."""

    def said(self, node: Node, send: Send) -> None:
        """It has; may crash it."""

    def after(self, node: Node, event: Event) -> None:
        """Handled; may crash it, before anything it decided is carried out."""


class StoryStep(msgspec.Struct, frozen=True):
    """One line of a run's story. event: what a process was told, or what happened to the mesh, in words.

    offset_s: how far the clock of the process is ahead.
    """

    at_s: float
    who: Contributor | None
    event: Event | str
    effects: tuple[Effect, ...] = ()
    offset_s: float = 0.0
