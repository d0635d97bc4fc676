"""The standing of peers: the keys that may speak for a peer, and the news in the roster.

Between `mdl.transport.links.mesh_links` and this device's knowledge of the mesh (`mdl.transport.trust.membership`).
Without encryption, on loopback alone, every peer counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from mdl.errors import ConfigError, ForgedError, RemoteProtocolError
from mdl.protocol.messages import Hello, PeersKnown
from mdl.protocol.statements import AnyStatement, Enrolled
from mdl.protocol.status_messages import PageServed, StatusWanted
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.links.doors import ALLOWED, DOOR, LATER, REFUSED
from mdl.transport.links.introducer import Checks, RosterTalk
from mdl.transport.trust.keys import RUN_MARK, MeshKeys, code_hash, fingerprint
from mdl.transport.trust.membership import Membership, NotLetInError
from mdl.transport.wire.bulk import Outgoing
from mdl.transport.wire.codec import FLOW_MESSAGES, Body, CodeTold, RosterTold

logger = logging.getLogger(__name__)

# A device that was away listens to rosters for this long before any message counts: the first peer it meets may have
# been locked out meanwhile. It is less once all known members have told theirs.
RETURN_S = 1.0
_OUT = "an owner of the mesh has changed its join code, and not kept this device: ask for the new code"


# Messages that an observer may send; an owner's command is an observer, too.
_VISITORS = (Hello, PeersKnown, RosterTold, CodeTold, StatusWanted, PageServed, *FLOW_MESSAGES)
# For this long after a member has let a new device in, another may still refuse its name, which it heard of elsewhere
# first. After that the name is the device's own, and no message of others takes it away.
NEW_S = 10.0
# Names in one message at the door that are looked at: a member sends one.
_MOST_NAMES = 4
# Members that refuse this device and are logged, each once.
_MOST_REFUSALS = 64
# Write the roster to disk at most once a second: large meshes change it 50 times a second.
_KEEP_S = 1.0


@dataclass(frozen=True)
class Stated:
    """This device's own statements about others. code, keys: the join code that it has changed to, if any."""

    statements: tuple[AnyStatement, ...]
    code: str = ""
    keys: MeshKeys | None = None


@dataclass(frozen=True)
class Refusal:
    """This device's name belongs to another one. by: the member that says so. holder: the other's fingerprint."""

    name: str
    by: str
    holder: str

    def __str__(self) -> str:
        return (
            f"{self.by} does not let this device in: {self.name!r} is the name of another device of this mesh "
            f"({self.holder}). Give this one its own --name; if it takes the place of that one, type on a device that "
            f"owns the mesh: mdl mesh revoke {self.name}"
        )


