"""`mdl sim` and `mdl replay`: the simulated mesh as judge, and stories read again. Slow imports come late.

`mdl sim search` plays all schedules of a small mesh within a few departures.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer
from msgspec.structs import replace as replace_struct

from mdl.config import MANY, Exchange
from mdl.errors import ConfigError, MdlError, UnfinishedError
from mdl.peers.command.options import (
    AsJson,
    CommandGroup,
    FirstSeed,
    LogLevel,
    PlanPolicy,
    Processes,
    Quiet,
    check_choice,
    finite,
    log_at,
    tell,
)
from mdl.peers.command.progress import progress_bar

if TYPE_CHECKING:
    from mdl.peers.command.progress import Show
    from mdl.peers.trials.campaign import Bound, Campaign, Found, Searched, Totals
    from mdl.sim.mesh.invariants import RunVerdict
    from mdl.sim.plans.fault_plan import FaultPlan

app = CommandGroup("Judge the mesh under faults, in virtual time.")

# A drawn plan of 64 devices has a hundred faults of 100 bytes.
_LARGEST_PLAN_BYTES = 1 << 20
# The most failing seeds that are shrunk and told; the others are named.
_SHRUNK = 3
# The most verdicts in the JSON object: a broken mesh fails everywhere, and each takes some kilobytes.
_VERDICTS_TOLD = 20


Wide = Annotated[
    bool, typer.Option(help="Draw 2 to 9 devices and 1 to 12 rounds in equal parts, with faults in every round.")
]
Revocations = Annotated[bool, typer.Option(help="Lock devices out, too (`mdl mesh revoke`).")]
OuterMomentum = Annotated[
    float,
    typer.Option(
        help="Apply this Nesterov momentum to the rounds' results; 0 applies none.", min=0, max=0.99, callback=finite
    ),
]
Rounded = Annotated[str, typer.Option(help="Round segments by none, int8, int4 or any.")]
PowerCuts = Annotated[
    bool,
    typer.Option(
        "--power-cuts", help="Cut the power of machines; their disks lose what they wrote in the last 0 to 2 s."
    ),
]
Liars = Annotated[int, typer.Option(help="Let so many devices give a thousand times what they should.", min=0, max=20)]
# A departure is some 50 bytes, and told in 100.
_LARGEST_STORY_BYTES = 1 << 16


@app.command("run")
def run(
    peers: Annotated[int | None, typer.Option(help="Play with so many devices; 6 by default.", min=1, max=64)] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Let each mesh get through so many rounds; 3 by default.", min=1, max=20)
    ] = None,
    wide: Wide = False,
    faults: Annotated[str, typer.Option(help="Draw none, mild or hard faults.")] = "hard",
    seeds: Annotated[int, typer.Option(help="Play so many seeds.", min=1, max=MANY)] = 1000,
    seed_from: FirstSeed = 0,
    policy: PlanPolicy = "greedy",
    agent: Annotated[
        str, typer.Option(help="Let an agent lead: any, dedicated (`mdl agent` leads first) or elected.")
    ] = "any",
    on_partition: Annotated[
        str, typer.Option(help="Let a part of a split mesh wait or continue, or any of both.")
    ] = "any",
    exchange: Annotated[
        str, typer.Option(help="Exchange by chain (hop by hop), shares (segments), auto or any.")
    ] = "chain",
    compress: Rounded = "none",
    outer_momentum: OuterMomentum = 0.0,
    overlap: Annotated[bool, typer.Option("--overlap", help="Let two devices of three train one round ahead.")] = False,
    slow: Annotated[
        bool, typer.Option("--slow", help="Let one device of three train much longer; rounds go on without it.")
    ] = False,
    revocations: Revocations = False,
    leaves: Annotated[bool, typer.Option("--leaves", help="Let users end devices, too; some are back soon.")] = False,
    splits: Annotated[bool, typer.Option("--splits", help="Let the mesh fall apart, for 2 to 14 s each time.")] = False,
    power_cuts: PowerCuts = False,
    copies: Annotated[bool, typer.Option("--copies", help="Put backups back, and use cloned cards.")] = False,
    starved: Annotated[bool, typer.Option("--starved", help="Give devices hardly any processor for 10 s.")] = False,
    liars: Liars = 0,
    plan: Annotated[Path | None, typer.Option(help="Run only this saved plan, and print its story.")] = None,
    shrink: Annotated[bool, typer.Option(help="Look for the shortest plan that still fails.")] = True,
    processes: Processes = None,
    out: Annotated[Path | None, typer.Option(help="Write failing plans and stories to this folder.")] = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run fault plans, one for each seed.

    It ends with exit code 4 if a contribution is lost or counts twice, or a mesh is stuck.
    """
    log_at(log_level, quiet)
    if plan is not None:
        _run_plan(plan, out, as_json)
        return
    from mdl.peers.trials.campaign import count_cores, run_campaign

    chosen = policy, agent, on_partition, exchange, compress, outer_momentum, revocations
    campaign = _campaign(peers, rounds, wide, faults, *chosen)
    campaign = replace(campaign, liars=liars, overlap=overlap, slow=slow, leaves=leaves, splits=splits)
    campaign = replace(campaign, power_cuts=power_cuts, copies=copies, starved=starved)
    _check_coding(campaign)
    started = time.monotonic()
    with progress_bar() as show:
        totals = run_campaign(
            *(campaign, range(seed_from, seed_from + seeds), processes or count_cores()),
            lambda now: show("seeds", now.seeds, seeds, f"{sum(now.violations.values())} failed"),
        )
    elapsed_s = time.monotonic() - started
    directory = _save_failures(campaign, totals, out, shrink) if totals.failing else None
    _end(totals, elapsed_s, directory, wide, as_json)


