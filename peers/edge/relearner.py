"""The policy of a node that leads: checked before the node starts, made afresh for each time in office.

The resource condition of a mesh, and its changes since the schedule was last learned (3.3.3).

The paper re-learns when the condition is not equal to the record. Read literally, that is at every report: free memory
and processor change by the second. So each device's figures are means over its last reports. They differ from the
record by steps that matter to an order of hops. The record stands still until the schedule is learned again, so a
figure at the edge of a step does not come and go.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Annotated, TypeAlias

import msgspec

from mdl.bounds import MAX_MEMBERS, first_few
from mdl.config import BusySection, Config
from mdl.devices.scenario import Scenario, load_scenarios, save_scenarios
from mdl.errors import DataError, MdlError
from mdl.files.kept import previous_of, read_kept, read_sealed, write_kept
from mdl.own import Own
from mdl.peers.interrupts import wait_for_parent
from mdl.processes import APART, let_others_first
from mdl.protocol.machine import Event, PolicyLearned
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import ResourceState
from mdl.reading import decode_json
from mdl.scheduler.explain.recorded_round import finished_round, rebuild
from mdl.scheduler.given import TimeBudget, check_count, describe_choice, is_file, policy_of
from mdl.scheduler.policies.chain import Policy
from mdl.scheduler.policies.device_book import is_busy
from mdl.scheduler.policies.learned import DRAFT, POLICY, SEEN, Learned
from mdl.scheduler.policies.qnet_numpy import UnfitPolicyError, set_aside
from mdl.scheduler.policies.registry import make_policy

# Share of one report in a mean: with two reports a second, a change that lasts some ten seconds is seen.
_LEARN = 0.05
# The link of a device is the median of its last rounds; fewer than three could be an accident.
_ROUNDS, _LEAST_ROUNDS = 8, 3
# Links and free memory differ from a factor of two on: classes of devices and of networks are further apart.
_FACTOR = 2.0
# Battery and processor, in percent: a quarter of the full range.
_PERCENT = 25.0
# Shares of the time in which a device was busy, or charging: half of it.
_SHARE = 0.5
_MB = 1e6


class DeviceCondition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device, by the mean of its last reports. None: not known, or it has no such sensor.

    link_mb_s: the median of its last rounds.
    memory_mb: free.
    cpu_percent: the share of its processor that other programs take.
    battery_percent: its charge.
    charging, busy: shares of the time, 0 to 1.
    """

    link_mb_s: float | None = None
    memory_mb: float | None = None
    cpu_percent: float | None = None
    battery_percent: float | None = None
    charging: float | None = None
    busy: float | None = None


MeshCondition: TypeAlias = Annotated[dict[str, DeviceCondition], msgspec.Meta(max_length=MAX_MEMBERS)]


@dataclass
class _Heard:
    means: DeviceCondition = field(default_factory=DeviceCondition)
    links: deque[float] = field(default_factory=lambda: deque(maxlen=_ROUNDS))


