"""A real round, as its agent recorded it: drawn as a chart, or rebuilt as a scenario to play other policies on.

`Rebuilt.estimates` tells the estimates of a rebuilt scenario and their sources. A recording holds no truth about a
device that never had a partner, and none about other orders of hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import UsageKind
from mdl.errors import DataError, MeshNotFoundError
from mdl.files.figures import read_rounds, read_run
from mdl.protocol.status_messages import DeviceRecord, HopSummary, MeshStatus, RoundSummary
from mdl.reading import LARGEST_TOML_BYTES, decode_toml, read_text
from mdl.scheduler.explain.chart import Chart, Exchanged, SeenDevice, SeenHop, chart_round
from mdl.scheduler.given import is_file
from mdl.scheduler.policies.chain import ChainView, Decision, DeviceState, Pair, Wait

# Stands for a merge that took no time that the agent could see.
_FAST_MERGE_MB_S = 10_000.0
_SHORTEST_S = 1e-6


@dataclass(frozen=True)
class RealRound:
    """end_s: the time at which one holder had all, or now if that is open; since the round was opened.

    policy: empty if unknown. exchange: of a round in segments, which ends when all have the result. size_mb: of a
    delta; None if not told. why_hops: the reason against segments; "": it went in segments, or was not meant to.
    """

    number: int
    hops: tuple[HopSummary, ...]
    devices: tuple[DeviceRecord, ...]
    end_s: float
    is_over: bool
    where: str
    policy: str = ""
    exchange: Exchanged | None = None
    size_mb: float | None = None
    why_hops: str = ""

    @property
    def title(self) -> str:
        if self.exchange:
            return f"{self.where}, round {self.number}, in segments"
        policy = f", policy {self.policy}" if self.policy else ""
        return f"{self.where}, round {self.number}{policy}"


@dataclass(frozen=True)
class Rebuilt:
    """A scenario from a recording. names: of its devices by index; measured_s: the recorded time to one holder."""

    scenario: Scenario
    names: tuple[str, ...]
    measured_s: float
    pairs: tuple[tuple[int, int], ...]
    estimates: tuple[str, ...]


def read_real_rounds(directory: Path) -> list[RoundSummary]:
    """Read all finished rounds of a run directory: of `mdl up`, an agent or a peer. Raises DataError if it is none."""
    own = directory / "metrics.jsonl"
    try:
        rounds = read_rounds(own) if own.exists() else read_run(directory)
    except DataError as error:
        raise DataError(f"{own}: not the rounds of a run ({error})") from None
    if not rounds:
        raise DataError(f"{directory}: no finished round in it; expected the run directory of `mdl up`, or of an agent")
    return rounds


def pick_round(directory: Path, number: int | None) -> RealRound:
    """Return the round with this number, or the last one. Raises DataError if it is missing or has no schedule."""
    rounds = {summary.round: summary for summary in read_real_rounds(directory)}
    wanted = max(rounds) if number is None else number
    if wanted not in rounds:
        raise DataError(f"{directory}: no round {wanted}; it has {min(rounds)} to {max(rounds)}")
    return finished_round(rounds[wanted], str(directory), read_policy(directory))


def read_policy(directory: Path) -> str:
    """Return the config's policy, a file without its folder; empty if the config is unreadable or names none."""
    try:
        path = directory / "config.toml"
        config = decode_toml(read_text(path, LARGEST_TOML_BYTES), str(path))
    except DataError:
        return ""
    section = config.get("round")
    name = str(section.get("policy", "")) if isinstance(section, dict) else ""
    return Path(name).name if is_file(name) else name


def finished_round(summary: RoundSummary, where: str, policy: str = "") -> RealRound:
    """Convert a recorded line. Raises DataError for a line of an older version, which has no schedule."""
    if not summary.schedule and summary.hops:
        raise DataError(f"{where}: round {summary.round} tells no schedule: it was recorded by an older version")
    if summary.shares:
        return _round_in_segments(summary, where, policy)
    reduced_s = summary.seconds.get("train", 0.0) + summary.seconds.get("aggregate", 0.0)
    ends = [hop.decided_s for hop in summary.schedule if hop.outcome == "merged" and hop.decided_s is not None]
    end_s = max([reduced_s, *ends])
    return RealRound(
        *(summary.round, summary.schedule, summary.devices, end_s, True, where, policy), why_hops=summary.plan
    )


def _round_in_segments(summary: RoundSummary, where: str, policy: str) -> RealRound:
    start_s = summary.seconds.get("train", 0.0) + summary.seconds.get("aggregate", 0.0)
    end_s = start_s + summary.exchange_s
    exchange = Exchanged(summary.plan, summary.shares, start_s, end_s, summary.bound_s)
    # Older lines do not tell the model's size, nor that coding sent fewer bytes than the values take.
    size_mb = 4e-6 * summary.size or summary.bytes / 1e6 / max(1, 2 * (len(summary.shares) - 1))
    return RealRound(
        summary.round, summary.schedule, summary.devices, end_s, True, where, policy, exchange, size_mb or None
    )


