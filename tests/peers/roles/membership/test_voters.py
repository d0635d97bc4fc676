"""Check whose votes count where devices were started anew, and that the newest accepted result must be proposed."""

from __future__ import annotations

import msgspec
import pytest

from mdl.peers.roles.agent.distribution import newest_staged
from mdl.peers.roles.membership.members import Arrivals, TrainerSeen, voters
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Accepted, Activity, Staged

ANN, BOB, CLEO = (Contributor(name, 1) for name in ("ann", "bob", "cleo"))
REPORT = PeerReport(1, 9, 3, b"w3", "schema", "lenet", 10, Activity.HOLDING, 4, 5, base=("ann", "bob", "cleo"))
OLD, NEW = b"old", b"new"


def _member(
    who: Contributor, has: bytes = b"", named: bytes = b"", version: int = 1, votes: bool = True, term: int = 5
) -> TrainerSeen:
    staged = Staged(has, 1.0, (ANN, BOB), term, version) if has else None
    accepted = Accepted("x", 4, named, term, version) if named else None
    report = msgspec.structs.replace(REPORT, votes=votes, staged=staged, accepted=accepted)
    return TrainerSeen(who, report, Arrivals(0.0, 1.0, 4.0), 0.0)


@pytest.mark.parametrize(
    ("members", "able", "proposed"),
    [
        ((_member(ANN), _member(BOB)), {"ann", "bob"}, None),
        ((_member(ANN, named=NEW), _member(BOB)), {"bob"}, None),
        ((_member(ANN, named=NEW), _member(BOB, has=NEW)), {"ann", "bob"}, NEW),
        ((_member(ANN, named=NEW, version=2), _member(BOB, has=OLD)), {"bob"}, OLD),
        ((_member(ANN, named=OLD), _member(BOB, has=NEW, version=2)), {"ann", "bob"}, NEW),
        ((_member(ANN, named=OLD, term=7), _member(BOB, has=NEW), _member(CLEO, has=OLD, version=0)), 3, OLD),
        ((_member(ANN, named=NEW, votes=False), _member(BOB, has=NEW)), {"bob"}, NEW),
    ],
    ids=[
        "nothing was accepted",
        "nobody has what was accepted",
        "somebody has it",
        "only an older one is here",
        "a later one is here",
        "it is here under an older order",
        "it has no vote",
    ],
)
def test_who_names_what_it_accepted_votes_where_that_can_be_proposed(
    members: tuple[TrainerSeen, ...], able: set[str] | int, proposed: bytes | None
) -> None:
    found = voters(members)
    assert (len(found) if isinstance(able, int) else found) == able
    result = newest_staged(list(members))
    assert (result and result.digest) == proposed