class ConditionBook:
    """The conditions of a mesh's devices, as its leader hears them: from reports, and from rounds that it closes."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._members: tuple[str, ...] = ()

    def hear(self, peer_id: str, resources: ResourceState, is_busy: bool) -> None:
        """Take one report. is_busy: as the agent decides it from these resources."""
        if peer_id not in self._heard and len(self._heard) >= MAX_MEMBERS:
            return
        heard = self._heard.setdefault(peer_id, _Heard())
        charging = None if resources.charging is None else float(resources.charging)
        heard.means = DeviceCondition(
            None,
            _mix(heard.means.memory_mb, resources.free_memory_bytes / _MB),
            _mix(heard.means.cpu_percent, resources.cpu_percent),
            _mix(heard.means.battery_percent, resources.battery_percent),
            _mix(heard.means.charging, charging),
            _mix(heard.means.busy, float(is_busy)),
        )

    def close_round(self, links: dict[str, float]) -> None:
        """Close a round that these devices merged in. links: MB/s of each, as the round has shown them."""
        self._members = tuple(sorted(links))
        self._heard = {peer: self._heard.get(peer, _Heard()) for peer in self._members}
        for peer, link_mb_s in links.items():
            self._heard[peer].links.append(link_mb_s)

    def device(self, peer_id: str) -> DeviceCondition:
        """Return the condition of one device; nothing is known of devices beyond MAX_MEMBERS."""
        return _with_link(self._heard.get(peer_id, _Heard()))

    def now(self) -> MeshCondition:
        """Return the condition of the devices of the last round."""
        return {peer: self.device(peer) for peer in self._members}


def find_changes(record: MeshCondition, now: MeshCondition) -> list[str]:
    """Return in words how a mesh differs from the record: "p3: battery 20 % (was 85 %)". Empty if it does not."""
    gone, come = sorted(record.keys() - now.keys()), sorted(now.keys() - record.keys())
    told = [f"{peer} is gone" for peer in gone] + [f"{peer} is new" for peer in come]
    stayed = sorted(record.keys() & now.keys())
    return told + [f"{peer}: {change}" for peer in stayed for change in _compare(record[peer], now[peer])]


def _compare(before: DeviceCondition, now: DeviceCondition) -> list[str]:
    factors = (("link", before.link_mb_s, now.link_mb_s, "MB/s"), ("memory", before.memory_mb, now.memory_mb, "MB"))
    told = [
        f"{name} {_brief(new)} {unit} (was {_brief(old)})"
        for name, old, new, unit in factors
        if old is not None and new is not None and not old / _FACTOR < new < old * _FACTOR
    ]
    steps = (
        ("processor", before.cpu_percent, now.cpu_percent, _PERCENT, 1.0),
        ("battery", before.battery_percent, now.battery_percent, _PERCENT, 1.0),
        ("charging", before.charging, now.charging, _SHARE, 100.0),
        ("busy", before.busy, now.busy, _SHARE, 100.0),
    )
    return told + [
        f"{name} {new * scale:.0f} % (was {old * scale:.0f} %)"
        for name, old, new, step, scale in steps
        if old is not None and new is not None and abs(new - old) >= step
    ]


def _mix(mean: float | None, value: float | None) -> float | None:
    return value if mean is None or value is None else mean + _LEARN * (value - mean)


def _brief(value: float) -> str:
    return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}"


def _with_link(heard: _Heard) -> DeviceCondition:
    link_mb_s = median(heard.links) if len(heard.links) >= _LEAST_ROUNDS else None
    return msgspec.structs.replace(heard.means, link_mb_s=link_mb_s)


logger = logging.getLogger(__name__)

FOLDER = "scheduler"
_LEARNED = "learned.json"
# The most rounds that are kept to learn from, and the least that are needed.
MOST_SEEN, LEAST_SEEN = 96, 24
# A few numbers for each device of a mesh.
_LARGEST_LEARNED_BYTES = 512 << 10
# The fallback makes a decision that would take longer: a round is not to wait for the scheduler.
DECISION_S = 0.05
# Share of one core that slots take on average: 3 s a minute. All slots of a change then take a quarter of an hour.
SHARE = 0.05
# The most changes that a line of the log names.
_TOLD = 3


class Relearner:
    """Starts slots of learning; see the module. sample: returns this device's resources now.

    post: takes PolicyLearned, from another thread. is_on: the user wants it, and the policy learns; else nothing is
    remembered either. clock: seconds.
    """

    def __init__(
        self,
        directory: Path,
        busy: BusySection,
        sample: Callable[[], ResourceState],
        post: Callable[[Event], None],
        is_on: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._busy = busy
        self._sample = sample
        self._post = post
        self._is_on = is_on
        self._clock = clock
        self._slot: subprocess.Popen[str] | None = None
        self._given_up = False
        self._rests_until_s = -inf
        self._closed = False
        self._lock = threading.Lock()  # reports come from the loop, rounds from its worker
        self._starting = threading.Lock()  # a report and a round may each start a slot; only one runs at a time
        self._book = ConditionBook()
        self._record = self._load_learned() if is_on else None
        self._seen = 0
        self._has_noticed = False

    def hear(self, summary: RoundSummary) -> None:
        """Remember a closed round that this node led; start a slot if the conditions hold."""
        if not self._is_on:
            return
        try:
            self._remember(summary)
        except (MdlError, OSError) as error:  # the round itself is unaffected
            logger.warning("round %d is not learned from: %s", summary.round, error)

    def notice(self, peer_id: str, resources: ResourceState) -> None:
        """Take a device's report while this node leads; start a slot if it shows a change, once in each round.

        Give up a running slot if this device is no longer at ease. Takes no time: the loop that hears the report calls
        it.
        """
        if not self._is_on:
            return
        if self._is_learning() and not is_at_ease(self._sample(), self._busy):
            self._give_up()
        with self._lock:
            self._book.hear(peer_id, resources, is_busy(resources, self._busy))
            if self._has_noticed or not self._record or peer_id not in self._record:
                return
            changes = find_changes({peer_id: self._record[peer_id]}, {peer_id: self._book.device(peer_id)})
        if changes and self._may_learn(changes):
            self._has_noticed = True
            threading.Thread(target=self._start_noticed, args=(changes,), name="mdl-relearner", daemon=True).start()

    def _start_noticed(self, changes: Sequence[str]) -> None:
        try:
            self._start_slot(changes)
        except OSError as error:  # the open round is unaffected
            logger.warning("a change of the mesh is not learned from: %s", error)

    def _remember(self, summary: RoundSummary) -> None:
        try:
            rebuilt = rebuild(finished_round(summary, "this mesh"))
        except DataError as error:
            logger.debug("round %d teaches nothing: %s", summary.round, error)
            return
        seen = [*self._load_seen(), rebuilt.scenario][-MOST_SEEN:]
        save_scenarios(seen, self._directory / SEEN)
        links = {name: device.link_mb_s for name, device in zip(rebuilt.names, rebuilt.scenario.devices, strict=True)}
        with self._lock:
            self._seen, self._has_noticed = len(seen), False
            self._book.close_round(links)
            now = self._book.now()
        changes = ["nothing was learned here yet"] if self._record is None else find_changes(self._record, now)
        if self._may_learn(changes):
            self._start_slot(changes)

    def close(self) -> None:
        """Give up a running slot at the node's end; the draft before it stays."""
        self._closed = True
        if self._is_learning():
            self._give_up()

    def _is_learning(self) -> bool:
        return self._slot is not None and self._slot.poll() is None

    def _give_up(self) -> None:
        assert self._slot is not None
        self._given_up = True
        self._slot.kill()

    def _may_learn(self, changes: Sequence[str]) -> bool:
        if self._closed or self._is_learning() or self._clock() < self._rests_until_s:
            return False
        is_under_way = (self._directory / DRAFT).exists()
        return self._seen >= LEAST_SEEN and bool(is_under_way or changes) and is_at_ease(self._sample(), self._busy)

    def _start_slot(self, changes: Sequence[str]) -> None:
        with self._starting:
            if not self._is_learning():
                self._start_process(changes)

    def _start_process(self, changes: Sequence[str]) -> None:
        if changes:
            logger.info("the schedule is learned for a slot: %s", first_few(changes, _TOLD, "; "))
        command = [sys.executable, "-P", "-m", "mdl.peers.edge.relearner", str(self._directory)]
        theirs, ours = os.pipe()  # it ends with this process, also if that is killed
        try:
            self._slot = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                **APART,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._given_up = False
        with self._lock:
            waiting = (self._slot, ours, self._clock(), self._book.now())
        threading.Thread(target=self._wait, args=waiting, name="mdl-relearner", daemon=True).start()

    def _wait(self, slot: subprocess.Popen[str], lifeline: int, began_s: float, mesh: MeshCondition) -> None:
        told, complaint = slot.communicate()
        os.close(lifeline)
        now_s = self._clock()
        self._rests_until_s = now_s + (now_s - began_s) * (1.0 / SHARE - 1.0)
        if self._given_up:
            logger.info("the slot is given up: this device is in use, short of something or on its battery")
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
        self._record = mesh
        try:
            write_kept(self._directory / _LEARNED, msgspec.json.encode(mesh))
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

    def _load_learned(self) -> MeshCondition | None:
        """Return the record: the mesh's condition when it was last learned from; None if unknown."""
        try:
            return read_kept(self._directory / _LEARNED, _read_learned, "the schedule may be learned once more")
        except DataError as error:
            logger.warning("the rounds that it was learned from are forgotten: %s", error)
            return None


