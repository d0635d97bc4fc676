"""The phases of the mesh, as the agent sees it."""

from enum import Enum


class Phase(Enum):
    """Between rounds: gathering, finishing, finished; in an open round: the others. Legal moves: `PHASE_MOVES`."""

    GATHERING = "gathering"
    AGGREGATING = "aggregating"
    BROADCASTING = "broadcasting"
    CLOSING = "closing"
    CLOSED = "closed"
    ABANDONED = "abandoned"
    FINISHING = "finishing"
    FINISHED = "finished"


# Looked up once: asking an enum for a member costs a quarter of a microsecond (CPython 3.11), and an agent asks often.
GATHERING, AGGREGATING, BROADCASTING, CLOSING, CLOSED, ABANDONED, FINISHING, FINISHED = Phase

# The legal moves. From broadcasting back to aggregating: the result is lost with its only holder. From an open round to
# gathering: it is given up for want of a majority, or taken up anew under a higher term; to finishing: the agent stops.
PHASE_MOVES = {
    GATHERING: {AGGREGATING, FINISHING},
    AGGREGATING: {BROADCASTING, ABANDONED, GATHERING, FINISHING},
    BROADCASTING: {CLOSING, AGGREGATING, ABANDONED, GATHERING, FINISHING},
    CLOSING: {CLOSED, ABANDONED, GATHERING, FINISHING},
    CLOSED: {GATHERING},
    ABANDONED: {GATHERING},
    FINISHING: {FINISHED},
    FINISHED: set[Phase](),
}
