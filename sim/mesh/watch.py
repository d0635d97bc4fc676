"""Hooks into a running mesh: faults that wait for a message, the gate of members, and the story told of it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Send
from mdl.sim.mesh.process import Node


class Watch:
    """A hook through which faults that wait for a message see the mesh. Does nothing by itself."""

    def before(self, node: Node, event: Event) -> bool:
        """Return False if the process dies before it handles this."""
        return True

    def saying(self, node: Node, send: Send) -> None:
        """Look at a message before the process sends it; may crash the process."""

    def said(self, node: Node, send: Send) -> None:
        """Look at a message that the process has sent; may crash the process."""

    def after(self, node: Node, event: Event) -> None:
        """Look at an event after its handling; may crash the process before any decision is carried out."""


class Gate(Protocol):
    """The members of the mesh (`mdl.sim.trust.gate`)."""

    def start(self, node: Node) -> None:
        """Note that this process has started."""

    def admits(self, node: Node, event: Event) -> bool:
        """Return True if its machine may hear this."""

    def passes(self, node: Node, send: Send) -> bool:
        """Return True if its machine's message goes out."""

    def revoke(self, by: str, peer_id: str, heeds: bool) -> None:
        """Revoke the other device, in the name of this one's user."""

    def revoked(self) -> set[str]:
        """Return the devices that were ever revoked."""

    def known_out(self) -> set[str]:
        """Return the devices that are out and known to be out by a member that is running."""

    def unaware(self) -> str:
        """Name, in words, the running members that do not know a device that is out."""


class StoryStep(msgspec.Struct, frozen=True):
    """One line of a run's story. event: the event of a process, or a change of the mesh in words.

    offset_s: the clock lead of the process.
    """

    at_s: float
    who: Contributor | None
    event: Event | str
    effects: tuple[Effect, ...] = ()
    offset_s: float = 0.0