def live_round(status: MeshStatus, finished: Sequence[RoundSummary]) -> RealRound:
    """Return the open round of a live mesh; the last finished one while nothing has been ordered in it.

    Raises MeshNotFoundError if there is neither.
    """
    told = [summary for summary in finished if summary.devices]
    if status.devices and status.shares:
        start_s = max(0.0, status.elapsed_s - status.exchanging_s)
        over = "segments" not in status.phase
        exchange = Exchanged(status.plan, status.shares, start_s, status.elapsed_s if over else None, status.bound_s)
        return RealRound(
            *(status.round_id, status.hops, status.devices, status.elapsed_s, over, "live mesh"),
            *(status.policy, exchange),
        )
    if status.devices and (status.hops or not told):
        undecided = any(hop.decided_s is None for hop in status.hops)
        over = bool(status.hops) and not undecided and "aggregat" not in status.phase
        ends = [hop.decided_s for hop in status.hops if hop.decided_s is not None]
        end_s = max(ends) if over else status.elapsed_s
        return RealRound(status.round_id, status.hops, status.devices, end_s, over, "live mesh", status.policy)
    if not told:
        raise MeshNotFoundError(f"live mesh: no round is open and none is finished yet (it is {status.phase})")
    ready = sum(device.ready_s is not None for device in status.devices)
    opened = f"round {status.round_id} is open, {ready} of {len(status.devices)} are ready"
    where = f"live mesh ({opened if status.devices else status.phase})"
    return finished_round(told[-1], where, status.policy)


def chart_real(real: RealRound) -> Chart:
    devices = [SeenDevice(each.peer_id, each.ready_s, each.busy, bool(each.lost)) for each in real.devices]
    hops = [
        SeenHop(hop.sender, hop.receiver, hop.outcome, hop.ordered_s, hop.decided_s, hop.transfer_s, hop.reason)
        for hop in real.hops
    ]
    chart = chart_round(real.title, devices, hops, real.end_s, real.is_over, real.exchange)
    return replace(chart, why_hops=real.why_hops)


def tell_lost(real: RealRound) -> tuple[str, ...]:
    """Tell each device that the round went on without, and why: "e: left out: 5 of 9 were ready after 4.1 s, ..."."""
    return tuple(f"{each.peer_id}: {each.lost}" for each in real.devices if each.lost)


def rebuild(real: RealRound) -> Rebuilt:
    """Rebuild the round as a scenario of the timing model. Raises DataError if too little was recorded."""
    if real.exchange:
        return _rebuild_segments(real, real.exchange)
    merged = [hop for hop in real.hops if hop.outcome == "merged" and hop.decided_s is not None and hop.size_bytes]
    took_part = {peer for hop in merged for peer in (hop.sender, hop.receiver)}
    devices = [each for each in real.devices if each.peer_id in took_part and each.ready_s is not None]
    if len(devices) < 2:
        raise DataError(f"{real.where}: round {real.number}: fewer than two devices merged anything")
    names = tuple(each.peer_id for each in devices)
    size_mb = median(hop.size_bytes for hop in merged) / 1e6
    known = {each.peer_id: each.merge_mb_s for each in devices}
    latency_s = min(_overhead_s(hop) - _known_merge_s(hop, known) for hop in merged)
    links = _find_links(devices, merged)
    made = tuple(
        ScenarioDevice(
            each.ready_s or 0.0,
            links[each.peer_id],
            each.merge_mb_s or _merge_mb_s(each.peer_id, merged, size_mb, latency_s),
            _kind_of(each),
            battery_percent=100.0 if each.battery_percent is None else each.battery_percent,
            charging=bool(each.charging),
            busy=_close_periods(each.busy, real.end_s),
        )
        for each in devices
    )
    scenario = Scenario(f"round-{real.number}", "recorded", size_mb, latency_s, made)
    index = {name: number for number, name in enumerate(names)}
    pairs = tuple(
        (index[hop.sender], index[hop.receiver])
        for hop in sorted(merged, key=lambda hop: hop.ordered_s)
        if hop.sender in index and hop.receiver in index
    )
    return Rebuilt(scenario, names, real.end_s, pairs, _tell_estimates(real, names))