def _save_failures(campaign: Campaign, totals: Totals, out: Path | None, shrink: bool) -> Path | None:
    """Save plans and stories; return their directory. Failures are told even if the disk refuses.

    A seed gives its plan again.
    """
    directory = None
    try:
        directory = _out_dir(out, "sim")
        _save_plans(campaign, totals, directory)
        for verdict in [] if totals.interrupted else totals.failing[:_SHRUNK]:
            _tell_failure(campaign.plan(verdict.seed), verdict, directory, shrink)
    except (OSError, MdlError) as error:
        tell(f"mdl: not all plans and stories are saved: {error}")
    return directory


def replay(
    story: Annotated[Path, typer.Argument(help="Replay this story-*.jsonl of a run, or of `mdl sim run`.")],
    limit: Annotated[
        int, typer.Option(help="Print at most so many of the last steps; 0 prints all.", min=0, max=MANY)
    ] = 0,
    policy: Annotated[
        str | None,
        typer.Option(help="Give the policy that it followed, FILE or package.module:factory: a story only names it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a recorded process, and compare what it does.

    Its machine is stepped through what it saw, and has to do what it did.
    """
    from mdl.own import own_policy
    from mdl.peers.trials.campaign import silent_machines
    from mdl.peers.trials.story_file import load_story, replay_story, tell_entries

    entries = load_story(story)
    own = own_policy(policy) if policy else None
    if not as_json:
        for line in tell_entries(entries, limit):
            print(line)
    with silent_machines():
        result = replay_story(entries, own)
    told = result.as_dict() | {"story": str(story)}
    if result.differs:
        raise UnfinishedError(result.describe(), 4, told)
    tell(result.describe())
    if as_json:
        print(json.dumps(told))


def _campaign(
    peers: int | None,
    rounds: int | None,
    wide: bool,
    faults: str,
    policy: str,
    agent: str,
    on_partition: str,
    exchange: str,
    compress: str,
    outer_momentum: float,
    revocations: bool,
) -> Campaign:
    from mdl.errors import ConfigError
    from mdl.peers.trials.campaign import Campaign
    from mdl.protocol.coding import CODINGS, Coding

    if wide and not (peers is None and rounds is None):
        raise ConfigError("--wide draws sizes and lengths from the seeds: leave --peers and --rounds out")
    check_choice("--faults", faults, ("none", "mild", "hard"))
    check_choice("--policy", policy, _policies())
    check_choice("--agent", agent, ("any", "dedicated", "elected"))
    check_choice("--on-partition", on_partition, ("any", "wait", "continue"))
    check_choice("--exchange", exchange, (*get_args(Exchange), "any"))
    check_choice("--compress", compress, (*CODINGS, "any"))
    if compress != "none" and exchange == "chain":
        raise ConfigError(f"--compress {compress}: only segments are rounded; add --exchange shares, auto or any")
    return Campaign(
        peers or 6,
        rounds or 3,
        faults,
        policy,
        None if agent == "any" else agent == "dedicated",
        None if on_partition == "any" else on_partition,
        wide,
        cast(Literal[Exchange, "any"], exchange),
        cast(Literal[Coding, "any"], compress),
        outer_momentum,
        revocations=revocations,
    )


def _check_coding(campaign: Campaign) -> None:
    from mdl.errors import ConfigError

    if campaign.splits and campaign.compress in ("int4", "any"):
        raise ConfigError(
            f"--splits with --compress {campaign.compress}: work of many rounds then comes in one piece, and rounding "
            "would hide it. Expected none or int8"
        )


def _run_plan(path: Path, out: Path | None, as_json: bool) -> None:
    import msgspec

    from mdl.peers.trials.campaign import silent_machines
    from mdl.peers.trials.run_plan import tell_plan

    plan = _read_plan(path)
    with silent_machines():
        verdict, mesh = tell_plan(plan)
    from mdl.peers.trials.story_file import tell_story

    if not as_json:
        for line in tell_story(mesh.story or []):
            print(line)
    if out is not None:
        _save_stories(mesh, _out_dir(out, "sim"))
    for line in verdict.waits:
        print(line, file=sys.stderr)
    told = msgspec.to_builtins(verdict)
    if verdict.kind:
        raise UnfinishedError(f"plan {path}: {verdict.problem}", 4, told)
    tell(f"plan {path}: {verdict.problem or 'nothing lost, nothing counted twice'}")
    if as_json:
        print(json.dumps(told))


def _save_plans(campaign: Campaign, totals: Totals, directory: Path) -> None:
    """Save the plan of each failing seed as it was drawn, and print the command that runs it again."""
    from mdl.sim.plans.fault_plan import dump_plan
    from mdl.writing import write_bytes

    for verdict in totals.failing:
        path = directory / f"plan-{verdict.seed}.json"
        write_bytes(path, dump_plan(campaign.plan(verdict.seed)))
        print(f"seed {verdict.seed}: {verdict.kind}; again: mdl sim run --plan {path}", file=sys.stderr)


def _tell_failure(plan: FaultPlan, verdict: RunVerdict, directory: Path, shrink: bool) -> None:
    """Shrink one failing plan; save the shortest and its story, and print both."""
    from mdl.peers.trials.campaign import silent_machines
    from mdl.peers.trials.run_plan import shrink as shrink_failing
    from mdl.peers.trials.run_plan import tell_plan
    from mdl.peers.trials.story_file import tell_story
    from mdl.sim.plans.fault_plan import dump_plan

    with silent_machines():
        shortest = shrink_failing(plan, verdict.kind) if shrink else plan
        told, mesh = tell_plan(shortest)
    from mdl.writing import write_bytes

    saved = directory / f"shortest-{verdict.seed}.json"
    write_bytes(saved, dump_plan(shortest))
    lines = list(tell_story(mesh.story or []))
    write_bytes(directory / f"story-{verdict.seed}.txt", ("\n".join(lines) + "\n").encode())
    _save_stories(mesh, directory / f"seed-{verdict.seed}")
    tell(f"seed {verdict.seed}: {told.kind}: {told.problem}")
    for line in told.waits:
        tell(f"  {line}")
    tell(f"  the shortest plan that still fails: {len(shortest.faults)} faults, in {saved}")
    tell(dump_plan(shortest).decode())
    tell("\n".join(lines))


def _save_stories(mesh: object, directory: Path) -> None:
    from mdl.peers.trials.story_file import save_stories
    from mdl.sim.mesh.driver import SimMesh

    assert isinstance(mesh, SimMesh)
    save_stories(mesh, directory)


def _end(totals: Totals, elapsed_s: float, directory: Path | None, wide: bool, as_json: bool) -> None:
    import msgspec

    from mdl.peers.trials.campaign import size_table

    failing = [verdict.seed for verdict in totals.failing]
    result = {
        "seeds": totals.seeds,
        "messages": totals.messages,
        "rounds_closed": totals.rounds_closed,
        "lost_with_owner": totals.lost_with_owner,
        "lost": totals.lost,
        "double": totals.double,
        "stuck": totals.stuck,
        "seeds_per_s": round(totals.seeds / max(1e-9, elapsed_s), 1),
        "failing_seeds": failing,
        "violations": dict(sorted(totals.violations.items())),
        "without_quorum": totals.without_quorum,
        "revoked": totals.revoked,
    }
    verdicts = [msgspec.to_builtins(verdict) for verdict in totals.failing[:_VERDICTS_TOLD]]
    if not as_json:
        for name, value in result.items():
            print(f"{name:<16} {value}")
    if wide:
        sizes = totals.by_size()
        result["sizes"] = [msgspec.to_builtins(size) for size in sizes]
        if not as_json:
            print("\n".join(size_table(sizes)))
    if failing:
        raise UnfinishedError(
            f"{sum(totals.violations.values())} of {totals.seeds} seeds failed: {directory}",
            4,
            result | {"failures": verdicts},
        )
    if totals.interrupted:
        raise UnfinishedError(f"interrupted after {totals.seeds} seeds", 130, result)
    if as_json:
        print(json.dumps(result))


def _read_plan(path: Path) -> FaultPlan:
    from mdl.errors import ConfigError, DataError
    from mdl.reading import read_bytes
    from mdl.sim.plans.fault_plan import load_plan

    content = read_bytes(path, _LARGEST_PLAN_BYTES, "a plan that `mdl sim run` saved")
    try:
        plan = load_plan(content)
    except DataError as error:
        raise ConfigError(f"{path}: {error}") from None
    check_choice(f"{path}: policy", plan.policy, _policies())
    return plan


def _policies() -> tuple[str, ...]:
    from mdl.scheduler.policies.registry import POLICIES

    return tuple(POLICIES)


def _out_dir(out: Path | None, kind: str) -> Path:
    from mdl.writing import make_private_folder

    directory = out or Path("runs") / time.strftime(f"{kind}-%Y%m%d-%H%M%S")
    make_private_folder(directory)
    return directory


def search(
    peers: Annotated[int, typer.Option(help="Play with so many devices; more than 3 take long.", min=1, max=9)] = 3,
    rounds: Annotated[int, typer.Option(help="Let each mesh get through so many rounds.", min=1, max=9)] = 1,
    depth: Annotated[int, typer.Option(help="Allow so many departures in one schedule at most.", min=0, max=9)] = 1,
    from_round: Annotated[int, typer.Option(help="Begin departures in this round.", min=1, max=9)] = 1,
    kinds: Annotated[
        str, typer.Option(help="Allow these departures; forget is one more.")
    ] = "lose,late,crash,cut,sever,suspend",
    policy: PlanPolicy = "greedy",
    agent: Annotated[bool, typer.Option("--agent", help="Add a dedicated agent, one process more.")] = False,
    on_partition: Annotated[str, typer.Option(help="Let a part of a split mesh wait or continue.")] = "continue",
    exchange: Annotated[str, typer.Option(help="Exchange by chain (hop by hop), shares (segments) or auto.")] = "chain",
    story: Annotated[Path | None, typer.Option(help="Play only this saved story, and print it.")] = None,
    processes: Processes = None,
    out: Annotated[Path | None, typer.Option(help="Write the story of a failure to this folder.")] = None,
    log_level: LogLevel = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go through everything that a few faults can do.

    These are all schedules with so many departures from the usual one; exit code 4 if one breaks something.

    In a departure a message is lost or late, or a process crashes and starts again. Or a process is cut off (sever:
    from one other), or suspended for a while.
    With --policy tree the agent has the result.
    """
    log_at(log_level, quiet)
    if story is not None:
        _tell_found(_load_found(story), None, as_json, {})
        return
    from mdl.peers.trials.campaign import count_cores, search_all

    check_choice("--exchange", exchange, get_args(Exchange))
    bound = _bound(peers, rounds, from_round, policy, on_partition, tuple(kinds.split(",")), agent)
    bound = replace_struct(bound, exchange=cast(Exchange, exchange))
    with progress_bar() as show:
        searched = search_all(bound, depth, processes or count_cores(), lambda now: _show_searched(show, now))
    told = searched.as_dict()
    if not as_json:
        for name, value in told.items():
            print(f"{name:<16} {value}")
    if searched.found:
        _tell_found(searched.found, out or Path("runs") / time.strftime("search-%Y%m%d-%H%M%S"), as_json, told)
    if searched.interrupted:
        raise UnfinishedError(f"interrupted after {searched.describe()}", 130, told)
    if as_json:
        print(json.dumps(told))


def _bound(
    peers: int, rounds: int, from_round: int, policy: str, on_partition: str, kinds: tuple[str, ...], agent: bool
) -> Bound:
    from mdl.peers.trials.campaign import Bound
    from mdl.scheduler.policies.registry import POLICIES
    from mdl.sim.mesh.search import KINDS

    for kind in kinds:
        check_choice("--kinds", kind, tuple(KINDS))
    check_choice("--on-partition", on_partition, ("wait", "continue"))
    check_choice("--policy", policy, tuple(POLICIES))
    if from_round > rounds:
        raise ConfigError(f"--from-round {from_round}: expected at most --rounds, {rounds}")
    return Bound(peers, rounds, from_round, policy, on_partition, kinds, agent)


def _load_found(story: Path) -> Found:
    from mdl.peers.trials.campaign import load_found
    from mdl.reading import read_bytes

    return load_found(read_bytes(story, _LARGEST_STORY_BYTES, "a story that `mdl sim search` saved"))


def _tell_found(found: Found, directory: Path | None, as_json: bool, told: dict[str, Any]) -> None:
    """Replay one schedule, and tell its story; exit with code 4 if it breaks something.

    directory: for the story's files, if given.
    """
    import msgspec

    from mdl.peers.trials.campaign import dump_found, tell_found
    from mdl.peers.trials.story_file import tell_story
    from mdl.writing import make_private_folder, write_bytes

    found, walk = tell_found(found.bound, found.departures)
    lines = list(tell_story(walk.mesh.story or []))
    if directory is not None:
        make_private_folder(directory)
        write_bytes(directory / "story.json", dump_found(found))
        write_bytes(directory / "story.txt", ("\n".join(lines) + "\n").encode())
    if not as_json:
        print("\n".join(lines))
    for number, line in enumerate(found.told, 1):
        tell(f"{number}. {line}")
    told |= msgspec.to_builtins(found)
    if found.kind:
        again = f"; again: mdl sim search --story {directory / 'story.json'}" if directory else ""
        raise UnfinishedError(f"{found.kind}: {found.problem}{again}", 4, told)
    tell("nothing is broken")
    if as_json:
        print(json.dumps(told))


def _show_searched(show: Show, searched: Searched) -> None:
    note = f"{searched.schedules} schedules, {searched.steps} steps"
    show(f"{searched.depth} departures", searched.done, searched.parts, note)