@dataclass
class News:
    """The consequences of a message. gone: peers that are out now. told: messages to send."""

    told: list[Outgoing] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class LinkStanding:
    """Decides which clients and messages count, and keeps the roster up to date.

    me: this node's peer id. membership: None without encryption. linked: returns the peers that there is a link to.
    known: returns all that were introduced.
    """

    def __init__(
        self,
        me: str,
        membership: Membership | None,
        linked: Callable[[], Iterable[str]],
        known: Callable[[], Iterable[PeerInfo]],
        now: float,
    ) -> None:
        self._me = me
        self.membership = membership
        self._linked = linked
        self._known = known
        self._checks = Checks()
        self.talk = None if membership is None else RosterTalk(membership.roster, now, self._checks)
        own = None if membership is None else membership.device.public
        members = () if membership is None else membership.roster.members()
        self._unheard = {each.device for each in members if each.device != own}
        self._heeds_at: float | None = None if self._unheard else now
        self._code = ""
        self._given: set[str] = set()
        # The reason why this device may not go on under its name.
        self.refusal: Refusal | None = None
        self._let_in_at: float | None = None
        self._refused_by: set[str] = set()
        self._keep_at: float | None = None
        self._kept_at = now - _KEEP_S

    def agreeing(self) -> set[str]:
        """Return the peers that know just the same roster as this node."""
        return set() if self.talk is None else self.talk.agreeing()

    def admits(self, info: PeerInfo, source: str, now: float) -> bool:
        """Check a peer's introduction; return False if a later one is known. Raises RemoteProtocolError.

        source: the peer that passed it on, "" if unknown.
        """
        membership = self.membership
        if membership is None or membership.knows(info):
            return True
        if not self._checks.may(source, now):
            return False
        before = membership.roster.version
        try:
            is_news = membership.admit(info, _Linked(self._linked))
        except ForgedError:
            self._checks.note_forged(source, now)
            raise
        if membership.roster.version != before:
            self._keep(now)
        return is_news

    def gate(self, domain: bytes, key: bytes) -> bytes:
        """Return the answer to libzmq about a client with this key: ALLOWED, LATER or REFUSED."""
        membership = self.membership
        assert membership is not None
        if domain == DOOR:
            return ALLOWED if key == membership.door_key else REFUSED
        return ALLOWED if membership.device_of(key) else LATER

    def check(self, key: bytes, peer_id: str) -> None:
        """Raise RemoteProtocolError unless a client with this key may speak for that peer."""
        if not self.speaks(key, peer_id):
            raise RemoteProtocolError(f"another device, or one that is out, speaks for {peer_id}")

    def check_words(self, peer_id: str, body: Body) -> None:
        """Raise RemoteProtocolError for a message that an observer must not send."""
        if self.membership is None or isinstance(body, _VISITORS):
            return
        if self.membership.is_visitor(peer_id):
            raise RemoteProtocolError(f"{peer_id}, which only looks, says {type(body).__name__}")

    def speaks(self, key: bytes, peer_id: str) -> bool:
        """Return True if a client with this key may speak for that peer."""
        return self.membership is None or self.membership.may_speak(key, peer_id)

    def is_in(self, key: bytes) -> bool:
        """Return True if a client with this key is in the mesh."""
        return self.membership is None or self.membership.device_of(key) is not None

    def is_settled(self, peer_id: str, now: float) -> bool:
        """Return True if this peer's messages count by now."""
        if self.talk is None:
            return True
        if self._unheard and (self._heeds_at is None or now < self._heeds_at):
            return False
        return self.talk.is_settled(peer_id)

    def forget(self, peer_id: str) -> None:
        """Forget a peer that begins anew."""
        self._given.discard(peer_id)
        if self.talk is not None:
            self.talk.forget(peer_id)

    def hear(self, peer_id: str, told: RosterTold, now: float) -> News:
        """Take in a peer's statements about the roster; return what follows."""
        membership, talk = self.membership, self.talk
        if membership is None or talk is None:
            return News()
        new, answer = talk.hear(peer_id, told, now)
        self._note_return(peer_id, now)
        self._note_let_in(peer_id, now)
        if new:
            self._keep(now, at_once=_are_owners(new))
        news = self._pass_on(new, but=peer_id) if new else News()
        news.told += [Outgoing(peer_id, each) for each in answer]
        if self._code and peer_id not in self._given and membership.roster.enrolled(peer_id):
            self._given.add(peer_id)
            news.told.append(Outgoing(peer_id, CodeTold(self._code)))
        return news

    def hear_at_door(self, by: str, told: RosterTold, now: float) -> News:
        """Take in the statements by which a member refuses this device.

        Statements of owners count. The name of another device does not enter the roster: that device may be about to
        give it up, too.
        """
        names = [each for each in told.statements if isinstance(each, Enrolled)]
        owned = tuple(each for each in told.statements if not isinstance(each, Enrolled))
        news = self.hear("", msgspec.structs.replace(told, statements=owned), now)
        for each in names[:_MOST_NAMES]:
            self._hear_rival(by, each, now)
        return news

    def _hear_rival(self, by: str, rival: Enrolled, now: float) -> None:
        """Give up this device's name to another device that has it, if this one is new: no member has let it in.

        A device that was let in only just now gives it up too, unless the other device itself refuses it. A device
        gives way to an owner's in any case, unless it is an owner, too.
        """
        membership = self.membership
        if membership is None or self.refusal is not None or rival.peer_id != self._me or not membership.name:
            return
        if rival.device == membership.device.public or not self._checks.may("", now):
            return
        membership.roster.check(rival)
        refusal = Refusal(self._me, by, fingerprint(rival.device))
        is_owners = rival.device in membership.roster.owners() and not membership.is_owner()
        is_let_in = membership.is_known or (self._let_in_at is not None and by == self._me)
        if is_let_in and not is_owners:
            if by not in self._refused_by and len(self._refused_by) < _MOST_REFUSALS:
                self._refused_by.add(by)
                logger.warning("%s", refusal)
            return
        self.refusal = refusal
        membership.withdraw()
        self._keep(now, at_once=True)

    def why_refused(self, error: NotLetInError) -> list[RosterTold]:
        """Return the messages for a device that was not let in."""
        return [] if self.talk is None or not error.statements else self.talk.tell(error.statements)

    def state(self, stated: Stated, now: float) -> News:
        """Add this device's own statements, and use the code that it has changed to. Raises RemoteProtocolError."""
        membership = self.membership
        assert membership is not None
        new = [each for each in stated.statements if membership.roster.add(each)]
        self._keep(now, at_once=True)
        news = self._pass_on(new, but="")
        if stated.keys is not None:
            self.use_code(stated.code, stated.keys)
            members = [peer_id for peer_id in self._linked() if membership.roster.enrolled(peer_id)]
            news.told += [Outgoing(peer_id, CodeTold(stated.code)) for peer_id in members]
        return news

    def learn_code(self, code: str) -> MeshKeys | None:
        """Take a code that a peer tells; return its keys if an owner changed to it. Raises RemoteProtocolError."""
        membership = self.membership
        if membership is None or not membership.roster.is_code_old:
            return None
        try:
            if code_hash(code) != membership.roster.wanted_code():
                return None
            _, _, run = membership.keys.name.partition(RUN_MARK)
            keys = MeshKeys.from_code(code, run)
        except ConfigError as error:
            raise RemoteProtocolError(str(error)) from None
        self.use_code(code, keys)
        membership.on_code(code)
        return keys

    def use_code(self, code: str, keys: MeshKeys) -> None:
        """Use another join code of the mesh from now on; every member is told it."""
        assert self.membership is not None
        self._code = code
        self.membership.keys = keys
        self.membership.roster.adopt(keys)

    def note_worked(self, peer_ids: Iterable[str], now: float) -> None:
        """Note that the deltas of these peers are in the round that was just closed."""
        if self.membership is not None and self.membership.note_worked(peer_ids):
            self._keep(now, at_once=True)  # `mdl mesh rotate-code` may want to know it in the next moment

    def why_out(self) -> str:
        """Return the reason why this device is not in the mesh; "" if it is."""
        membership = self.membership
        if membership is None:
            return ""
        if self.refusal is not None:
            return str(self.refusal)
        return membership.why_out() or (_OUT if membership.roster.is_code_old and not membership.is_kept() else "")

    def due(self, now: float) -> list[Outgoing]:
        membership, let_in_at = self.membership, self._let_in_at
        if membership and let_in_at is not None and now - let_in_at >= NEW_S and not membership.is_known:
            membership.is_known = self.refusal is None
            self._keep(now)
        if self._keep_at is not None and now >= self._keep_at:
            self._keep(now)
        return [] if self.talk is None else [Outgoing(*each) for each in self.talk.due(self._linked(), now)]

    def deadline(self) -> float | None:
        return None if self.talk is None else self.talk.deadline()

    def _note_return(self, peer_id: str, now: float) -> None:
        assert self.membership is not None
        if self._heeds_at is None:
            self._heeds_at = now + RETURN_S
        roster = self.membership.roster
        if self._unheard and (enrolled := roster.enrolled(peer_id)) is not None:
            self._unheard.discard(enrolled.device)
            self._unheard &= {each.device for each in roster.members()}

    def _note_let_in(self, peer_id: str, now: float) -> None:
        """Note that a peer which speaks by a link has let this device in; an observer has no say in that."""
        membership = self.membership
        assert membership is not None
        if self._let_in_at is None and membership.name and peer_id and not membership.is_visitor(peer_id):
            self._let_in_at = now

    def close(self) -> None:
        """Write the roster if it has changed; nothing more will be heard."""
        if self.membership is not None and self._keep_at is not None:
            self.membership.on_change()

    def _pass_on(self, new: list[AnyStatement], but: str) -> News:
        talk = self.talk
        assert self.membership is not None
        assert talk is not None
        told = talk.tell(new)
        others = [peer_id for peer_id in self._linked() if peer_id != but]
        gone = [info.peer_id for info in self._known() if self.membership.is_out(info)]
        return News([Outgoing(peer_id, each) for peer_id in others for each in told], gone)

    def _keep(self, now: float, at_once: bool = False) -> None:
        """Write a changed roster, now or within _KEEP_S. at_once: owners have made statements."""
        assert self.membership is not None
        if not at_once and now - self._kept_at < _KEEP_S:
            self._keep_at = self._keep_at or self._kept_at + _KEEP_S
            return
        self._keep_at, self._kept_at = None, now
        self.membership.on_change()


class _Linked:
    """The names of linked peers, computed only when a full roster asks."""

    def __init__(self, linked: Callable[[], Iterable[str]]) -> None:
        self._linked = linked
        self._names: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._names is None:
            self._names = frozenset(self._linked())
        return name in self._names


def _are_owners(statements: Iterable[AnyStatement]) -> bool:
    """Return True if one of these is a statement of an owner, which must not be lost."""
    return any(not isinstance(each, Enrolled) for each in statements)
