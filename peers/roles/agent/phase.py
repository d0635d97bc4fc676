"""What the mesh is doing, as the agent sees it."""

from enum import Enum


class Phase(Enum):
    """gathering -> aggregating -> broadcasting -> closing -> closed -> gathering ... -> finishing -> finished.

    From broadcasting back to aggregating if the result is lost with its only holder; abandoned if nobody is left.
    """

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
