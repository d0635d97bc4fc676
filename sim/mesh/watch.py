"""How others look at a mesh while it runs: faults that wait for a message, who is heard, and the story told of it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Send
from mdl.sim.mesh.process import Node


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


class Gate(Protocol):
    """Who is in the mesh (`mdl.sim.trust.gate`)."""

    def start(self, node: Node) -> None:
        """This process has started."""

    def admits(self, node: Node, event: Event) -> bool:
        """Whether its machine is to hear this."""

    def passes(self, node: Node, send: Send) -> bool:
        """Whether what its machine says goes out."""

    def revoke(self, by: str, peer_id: str, heeds: bool) -> None:
        """The user of a device locks another one out."""

    def revoked(self) -> set[str]:
        """Devices that somebody has ever revoked."""

    def known_out(self) -> set[str]:
        """Devices that are out, and somebody who is there and in knows it."""

    def unaware(self) -> str:
        """Who is there, in, and does not know who is out; in words."""


class StoryStep(msgspec.Struct, frozen=True):
    """One line of a run's story. event: what a process was told, or what happened to the mesh, in words.

    offset_s: how far the clock of the process is ahead.
    """

    at_s: float
    who: Contributor | None
    event: Event | str
    effects: tuple[Effect, ...] = ()
    offset_s: float = 0.0
