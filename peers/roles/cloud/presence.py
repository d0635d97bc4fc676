"""The learners that speak to a cloud, and those still there when it has something new to teach."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from mdl.bounds import MAX_MEMBERS
from mdl.protocol.cloud_messages import LessonCurrent
from mdl.protocol.machine import Effect, Send

# A learner heard within this time is told of something new, and counted on in a synchronous cycle.
PRESENT_S = 60.0


@dataclass
class Presence:
    """Learners and pupils that speak, the one silent for longest first."""

    learners: OrderedDict[str, tuple[float, str]] = field(default_factory=OrderedDict)
    pupils: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def hear(self, learner: str, pupil: str, now: float) -> None:
        self.learners[learner] = now, pupil
        self.pupils[pupil] = now
        for heard, key in ((self.learners, learner), (self.pupils, pupil)):
            heard.move_to_end(key)
            while len(heard) > MAX_MEMBERS:
                heard.popitem(last=False)

    def tell(self, version: int, synchronous: bool, now: float) -> list[Effect]:
        """Tell everybody that is there: this version is taught now."""
        return [
            Send(learner, LessonCurrent(pupil, version, synchronous))
            for learner, (heard_at, pupil) in self.learners.items()
            if now - heard_at < PRESENT_S
        ]
