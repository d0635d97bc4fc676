"""The shortest plan that still fails: drops everything else. Pure; the caller defines a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from mdl.sim.plans.fault_plan import AGENT_NODE, ENDS, AnyFault, Burst, FaultPlan, Restart, Split, names_of, ordered

Fails = Callable[[FaultPlan], bool]


def shrink_plan(plan: FaultPlan, fails: Fails, tries: int = 300) -> FaultPlan:
    """Return the smallest plan found in so many runs that `fails`; `plan` itself does.

    A peer's crash goes together with its restart: staying away would be another, harder fault.
    """
    left = [tries]

    def still_fails(candidate: FaultPlan) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fails(candidate)

    while left[0] > 0:
        smaller = next((candidate for candidate in _smaller(plan) if still_fails(candidate)), None)
        if smaller is None:
            break
        plan = smaller
    return plan


def _smaller(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Yield plans that are one step smaller, the boldest first."""
    units = _units(plan.faults)
    size = len(units) // 2
    while size >= 1:
        for start in range(0, len(units), size):
            kept = units[:start] + units[start + size :]
            yield replace(plan, faults=ordered(fault for unit in kept for fault in unit))
        size //= 2
    yield from _smaller_bursts(plan)
    noises = [name for name in ("loss", "duplication", "jitter_s", "late") if getattr(plan, name)]
    if len(noises) > 1:
        yield replace(plan, **dict.fromkeys(noises, 0.0))
    for name in noises:
        yield replace(plan, **{name: 0.0})
    if plan.rounds > 1:
        yield replace(plan, rounds=plan.rounds - 1)
    if plan.peers > 2:
        yield _without_last_peer(plan)
    if plan.has_agent and not any(AGENT_NODE in names_of(fault) for fault in plan.faults):
        yield replace(plan, has_agent=False)
    if plan.exchange != "chain":
        yield replace(plan, exchange="chain")
    if plan.on_partition != "wait":
        yield replace(plan, on_partition="wait")


def _smaller_bursts(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Yield plans in which one burst has a fault less."""
    for place, burst in enumerate(plan.faults):
        if isinstance(burst, Burst) and len(units := _units(burst.faults)) > 1:
            for dropped in range(len(units)):
                kept = tuple(fault for number, unit in enumerate(units) if number != dropped for fault in unit)
                yield replace(
                    plan, faults=(*plan.faults[:place], replace(burst, faults=kept), *plan.faults[place + 1 :])
                )


def _units(faults: Iterable[AnyFault]) -> list[list[AnyFault]]:
    """Group the faults: each crash, power cut and leave goes together with the peer's next restart."""
    units: list[list[AnyFault]] = []
    waiting: dict[str, list[AnyFault]] = {}
    for fault in faults:
        if isinstance(fault, Restart) and fault.peer in waiting:
            waiting.pop(fault.peer).append(fault)
            continue
        units.append([fault])
        if isinstance(fault, ENDS):
            waiting[fault.peer] = units[-1]
    return units


def _without_last_peer(plan: FaultPlan) -> FaultPlan:
    gone = f"p{plan.peers - 1}"
    faults: list[AnyFault] = []
    for fault in plan.faults:
        if isinstance(fault, Split):
            group = tuple(peer for peer in fault.group if peer != gone)
            faults += [replace(fault, group=group)] if group else []
        elif gone not in names_of(fault):
            faults.append(fault)
    return replace(plan, peers=plan.peers - 1, faults=tuple(faults))
