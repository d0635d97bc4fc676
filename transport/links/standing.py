"""Who counts: whether a connection's key may speak for a peer, and what is new in the roster.

Between `transport.links.mesh_links` and what the device knows of the mesh (`transport.trust.membership`). Without
encryption, on loopback alone, everybody counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mdl.errors import ConfigError, ForgedError, RemoteProtocolError
from mdl.protocol.messages import Hello, PeersKnown
from mdl.protocol.status_messages import PageServed, StatusWanted
from mdl.protocol.vocabulary import PeerInfo
from mdl.trust.statements import AnyStatement, Enrolled
from transport.links.gate import ALLOWED, DOOR, LATER, REFUSED
from transport.links.roster_talk import RosterTalk
from transport.trust.checks import Checks
from transport.trust.keys import RUN_MARK, MeshKeys, code_hash
from transport.trust.membership import Membership
from transport.wire.bulk import Outgoing
from transport.wire.codec import FLOW_MESSAGES, Body, CodeTold, RosterTold

logger = logging.getLogger(__name__)

# A device that was away hears for so long who is in the mesh before it heeds anybody: the first whom it meets may be
# one that was locked out meanwhile. Less if it has heard everybody that it knows of.
RETURN_S = 1.0
_OUT = "an owner of the mesh has changed its join code, and not kept this device: ask for the new code"


# What one may say that only looks; an owner's command is one.
_VISITORS = (Hello, PeersKnown, RosterTold, CodeTold, StatusWanted, PageServed, *FLOW_MESSAGES)
# How often a roster that changes is kept at most: who has many devices can have it change fifty times a second.
_KEEP_S = 1.0


@dataclass(frozen=True)
class Stated:
    """This device states something about others. code, keys: what it has changed the join code to, if it has."""

    statements: tuple[AnyStatement, ...]
    code: str = ""
    keys: MeshKeys | None = None


@dataclass
class News:
    """What follows from something that was heard. gone: peers that are out now. told: what goes out."""

    told: list[Outgoing] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class Standing:
    """me: this node's peer id. membership: None without encryption. linked: peers that there is a link to.

    known: all that were introduced.
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
        self._keep_at: float | None = None
        self._kept_at = now - _KEEP_S

    def agreeing(self) -> set[str]:
        """Peers that know just what this node knows of who is in the mesh."""
        return set() if self.talk is None else self.talk.agreeing()

    def admits(self, info: PeerInfo, source: str, now: float) -> bool:
        """Whether this is who and where a peer is; False if it has said something later. Raises RemoteProtocolError.

        source: who says so, "" if that is not known.
        """
        membership = self.membership
        if membership is None or membership.knows(info):
            return True
        if not self._checks.may(source, now):
            return False
        before = membership.roster.digest
        try:
            is_news = membership.admit(info)
        except ForgedError:
            self._checks.note_forged(source, now)
            raise
        if membership.roster.digest != before:
            self._keep(now)
        return is_news

    def gate(self, domain: bytes, key: bytes) -> bytes:
        """Whether libzmq is to let a client with this key in."""
        membership = self.membership
        assert membership is not None
        if domain == DOOR:
            return ALLOWED if key == membership.door_key else REFUSED
        return ALLOWED if membership.device_of(key) else LATER

    def check(self, key: bytes, peer_id: str) -> None:
        """Raises RemoteProtocolError unless what comes from a client with this key is that peer's word."""
        if not self.speaks(key, peer_id):
            raise RemoteProtocolError(f"another device, or one that is out, speaks for {peer_id}")

    def check_words(self, peer_id: str, body: Body) -> None:
        """Raises RemoteProtocolError for what one says that only looks, and is not its to say."""
        if self.membership is None or isinstance(body, _VISITORS):
            return
        if self.membership.is_visitor(peer_id):
            raise RemoteProtocolError(f"{peer_id}, which only looks, says {type(body).__name__}")

    def speaks(self, key: bytes, peer_id: str) -> bool:
        """Whether what comes from a client with this key is that peer's word."""
        return self.membership is None or self.membership.may_speak(key, peer_id)

    def is_in(self, key: bytes) -> bool:
        """Whether a client with this key is in the mesh."""
        return self.membership is None or self.membership.device_of(key) is not None

    def is_settled(self, peer_id: str, now: float) -> bool:
        """Whether this peer's words count by now."""
        if self.talk is None:
            return True
        if self._unheard and (self._heeds_at is None or now < self._heeds_at):
            return False
        return self.talk.is_settled(peer_id)

    def forget(self, peer_id: str) -> None:
        """It begins anew."""
        self._given.discard(peer_id)
        if self.talk is not None:
            self.talk.forget(peer_id)

    def hear(self, peer_id: str, told: RosterTold, now: float) -> News:
        """Somebody has told what it knows of the roster."""
        membership, talk = self.membership, self.talk
        if membership is None or talk is None:
            return News()
        new, answer = talk.hear(peer_id, told, now)
        self._note_return(peer_id, now)
        if new:
            self._keep(now, at_once=_are_owners(new))
        news = self._pass_on(new, but=peer_id) if new else News()
        news.told += [Outgoing(peer_id, each) for each in answer]
        if self._code and peer_id not in self._given and membership.roster.enrolled(peer_id):
            self._given.add(peer_id)
            news.told.append(Outgoing(peer_id, CodeTold(self._code)))
        return news

    def state(self, stated: Stated, now: float) -> News:
        """This device states something itself, and uses the code that it has changed to. Raises RemoteProtocolError."""
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
        """Somebody has told the mesh's code; the keys that follow if it is the one that an owner changed it to."""
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
        """The mesh has this code now; it is told to every member."""
        assert self.membership is not None
        self._code = code
        self.membership.keys = keys
        self.membership.roster.adopt(keys)

    def why_out(self) -> str:
        """Why this device is not in the mesh; "" if it is."""
        membership = self.membership
        if membership is None:
            return ""
        return membership.why_out() or (_OUT if membership.roster.is_code_old and not membership.is_kept() else "")

    def due(self, now: float) -> list[Outgoing]:
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

    def close(self) -> None:
        """Nothing more is heard: keep what is known."""
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
        """The roster has changed. at_once: owners have spoken."""
        assert self.membership is not None
        if not at_once and now - self._kept_at < _KEEP_S:
            self._keep_at = self._keep_at or self._kept_at + _KEEP_S
            return
        self._keep_at, self._kept_at = None, now
        self.membership.on_change()


def _are_owners(statements: Iterable[AnyStatement]) -> bool:
    """Whether some of these are an owner's, which must not be forgotten."""
    return any(not isinstance(each, Enrolled) for each in statements)