def _read_learned(path: Path) -> MeshCondition:
    return decode_json(read_sealed(path, _LARGEST_LEARNED_BYTES), dict[str, DeviceCondition], str(path))


def is_at_ease(resources: ResourceState, busy: BusySection) -> bool:
    return not is_busy(resources, busy) and (resources.battery_percent is None or bool(resources.charging))


def make_own_policy(config: Config, directory: Path | None) -> Policy:
    """Return the configured policy; for dqn as this device has re-learned it, if it has.

    A re-learned policy that this version cannot use is set aside and learned anew; the shipped one decides meanwhile.
    """
    if config.round.policy != "dqn":
        return make_policy(config.round.policy)
    path = directory / FOLDER / POLICY if directory else None
    for candidate, other in ((path, "the shipped schedule"), (None, "the greedy schedule")):
        found = candidate if candidate and candidate.exists() else None
        try:
            return Learned(found, deadline_s=DECISION_S, clock=time.perf_counter)
        except (DataError, OSError) as error:  # DataError, or no descriptor is left to read it with
            kept = _set_aside(found) if found and isinstance(error, UnfitPolicyError) else ""
            logger.warning("%s is used: %s%s", other, error, kept)
    return make_policy("greedy")


def _set_aside(policy: Path) -> str:
    """Move the policy out of the way and forget the mesh it was learned from; return in words where it is."""
    try:
        aside = set_aside(policy)
        for record in (policy.with_name(_LEARNED), previous_of(policy.with_name(_LEARNED))):
            record.unlink(missing_ok=True)
    except (MdlError, OSError) as error:  # the next start reports it again
        return f" ({error})"
    return f"; it is set aside as {aside.name}"


