"""The settings of an agent, by user and size of mesh; `peers/roles/build.py` takes them from the configuration."""

from __future__ import annotations

import msgspec

from mdl.config import BusySection, Compress, EndSection, Exchange, Rule
from mdl.peers.roles.membership.members import AVOID_S
from mdl.protocol.delta import Contributor


class TimeLimit(msgspec.Struct, frozen=True):
    """The devices that a round waits for, and how long for the others.

    wait_for: share of its members; 1.0: all, and nobody is left out or behind. grace_s: time that the others have
    after these are ready, and again after these have the result; longer where the round itself takes long.
    left_out_at_most: rounds running that go on without a device. spared: devices at this limit; they are waited for.
    rule: decides within these bounds which devices take part (`mdl.scheduler.rounds.participation.mesh_rule`).
    """

    wait_for: float = 1.0
    grace_s: float = 2.0
    left_out_at_most: int = 9
    spared: frozenset[Contributor] = frozenset()
    rule: Rule = "half"

    @property
    def is_for_all(self) -> bool:
        """True if a round waits for everybody."""
        return self.wait_for >= 1.0


class AgentSettings(msgspec.Struct, frozen=True):
    """The settings of an agent. rounds: number to run, 0 = until stopped. min_peers: needed before the first round.

    lost_after_s: the longest silence before a peer counts as lost. stall_s: a hop without any sign for this time is
    cancelled. avoid_s: time for which values go another way than one that has failed. partition_s: time for which a
    group that lacks a majority waits for it, before it goes on by itself; alone_s: the same for a single device that
    has heard the others; with waits_for_majority neither goes on. busy: conditions under which a device counts as busy.
    limit: for devices that train long.
    exchange: "chain" (hops, as in the paper), "shares" (segments) or "auto". segment_values: of one segment, 0: by the
    model's size. coding: of own deltas, in segments. quarantine: devices that several others have refused are left out.
    judges: devices judge what they receive: the last holder of the mean gives its own delta first in the next round.
    end: conditions under which the run ends by itself. every_s: a round begins at most once in so many seconds.
    """

    rounds: int = 0
    min_peers: int = 2
    lost_after_s: float = 4.0
    retry_s: float = 0.5
    stall_s: float = 10.0
    avoid_s: float = AVOID_S
    partition_s: float = 15.0
    alone_s: float = 5.0
    waits_for_majority: bool = False
    farewell_s: float = 20.0
    stop_s: float = 1.5
    busy: BusySection = BusySection()
    limit: TimeLimit = TimeLimit()
    exchange: Exchange = "chain"
    segment_values: int = 0
    coding: Compress = "none"
    quarantine: bool = True
    judges: bool = False
    end: EndSection = EndSection()
    every_s: float = 0.0
