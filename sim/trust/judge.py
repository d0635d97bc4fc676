"""The required effect of a revocation, whatever fails. Each check raises InvariantError with the evidence.

The judge keeps its own books: the devices that were told of each revocation, by a message or by their own users. From
then on such a device, even after a restart, hears nothing of the revoked one and tells it nothing. No round that it
opens has work of it. If nothing is lost, every device that can be reached knows within `PROMPT_S`. In the end every
device that is not out knows. A result that was staged before is proposed with whatever contributors it has
(docs/protocol-ballots.md, rule 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import BroadcastOrdered, RoundOpened
from mdl.sim.mesh.accounts import InvariantError
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.process import Node

# A message takes 0.16 s at most in a drawn plan; a roster is told to all at once.
PROMPT_S = 0.4

IsOut = Callable[[str], bool]


class Judge:
    """See the module. out: peer ids of all devices that were ever revoked."""

    def __init__(self, mesh: SimMesh) -> None:
        self._mesh = mesh
        self.out: set[str] = set()
        self._knows: dict[str, set[str]] = {}
        self._parted: dict[str, set[str]] = {}
        self._is_out: dict[str, IsOut] = {}
        self._opened: dict[tuple[int, int], frozenset[str]] = {}
        self._met: dict[tuple[Contributor, Contributor], frozenset[str]] = {}

    def known_out(self) -> set[str]:
        """Return the revoked devices that a running, never revoked device knows of: others may not be heard."""
        known: set[str] = set()
        for node in self._mesh.nodes.values():
            if node.running and node.peer_id not in self.out:
                known |= self._knows.get(node.peer_id, set())
        return known

    def unaware(self) -> str:
        """Name, in words, a running device that is not out and does not know all that are out."""
        out = self.known_out()
        for node in self._mesh.nodes.values():
            if node.running and node.peer_id not in out:
                for peer_id in sorted(out - self._knows.get(node.peer_id, set())):
                    return f"{node.peer_id} has not heard that {peer_id} is out"
        return ""

    # -- events -------------------------------------------------------------------------------------------------------

    def start(self, node: Node, is_out: IsOut) -> None:
        """Note that a process has loaded its roster."""
        self._is_out[node.peer_id] = is_out
        self.remember(node)
        self._parted[node.peer_id] = set(self._knows.get(node.peer_id, ()))
        for other in self._mesh.nodes.values():
            self._meet(node, other)
            self._meet(other, node)

    def revoke(self, owner: Node, peer_id: str, reachable: Iterable[Node]) -> None:
        """Note that the user of `owner` revokes a device now; each reachable process must know it in time."""
        self.out.add(peer_id)
        self.learn(owner, [peer_id])
        for node in reachable:
            self._mesh.at(self._mesh.now + PROMPT_S, partial(self._check_prompt, node, owner.peer_id, peer_id))

    def learn(self, node: Node, peer_ids: Iterable[str]) -> None:
        """Note that a process learns that these are out."""
        self._knows.setdefault(node.peer_id, set()).update(peer_ids)

    def part(self, node: Node, peer_id: str) -> None:
        """Note that its machine is told that a device is out; several are told one after the other."""
        self._parted[node.peer_id].add(peer_id)

    def remember(self, node: Node) -> None:
        """Check a changed or loaded roster: it holds all that this device was ever told."""
        is_out = self._is_out[node.peer_id]
        for peer_id in self._knows.get(node.peer_id, ()):
            if not is_out(peer_id):
                raise InvariantError("forgot", f"{node.peer_id} was told that {peer_id} is out, and knows it no more")

    def hear(self, node: Node, sender: Contributor) -> None:
        """Check that a machine may hear this process."""
        knows, name = self._knows.get(node.peer_id, set()), sender.peer_id
        if name in knows:
            raise InvariantError("heard", f"{node.peer_id} hears {name}, which it knows to be out")
        if lacking := self._met[node.contributor, sender] - knows - {node.peer_id}:
            raise InvariantError("early", f"{node.peer_id} hears {name}, but not yet that {min(lacking)} is out")

    def say(self, node: Node, send: Send) -> None:
        """Check a message of a machine that goes out."""
        knows = self._knows.get(node.peer_id, set())
        if send.receiver in knows:
            raise InvariantError("told", f"{node.peer_id} tells {send.receiver}, which it knows to be out")
        message = send.message
        if type(message) is RoundOpened and message.attempt == message.term:
            parted = frozenset(self._parted[node.peer_id])
            known = self._opened.setdefault((message.round_id, message.attempt), parted)
            self._check_free(node, known, (who.peer_id for who in message.members), "opens")
        elif type(message) is BroadcastOrdered and not message.digest and node.keeper is not None:
            known = self._opened.get(node.keeper.attempt(), frozenset())
            self._check_free(node, known, (who.peer_id for who in message.contributors), "proposes")

    def _meet(self, node: Node, other: Node) -> None:
        """Note that both are there: all that the other one knows now must be told before its messages count."""
        self._met[node.contributor, other.contributor] = frozenset(self._knows.get(other.peer_id, ()))

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_free(self, node: Node, known: frozenset[str], who: Iterable[str], verb: str) -> None:
        for peer_id in who:
            if peer_id in known:
                raise InvariantError("entered", f"{node.peer_id} {verb} a round with {peer_id}, known to be out then")

    def _check_prompt(self, node: Node, owner: str, peer_id: str) -> None:
        knows = self._knows.get(node.peer_id, set())
        is_there = node.running and node.paused_at is None and node.peer_id not in self.out
        if is_there and not knows & {owner, peer_id}:
            raise InvariantError(
                "slow", f"{node.peer_id} has not heard after {PROMPT_S} s that {owner} has revoked {peer_id}"
            )