def main() -> None:
    """Run one slot, at the lowest priority and on one core."""
    let_others_first()
    threading.Thread(target=_follow_parent, name="mdl-lifeline", daemon=True).start()
    from mdl.scheduler.training.relearn import run_slot

    ended = run_slot(Path(sys.argv[1]))
    sys.stdout.write(msgspec.json.encode(ended).decode() + "\n")


def _follow_parent() -> None:
    """End with the parent: no process would take what the slot of a killed node learns."""
    wait_for_parent()
    os._exit(1)


@dataclass(frozen=True)
class ChosenPolicy:
    """told: as the node's story keeps it. learns: True if it goes on learning beside the mesh (3.3.3).

    make: makes a fresh policy; the directory holds what the node has re-learned.
    """

    told: str
    make: Callable[[Path], Policy]
    learns: bool = False


def choose_policy(config: Config, policy: str | Own | None = None) -> ChosenPolicy:
    """Choose the policy: `policy` of the command line, or if None the configuration's, which can name no function.

    A file is read once, here. Raises ConfigError or DataError in one line for an invalid policy, and for a file that
    cannot order as many devices as the mesh waits for.
    """
    name = config.round.policy if policy is None else policy
    if name == "dqn":
        return ChosenPolicy("dqn", lambda directory: make_own_policy(config, directory), config.round.relearn)
    first = policy_of(name, TimeBudget(DECISION_S, time.perf_counter))
    check_min_peers(first, config.round.min_peers, str(name))
    is_read = isinstance(name, str) and is_file(name)
    return ChosenPolicy(describe_choice(name), lambda _: deepcopy(first) if is_read else policy_of(name))


def check_min_peers(policy: Policy, least: int, where: str) -> None:
    """Raise ConfigError if the mesh begins with more devices than the policy's file can order."""
    known = getattr(policy, "n", None)
    if isinstance(known, int) and least > known:
        check_count(policy, least, where)


if __name__ == "__main__":
    main()