def _rebuild_segments(real: RealRound, exchange: Exchanged) -> Rebuilt:
    """Rebuild a round without hops, which shows links alone."""
    devices = [each for each in real.devices if each.peer_id in exchange.owns and each.ready_s is not None]
    links = [each.link_mb_s for each in devices if each.link_mb_s]
    if len(devices) < 2 or not links or not real.size_mb:
        raise DataError(f"{real.where}: round {real.number}: its links are not known yet, or it is not over")
    made = tuple(
        ScenarioDevice(
            *(
                each.ready_s or 0.0,
                each.link_mb_s or median(links),
                each.merge_mb_s or _FAST_MERGE_MB_S,
                _kind_of(each),
            ),
            battery_percent=100.0 if each.battery_percent is None else each.battery_percent,
            charging=bool(each.charging),
            busy=_close_periods(each.busy, real.end_s),
        )
        for each in devices
    )
    scenario = Scenario(f"round-{real.number}", "recorded", real.size_mb, 0.0, made)
    told = (
        "links: what the agent knew after the round, as segments have shown it",
        "latency and merges: a round in segments shows neither; they are taken to be nothing",
    )
    return Rebuilt(scenario, tuple(each.peer_id for each in devices), real.end_s, (), told)


class RecordedOrder:
    """Orders the recorded hops again, each as soon as both are free: the model's error against the measured time."""

    name = "recorded"

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._left = list(pairs)

    def decide(self, view: ChainView) -> Decision:
        held_up: set[int] = set()
        for pair in self._left:
            free = all(view.devices[index].state is DeviceState.FREE for index in pair)
            if free and not held_up & set(pair):
                self._left.remove(pair)
                sender, receiver = (view.devices[index].peer_id for index in pair)
                return Pair(sender, receiver, "recorded: it was ordered so")
            held_up |= set(pair)
        if view.may_wait():
            return Wait("recorded: the next hop cannot start yet")
        first, second = view.free()[:2]
        return Pair(first.peer_id, second.peer_id, "recorded: nothing more was ordered")


def _overhead_s(hop: HopSummary) -> float:
    """Return the time from order to decision, without the transfer: messages both ways, and the merge."""
    return max(0.0, (hop.decided_s or 0.0) - hop.ordered_s - hop.transfer_s)


def _known_merge_s(hop: HopSummary, known: dict[str, float | None]) -> float:
    """Return the merge's time if its receiver has told its speed; at most the time that was not transfer."""
    merge_mb_s = known.get(hop.receiver)
    return min(_overhead_s(hop), hop.size_bytes / 1e6 / merge_mb_s) if merge_mb_s else 0.0


def _find_links(devices: Sequence[DeviceRecord], merged: Sequence[HopSummary]) -> dict[str, float]:
    """Return the links as the agent knew them afterwards; for an unknown one the fastest hop of the device."""
    rates: dict[str, list[float]] = {}
    for hop in merged:
        for peer in (hop.sender, hop.receiver):
            rates.setdefault(peer, []).append(hop.size_bytes / 1e6 / max(_SHORTEST_S, hop.transfer_s))
    return {each.peer_id: each.link_mb_s or max(rates[each.peer_id]) for each in devices}


def _merge_mb_s(peer: str, merged: Sequence[HopSummary], size_mb: float, latency_s: float) -> float:
    merges_s = [_overhead_s(hop) - latency_s for hop in merged if hop.receiver == peer]
    merge_s = median(merges_s) if merges_s else 0.0
    return min(_FAST_MERGE_MB_S, size_mb / max(_SHORTEST_S, merge_s))


def _kind_of(device: DeviceRecord) -> UsageKind:
    """Return the recorded kind; a device that was busy is not idle, even if little was seen of it."""
    known = UsageKind(device.kind) if device.kind < len(UsageKind) else UsageKind.IDLE
    return UsageKind.INTERACTIVE if device.busy and known is UsageKind.IDLE else known


def _close_periods(busy: Sequence[tuple[float, float | None]], end_s: float) -> tuple[tuple[float, float], ...]:
    closed = [(start, end_s if end is None else end) for start, end in busy]
    return tuple((start, end) for start, end in closed if end > start)


def _tell_estimates(real: RealRound, names: Sequence[str]) -> tuple[str, ...]:
    left_out = [each.peer_id for each in real.devices if each.peer_id not in names]
    busy = [each.peer_id for each in real.devices if each.peer_id in names and each.busy]
    told = [
        "links: what the agent knew after the round; a device's link shows only with a partner that is not slower",
        "latency: the shortest time between order and report that was neither transfer nor merge",
        "merges: as the device told, else the time beyond latency and transfer; a device that never merged is taken "
        "to need no time",
        "ready and busy times: as the agent heard them in reports; they are taken not to depend on the order",
    ]
    if busy:
        told.append(f"busy ({', '.join(busy)}): in the model a hop stands still meanwhile, which a real one need not")
    if left_out:
        told.append(f"left out, because they were in no merged hop: {', '.join(left_out)}")
    return tuple(told)
