"""SimMesh: the second driver. Runs the same machines as `mdl.transport.runtime`, in virtual time, without a socket.

Training and disk take virtual seconds. Deltas are small vectors that can be counted (`mdl.sim.mesh.accounts`), while
the network charges for `size_bytes`. The same seed gives the same story. It knows no roles: the caller gives it the
machines.

`Watch` has the hooks into a running mesh: faults that wait for a message, the gate of members, and the story.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    Effect,
    Event,
    Finish,
    KeepDelta,
    Machine,
    PeerFound,
    Received,
    RecordRound,
    ResourcesSampled,
    SaveBallot,
    SaveModel,
    Send,
    Tick,
    TransferProgressed,
)
from mdl.protocol.messages import SUMMED, Said
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import PeerInfo, ResourceState, Role
from mdl.sim.mesh.accounts import Accounts, InvariantError
from mdl.sim.mesh.network import (
    Network,
    SimulatedTransfers,
    checksums_of_lie,
    with_checksum,
    with_checksums_of,
    without_checksums,
)
from mdl.sim.mesh.process import BACKLOG, Disk, Node, as_delivered, begin_work, note_delivered


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


class WatchedGate(Protocol):
    """The members of the mesh (`mdl.sim.trust`)."""

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


_DISCOVERY_S = 0.05
# The host of every process: no packet goes there (RFC 5737).
_HOST = "192.0.2.1"
# No run of a plan needs a tenth of it: beyond, machines answer each other without end.
MAX_EVENTS = 100_000
# A model reaches the disk this long after it is known: a kill in between must cost no device anything.
SAVE_S = 0.03
# An event that is due at once comes a moment later, as by a real clock: sums of times are rounded.
CLOCK_STEP_S = 1e-6
# A machine that is due again at once, so often in a row, would keep its processor busy with nothing.
MAX_TICKS = 50

_TICK = Tick()
_RESOURCES = ResourceState(1 << 30, 10.0)

Call: TypeAlias = Callable[[], None]
# Time, tie-breaker, target: a process, the process with that id on arrival, or None (then the item is a call).
Entry: TypeAlias = tuple[float, int, Node | str | None, Event | Call]
# Builds the machine of a restarted process: peer id, incarnation, its saved files (oldest first), its time.
Build: TypeAlias = "Callable[[str, int, Disk, float], Machine]"


class SimMesh:
    """See the module. check: called after each event with the process that handled it. messages: the number sent.

    The network has its own rates and faults. lies: peer id -> the factor on its deltas as they leave it. two_faced:
    peer id -> the peers that it gives another result than its own, and the amount added to that. alters: the peers that
    alter each sum of several deltas that they give on. hides: those that tell no checksums. liars: all that have lied.
    story: None unless `record` is set. most_events: of a run.
    """

    most_events = MAX_EVENTS

    def __init__(
        self,
        network: Network,
        accounts: Accounts,
        size_bytes: int,
        check: Callable[[SimMesh, Node], None] | None = None,
        build: Build | None = None,
        record: bool = False,
    ) -> None:
        self.network = network
        self.accounts = accounts
        self.starts: dict[Contributor, object] = {}
        self.lies: dict[str, float] = {}
        self.two_faced: dict[str, tuple[frozenset[str], float]] = {}
        self.alters: set[str] = set()
        self.hides: set[str] = set()
        # Peer id of a liar -> its part in a round, and the checksums that it tells.
        self._lied_about: dict[str, tuple[object, tuple[int, ...]]] = {}
        self.liars: set[str] = set()
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.disks: dict[str, Disk] = {}
        self.kept: dict[tuple[int, str, str], KeepDelta] = {}
        self.rounds: list[RoundSummary] = []
        self.story: list[StoryStep] | None = [] if record else None
        self.messages = self.refused = self.events = 0
        self.watch: Watch | None = None
        self.gate: WatchedGate | None = None
        self.on_close: Callable[[Node, KeepDelta], None] | None = None
        self.on_say: Callable[[SimMesh, Node, Send], None] | None = None
        self._check = check
        self._build = build
        self._queue: list[Entry] = []
        # Seconds for which a process ignores a sender after its message met a bug in it; 0.0: such a bug is raised.
        self.unheard_s = 0.0
        self.bugs = 0
        self._out: dict[tuple[str, str], float] = {}
        self._count = 0
        self._transfers = SimulatedTransfers(network, size_bytes, accounts.size, self.lies, self.two_faced, self.alters)

    # -- processes ----------------------------------------------------------------------------------------------------

    def add(
        self,
        peer_id: str,
        role: Role,
        machine: Machine,
        incarnation: int = 1,
        train_s: float = 1.0,
        theta: float = 1.0,
        resources: ResourceState | None = None,
    ) -> Node:
        """Start a process: discovery tells it and the others of each other."""
        info = PeerInfo(peer_id, incarnation, role, _HOST, 1)
        node = Node(info, machine, train_s, theta, resources or _RESOURCES)
        if former := self.nodes.get(peer_id):
            former.running = False
            node.offset_s = former.offset_s
        self.nodes[peer_id] = node
        if self.gate is not None:
            self.gate.start(node)
        self.introduce()
        self._schedule(0.0, node, ResourcesSampled(node.resources))
        return node

    def introduce(self) -> None:
        """Run discovery: each process that can be reached hears once of each other process."""
        for node in self.nodes.values():
            for other in self.nodes.values():
                if node is other or not other.running or other.contributor in node.known:
                    continue
                if (other.peer_id, node.peer_id) not in self.network.cuts:
                    node.known.add(other.contributor)
                    self._schedule(_DISCOVERY_S, node, PeerFound(other.info))

    def post(self, peer_id: str, event: Event) -> None:
        """Hand an event to a process, as a user's Ctrl-C does."""
        self._schedule(0.0, self.nodes[peer_id], event)

    def tell(self, node: Node, event: Event) -> None:
        """Hand an event to a process at once, between two events."""
        if node.running:
            self._handle(node, event)

    def at(self, at_s: float, call: Call) -> None:
        """Call this at that time, between two events."""
        self._count += 1
        heapq.heappush(self._queue, (max(at_s, self.now), self._count, None, call))

    def crash(self, peer_id: str) -> None:
        """Kill with -9: this process handles and sends nothing more."""
        self.nodes[peer_id].running = False

    def restart(self, peer_id: str) -> Node:
        """Start the process again from its saved files, under a new incarnation."""
        assert self._build is not None
        old = self.nodes[peer_id]
        incarnation = old.info.incarnation + 1
        self.disk(peer_id).begin(self.now)
        machine = self._build(peer_id, incarnation, self.disk(peer_id), self.now + old.offset_s)
        return self.add(peer_id, old.info.role, machine, incarnation, old.train_s, old.theta, old.resources)

    def disk(self, peer_id: str) -> Disk:
        return self.disks.setdefault(peer_id, Disk())

    def suspend(self, peer_id: str, for_s: float) -> None:
        """Send SIGSTOP, and SIGCONT for_s later."""
        node = self.nodes[peer_id]
        node.paused_at = self.now if node.paused_at is None else node.paused_at
        node.resume_at = max(node.resume_at, self.now + for_s)
        self.at(node.resume_at, partial(self._resume, node))

    def wake(self, node: Node) -> None:
        """Look again when the process has something due, after its clock has changed."""
        node.tick_at = None
        self._plan_tick(node)

    def _resume(self, node: Node) -> None:
        if node.paused_at is None or self.now < node.resume_at:
            return
        node.paused_at, node.tick_at = None, None
        for event in node.backlog:
            self._schedule(0.0, node, event)
        node.backlog.clear()
        self._plan_tick(node)

    # -- time ---------------------------------------------------------------------------------------------------------

    def run(self, until_s: float, stop: Callable[[], bool] | None = None) -> bool:
        """Run until all have finished or `stop` returns True: True; False if virtual time `until_s` came first."""
        queue, nodes, pop = self._queue, self.nodes, heapq.heappop
        while queue and queue[0][0] <= until_s:
            at, _, target, item = pop(queue)
            if target is None:
                self.now = at
                item()  # type: ignore[operator]
                continue
            node = target if target.__class__ is Node else nodes[target]  # type: ignore[index]
            if not node.running:
                continue
            self.now = at
            if node.paused_at is not None:
                self._keep(node, item)  # type: ignore[arg-type]
                continue
            if item is _TICK and not self._is_due(node):
                continue
            self._handle(node, item)  # type: ignore[arg-type]
            if stop is not None and stop():
                return True
        return all(node.finished or not node.running for node in nodes.values())

    def end(self) -> None:
        """End the run: drop all references back to the mesh, so that its memory is free at once."""
        self._queue.clear()
        self.watch = self.gate = self._build = self._check = self.on_close = self.on_say = None

    def _keep(self, node: Node, event: Event) -> None:
        """Keep an event for a suspended process: its own work stands still too, messages queue up."""
        assert node.paused_at is not None
        if isinstance(event, Received | PeerFound | TransferProgressed):
            if len(node.backlog) < BACKLOG:
                node.backlog.append(event)
        elif event is not _TICK:
            self._schedule(node.resume_at - node.paused_at, node, event)

    def _is_due(self, node: Node) -> bool:
        if node.tick_at is None or node.tick_at > self.now:
            return False  # an earlier tick has replaced this one
        node.tick_at = None
        deadline = node.machine.deadline()
        if deadline is None:
            return False
        if deadline - node.offset_s > self.now:
            self._plan_tick(node)
            return False
        return True

    def _plan_tick(self, node: Node) -> None:
        deadline = node.machine.deadline()
        if deadline is None:
            return
        at = deadline - node.offset_s
        if at <= self.now:
            at = self.now + CLOCK_STEP_S
        if node.tick_at is None or at < node.tick_at:
            node.tick_at = at
            self._count += 1
            heapq.heappush(self._queue, (at, self._count, node, _TICK))

    def _handle(self, node: Node, event: Event) -> None:
        self.events += 1
        if self.events > self.most_events:
            raise InvariantError("endless", f"{self.most_events} events and no end")
        if self.gate is not None and not self.gate.admits(node, event):
            return
        watch = self.watch
        if watch is not None and not watch.before(node, event):
            return
        if type(event) is not Received:
            event = as_delivered(node, event)
            self._note(node, event)
        elif type(event.message) in SUMMED:
            event = with_checksum(event)
        if self.unheard_s and type(event) is Received and self._is_out(node, event.sender):
            return
        try:
            effects = node.machine.handle(event, self.now + node.offset_s)
        except RemoteProtocolError:
            self.refused += 1
            effects = []
        except Exception:
            if not self.unheard_s or type(event) is not Received or event.sender.peer_id == node.peer_id:
                raise
            self._meet_bug(node, event.sender)
            return
        if self.story is not None:
            self.story.append(StoryStep(self.now, node.contributor, event, tuple(effects), node.offset_s))
        if watch is not None:
            watch.after(node, event)
        for effect in effects:
            if not node.running:
                return
            if effect.__class__ is not Send:
                self._carry_out(node, effect)
            elif watch is None:
                self._send(node, effect)
            else:
                self._send_watched(watch, node, effect)
        if not node.running:
            return
        self._plan_tick(node)
        if self._check is not None:
            self._check(self, node)

    def _meet_bug(self, node: Node, sender: Contributor) -> None:
        """Act like `mdl.transport.runtime`: ignore the sender for a while, restart the process from its disk."""
        self.bugs += 1
        self._out[node.peer_id, sender.peer_id] = self.now + self.unheard_s
        self.crash(node.peer_id)
        self.restart(node.peer_id)

    def _is_out(self, node: Node, sender: Contributor) -> bool:
        return self.now < self._out.get((node.peer_id, sender.peer_id), 0.0)

    def _note(self, node: Node, event: Event) -> None:
        """Note an event from the machine's own driver: check that it does not spin, and that its work is delivered."""
        if event is _TICK:
            node.ticks = node.ticks + 1 if self.now - node.ticked_at < 2 * CLOCK_STEP_S else 1
            node.ticked_at = self.now
            if node.ticks > MAX_TICKS:
                raise InvariantError("spin", f"{node.peer_id} is due {MAX_TICKS} times in a row: it spins")
        else:
            note_delivered(event, self.accounts)

    def _schedule(self, delay_s: float, target: Node | str, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, target, event))

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, node: Node, effect: Effect) -> None:
        if type(effect) is KeepDelta:
            self.kept[effect.round_id, node.peer_id, effect.name] = effect
            if effect.name == "global" and self.on_close is not None:
                self.on_close(node, effect)
        elif type(effect) is SaveModel:
            self.at(self.now + SAVE_S, partial(self._save, node, effect))
        elif type(effect) is SaveBallot:
            self.disk(node.peer_id).promise(effect.ballot, self.now)
        elif type(effect) is RecordRound:
            if effect.has_led:
                self.rounds.append(effect.summary)
        elif type(effect) is Finish:
            node.finished, node.running = effect, False
            self.disk(node.peer_id).end(self.now)
        elif work := begin_work(node, effect, self.accounts):
            self._schedule(work[0], node, work[1])

    def _save(self, node: Node, effect: SaveModel) -> None:
        """Save a model: a process that has ended still writes its files, a killed one does not."""
        if node.running or node.finished:
            self.disk(node.peer_id).save(effect, self.now)

    def _send_watched(self, watch: Watch, node: Node, send: Send) -> None:
        watch.saying(node, send)
        if node.running:
            self._send(node, send)
            watch.said(node, send)

    def _as_told(self, node: Node, message: Said) -> Said:
        """Return the message as this device says it: a liar tells checksums that fit its lie, or none."""
        if node.peer_id in self.hides:
            return without_checksums(message)
        if (times := self.lies.get(node.peer_id)) is None:
            return message
        part = node.holder.part if node.holder else None
        seen, pieces = self._lied_about.get(node.peer_id, (None, ()))
        held = part.hold if part is not None and part is not seen else None
        if held and held.contributors == {node.contributor}:
            pieces = checksums_of_lie(held.values, times)
            self._lied_about[node.peer_id] = part, pieces
        return with_checksums_of(message, pieces, self.accounts.size) if pieces else message

    def _send(self, node: Node, send: Send) -> None:
        if self.gate is not None and not self.gate.passes(node, send):
            return
        self.messages += 1
        receiver = send.receiver
        if self.on_say is not None:
            self.on_say(self, node, send)
        if receiver not in self.nodes:
            return
        if send.values is not None:
            resources = self.nodes[receiver].resources
            for delay_s, told in self._transfers.begin(node.contributor, send, resources, self.now):
                self._schedule(delay_s, receiver, told)
            return
        arrivals = self.network.deliver(node.peer_id, receiver, 0, self.now)
        if arrivals:
            event = Received(node.contributor, self._as_told(node, send.message))
            for arrival in arrivals:
                self._count += 1
                heapq.heappush(self._queue, (arrival, self._count, receiver, event))
