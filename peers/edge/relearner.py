"""Lets the scheduler go on learning beside the mesh (MDLdroid 3.3.3): when, from what, and in a process of its own.

It learns when three conditions hold: the mesh is another than the one it learned from last; enough rounds were seen;
and this device is at ease (not busy, and not on its battery). One slot follows a closed round, at the lowest priority;
nothing waits for it. What is learned, and when it is taken, is `scheduler.training.relearn`'s.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mdl.config import BusySection, Config
from mdl.devices.scenario import Scenario, load_scenarios, save_scenarios
from mdl.errors import DataError, MdlError
from mdl.protocol.machine import Event, PolicyLearned
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import ResourceState
from mdl.reading import decode_json, read_bytes
from mdl.writing import write_bytes
from peers.edge.lifeline import wait_for_parent
from scheduler.explain.recorded_round import finished_round, rebuild
from scheduler.policies.chain import Policy
from scheduler.policies.device_book import is_busy
from scheduler.policies.learned import DRAFT, POLICY, SEEN, Learned
from scheduler.policies.qnet_numpy import UnfitPolicyError, set_aside
from scheduler.policies.registry import make_policy

logger = logging.getLogger(__name__)

FOLDER = "scheduler"
_LEARNED = "learned.json"
# Rounds that are kept to learn from, and how many there must be.
MOST_SEEN, LEAST_SEEN = 96, 24
# A number for each device of a mesh.
_LARGEST_LEARNED_BYTES = 64 << 10
# A decision that takes longer is made by the fallback: a round is not to wait for the scheduler.
DECISION_S = 0.05
# The mesh is as its last rounds were.
_RECENT = 8


class Relearner:
    """See the module. sample: this device's resources now. post: takes PolicyLearned, from another thread.

    is_on: the user wants it, and the policy is one that learns; else nothing is remembered either.
    """

    def __init__(
        self,
        directory: Path,
        busy: BusySection,
        sample: Callable[[], ResourceState],
        post: Callable[[Event], None],
        is_on: bool = True,
    ) -> None:
        self._directory = directory
        self._busy = busy
        self._sample = sample
        self._post = post
        self._is_on = is_on
        self._slot: subprocess.Popen[str] | None = None
        self._closed = False

    def hear(self, summary: RoundSummary) -> None:
        """A round that this node led is closed: remember it, and learn for a slot if the conditions hold."""
        if not self._is_on:
            return
        try:
            self._remember(summary)
        except (MdlError, OSError) as error:  # a round is no worse for it
            logger.warning("round %d is not learned from: %s", summary.round, error)

    def _remember(self, summary: RoundSummary) -> None:
        try:
            scenario = rebuild(finished_round(summary, "this mesh")).scenario
        except DataError as error:
            logger.debug("round %d teaches nothing: %s", summary.round, error)
            return
        seen = [*self._load_seen(), scenario][-MOST_SEEN:]
        save_scenarios(seen, self._directory / SEEN)
        if self._may_learn(seen):
            self._start_slot(seen)

    def close(self) -> None:
        """The node ends: a slot that is under way is given up, the draft before it stays."""
        self._closed = True
        if self._slot and self._slot.poll() is None:
            self._slot.kill()

    def _may_learn(self, seen: Sequence[Scenario]) -> bool:
        if self._slot and self._slot.poll() is None:
            return False
        is_under_way = (self._directory / DRAFT).exists()
        has_changed = describe_mesh(seen) != self._load_learned()
        return len(seen) >= LEAST_SEEN and (is_under_way or has_changed) and is_at_ease(self._sample(), self._busy)

    def _start_slot(self, seen: Sequence[Scenario]) -> None:
        command = [sys.executable, "-P", "-m", "peers.edge.relearner", str(self._directory)]
        theirs, ours = os.pipe()  # it ends with this process, also if that is killed
        try:
            self._slot = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C in the terminal is for the node, which then ends it
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        waiting = (self._slot, ours, describe_mesh(seen))
        threading.Thread(target=self._wait, args=waiting, name="mdl-relearner", daemon=True).start()

    def _wait(self, slot: subprocess.Popen[str], lifeline: int, mesh: list[int]) -> None:
        told, complaint = slot.communicate()
        os.close(lifeline)
        if self._closed:
            return
        if slot.returncode:
            said = complaint.strip().splitlines() or [f"it ended with {slot.returncode}"]
            logger.warning("learning the schedule failed: %s", said[-1])
            return
        ended = json.loads(told.splitlines()[-1])
        for line in ended.get("set_aside", ()):
            logger.warning("%s", line)
        if ended["slot"] < ended["slots"]:
            return
        try:
            write_bytes(self._directory / _LEARNED, json.dumps(mesh).encode())
        except MdlError as error:
            logger.warning("it is learned again: %s", error)
        before_s, after_s = ended["before_s"], ended["after_s"]
        if ended["adopted"]:
            logger.info("the schedule was re-learned: %.2f s instead of %.2f s on rounds held out", after_s, before_s)
            self._post(PolicyLearned())
        else:
            logger.info("the schedule stays: re-learned %.2f s, before %.2f s on rounds held out", after_s, before_s)

    def _load_seen(self) -> list[Scenario]:
        path = self._directory / SEEN
        try:
            return load_scenarios(path) if path.exists() else []
        except DataError as error:
            logger.warning("the rounds that were seen are forgotten: %s", error)
            return []

    def _load_learned(self) -> list[int]:
        path = self._directory / _LEARNED
        try:
            return decode_json(read_bytes(path, _LARGEST_LEARNED_BYTES), list[int], str(path)) if path.exists() else []
        except DataError as error:
            logger.warning("what was learned from is forgotten: %s", error)
            return []


def describe_mesh(seen: Sequence[Scenario]) -> list[int]:
    """What makes it another mesh: how many devices, and how fast their links are, to a factor of two."""
    recent = seen[-_RECENT:]
    count = round(sum(len(scenario.devices) for scenario in recent) / len(recent))
    speeds = sorted(device.link_mb_s for scenario in recent for device in scenario.devices)
    places = [int((index + 0.5) * len(speeds) / count) for index in range(count)]
    return [round(math.log2(speeds[place])) for place in places]


def is_at_ease(resources: ResourceState, busy: BusySection) -> bool:
    return not is_busy(resources, busy) and (resources.battery_percent is None or bool(resources.charging))


def make_own_policy(config: Config, directory: Path | None) -> Policy:
    """The configured policy; dqn as this device has re-learned it, if it has.

    A re-learned policy that this version cannot use is set aside, and is learned anew; the shipped one decides.
    """
    if config.round.policy != "dqn":
        return make_policy(config.round.policy)
    path = directory / FOLDER / POLICY if directory else None
    for candidate, other in ((path, "the shipped schedule"), (None, "the greedy schedule")):
        found = candidate if candidate and candidate.exists() else None
        try:
            return Learned(found, deadline_s=DECISION_S, clock=time.perf_counter)
        except (DataError, OSError) as error:  # no descriptor left to read it with
            kept = _set_aside(found) if found and isinstance(error, UnfitPolicyError) else ""
            logger.warning("%s is used: %s%s", other, error, kept)
    return make_policy("greedy")


def _set_aside(policy: Path) -> str:
    """Out of the way, and forget which mesh it was learned from; says where it is."""
    try:
        aside = set_aside(policy)
        policy.with_name(_LEARNED).unlink(missing_ok=True)
    except (MdlError, OSError) as error:  # it is told again at the next start
        return f" ({error})"
    return f"; it is set aside as {aside.name}"


def main() -> None:
    """One slot, at the lowest priority and on one core."""
    os.nice(19)
    threading.Thread(target=_follow_parent, name="mdl-lifeline", daemon=True).start()
    import torch

    from scheduler.training.relearn import run_slot

    torch.set_num_threads(1)
    ended = run_slot(Path(sys.argv[1]))
    sys.stdout.write(msgspec.json.encode(ended).decode() + "\n")


def _follow_parent() -> None:
    """Nobody would take what the slot of a killed node learns."""
    wait_for_parent()
    os._exit(1)


if __name__ == "__main__":
    main()
