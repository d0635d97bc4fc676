"""`mdl sim search`: all schedules of a small mesh within a few departures. Slow imports come late."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from msgspec.structs import replace

from mdl.config import Exchange
from mdl.errors import ConfigError, UnfinishedError
from mdl.peers.cli.options import AsJson, LogLevel, PlanPolicy, Processes, Quiet, check_choice, log_at, tell
from mdl.peers.cli.progress import progress_bar

if TYPE_CHECKING:
    from mdl.peers.cli.progress import Show
    from mdl.peers.trials.explore import Bound, Found, Searched

# A departure is some 50 bytes, and told in 100.
_LARGEST_STORY_BYTES = 1 << 16


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
        _tell(_load(story), None, as_json, {})
        return
    from mdl.peers.trials.campaign import count_cores
    from mdl.peers.trials.explore import search_all

    check_choice("--exchange", exchange, get_args(Exchange))
    bound = _bound(peers, rounds, from_round, policy, on_partition, tuple(kinds.split(",")), agent)
    bound = replace(bound, exchange=cast(Exchange, exchange))
    with progress_bar() as show:
        searched = search_all(bound, depth, processes or count_cores(), lambda now: _show(show, now))
    told = searched.as_dict()
    if not as_json:
        for name, value in told.items():
            print(f"{name:<16} {value}")
    if searched.found:
        _tell(searched.found, out or Path("runs") / time.strftime("search-%Y%m%d-%H%M%S"), as_json, told)
    if searched.interrupted:
        raise UnfinishedError(f"interrupted after {searched.describe()}", 130, told)
    if as_json:
        print(json.dumps(told))


def _bound(
    peers: int, rounds: int, from_round: int, policy: str, on_partition: str, kinds: tuple[str, ...], agent: bool
) -> Bound:
    from mdl.peers.trials.explore import Bound
    from mdl.scheduler.policies.registry import POLICIES
    from mdl.sim.mesh.search import KINDS

    for kind in kinds:
        check_choice("--kinds", kind, tuple(KINDS))
    check_choice("--on-partition", on_partition, ("wait", "continue"))
    check_choice("--policy", policy, tuple(POLICIES))
    if from_round > rounds:
        raise ConfigError(f"--from-round {from_round}: expected at most --rounds, {rounds}")
    return Bound(peers, rounds, from_round, policy, on_partition, kinds, agent)


def _load(story: Path) -> Found:
    from mdl.peers.trials.explore import load_found
    from mdl.reading import read_bytes

    return load_found(read_bytes(story, _LARGEST_STORY_BYTES, "a story that `mdl sim search` saved"))


def _tell(found: Found, directory: Path | None, as_json: bool, told: dict[str, Any]) -> None:
    """Replay one schedule, and tell its story; exit with code 4 if it breaks something.

    directory: for the story's files, if given.
    """
    import msgspec

    from mdl.peers.trials.explore import dump_found, tell_found
    from mdl.sim.mesh.story_lines import tell_story
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


def _show(show: Show, searched: Searched) -> None:
    note = f"{searched.schedules} schedules, {searched.steps} steps"
    show(f"{searched.depth} departures", searched.done, searched.parts, note)
