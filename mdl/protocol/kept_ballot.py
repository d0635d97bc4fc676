"""A ballot as a device's disk keeps it, and how much of it the next start of that device may rely on.

A disk may lose its last writes when the power goes, also those that it called safe. A file may be an older copy that
somebody has put back. In both cases the device may have promised more than it reads now.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mdl.protocol.vocabulary import Ballot

# A file that was changed so long after its last ballot was written was changed by something else.
LATE_S = 30.0
# A boot without a name is known by its time. Systems tell that with a second's error; no machine boots so quickly.
_SAME_BOOT_S = 5.0


class KeptBallot(Struct, frozen=True):
    """One write of a ballot.

    number: grows by one with each write, so that the newest is known.
    ballot: the promises of the device by then.
    boot: the start of the machine during which it was written; "": not known.
    is_last: the process wrote it as its last word, so it has promised nothing since.
    at_s: the time of writing, by the clock that dates files; 0.0: not known.
    """

    number: int
    ballot: Ballot
    boot: str = ""
    is_last: bool = False
    at_s: float = 0.0

    def why_doubted(self, boot: str, changed_s: float) -> str:
        """Return, in words for people, why this may not be the last ballot that the device wrote; "" if it is.

        boot: of this start. changed_s: when the file was changed last, by the clock of at_s; 0.0: not known.
        """
        if self.at_s and changed_s > self.at_s + LATE_S:
            return "its files were put back or changed"
        if self.is_last or not self.boot or not boot or is_same_boot(self.boot, boot):
            return ""
        return "its machine has lost power or crashed"


def is_same_boot(one: str, other: str) -> bool:
    """Return True if two names, or times in seconds, are of one start of a machine."""
    try:
        return abs(float(one) - float(other)) <= _SAME_BOOT_S
    except ValueError:
        return one == other


def doubted(ballot: Ballot) -> Ballot:
    """Return the part of a ballot that still holds when later ones may be lost: all promises that it tells of.

    It names no start of which nothing is forgotten, so the device has no vote until its new work is counted
    (docs/protocol-disk.md, rule 7).
    """
    return replace(ballot, agent="", starts=(), begun="")
