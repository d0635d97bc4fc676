"""Clocks are compared by what others sign for us, and by nothing that is older; patience is for the others alone."""

from __future__ import annotations

import pytest

from mdl.peers.doctor.mesh import Clocks, Patience
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.keys import DeviceKey, MeshKeys, new_join_code
from mdl.transport.trust.membership import Membership

MEMBER = Membership(MeshKeys.from_code(new_join_code("home", bytes(19))), DeviceKey.of(bytes(32)))
BEGAN_S = 1_800_000_000.0


def signed(after_s: float) -> PeerInfo:
    me = PeerInfo("ann", 1, Role.TRAINER, "192.0.2.7", 5)
    return MEMBER.introduce(me, 6, ["192.0.2.7"], int((BEGAN_S + after_s) * 1000))


@pytest.mark.parametrize(
    ("after_s", "ahead_s"), [(0.5, 0.0), (3.0, 0.0), (63.0, 60.0), (-60.0, -60.0), (-1.7e9, -1.7e9), (7203.0, 7200.0)]
)
def test_what_is_signed_between_the_beginning_and_now_shows_equal_clocks(after_s: float, ahead_s: float) -> None:
    clocks = Clocks(BEGAN_S)
    clocks.compare([signed(after_s)], [signed(after_s)], {}, BEGAN_S + 3.0)
    assert clocks.ahead_s() == {"ann": ahead_s}


def test_an_announcement_of_long_ago_tells_nothing() -> None:
    clocks, old, new = Clocks(BEGAN_S), signed(-900.0), signed(1.0)
    clocks.compare([old], [old], {"ann": old.proof.serial if old.proof else 0}, BEGAN_S + 2.0)
    assert clocks.ahead_s() == {}
    clocks.compare([new], [new], {}, BEGAN_S + 2.0)
    assert clocks.ahead_s() == {"ann": 0.0}


def test_what_is_known_of_who_has_not_spoken_tells_nothing() -> None:
    clocks, old = Clocks(BEGAN_S), signed(-900.0)
    clocks.compare([old], [], {}, BEGAN_S + 1.0)
    clocks.compare([old], [old], {}, BEGAN_S + 2.0)
    assert clocks.ahead_s() == {}


def test_time_in_which_nobody_could_look_is_not_waited() -> None:
    patience = Patience(4.0)
    assert [patience.waited_s(passed_s) for passed_s in (0.1, 0.2)] == [0.1, 0.2]
    assert patience.waited_s(2.4) == pytest.approx(0.4)  # 2.2 s without a look, of which 0.2 are one
    assert patience.waited_s(30.0) == pytest.approx(26.0)  # 4 s of that at most
